"""Templates take names in braces and nothing else."""

from __future__ import annotations

import pytest

from sparkinfer.errors import InvalidTemplate
from sparkinfer.text.template import parse_template


def test_names_come_in_order_of_first_appearance() -> None:
    assert parse_template("{b} {a} {b} {_c1}").names == ("b", "a", "_c1")


def test_double_braces_are_braces() -> None:
    template = parse_template('{{"label": "{text}"}} {{{text}}}')
    assert template.names == ("text",)
    assert template.render({"text": "ok"}) == '{"label": "ok"} {ok}'


def test_a_null_renders_empty() -> None:
    assert parse_template("[{a}|{b}]").render({"a": None, "b": "x"}) == "[|x]"


def test_what_is_inserted_is_not_looked_at_again() -> None:
    assert parse_template("{a}{b}").render({"a": "{b}", "b": "{{x}}"}) == "{b}{{x}}"


def test_a_template_without_arguments_is_its_own_text() -> None:
    template = parse_template("no arguments, a 100 % sure thing")
    assert (template.names, template.render({})) == ((), "no arguments, a 100 % sure thing")


@pytest.mark.parametrize(
    ("source", "where", "why"),
    [
        ("a {text", "line 1, column 3", "without its '}'"),
        ("a }", "line 1, column 3", "without its '{'"),
        ("first\nsecond {a.b}", "line 2, column 8", "attributes"),
        ("{a[0]}", "line 1, column 1", "indexes"),
        ("{a!r}", "line 1, column 1", "conversions"),
        ("{a:>10}", "line 1, column 1", "formats"),
        ("{}", "line 1, column 1", "name the argument"),
        ("{ }", "line 1, column 1", "name the argument"),
        ("{two words}", "line 1, column 1", "'two words' is not a name"),
        ("{1st}", "line 1, column 1", "'1st' is not a name"),
        ('{"label": "x"}', "line 1, column 1", "more than a name"),
        ("{{a}", "line 1, column 4", "without its '{'"),
    ],
)
def test_anything_else_is_refused_and_says_where(source: str, where: str, why: str) -> None:
    with pytest.raises(InvalidTemplate) as caught:
        parse_template(source)
    assert where in caught.value.message
    assert why in caught.value.message
