"""README and docs are run: Python blocks in order, YAML jobs loaded, commands looked up.

The blocks of a document share one namespace, as a reader would type them one after the other, in an empty folder that holds the
repository's examples and configuration. A fence says ``{test="skip"}`` where a block must not run (a cluster, a hub download).
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest
from pytest_examples import CodeExample, find_examples
from typer.main import get_command

from sparkinfer.cli.main import app
from sparkinfer.config.load import load_job

pytestmark = [pytest.mark.spark, pytest.mark.integration, pytest.mark.timeout(600)]

ROOT = Path(__file__).parent.parent
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
FENCE = re.compile(r"^```(\w+)([^\n]*)\n(.*?)^```", re.MULTILINE | re.DOTALL)


def python_blocks() -> dict[str, list[CodeExample]]:
    blocks: dict[str, list[CodeExample]] = defaultdict(list)
    for example in find_examples(*map(str, DOCUMENTS)):
        if example.prefix_settings().get("test") != "skip":
            blocks[Path(example.path).name].append(example)
    return dict(blocks)


def fences(language: str) -> Iterator[tuple[str, str]]:
    for path in DOCUMENTS:
        for found, settings, body in FENCE.findall(path.read_text("utf-8")):
            if found == language and 'test="skip"' not in settings:
                yield path.name, body


@pytest.mark.parametrize("document", sorted(python_blocks()))
def test_the_python_of_a_document_runs(document: str, tmp_path: Path) -> None:
    """In a process and a folder of its own, for relative paths mean the folder that the JVM was started in."""
    for name in ("examples", "conf"):
        (tmp_path / name).symlink_to(ROOT / name)
    program = tmp_path / "blocks.py"
    program.write_text("\n\n".join(example.source for example in python_blocks()[document]), "utf-8")
    done = subprocess.run([sys.executable, str(program)], cwd=tmp_path, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-6000:]


def test_readme_has_python_that_runs() -> None:
    assert "README.md" in python_blocks()


def test_yaml_jobs_in_the_documents_load(tmp_path: Path) -> None:
    for number, (document, body) in enumerate(fences("yaml")):
        if re.search(r"^source:", body, re.MULTILINE):
            job = tmp_path / f"{document}-{number}.yaml"
            job.write_text(body, "utf-8")
            assert load_job(job) is not None


def test_commands_in_the_documents_exist() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE))
    commands = set(getattr(get_command(app), "commands", {}))
    for document, body in [*fences("bash"), *fences("sh"), *fences("console"), *fences("shell")]:
        named = set(re.findall(r"^\$? ?make ([a-z-]+)", body, re.MULTILINE))
        assert named <= targets, document
        called = set(re.findall(r"^\$? ?(?:\S*/)?sparkinfer ([a-z]+)", body, re.MULTILINE))
        assert called <= commands, document


def test_files_that_the_documents_link_to_exist() -> None:
    for path in DOCUMENTS:
        for target in re.findall(r"\]\((?!https?://|#|mailto:)([^)#\s]+)", path.read_text("utf-8")):
            assert (path.parent / target).exists(), f"{path.name} links to {target}"
