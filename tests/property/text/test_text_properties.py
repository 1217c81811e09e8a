"""Rules of the text layer over generated inputs."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkinfer.errors import PromptTooLong
from sparkinfer.hashing import InputHasher, canonical_json, float_hex
from sparkinfer.text.answer import OutputText
from sparkinfer.text.detokenize import Detokenizer
from sparkinfer.text.overflow import fit
from sparkinfer.text.parse import clean_input, parse_string
from sparkinfer.text.template import parse_template
from sparkinfer.text.tokenizer import ByteTokenizer
from sparkinfer.types import FinishReason

BYTES = ByteTokenizer()
ANY_TEXT = st.text(st.characters())  # surrogates too
TEXT = st.text(st.characters(exclude_categories=["Cs"]))
NAME = st.from_regex(r"[a-z_][a-z0-9_]{0,3}", fullmatch=True)


@given(st.binary())
def test_pieces_joined_are_the_whole_decoding(data: bytes) -> None:
    ids = [byte + 3 for byte in data]
    detokenizer = Detokenizer(BYTES)
    pieces = [detokenizer.push([token_id]) for token_id in ids] + [detokenizer.flush()]
    assert "".join(pieces) == BYTES.decode(ids)


@given(TEXT)
def test_no_piece_of_a_whole_text_holds_a_broken_character(text: str) -> None:
    text = text.replace("\ufffd", "")
    detokenizer = Detokenizer(BYTES)
    assert not any("\ufffd" in detokenizer.push([token_id]) for token_id in BYTES.encode(text))


@given(st.text("abé"), st.lists(st.text("abé", min_size=1, max_size=3), min_size=1, max_size=3), st.data())
def test_stop_strings_end_an_answer_alike_however_its_ids_come(text: str, stop: list[str], data: st.DataObject) -> None:
    ids = BYTES.encode(text)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(ids)), max_size=4)))
    output = OutputText(BYTES, stop=stop)
    for begin, end in zip([0, *cuts], [*cuts, len(ids)], strict=True):
        output.push(ids[begin:end])
    answer = output.close(FinishReason.LENGTH)
    assert text.startswith(answer.result)
    assert not any(word in answer.result for word in stop)
    assert (answer.finish_reason is FinishReason.STOP) == any(word in text for word in stop)


@given(st.lists(st.one_of(TEXT, NAME.map(lambda name: (name,)))))
def test_a_template_renders_what_it_was_made_of(parts: list[str | tuple[str]]) -> None:
    source = "".join(
        "{" + p[0] + "}" if isinstance(p, tuple) else p.replace("{", "{{").replace("}", "}}") for p in parts
    )
    template = parse_template(source)
    names = list(dict.fromkeys(part[0] for part in parts if isinstance(part, tuple)))
    assert template.names == tuple(names)
    values = {name: "{" + name + "}}" for name in names}
    assert template.render(values) == "".join(values[p[0]] if isinstance(p, tuple) else p for p in parts)


@given(
    st.lists(TEXT, min_size=1, max_size=3),
    st.integers(1, 60),
    st.sampled_from(["truncate_left", "truncate_right", "truncate_middle"]),
)
def test_a_cut_prompt_fits_keeps_its_markup_and_cuts_no_more_than_needed(
    texts: list[str], room: int, policy: str
) -> None:
    seen: list[Sequence[str]] = []

    def encode(kept: Sequence[str]) -> list[int]:
        seen.append(kept)
        return BYTES.encode("<" + "|".join(kept) + ">")

    markup = len(texts) + 1
    if room < markup:
        with pytest.raises(PromptTooLong):
            fit(texts, encode=encode, tokenizer=BYTES, room=room, policy=policy)
        return
    fitted = fit(texts, encode=encode, tokenizer=BYTES, room=room, policy=policy)
    whole = len(BYTES.encode("<" + "|".join(texts) + ">"))
    assert len(fitted.ids) <= room
    assert (fitted.warning is None) == (whole <= room)
    if whole > room:
        # A character has up to 4 bytes and the ellipsis 3, once for each text that is cut.
        assert len(fitted.ids) >= min(room, whole) - 8 * len(texts)
    for text, kept in zip(texts, seen[-1], strict=True):
        left, _, right = kept.partition("…") if policy == "truncate_middle" and kept != text else (kept, "", kept)
        assert text.startswith(left) or policy == "truncate_left"
        assert text.endswith(right) or policy == "truncate_right"


@given(ANY_TEXT)
def test_what_goes_into_tables_and_tokenizers_can_be_encoded(text: str) -> None:
    safe, warnings = parse_string(text)
    assert "\x00" not in safe
    safe.encode("utf-8")
    clean_input(text).encode("utf-8")
    assert (warnings == ()) == ("\ufffd" not in safe)
    if not any("\ud800" <= char <= "\udfff" for char in text):
        assert clean_input(text) == text


@given(st.floats())
def test_the_exact_text_of_a_float_gives_the_float_back(value: float) -> None:
    text = float_hex(value)
    assert float_hex(float.fromhex(text.lower().replace("infinity", "inf"))) == text


FIELDS = st.lists(st.tuples(NAME, st.none() | st.binary(max_size=6), st.sampled_from("sibdn")), max_size=4)


@given(FIELDS, FIELDS)
def test_different_inputs_are_different_bytes(one: list[tuple], other: list[tuple]) -> None:
    def key(fields: list[tuple]) -> str:
        names, values, tags = zip(*fields, strict=True) if fields else ((), (), ())
        return InputHasher(names).digest(values, "".join(tags))

    def meant(fields: list[tuple]) -> list[tuple]:
        return [(name, value, None if value is None else tag) for name, value, tag in fields]

    assert (key(one) == key(other)) == (meant(one) == meant(other))


@given(st.recursive(st.none() | st.booleans() | st.integers() | TEXT, lambda x: st.lists(x) | st.dictionaries(TEXT, x)))
def test_canonical_json_is_the_same_json(value: object) -> None:
    import json

    text = canonical_json(value)
    assert json.loads(text) == value
    assert hashlib.sha256(text.encode()).digest() == hashlib.sha256(canonical_json(json.loads(text)).encode()).digest()
