"""What principals move through this node, and the rates that whoever schedules told it (EDRF).

Not for: deciding rates (``dios.firmament``), or tokens (``dios.host.buckets``). Threads that move bytes come
here for every piece, and nobody waits who has no rate.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Final

import trio
from msgspec.structs import replace

from dios import limits
from dios.core.effects import SetRates
from dios.host.buckets import Bucket
from dios.ids import TaskId
from dios.wire.messages import Meter, Metered
from dios.wire.rates import UNMEASURED
from dios.wire.types import Traffic

_S: Final = 1_000_000_000
_MS: Final = 1_000_000


class Flow:
    """What one principal moved of one kind of traffic, and wants to; ``last`` as many as it began last."""

    __slots__ = ("last", "moved", "waiting")

    def __init__(self) -> None:
        self.moved = 0
        self.waiting = 0
        self.last = 1


class _Total:
    """All flows of one kind of traffic, and the highest rate that was seen while somebody waited.

    A sample is of a second or more in which, but for moments, something always waited: then what moved is
    what could be moved. ``now`` in nanoseconds.
    """

    __slots__ = ("_idle", "_idle_since", "_moved", "_then", "best", "moved", "waiting")

    def __init__(self, now: int) -> None:
        self.moved = 0
        self.waiting = 0
        self.best = 0
        self._moved = 0
        self._then = now
        self._idle = 0
        self._idle_since = now

    def change(self, moved: int, waiting: int, now: Callable[[], int]) -> None:
        """Something moved, or waits."""
        before = self.waiting
        self.moved += moved
        self.waiting += waiting
        if not before and waiting:
            self._idle += now() - self._idle_since
        elif before and not self.waiting:
            self._idle_since = now()

    def sample(self, now: int) -> None:
        """Look at what moved since the last look, if that was a second ago."""
        passed = now - self._then
        if passed < _S:
            return
        if not self.waiting:
            self._idle += now - self._idle_since
        if self._idle * 100 <= passed * limits.RATE_IDLE_PERCENT:
            self.best = max(self.best, (self.moved - self._moved) * _S // passed)
        self._moved, self._then, self._idle, self._idle_since = self.moved, now, 0, now


class Charge:
    """Some bytes of a principal's that want to move, and do piece by piece; for any thread."""

    __slots__ = ("_flow", "_left", "_rates", "principal", "traffic")

    def __init__(self, rates: Rates, principal: str, traffic: Traffic, size: int) -> None:
        self._rates: Final = rates
        self.principal: Final = principal
        self.traffic: Final = traffic
        self._left = size
        self._flow: Final = rates.begin(principal, traffic, size)

    def take(self, size: int, ended: Callable[[], bool]) -> bool:
        """Wait until ``size`` bytes may go; False when ``ended`` says meanwhile that they need not."""
        return self._rates.take(self.principal, self.traffic, size, ended)

    def went(self, size: int) -> None:
        """So many of them have moved."""
        size = min(size, self._left)
        self._left -= size
        self._rates.change(self._flow, self.traffic, size, -size)

    def close(self) -> None:
        """What has not moved will not."""
        left, self._left = self._left, 0
        if left:
            self._rates.change(self._flow, self.traffic, 0, -left)


class Rates:
    """The rates that hold now, and the meters. ``capacity`` is what people said of link and store.

    It is in bytes per second for each ``Traffic``, 0 where nobody knows: then the highest rate is told that
    was seen, and a little more than the rates is let go, so that what is seen can grow where there is room.
    ``now`` is a clock in nanoseconds that never runs back.
    """

    def __init__(
        self, capacity: tuple[int, int, int] = (0, 0, 0), now: Callable[[], int] = time.monotonic_ns
    ) -> None:
        self._capacity: Final = capacity
        self._now: Final = now
        self._changed: Final = threading.Condition(threading.Lock())
        self._flows: Final[dict[tuple[str, Traffic], Flow]] = {}
        self._totals: Final = {traffic: _Total(now()) for traffic in Traffic}
        self._buckets: dict[tuple[str, Traffic], Bucket] = {}
        self._until = 0
        self._told = trio.Event()
        self.hold = False
        """Whether anybody has a rate, or had one a moment ago."""
        self.told_by = TaskId(0)
        self.listeners: Final[set[Callable[[], None]]] = set()
        """What is called in the loop when rates were set."""

    # -- what whoever schedules asks ------------------------------------------------------------------
    def set(self, effect: SetRates) -> None:
        """Keep to these rates from now on, until their lease is over."""
        now = self._now()
        self.told_by = effect.by
        with self._changed:
            former = self._holding(now)
            self._buckets = {}
            for rate in effect.rates:
                key, bytes_s = (rate.principal, rate.traffic), max(rate.bytes_s, limits.RATE_BYTES_S_MIN)
                if not self._capacity[rate.traffic]:
                    bytes_s += bytes_s * limits.RATE_PROBE_PERCENT // 100
                bucket = former.get(key)
                if bucket is None:
                    bucket = Bucket(bytes_s, now)
                else:
                    bucket.set_rate(bytes_s, now)
                self._buckets[key] = bucket
            self._until = now + effect.lease_ms * _MS
            self.hold = bool(self._buckets)
            self._changed.notify_all()
        self._told.set()
        self._told = trio.Event()
        for listener in list(self.listeners):
            listener()

    def completed(self, answer: Metered) -> Metered:
        """The core's own answer with what was moved here, and how much could be; another node's as it is."""
        if answer.capacity != UNMEASURED:
            return answer
        now = self._now()
        with self._changed:
            for total in self._totals.values():
                total.sample(now)
            meters = tuple(
                Meter(principal, traffic, flow.moved, flow.waiting)
                for (principal, traffic), flow in self._flows.items()
            )
            seen = [total.best for total in self._totals.values()]
        out, into, store = (said or best for said, best in zip(self._capacity, seen, strict=True))
        return replace(answer, meters=meters, capacity=(out, into, store))

    # -- who has a rate -------------------------------------------------------------------------------
    def paced(self, principal: str, traffic: Traffic) -> bool:
        """Whether a principal has a rate now."""
        return bool(self._buckets) and (principal, traffic) in self._holding(self._now())

    def in_debt(self, principal: str, traffic: Traffic) -> bool:
        """Whether a principal has moved more than its rate gives."""
        now = self._now()
        with self._changed:
            bucket = self._holding(now).get((principal, traffic))
            return bucket is not None and bucket.wait_ns(now) > 0

    def _holding(self, now: int) -> dict[tuple[str, Traffic], Bucket]:
        if self._buckets and now >= self._until:
            self._buckets, self.hold = {}, False
        return self._buckets

    # -- moving ---------------------------------------------------------------------------------------
    def take(self, principal: str, traffic: Traffic, size: int, ended: Callable[[], bool]) -> bool:
        """Wait in this thread until so many bytes may go; False when ``ended`` says so meanwhile."""
        if not self._buckets:
            return True
        with self._changed:
            while not ended():
                now = self._now()
                bucket = self._holding(now).get((principal, traffic))
                wait_ns = 0 if bucket is None else bucket.wait_ns(now)
                if not wait_ns:
                    if bucket is not None:
                        bucket.take(size, now)
                    return True
                self._changed.wait(min(wait_ns, self._until - now) / _S)
            return False

    def pass_on(self, principal: str, traffic: Traffic, size: int, ended: Callable[[], bool]) -> bool:
        """Wait in this thread until so many bytes may go, and count them; False as ``take``."""
        if not self.hold:
            self.count(principal, traffic, size)
            return True
        charge = Charge(self, principal, traffic, size)
        try:
            if not charge.take(size, ended):
                return False
            charge.went(size)
        finally:
            charge.close()
        return True

    def wake(self) -> None:
        """Something has ended: who waits looks whether it was that."""
        with self._changed:
            self._changed.notify_all()

    def spend(self, principal: str, traffic: Traffic, size: int) -> None:
        """So many bytes go without having waited."""
        if self._buckets:
            now = self._now()
            with self._changed:
                bucket = self._holding(now).get((principal, traffic))
                if bucket is not None:
                    bucket.take(size, now)

    async def wait_off(self, principal: str, traffic: Traffic, ended: Callable[[], bool]) -> None:
        """Wait in the loop until a principal has no debt, or ``ended`` says that it need not.

        What it wants meanwhile is as much as it began last.
        """
        if not self.paced(principal, traffic):
            return
        charge: Charge | None = None
        try:
            while True:
                now, told = self._now(), self._told
                with self._changed:
                    bucket = self._holding(now).get((principal, traffic))
                    wait_ns = 0 if bucket is None else min(bucket.wait_ns(now), self._until - now)
                if not wait_ns or ended():
                    return
                charge = charge or Charge(self, principal, traffic, self._last(principal, traffic))
                with trio.move_on_after(min(wait_ns / _S, limits.RATE_LOOK_MS / 1000)):
                    await told.wait()
        finally:
            if charge is not None:
                charge.close()

    # -- meters ---------------------------------------------------------------------------------------
    def begin(self, principal: str, traffic: Traffic, size: int) -> Flow:
        """So many bytes of a principal's want to move."""
        with self._changed:
            flow = self._flows.get((principal, traffic))
            if flow is None:
                if len(self._flows) >= limits.RATES_METERED_MAX:
                    self._forget_one()
                flow = self._flows[principal, traffic] = Flow()
            flow.waiting += size
            flow.last = size or flow.last
            self._totals[traffic].change(0, size, self._now)
            return flow

    def count(self, principal: str, traffic: Traffic, size: int) -> None:
        """So many bytes have moved that had not waited."""
        self.change(self.begin(principal, traffic, 0), traffic, size, 0)

    def change(self, flow: Flow, traffic: Traffic, moved: int, waiting: int) -> None:
        """Some of it moved, or waits no longer."""
        with self._changed:
            flow.moved += moved
            flow.waiting += waiting
            self._totals[traffic].change(moved, waiting, self._now)

    def _last(self, principal: str, traffic: Traffic) -> int:
        flow = self._flows.get((principal, traffic))
        return 1 if flow is None else flow.last

    def _forget_one(self) -> None:
        """Whoever moved least and wants nothing now begins anew, should it come again."""
        del self._flows[
            min(self._flows, key=lambda key: (self._flows[key].waiting > 0, self._flows[key].moved))
        ]
