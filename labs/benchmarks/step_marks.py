"""Functions that mark a moment before or after they are called, for the traced nodes of benchmarks."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


def before(mark: Callable[[], object], function: Callable[P, T]) -> Callable[P, T]:
    """Return the function, which calls ``mark`` first."""

    @functools.wraps(function)
    def call(*args: P.args, **options: P.kwargs) -> T:
        mark()
        return function(*args, **options)

    return call


def after(mark: Callable[[], object], function: Callable[P, T]) -> Callable[P, T]:
    """Return the function, which calls ``mark`` at its end, also if it fails."""

    @functools.wraps(function)
    def call(*args: P.args, **options: P.kwargs) -> T:
        try:
            return function(*args, **options)
        finally:
            mark()

    return call
