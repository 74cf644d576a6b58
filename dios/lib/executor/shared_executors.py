"""Executors that stay for a while between the uses of a program, so that their workers stay warm."""

from __future__ import annotations

import threading
import time
from collections.abc import Hashable, Mapping
from typing import Final

from dios.errors import InvalidError
from dios.forks import give_up_in_child
from dios.lib.executor.executor import Executor

_IDLE_S: Final = 300.0
"""A shared executor that nobody has used for this time ends, as loky's workers do."""

_KEPT_MAX: Final = 2
"""The executors that are kept. A further one ends the one that was not used for the longest time."""


class _Kept:
    """A shared executor, and the time of its last use."""

    def __init__(self, executor: Executor) -> None:
        self.executor: Final = executor
        self.used_s = time.monotonic()


_kept: Final[dict[Hashable, _Kept]] = {}
_lock: Final = threading.Lock()


def shared_executor(max_workers: int | None = None, **options: object) -> Executor:
    """Return an executor that all callers with the same arguments share, and whose workers stay warm.

    The arguments are those of ``Executor``. The script's values that the program has changed since the last
    call of this function are sent again. The executor ends by itself when nobody has called this function,
    and no call has run, for five minutes; and when other arguments are used more recently. Its ``shutdown``
    ends it for all. Raises InvalidError for arguments that cannot be compared, and the errors of
    ``Executor``.
    """
    try:
        key = _comparable((max_workers, options))
        hash(key)
    except TypeError as error:
        raise InvalidError(f"an executor with these arguments cannot be shared: {error}") from error
    with _lock:
        kept = _kept.pop(key, None)
        if kept is None or kept.executor.is_ended:
            kept = _Kept(Executor(max_workers, **options))  # type: ignore[arg-type]  # it checks them
            _end_later(key, _IDLE_S)
        _kept[key] = kept  # the last one is the one that was used most recently
        kept.used_s = time.monotonic()
        others = [other for other in list(_kept)[:-_KEPT_MAX] if not _kept[other].executor.is_busy]
        for other in others:
            _kept.pop(other).executor.shutdown(wait=False)
    kept.executor.renew()
    return kept.executor


def forget_shared(executor: Executor) -> None:
    """Give the executor to nobody else. It ends when those who have it have dropped it."""
    with _lock:
        for key in [key for key, kept in _kept.items() if kept.executor is executor]:
            del _kept[key]


def _comparable(value: object) -> Hashable:
    """Return something that is equal for equal arguments."""
    if isinstance(value, Mapping):
        return tuple((name, _comparable(part)) for name, part in sorted(value.items()))
    if isinstance(value, list | tuple):
        return type(value).__name__, *map(_comparable, value)
    if not isinstance(value, Hashable):
        raise TypeError(f"{type(value).__name__} objects are not hashable")
    return value


def _end_later(key: Hashable, seconds: float) -> None:
    timer = threading.Timer(seconds, _end_if_idle, (key,))
    timer.daemon = True
    timer.start()


def _end_if_idle(key: Hashable) -> None:
    """End an executor, or look again later."""
    with _lock:
        kept = _kept.get(key)
        if kept is None or kept.executor.is_ended:
            return
        left = kept.used_s + _IDLE_S - time.monotonic()
        if kept.executor.is_busy or left > 0:
            _end_later(key, max(1.0, left))
            return
        del _kept[key]
    kept.executor.shutdown(wait=False)


give_up_in_child(_kept.clear)
