"""The functions that workers call for ``map``: they make several calls one after the other."""

from __future__ import annotations

import time
from typing import TypeVar

from dios.lib.executor.frames import Function

T = TypeVar("T")


def with_items(fn: Function[T], items: list[object]) -> list[T | float]:
    """Return the values of calls with one item each, and at the end of the list the seconds that they took.

    A list of plain values is encoded faster than a pair.
    """
    began = time.perf_counter()
    values: list[T | float] = [fn(argument) for argument in items]
    values.append(time.perf_counter() - began)
    return values


def with_tuples(fn: Function[T], items: list[tuple[object, ...]]) -> list[T | float]:
    """Return the values of calls with the arguments in tuples, and at the end the seconds that they took."""
    began = time.perf_counter()
    values: list[T | float] = [fn(*arguments) for arguments in items]
    values.append(time.perf_counter() - began)
    return values
