"""``import sparkinfer`` costs nothing, and its names are exactly the design's."""

from __future__ import annotations

import subprocess
import sys

import pytest

import sparkinfer

HEAVY = (
    "pyspark",
    "torch",
    "transformers",
    "mlflow",
    "pyarrow",
    "pandas",
    "deltalake",
    "delta",
    "numba",
    "pydantic",
    "yaml",
)


def _modules_after(code: str) -> set[str]:
    script = f"import sys\n{code}\nprint(*sorted({{name.partition('.')[0] for name in sys.modules}}))"
    return set(
        subprocess.run(
            [sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=120
        ).stdout.split()
    )


def test_all_is_exactly_the_public_interface():
    assert sparkinfer.__all__ == ["SamplingParams", "errors", "lint", "llm_udf", "run", "session", "status"]


def test_importing_the_package_imports_nothing_heavy():
    assert not _modules_after("import sparkinfer; sparkinfer.SamplingParams; sparkinfer.errors") & set(HEAVY)


def test_making_a_udf_needs_neither_spark_nor_the_model_stack():
    loaded = _modules_after("from sparkinfer import llm_udf; llm_udf(model='fake', prompt='{text}').resolve()")
    assert not loaded & {"pyspark", "torch", "transformers", "mlflow", "pyarrow", "pandas", "numba"}


def test_every_public_name_is_there():
    for name in sparkinfer.__all__:
        assert getattr(sparkinfer, name) is not None
        assert name in dir(sparkinfer)


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="classify_udf"):
        sparkinfer.classify_udf
