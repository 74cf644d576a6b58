"""The one way in which DIOS compiles a numeric kernel: Numba, cached on disk, without Python's lock.

Not for: code that a daemon or a task loads; numba stands in the extra ``cluster``.

A kernel takes and returns numbers and numpy arrays only, uses integers for flow and prices, and has
beside it a plain Python oracle in the tests. A cold compilation takes seconds to tens of seconds; what
is compiled is kept beside the module (or below ``NUMBA_CACHE_DIR``) and loaded the next time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ParamSpec, TypeVar, cast

import numba

_P = ParamSpec("_P")
_R = TypeVar("_R")


def compiled(kernel: Callable[_P, _R]) -> Callable[_P, _R]:
    """The same function, compiled at its first call; the lock is let go while it runs."""
    return cast("Callable[_P, _R]", numba.njit(cache=True, nogil=True)(kernel))


def inlined(kernel: Callable[_P, _R]) -> Callable[_P, _R]:
    """A small part of other kernels, put into each caller's body."""
    return cast("Callable[_P, _R]", numba.njit(cache=True, nogil=True, inline="always")(kernel))


def borrowing(kernel: Callable[_P, _R]) -> Callable[_P, _R]:
    """As :func:`compiled`, for a kernel that makes no arrays and keeps none: only views of what it is given.

    Nothing is counted then. A kernel that reads columns of a tuple in its inner loop is several times faster.
    """
    made = numba.njit(cache=True, nogil=True, _nrt=False)  # type: ignore[call-overload] # it is not declared
    return cast("Callable[_P, _R]", made(kernel))
