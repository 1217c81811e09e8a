"""docs/field-failures.md names every case, and tests that exist; every test of a case stands there."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "field-failures.md").read_text()
SECTIONS = {
    int(number): text
    for number, text in re.findall(r"^\*\*(\d+)\. (.*?)(?=^\*\*\d+\. |^## |\Z)", PAGE, re.MULTILINE | re.DOTALL)
}
FILES = {path: path.read_text() for path in (ROOT / "tests").rglob("test_*.py")}
TESTS = {name for text in FILES.values() for name in re.findall(r"^def (test_\w+)", text, re.MULTILINE)}


def test_each_of_the_25_cases_says_what_it_was_what_proves_it_and_what_prevents_it() -> None:
    assert sorted(SECTIONS) == list(range(1, 26))
    for number, text in SECTIONS.items():
        assert "\nTest: " in text, number
        assert "\nDesign: " in text, number
        assert f"`test_case_{number:02}_" in text, number


def test_every_test_that_is_named_exists() -> None:
    named = set(re.findall(r"`(test_\w+)`", PAGE))
    assert named - TESTS == set()


def test_every_test_of_a_case_is_named_under_its_case_and_slow_ones_say_so() -> None:
    for path, text in FILES.items():
        if path.parent.name != "cases":
            continue
        for marks, name in re.findall(r"((?:^@.*\n)*)^def (test_case_\w+)", text, re.MULTILINE):
            section = SECTIONS[int(name[len("test_case_") :][:2])]
            assert f"`{name}`" in section, name
            assert (f"`{name}` (slow)" in section) == ("@pytest.mark.faults" in marks), name
