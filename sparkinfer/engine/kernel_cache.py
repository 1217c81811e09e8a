"""Where numba keeps the kernels that it has compiled."""

from __future__ import annotations

import atexit
import hashlib
import logging
import os
import shutil
import tempfile
from importlib import resources
from pathlib import Path

from sparkinfer.model.cache import cache_root

_LOG = logging.getLogger(__name__)


def use_kernel_cache() -> None:
    """Keep compiled kernels in the user's cache, so that the second start compiles nothing (also where the code is read-only).

    numba looks whether a kernel's own file has changed; what the kernel is made of lies in another one, and names the folder.
    """
    if "NUMBA_CACHE_DIR" not in os.environ:
        code = resources.files("sparkinfer.engine").joinpath("simd.py").read_bytes()  # which may lie in an archive
        os.environ["NUMBA_CACHE_DIR"] = str(_writable(cache_root() / "numba" / hashlib.sha256(code).hexdigest()[:12]))
    import numba

    numba.config.reload_config()
    _LOG.debug("compiled kernels are kept in %s", numba.config.CACHE_DIR)


def _writable(folder: Path) -> Path:
    """The folder, made; or one for this process only, since numba does not compile what it cannot keep."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return folder
    except OSError as error:
        own = Path(tempfile.mkdtemp(prefix="sparkinfer-numba-"))
        atexit.register(shutil.rmtree, own, ignore_errors=True)
        _LOG.warning(
            "Compiled kernels cannot be kept in %s (%s); each start compiles them anew.", folder, error.strerror
        )
        return own
