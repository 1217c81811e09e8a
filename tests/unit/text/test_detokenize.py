"""Text that grows: characters stay whole, stop strings are found wherever they fall."""

from __future__ import annotations

from sparkinfer.text.detokenize import Detokenizer, StopStrings
from sparkinfer.text.tokenizer import ByteTokenizer

BYTES = ByteTokenizer()


def pieces(text: str | bytes) -> list[str]:
    data = text if isinstance(text, bytes) else text.encode()
    detokenizer = Detokenizer(BYTES)
    return [detokenizer.push([byte + 3]) for byte in data] + [detokenizer.flush()]


def test_a_character_comes_when_its_last_byte_has_come() -> None:
    assert pieces("a😀b") == ["a", "", "", "", "😀", "b", ""]


def test_a_character_that_never_ends_is_replaced_at_the_end() -> None:
    assert pieces("a😀".encode()[:-1]) == ["a", "", "", "", "\ufffd"]


def test_broken_bytes_in_the_middle_are_replaced() -> None:
    assert "".join(pieces(b"a\xffb\xc3\x28")) == "a\ufffdb\ufffd("


def test_nothing_comes_from_control_ids() -> None:
    detokenizer = Detokenizer(BYTES)
    assert [detokenizer.push([1]), detokenizer.push([100, 2]), detokenizer.flush()] == ["", "a", ""]


def test_a_stop_string_over_piece_borders_is_found_and_cut_off() -> None:
    watch = StopStrings(["END", "\n\n"])
    assert [watch.push(piece) for piece in ["one E", "N", "D two"]] == [False, False, True]
    assert watch.text == "one "


def test_the_earliest_of_several_stop_strings_counts() -> None:
    watch = StopStrings(["b", "abc"])
    assert watch.push("xabc")
    assert watch.text == "x"


def test_half_a_stop_string_is_ordinary_text() -> None:
    watch = StopStrings(["END"])
    assert not watch.push("the EN")
    assert watch.text == "the EN"
