"""Where numba keeps the kernels that it has compiled."""

from __future__ import annotations

import hashlib
import logging
import os
from pathlib import Path

from sparkinfer.model.cache import cache_root

_LOG = logging.getLogger(__name__)


def use_kernel_cache() -> None:
    """Keep compiled kernels in the user's cache, so that the second start compiles nothing (also where the code is read-only).

    numba looks whether a kernel's own file has changed; what the kernel is made of lies in another one, and names the folder.
    """
    if "NUMBA_CACHE_DIR" not in os.environ:
        digest = hashlib.sha256(Path(__file__).with_name("simd.py").read_bytes()).hexdigest()
        os.environ["NUMBA_CACHE_DIR"] = str(cache_root() / "numba" / digest[:12])
    import numba

    numba.config.reload_config()
    _LOG.debug("compiled kernels are kept in %s", numba.config.CACHE_DIR)
