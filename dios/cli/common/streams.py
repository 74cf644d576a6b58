"""Standard streams that the caller has closed, as with ``>&-`` or in a terminal that is gone."""

from __future__ import annotations

import os
import sys
from typing import Final

_STREAMS: Final = ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w"))


def open_standard_streams() -> None:
    """Give closed standard streams the null device.

    Otherwise the next file or socket would get the number of one, and receive what is written to it.
    """
    for number, name, mode in _STREAMS:
        if getattr(sys, name) is None:
            opened = os.open(os.devnull, os.O_RDWR)
            if opened != number:
                os.dup2(opened, number)
                os.close(opened)
            setattr(sys, name, os.fdopen(number, mode))
