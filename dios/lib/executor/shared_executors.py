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
"""A shared executor that nobody has used for this time is not kept, as loky's workers are not."""

_KEPT_MAX: Final = 2
"""The executors that are kept: those that were used most recently."""


class _Kept:
    """A shared executor, the time of its last use, and the timer that looks whether it is still used."""

    def __init__(self, key: Hashable, executor: Executor) -> None:
        self.key: Final = key
        self.executor: Final = executor
        self.used_s = time.monotonic()
        self.timer: threading.Timer | None = None

    def look_later(self, seconds: float) -> None:
        """Look after some seconds whether the executor is used."""
        self.timer = threading.Timer(seconds, _forget_if_idle, (self,))
        self.timer.daemon = True
        self.timer.start()

    def forget(self) -> None:
        """Keep the executor no longer. It ends when those who have it have dropped it, and its calls ran."""
        if _kept.get(self.key) is self:
            del _kept[self.key]
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None  # it has this object, and the executor with it


_kept: Final[dict[Hashable, _Kept]] = {}
_lock = threading.Lock()


def shared_executor(max_workers: int | None = None, **options: object) -> Executor:
    """Return an executor that all callers with the same arguments share, and whose workers stay warm.

    The arguments are those of ``Executor``. The script's values that the program has changed since the last
    call of this function are sent again. The executor is kept until nobody has called this function, and no
    call has run, for five minutes; and while few others are used more recently. Then it ends when those who
    have it have dropped it. Its ``shutdown`` ends it for all. Raises InvalidError for arguments that cannot
    be compared, and the errors of ``Executor``.
    """
    try:
        key = _comparable((max_workers, options))
        hash(key)
    except TypeError as error:
        raise InvalidError(f"an executor with these arguments cannot be shared: {error}") from error
    with _lock:
        kept = _kept.get(key)
        if kept is None or kept.executor.is_ended:
            if kept is not None:
                kept.forget()
            kept = _Kept(key, Executor(max_workers, **options))  # type: ignore[arg-type]  # it checks them
            kept.look_later(_IDLE_S)
        _kept.pop(key, None)
        _kept[key] = kept  # the last one is the one that was used most recently
        kept.used_s = time.monotonic()
        for other in list(_kept.values())[:-_KEPT_MAX]:
            other.forget()
    kept.executor.renew()
    return kept.executor


def forget_shared(executor: Executor) -> None:
    """Give the executor to nobody else. It ends when those who have it have dropped it."""
    with _lock:
        for kept in [kept for kept in _kept.values() if kept.executor is executor]:
            kept.forget()


def _comparable(value: object) -> Hashable:
    """Return something that is equal for equal arguments."""
    if isinstance(value, Mapping):
        return tuple((name, _comparable(part)) for name, part in sorted(value.items()))
    if isinstance(value, list | tuple):
        return type(value).__name__, *map(_comparable, value)
    if not isinstance(value, Hashable):
        raise TypeError(f"{type(value).__name__} objects are not hashable")
    return value


def _forget_if_idle(kept: _Kept) -> None:
    """Forget an executor, or look again later."""
    with _lock:
        left = kept.used_s + _IDLE_S - time.monotonic()
        if kept.executor.is_ended or not (kept.executor.is_busy or left > 0):
            kept.forget()
        elif _kept.get(kept.key) is kept:
            kept.look_later(max(1.0, left))


def _forked() -> None:
    """Forget the executors of the parent; another thread of the parent may have had the lock."""
    global _lock
    _lock = threading.Lock()
    _kept.clear()


give_up_in_child(_forked)
