from __future__ import annotations

import re
from pathlib import Path

from sparkinfer.errors import RowError, all_errors

PAGE = (Path(__file__).parents[2] / "docs" / "troubleshooting.md").read_text()
ROWS = dict(re.findall(r"^\| `([A-Z_]+)` \| (.+) \|$", PAGE, flags=re.MULTILINE))


def test_every_error_code_has_a_cause_and_a_fix() -> None:
    codes = {error.code for error in all_errors()}
    assert codes - set(ROWS) == set()
    assert [
        code for code in codes - {"SPARKINFER_ERROR"} if not all(part.strip() for part in ROWS[code].split("|"))
    ] == []


def test_no_code_is_explained_that_does_not_exist() -> None:
    assert set(ROWS) - {error.code for error in all_errors()} == set()


def test_what_can_be_tried_again_is_said_where_it_is_so() -> None:
    said = {code for code, text in ROWS.items() if "Again:" in text}
    assert said == {error.code for error in all_errors() if error.transient}


def test_row_errors_stand_under_their_own_heading() -> None:
    section = PAGE.split("## One row failed")[1].split("\n## ")[0]
    codes = set(re.findall(r"^\| `([A-Z_]+)`", section, flags=re.MULTILINE))
    assert codes == {error.code for error in all_errors() if issubclass(error, RowError)}
