"""The question whether anything else refers to a value."""

from __future__ import annotations

import sys
from collections.abc import Sequence


def is_alone(holder: Sequence[object]) -> bool:
    """Return True if nothing refers to the value in a list of one but the list."""
    fresh = [object()]
    return sys.getrefcount(holder[0]) == sys.getrefcount(fresh[0])
