"""Repetition of optimistic work: attempts that may conflict, and the pauses between them (§4.7).

An attempt is an operation that raises Conflict or Busy if it must be repeated, and has changed nothing then.
``dios.lib.aio`` has the same for async programs.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import Final, TypeVar, cast

from dios.client.ops.attributes import HasLink
from dios.client.session import Operation
from dios.client.sync.connection import Connection
from dios.errors import Busy, Conflict, TimeLimitError
from dios.limits import RETRY_PAUSE_US_MAX, RETRY_PAUSE_US_MIN

T = TypeVar("T")


class Pauses:
    """The pauses between attempts: random, up to a bound that doubles each time, so that tasks which collided
    once do not collide for ever. ``most_us`` is the bound of all pauses, in microseconds.
    """

    def __init__(self, timeout: float | None = None, *, most_us: float = RETRY_PAUSE_US_MAX) -> None:
        self._timeout: Final = timeout
        self._longest_us: Final = most_us
        self._began: Final = time.monotonic()
        self._most_us: float = RETRY_PAUSE_US_MIN
        self._random: Final = random.SystemRandom()

    @property
    def is_over(self) -> bool:
        """True if no time is left for another attempt."""
        return self._timeout is not None and time.monotonic() - self._began >= self._timeout

    def after(self, conflict: Busy | Conflict) -> float:
        """Return the seconds to wait now; TimeLimitError if no time is left for another attempt."""
        pause = self._random.uniform(RETRY_PAUSE_US_MIN, self._most_us) / 1e6
        self._most_us = min(2 * self._most_us, self._longest_us)
        if self._timeout is None:
            return pause
        left = self._timeout - (time.monotonic() - self._began)
        if left <= 0:
            raise TimeLimitError(
                f"not within {self._timeout:g} s: {conflict.message}",
                call=conflict.call,
                fingerprint=conflict.fingerprint,
            )
        return min(pause, left)

    def wait(self, conflict: Busy | Conflict) -> None:
        """Sleep for the time of ``after``."""
        time.sleep(self.after(conflict))


def insist(owner: HasLink, attempt: Callable[[], Operation[T]], timeout: float | None = None) -> T:
    """Repeat the attempt until it succeeds; TimeLimitError after ``timeout`` seconds."""
    pauses = Pauses(timeout)
    connection = cast("Connection", owner.link)
    while True:
        try:
            return connection.run(attempt())
        except (Busy, Conflict) as conflict:
            pauses.wait(conflict)
