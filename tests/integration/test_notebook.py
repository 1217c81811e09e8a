from __future__ import annotations

from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

NOTEBOOK = Path(__file__).parents[2] / "notebooks" / "01_quickstart.ipynb"


@pytest.mark.timeout(600)
def test_the_quickstart_runs_from_top_to_bottom(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARKINFER_NOTEBOOK_MODEL", "fake")
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    NotebookClient(notebook, timeout=500, resources={"metadata": {"path": str(tmp_path)}}).execute()
    texts = [str(output) for cell in notebook.cells for output in cell.get("outputs", [])]
    assert any("(8, 0, 0," in text for text in texts)
    assert (tmp_path / "out" / "quickstart" / "_delta_log").is_dir()


def test_the_committed_notebook_holds_no_outputs() -> None:
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    assert [cell.id for cell in notebook.cells if cell.get("outputs") or cell.get("execution_count")] == []
