"""Compiled functions of tests, which are never kept: what is kept would hold kernels as they once were.

For: tests of ``dios.sprayer``. Kernels of the product are made by ``dios.kernels``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ParamSpec, TypeVar, cast

import numba

_P = ParamSpec("_P")
_R = TypeVar("_R")


def fresh(kernel: Callable[_P, _R]) -> Callable[_P, _R]:
    """Compile for this process only; the lock is let go while it runs."""
    return cast("Callable[_P, _R]", numba.njit(nogil=True, _nrt=False)(kernel))  # type: ignore[call-overload] # handed on
