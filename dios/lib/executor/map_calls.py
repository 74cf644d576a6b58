"""The functions that workers call for ``map``: they make several calls one after the other."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Final, TypeVar

from dios.lib.executor.frames import Function
from dios.lib.executor.main_worker import explain
from dios.lib.executor.remote_errors import encode_exception

S = TypeVar("S")
T = TypeVar("T")

FAILED: Final = -1.0
"""In the place of the seconds: the value before it is the encoded exception of the next call."""


def with_items(fn: Function[T], items: list[object], trust: bool = False) -> list[T | float | bytes]:  # noqa: FBT001, FBT002 - it is sent
    """Return the values of calls with one item each, and at the end of the list the seconds that they took.

    A list of plain values is encoded faster than a pair. If a call fails, the values before it, its exception
    for a caller that loads pickles with ``trust``, and ``FAILED`` are returned. The exception of the first
    call is raised.
    """
    return _values(fn, items, trust=trust)


def with_tuples(
    fn: Function[T],
    items: list[tuple[object, ...]],
    trust: bool = False,  # noqa: FBT001, FBT002 - it is sent
) -> list[T | float | bytes]:
    """Return the values of calls with the arguments in tuples, as ``with_items`` does."""
    return _values(lambda arguments: fn(*arguments), items, trust=trust)


def _values(call: Callable[[S], T], items: Iterable[S], *, trust: bool) -> list[T | float | bytes]:
    values: list[T | float | bytes] = []
    began = time.perf_counter()
    try:
        for item in items:
            values.append(call(item))  # noqa: PERF401 - the values before an exception are needed
    except SystemExit:
        raise
    except BaseException as error:
        if not values:
            raise
        explain(error)
        return [*values, encode_exception(error, trust=trust), FAILED]
    values.append(time.perf_counter() - began)
    return values
