"""The entry point of a task that multiplies matrices; numpy is loaded in its zygote."""

from __future__ import annotations

import sys


def main() -> int:
    """Return 7 if numpy was there before and the product is right."""
    loaded = "numpy" in sys.modules
    import numpy as np

    ones = np.ones((600, 600))
    return 7 if loaded and float((ones @ ones).sum()) == 600.0**3 else 1
