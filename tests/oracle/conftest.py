"""Threads that wait sleep, before torch is imported: on a busy machine spinning ones cost ten times the work itself."""

from __future__ import annotations

import os

os.environ.setdefault("OMP_WAIT_POLICY", "passive")
