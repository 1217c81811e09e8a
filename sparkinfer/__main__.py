"""``python -m sparkinfer``: the command line without its script."""

from __future__ import annotations

import sys

from sparkinfer.cli.main import main

sys.exit(main())
