"""Where compiled kernels are kept: in the user's cache, or nowhere, and never in the way of a start."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import sparkinfer
from sparkinfer.engine.kernel_cache import use_kernel_cache


def test_a_cache_that_cannot_be_written_costs_time_only(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("NUMBA_CACHE_DIR", "")
    monkeypatch.delenv("NUMBA_CACHE_DIR")
    monkeypatch.setenv("SPARKINFER_CACHE", str(tmp_path / "file" / "no"))  # not a folder: for root too
    use_kernel_cache()
    kept = Path(os.environ["NUMBA_CACHE_DIR"])
    assert kept.is_dir()
    assert kept.stat().st_mode & 0o077 == 0, "what lies there is run"
    assert "each start compiles them anew" in caplog.text
    monkeypatch.undo()
    use_kernel_cache()  # the later tests keep theirs where they were


def test_a_package_in_an_archive_has_kernels_too(tmp_path: Path) -> None:
    package = Path(sparkinfer.__file__).parent
    archive = tmp_path / "sparkinfer.zip"
    with zipfile.ZipFile(archive, "w") as file:
        for path in package.rglob("*.py"):
            file.write(path, Path("sparkinfer") / path.relative_to(package))
    program = (
        "import sparkinfer; from sparkinfer.engine.kernel_cache import use_kernel_cache; use_kernel_cache()\n"
        "import numpy as np; from sparkinfer.engine.small_products_kernel import multiply\n"
        "out = np.empty((2, 3), np.float32)\n"
        "multiply((out,), np.ones((2, 16), np.float32), (np.ones((3, 16), np.float32),))\n"
        "print(sparkinfer.__file__, out.sum())\n"
    )
    env = os.environ | {"PYTHONPATH": str(archive), "SPARKINFER_CACHE": str(tmp_path / "cache")}
    env.pop("NUMBA_CACHE_DIR", None)
    for _ in range(2):  # the second time from the cache
        done = subprocess.run(
            [sys.executable, "-c", program], cwd=tmp_path, env=env, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr[-2000:]
        assert done.stdout.split() == [str(archive / "sparkinfer" / "__init__.py"), "96.0"]
