"""The question whether anything else refers to a value."""

from __future__ import annotations

import sys
from collections.abc import Sequence


def is_alone(holder: Sequence[object], place: int = 0) -> bool:
    """Return True if nothing refers to the value in this place of a list but the list, once."""
    fresh = [object()]
    return sys.getrefcount(holder[place]) == sys.getrefcount(fresh[0])
