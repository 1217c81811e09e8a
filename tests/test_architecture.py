"""What holds for the whole package: its surface, its weight, its size, and what never stands in its files."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

import sparkinfer
from sparkinfer.config.load import load_settings

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "sparkinfer"
MODULES = sorted(PACKAGE.rglob("*.py"))
HEAVY = (
    "torch",
    "transformers",
    "mlflow",
    "pyspark",
    "delta",
    "deltalake",
    "pandas",
    "pyarrow",
    "pydantic",
    "yaml",
    "numba",
    "numpy",
)

#: More lines than this is rarely one noun.
MAX_LINES = 300
#: One noun all the same: a list of small classes.
LONG = {"sparkinfer/errors.py"}


def modules_after(code: str) -> set[str]:
    """Top-level names of the modules that a fresh interpreter has loaded after running the code."""
    program = f"import sys\n{code}\nprint('\\n'.join(sys.modules))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=ROOT)
    return set(done.stdout.split())


def test_the_public_names_are_exactly_these() -> None:
    assert sorted(sparkinfer.__all__) == ["SamplingParams", "errors", "lint", "llm_udf", "run", "session", "status"]
    for name in sparkinfer.__all__:
        assert getattr(sparkinfer, name) is not None
        assert name in dir(sparkinfer)


def test_a_name_that_does_not_exist_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no_such_name"):
        sparkinfer.no_such_name


def test_importing_the_package_loads_nothing_heavy() -> None:
    loaded = modules_after(
        "import sparkinfer, sparkinfer.errors, sparkinfer.types, sparkinfer.schema, sparkinfer.hashing"
    )
    assert loaded.isdisjoint(HEAVY)
    assert len(loaded) < 200


@pytest.mark.parametrize("module", ["sparkinfer.udf.worker", "sparkinfer.host.client", "sparkinfer.udf.stream"])
def test_what_runs_in_a_spark_worker_loads_neither_torch_nor_transformers(module: str) -> None:
    loaded = modules_after(f"import {module}")
    assert loaded.isdisjoint({"torch", "transformers", "mlflow", "numba"})


@pytest.mark.parametrize(
    "module", ["sparkinfer.engine.scheduler", "sparkinfer.engine.blocks", "sparkinfer.engine.engine"]
)
def test_scheduling_runs_without_torch(module: str) -> None:
    assert modules_after(f"import {module}").isdisjoint({"torch", "transformers", "pyspark", "pyarrow"})


def test_no_module_is_longer_than_one_noun() -> None:
    lengths = {path.relative_to(ROOT).as_posix(): len(path.read_text("utf-8").splitlines()) for path in MODULES}
    assert {name: lines for name, lines in lengths.items() if lines > MAX_LINES and name not in LONG} == {}


def test_no_module_is_named_after_nothing() -> None:
    empty = {"utils", "util", "helpers", "helper", "common", "misc", "manager", "handler"}
    assert [path.name for path in MODULES if path.stem in empty] == []


def test_every_public_function_and_class_is_documented_and_annotated() -> None:
    bare = [f"{path.relative_to(ROOT)}:{node.lineno} {node.name}" for path in MODULES for node in _bare(path)]
    assert bare == []


def _bare(path: Path) -> list[ast.FunctionDef | ast.ClassDef]:
    found: list[ast.FunctionDef | ast.ClassDef] = []
    for node in ast.parse(path.read_text("utf-8")).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("_"):
            compiled = any(
                "jit" in ast.unparse(decorator) for decorator in node.decorator_list
            )  # numba takes no annotations
            unannotated = isinstance(node, ast.FunctionDef) and node.returns is None and not compiled
            if ast.get_docstring(node) is None or unannotated:
                found.append(node)
    return found


@pytest.mark.parametrize("name", ["conf/sparkinfer.yaml"])
def test_the_commented_configuration_loads_as_it_is(name: str) -> None:
    assert load_settings({}, None, ROOT / name) is not None


def _tracked_text() -> dict[str, str]:
    listed = (
        subprocess.run(["git", "ls-files", "-z"], capture_output=True, check=True, cwd=ROOT).stdout.decode().split("\0")
    )
    texts = {}
    for name in filter(None, listed):
        try:
            texts[name] = (ROOT / name).read_text("utf-8")
        except (UnicodeDecodeError, FileNotFoundError):
            continue  # binary, or deleted and not yet committed
    return texts


@pytest.mark.parametrize(
    ("what", "pattern"),
    [
        (
            "an address of a package index",
            r"https?://[^\s\"']*/(simple|maven2|packages)/|index-url\s*=|--(extra-)?index-url[= ]",
        ),
        ("a folder of one machine", r"(?<![\w.])/(home|root|Users)/[\w.-]+/"),
        ("unfinished work", r"\b(TO" + r"DO|FIX" + r"ME)\b|^ +raise NotImplemented" + r"Error"),
    ],
)
def test_no_file_holds(what: str, pattern: str) -> None:
    found = {
        f"{name}: {match[0]}"
        for name, text in _tracked_text().items()
        for match in re.finditer(pattern, text, re.MULTILINE)
        if name != "tests/test_architecture.py"
    }
    assert found == set(), what


def test_every_make_target_is_listed_by_help_and_declared() -> None:
    makefile = (ROOT / "Makefile").read_text("utf-8")
    targets = set(re.findall(r"^([a-z-]+):", makefile, re.MULTILINE))
    documented = set(re.findall(r"^([a-z-]+):.*## ", makefile, re.MULTILINE))
    phony = set(re.findall(r"^\.PHONY: (.*)$", makefile, re.MULTILINE)[0].split())
    assert targets == documented == phony


def test_the_lock_pins_everything_that_the_project_asks_for() -> None:
    lock = (ROOT / "requirements.lock").read_text("utf-8")
    pinned = set(re.findall(r"^([a-z0-9-]+)==", lock.lower(), re.MULTILINE))
    asked = {re.split(r"[^A-Za-z0-9_.-]", line)[0].lower() for line in metadata.requires("sparkinfer") or []}
    assert {name.replace("_", "-") for name in asked} - pinned == set()
    assert "://" not in lock
