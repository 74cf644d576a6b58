"""The meters of principals, the rates that the scheduler set for them (EDRF), and the rates of tasks.

``dios.firmament`` decides the rates of principals. A task of this node that reserves bandwidth has a rate of
its own for as long as it lives, which counts the bytes of both directions. Threads that move bytes call this
module for every piece. Accounts and tasks without a rate never wait.
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
from dios.host.bandwidth.accounts import Account, TaskAccount
from dios.host.bandwidth.guarantees import LocalController
from dios.host.bandwidth.meters import TrafficFlow, TrafficTotal
from dios.host.bandwidth.token_bucket import TokenBucket
from dios.ids import TaskId
from dios.wire.messages import Guarantee, Meter, Metered
from dios.wire.rates import UNMEASURED
from dios.wire.types import Traffic

_S: Final = 1_000_000_000
_MS: Final = 1_000_000
_NO_TASK: Final = TaskId(0)


class Charge:
    """Bytes of a principal that are to be moved piece by piece; for any thread.

    They are charged to the account of ``task`` while it has one of its own.
    """

    __slots__ = ("_account", "_flow", "_left", "_rates", "_streams", "principal", "task", "traffic")

    def __init__(
        self, rates: Rates, principal: str, traffic: Traffic, size: int, task: TaskId = _NO_TASK
    ) -> None:
        self._rates: Final = rates
        self.principal: Final = principal
        self.task: Final = task
        self.traffic: Final = traffic
        self._left = size
        self._streams = False
        self._account = rates.account(task, principal)
        self._flow = rates.begin(self._account, traffic, size)

    def mark_as_stream(self) -> None:
        """Mark the bytes as part of a stream, of which more may follow; its pump has the task's own rate."""
        self._streams = self._flow.streams = True

    def piece(self) -> int:
        """Return the best number of bytes to take at a time."""
        self._update_account()
        return self._rates.piece(self._account, self.traffic)

    def take(self, size: int, ended: Callable[[], bool]) -> bool:
        """Wait until ``size`` bytes may be sent. Return False if ``ended`` returned True meanwhile."""
        if not self._streams and not self.take_message(size, ended):
            return False
        return self._rates.take(self._account, self.traffic, size, ended)

    def take_message(self, size: int, ended: Callable[[], bool]) -> bool:
        """Do the same for the message before the bytes, which counts for the task's own rate alone."""
        return self._rates.take_for_task(self._rates.task_rate(self.task), size, ended)

    def went(self, size: int) -> None:
        """Count ``size`` of the bytes as moved."""
        self._update_account()
        if self.traffic is Traffic.IN:
            self._rates.spend_for_task(self.task, size)
        size = min(size, self._left)
        self._left -= size
        self._rates.change(self._flow, self.traffic, size, -size)

    def close(self) -> None:
        """Stop: the remaining bytes will not be moved."""
        left, self._left = self._left, 0
        if left:
            self._rates.change(self._flow, self.traffic, 0, -left)

    def _update_account(self) -> None:
        """Charge the remaining bytes to the present account, because guarantees come and go meanwhile."""
        account = self._rates.account(self.task, self.principal)
        if account != self._account:
            self._rates.change(self._flow, self.traffic, 0, -self._left)
            self._account = account
            self._flow = self._rates.begin(account, self.traffic, self._left)


class TaskRate:
    """The rate of one task, in both directions together."""

    __slots__ = ("bucket", "ended")

    def __init__(self, bucket: TokenBucket) -> None:
        self.bucket: Final = bucket
        self.ended = False


class Rates:
    """The present rates, and the meters.

    ``capacity`` is the configured capacity in bytes per second for each ``Traffic``, or 0 for unknown. Then
    the most that was seen is reported instead, and rates are exceeded a little, so that it can grow where
    there is room. ``now`` is a monotonic clock in nanoseconds.
    """

    def __init__(
        self, capacity: tuple[int, int, int] = (0, 0, 0), now: Callable[[], int] = time.monotonic_ns
    ) -> None:
        self._capacity: Final = capacity
        self._now: Final = now
        self._changed: Final = threading.Condition(threading.Lock())
        self._flows: Final[dict[tuple[Account, Traffic], TrafficFlow]] = {}
        self._totals: Final = {traffic: TrafficTotal(now()) for traffic in Traffic}
        self._buckets: dict[tuple[Account, Traffic], TokenBucket] = {}
        self._task_rates: Final[dict[TaskId, TaskRate]] = {}
        self._control: Final = LocalController(self._link)
        self._until = 0
        self._rates_set = trio.Event()
        self.hold = False
        """True if any account has a rate, or had one until recently."""
        self.set_by = TaskId(0)
        self.learned = (0, 0, 0)
        """The capacity that the node has found out by other means; it counts until anything was seen."""
        self.listeners: Final[set[Callable[[], None]]] = set()
        """Functions that are called in the event loop when rates were set."""

    # -- what whoever schedules asks ------------------------------------------------------------------
    def set(self, effect: SetRates) -> None:
        """Enforce these rates from now on, until their lease ends."""
        now = self._now()
        self.set_by = effect.by
        with self._changed:
            former = self._holding(now)
            self._buckets = {}
            for rate in effect.rates:
                key, bytes_s = (rate.principal, rate.traffic), max(rate.bytes_s, limits.RATE_BYTES_S_MIN)
                if not self._capacity[rate.traffic]:
                    bytes_s += bytes_s * limits.RATE_PROBE_PERCENT // 100
                bucket = former.get(key)
                if bucket is None:
                    bucket = TokenBucket(bytes_s, now)
                else:
                    bucket.set_rate(bytes_s, now)
                self._buckets[key] = bucket
            self._until = now + effect.lease_ms * _MS
            self._forget_tasks(effect.guarantees)
            self._control.caps = {
                rate.principal: rate.bytes_s for rate in effect.rates if rate.traffic is Traffic.OUT
            }
            self._control.set(effect.guarantees, self._until, now)
            self.hold = bool(self._buckets) or self._control.on
            self._changed.notify_all()
        self._rates_set.set()
        self._rates_set = trio.Event()
        for listener in list(self.listeners):
            listener()

    def completed(self, answer: Metered) -> Metered:
        """Add this node's meters and capacity to the core's answer. Leave other nodes' answers unchanged."""
        if answer.capacity != UNMEASURED:
            return answer
        now = self._now()
        with self._changed:
            for total in self._totals.values():
                total.sample(now)
            meters = tuple(_meter(account, traffic, flow) for (account, traffic), flow in self._flows.items())
            seen = [total.best for total in self._totals.values()]
        known = zip(self._capacity, seen, self.learned, strict=True)
        out, into, store = (said or best or learned for said, best, learned in known)
        return replace(answer, meters=meters, capacity=(out, into, store))

    @property
    def seen(self) -> tuple[int, int, int]:
        """The most bytes per second that moved while something waited, for each ``Traffic``; 0 for none."""
        with self._changed:
            out, into, store = (self._totals[traffic].best for traffic in Traffic)
        return out, into, store

    # -- tasks that reserve bandwidth -----------------------------------------------------------------
    def limit_task(self, task: TaskId, bytes_s: int) -> None:
        """Hold a task of this node to a rate from now on."""
        bucket = TokenBucket(max(bytes_s, limits.RATE_BYTES_S_MIN), self._now())
        self._task_rates[task] = TaskRate(bucket)

    def end_task(self, task: TaskId) -> None:
        """Forget the rate of a task that has ended. Only bytes that its streams hold still wait for it."""
        rate = self._task_rates.pop(task, None)
        if rate is not None:
            with self._changed:
                rate.ended = True
                self._changed.notify_all()

    def task_rate(self, task: TaskId) -> TaskRate | None:
        """Return the rate of a living task that has one of its own."""
        return self._task_rates.get(task)

    def is_task_in_debt(self, task: TaskId) -> bool:
        """Return True if a task has moved more than its own rate allows."""
        rate = self._task_rates.get(task)
        if rate is None:
            return False
        with self._changed:
            return rate.bucket.wait_ns(self._now()) > 0

    def spend_for_task(self, task: TaskId, size: int) -> None:
        """Charge a task's own rate for bytes that moved without having waited."""
        rate = self._task_rates.get(task)
        if rate is not None:
            with self._changed:
                rate.bucket.take(size, self._now())

    def take_for_task(
        self, rate: TaskRate | None, size: int, ended: Callable[[], bool], *, beyond_end: bool = False
    ) -> bool:
        """Wait in this thread until a task's own rate allows ``size`` bytes. Return False as ``take``.

        Nothing waits after the task has ended, except ``beyond_end``.
        """
        if rate is None:
            return True
        with self._changed:
            while not ended():
                now = self._now()
                wait_ns = rate.bucket.wait_ns(now)
                if not wait_ns or (rate.ended and not beyond_end):
                    rate.bucket.take(size, now)
                    return True
                self._changed.wait(wait_ns / _S)
            return False

    # -- who has a rate -------------------------------------------------------------------------------
    def account(self, task: TaskId, principal: str) -> Account:
        """Return the account that is charged for the bytes of a principal's task."""
        account = self._control.accounts.get(task)
        return principal if account is None or account.principal != principal else account

    def turns_account(self, task: TaskId, principal: str) -> Account:
        """Return the account whose transfers take turns: a task with a rate delays no others of its user."""
        account = self.account(task, principal)
        return TaskAccount(principal, task) if account == principal and task in self._task_rates else account

    def guaranteed(self, account: Account) -> bool:
        """Return True if a guarantee names the account."""
        return isinstance(account, TaskAccount) and account.task in self._control.accounts

    def paced(self, account: Account, traffic: Traffic) -> bool:
        """Return True if the account has a rate now."""
        if isinstance(account, TaskAccount) and account.task in self._task_rates:
            return True
        if not self.hold or self._now() >= self._until:
            return False
        return (traffic is Traffic.OUT and self._control.on) or (account, traffic) in self._buckets

    def piece(self, account: Account, traffic: Traffic) -> int:
        """Return the best number of bytes to take at a time."""
        if traffic is Traffic.OUT and self._control.on:
            with self._changed:
                return self._control.piece(account)
        return limits.DATA_PIECE_BYTES

    @property
    def inline_bytes_max(self) -> int:
        """The most bytes that are sent inside a message to another node."""
        return limits.INLINE_BYTES_MAX if self._control.on else limits.DCP_INLINE_BYTES_MAX

    def in_debt(self, principal: str, traffic: Traffic) -> bool:
        """Return True if a principal has moved more than its rate allows."""
        now = self._now()
        with self._changed:
            bucket = self._holding(now).get((principal, traffic))
            return bucket is not None and bucket.wait_ns(now) > 0

    def _holding(self, now: int) -> dict[tuple[Account, Traffic], TokenBucket]:
        if self.hold and now >= self._until:
            self._buckets, self.hold = {}, False
            self._control.set((), 0, now)
        return self._buckets

    def _link(self) -> tuple[int, bool]:
        """Return the link's bytes per second, and True if they were configured."""
        said, seen = self._capacity[Traffic.OUT], self._totals[Traffic.OUT].best
        probed = seen + seen * limits.RATE_PROBE_PERCENT // 100
        return said or probed or self.learned[Traffic.OUT] or limits.RATE_BYTES_S_MAX, bool(said)

    # -- moving ---------------------------------------------------------------------------------------
    def take(self, account: Account, traffic: Traffic, size: int, ended: Callable[[], bool]) -> bool:
        """Wait in this thread until ``size`` bytes may move. Return False if ``ended`` returned True."""
        if not self.hold:
            return True
        if traffic is Traffic.OUT and self._control.on:
            return self._take_guaranteed(account, size, ended)
        with self._changed:
            while not ended():
                now = self._now()
                bucket = self._holding(now).get((account, traffic))
                wait_ns = 0 if bucket is None else bucket.wait_ns(now)
                if not wait_ns:
                    if bucket is not None:
                        bucket.take(size, now)
                    return True
                self._changed.wait(min(wait_ns, self._until - now) / _S)
            return False

    def _take_guaranteed(self, account: Account, size: int, ended: Callable[[], bool]) -> bool:
        """Do the same while guarantees hold. If they end, only the rate is checked."""
        control = self._control
        with self._changed:
            while not ended():
                now = self._now()
                self._holding(now)
                if not control.on:
                    break
                sender = control.sender(account, self._flow_of(account, Traffic.OUT), now)
                wait_ns = sender.bucket.wait_ns(now)
                if not wait_ns:
                    sender.take(size, now)
                    return True
                wait_ns = min(wait_ns, control.note_delay(sender, now))
                sender.waiting_threads += 1
                self._changed.wait(wait_ns / _S)
                sender.waiting_threads -= 1
            else:
                return False
        return self.take(account, Traffic.OUT, size, ended)

    def take_stream_bytes(
        self,
        principal: str,
        traffic: Traffic,
        size: int,
        ended: Callable[[], bool],
        task: TaskId = _NO_TASK,
    ) -> bool:
        """Wait in this thread until ``size`` bytes may move, and count them. Returns False as ``take``."""
        if not self.hold:
            self.count(principal, traffic, size)
            return True
        charge = Charge(self, principal, traffic, size, task)
        charge.mark_as_stream()
        try:
            if not charge.take(size, ended):
                return False
            charge.went(size)
        finally:
            charge.close()
        return True

    def wake(self) -> None:
        """Wake all waiting threads, so that each checks if its transfer has ended."""
        with self._changed:
            self._changed.notify_all()

    def spend(self, principal: str, traffic: Traffic, size: int) -> None:
        """Charge bytes that move without having waited."""
        if self._buckets:
            now = self._now()
            with self._changed:
                bucket = self._holding(now).get((principal, traffic))
                if bucket is not None:
                    bucket.take(size, now)

    # -- inside messages, while guarantees hold ------------------------------------------------------
    def spend_inline(self, account: Account, size: int) -> None:
        """Count and charge bytes that are sent inside a message to another node."""
        if not self._control.on or size < limits.GUARANTEE_INLINE_BYTES_MIN:
            return
        flow = self.begin(account, Traffic.OUT, 0)
        self.change(flow, Traffic.OUT, size, 0)
        with self._changed:
            now = self._now()
            self._holding(now)
            if self._control.on:
                flow.streams = True
                self._control.sender(account, flow, now).spend(size, now)

    def owes_inline(self, account: Account) -> bool:
        """Return True if the next call of the account must wait because of bytes sent inside messages."""
        if not self._control.on:
            return False
        with self._changed:
            return self._control.owes(account, self._now())

    async def wait_for_inline_credit(self, account: Account, ended: Callable[[], bool]) -> None:
        """Wait in the event loop until ``owes_inline`` is False or ``ended`` returns True."""
        while self.owes_inline(account) and not ended():
            rates_set = self._rates_set
            with self._changed:
                now = self._now()
                self._holding(now)
                if not self._control.on:
                    return
                sender = self._control.sender(account, self._flow_of(account, Traffic.OUT), now)
                wait_ns = min(sender.inline.wait_ns(now), self._control.note_delay(sender, now))
                sender.waiting_threads += 1
            try:
                with trio.move_on_after(wait_ns / _S):
                    await rates_set.wait()
            finally:
                sender.waiting_threads -= 1

    # -- the store, where the loop waits --------------------------------------------------------------
    async def wait_for_credit(self, principal: str, traffic: Traffic, ended: Callable[[], bool]) -> None:
        """Wait in the event loop until a principal has no debt, or ``ended`` returns True.

        Meanwhile the meter shows the size of its last request as waiting.
        """
        if not self.paced(principal, traffic):
            return
        charge: Charge | None = None
        try:
            while True:
                now, rates_set = self._now(), self._rates_set
                with self._changed:
                    bucket = self._holding(now).get((principal, traffic))
                    wait_ns = 0 if bucket is None else min(bucket.wait_ns(now), self._until - now)
                if not wait_ns or ended():
                    return
                charge = charge or Charge(self, principal, traffic, self._last(principal, traffic))
                with trio.move_on_after(min(wait_ns / _S, limits.RATE_POLL_MS / 1000)):
                    await rates_set.wait()
        finally:
            if charge is not None:
                charge.close()

    # -- meters ---------------------------------------------------------------------------------------
    def begin(self, account: Account, traffic: Traffic, size: int) -> TrafficFlow:
        """Count bytes that are to be moved. Return the flow that they belong to."""
        with self._changed:
            flow = self._flow_of(account, traffic)
            flow.waiting += size
            flow.last = size or flow.last
            self._totals[traffic].change(0, size, self._now)
            return flow

    def _flow_of(self, account: Account, traffic: Traffic) -> TrafficFlow:
        flow = self._flows.get((account, traffic))
        if flow is None:
            if len(self._flows) >= limits.RATES_METERED_MAX:
                self._forget_one()
            flow = self._flows[account, traffic] = TrafficFlow()
        return flow

    def count(self, account: Account, traffic: Traffic, size: int) -> None:
        """Count bytes that moved without having waited."""
        self.change(self.begin(account, traffic, 0), traffic, size, 0)

    def change(self, flow: TrafficFlow, traffic: Traffic, moved: int, waiting: int) -> None:
        """Count bytes that moved or do not wait any more."""
        with self._changed:
            flow.moved += moved
            flow.waiting += waiting
            if not flow.waiting and self._control.on:
                self._control.request_division()
            self._totals[traffic].change(moved, waiting, self._now)

    def _last(self, principal: str, traffic: Traffic) -> int:
        flow = self._flows.get((principal, traffic))
        return 1 if flow is None else flow.last

    def _forget_one(self) -> None:
        """Forget the flow that moved least and has nothing waiting."""
        del self._flows[
            min(self._flows, key=lambda key: (self._flows[key].waiting > 0, self._flows[key].moved))
        ]

    def _forget_tasks(self, guarantees: tuple[Guarantee, ...]) -> None:
        """Forget the flows of tasks that neither the new nor the old guarantees name."""
        named = {
            end for guarantee in guarantees for end in (guarantee.source, guarantee.target)
        } | self._control.accounts.keys()
        for (account, traffic), flow in list(self._flows.items()):
            if isinstance(account, TaskAccount) and account.task not in named and not flow.waiting:
                del self._flows[account, traffic]


def _meter(account: Account, traffic: Traffic, flow: TrafficFlow) -> Meter:
    if isinstance(account, TaskAccount):
        return Meter(account.principal, traffic, flow.moved, flow.waiting, account.task)
    return Meter(account, traffic, flow.moved, flow.waiting)
