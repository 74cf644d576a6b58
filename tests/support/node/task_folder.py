"""The path of a pure task's private temporary folder, which depends on where DIOS is installed."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

_INSTALLED: Final = [sys.prefix, *filter(None, sys.path)]

TEMPORARY: Final = (
    "/private/task/tmp" if any(Path(path).resolve().is_relative_to("/tmp") for path in _INSTALLED) else "/tmp"
)
"""A task whose interpreter or packages are below the machine's ``/tmp`` sees these there instead."""
