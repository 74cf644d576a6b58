"""The functions that ``labs.benchmarks.executor`` calls, in a module that loads nothing by itself."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np


def nothing(value: object) -> object:
    """Return the argument."""
    return value


def total(values: np.ndarray[tuple[int], np.dtype[np.float64]]) -> float:
    """Return the sum of an array."""
    return float(values.sum())


def ones(length: int) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Return a new array."""
    import numpy as np

    return np.ones(length)


def compute(seconds: float) -> float:
    """Use numpy, and take some time, so that each worker does it."""
    import numpy as np

    time.sleep(seconds)
    return float((np.ones((200, 200)) @ np.ones((200, 200))).sum())
