"""What becomes of an answer's ids."""

from __future__ import annotations

from sparkinfer.text.answer import OutputText
from sparkinfer.text.tokenizer import ByteTokenizer
from sparkinfer.types import FinishReason

BYTES = ByteTokenizer()


def test_the_text_and_the_engines_reason_come_out() -> None:
    output = OutputText(BYTES, warnings=("W",))
    assert output.push(BYTES.encode("fi")) is False
    assert output.push(BYTES.encode("ne")) is False
    answer = output.close(FinishReason.LENGTH)
    assert (answer.result, answer.raw_text, answer.finish_reason) == ("fine", None, FinishReason.LENGTH)
    assert answer.warnings == ("W",)


def test_a_stop_string_ends_the_answer_before_it() -> None:
    output = OutputText(BYTES, stop=("###",))
    assert output.push(BYTES.encode("yes #")) is False
    assert output.push(BYTES.encode("## and more")) is True
    assert output.push(BYTES.encode("ignored")) is True
    answer = output.close(FinishReason.LENGTH)
    assert (answer.result, answer.finish_reason) == ("yes ", FinishReason.STOP)
    assert output.num_ids == len("yes ###"), "what came behind it in the same step is not counted"


def test_what_is_found_does_not_depend_on_how_many_ids_a_step_brings() -> None:
    ids = BYTES.encode("xabcd")
    at_once, one_by_one = OutputText(BYTES, stop=("abc", "b")), OutputText(BYTES, stop=("abc", "b"))
    at_once.push(ids)
    for token_id in ids:
        one_by_one.push([token_id])
    assert at_once.close(FinishReason.STOP) == one_by_one.close(FinishReason.STOP)


def test_a_stop_string_behind_a_broken_character_is_found_at_the_end() -> None:
    output = OutputText(BYTES, stop=("\ufffd",))
    assert output.push([0xF0 + 3]) is False
    assert output.close(FinishReason.LENGTH).finish_reason is FinishReason.STOP


def test_text_that_tables_cannot_hold_is_mended_and_flagged() -> None:
    output = OutputText(BYTES)
    output.push([byte + 3 for byte in b"ok\xed\xa0\xbd\x00\xf0\x9f\x98"])
    answer = output.close(FinishReason.STOP)
    assert answer.result.startswith("ok\ufffd")
    assert "\x00" not in answer.result
    assert answer.warnings == ("INVALID_OUTPUT_TEXT",)
    answer.result.encode("utf-8")


def test_a_choice_comes_out_as_it_was_given_not_as_it_was_tokenised() -> None:
    output = OutputText(BYTES, choices={tuple(BYTES.encode(" good")): "good"}, stop=("o",))
    assert output.push(BYTES.encode(" good")) is False
    answer = output.close(FinishReason.LENGTH)
    assert (answer.result, answer.finish_reason) == ("good", FinishReason.STOP)


def test_a_choice_that_was_cut_stays_what_was_written() -> None:
    output = OutputText(BYTES, choices={tuple(BYTES.encode("good")): "good"})
    output.push(BYTES.encode("go"))
    answer = output.close(FinishReason.LENGTH)
    assert (answer.result, answer.finish_reason) == ("go", FinishReason.LENGTH)


def test_no_ids_are_an_empty_answer() -> None:
    assert OutputText(BYTES).close(FinishReason.STOP).result == ""
