"""The guarantees in force at this node, and the rate of each account: the local controller.

``dios.host.bandwidth.rates`` calls it and has the lock and the waiting threads (Packer paper, II-C and II-D).
The coordinator decides guarantees; ``dios.host.bandwidth.water_filling`` divides the link.

There is no thread for the division. Each sender checks if a new division is due: some time after the last
one, when the rate of a guarantee changes, and at once when a sender must wait that the last division did not
know to want more. So the rate of an idle guarantee is lent to others, and returned to the first piece that
waits for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final

from dios import limits
from dios.host.bandwidth.accounts import Account, TaskAccount
from dios.host.bandwidth.meters import TrafficFlow
from dios.host.bandwidth.token_bucket import TokenBucket
from dios.host.bandwidth.water_filling import LinkClaim, divide_link
from dios.ids import TaskId
from dios.wire.messages import Guarantee

_S: Final = 1_000_000_000
_MS: Final = 1_000_000
_TICK: Final = limits.GUARANTEE_PERIOD_MS * _MS
_LOOK: Final = limits.GUARANTEE_WINDOW_MS * _MS
_IDLE: Final = limits.GUARANTEE_IDLE_MS * _MS
_GAP: Final = limits.GUARANTEE_PERIOD_MS_MIN * _MS
_BURST: Final = limits.GUARANTEE_BURST_MS * _MS
_DEBT: Final = limits.GUARANTEE_DEBT_MS_MAX * _MS
_NEVER: Final = 2**63
_ROOM: Final = 2 * limits.GUARANTEE_PIECE_BYTES_MIN
_LONG_AGO: Final = -(2**62)


class _ActiveGuarantee:
    """One guarantee and its present rate."""

    __slots__ = ("_steps", "bytes_s", "source", "target", "weight")

    def __init__(self, guarantee: Guarantee, now: int) -> None:
        self.source: Final = (
            TaskAccount(guarantee.principal, TaskId(guarantee.source)) if guarantee.source else None
        )
        self.target: Final = (
            TaskAccount(guarantee.principal, TaskId(guarantee.target)) if guarantee.target else None
        )
        self.weight: Final = guarantee.weight_milli
        self._steps: Final = [(now + in_ms * _MS, bytes_s) for in_ms, bytes_s in guarantee.steps]
        self.bytes_s = 0

    def step(self, now: int) -> int:
        """Set the rate that holds now. Return the time of the next change."""
        for at, bytes_s in self._steps:
            if at > now:
                return at
            self.bytes_s = bytes_s
        return _NEVER


class SendingAccount:
    """An account that sends while guarantees hold."""

    __slots__ = (
        "_earlier",
        "_later",
        "_sent_bytes",
        "bucket",
        "flow",
        "held_at",
        "hungry",
        "inline",
        "sent_at",
        "waiting_threads",
    )

    def __init__(self, flow: TrafficFlow, now: int) -> None:
        self.flow = flow
        self.bucket: Final = TokenBucket(limits.GUARANTEE_BYTES_S_MIN, now, burst_ns=_BURST, debt_ns=_DEBT)
        self.inline: Final = TokenBucket(limits.GUARANTEE_BYTES_S_MIN, now, burst_ns=_BURST, debt_ns=_DEBT)
        """The bucket for bytes inside messages, which cannot wait; the account's next calls wait instead."""
        self.hungry = False
        """True if the last division knew that the account wants more than its rate."""
        self.waiting_threads = 0
        """The number of its threads that wait to send."""
        self.held_at = _LONG_AGO
        self.sent_at = now
        self._sent_bytes = 0
        self._earlier = self._later = (now, 0)

    def take(self, size: int, now: int) -> None:
        """Count bytes that are sent now."""
        self._sent_bytes += size
        self.sent_at = now
        self.bucket.take(size, now)

    def spend(self, size: int, now: int) -> None:
        """Count bytes that are sent inside a message."""
        self.take(size, now)
        self.inline.take(size, now)

    def set_rate(self, bytes_s: int, now: int) -> None:
        """Change the rate."""
        self.bucket.set_rate(bytes_s, now)
        self.inline.set_rate(bytes_s, now)

    def mark(self, now: int) -> None:
        """Remember the number of bytes sent so far, for ``recent`` from the next mark on."""
        self._earlier, self._later = self._later, (now, self._sent_bytes)

    def recent(self, now: int) -> int:
        """Return the bytes per second since the mark before the last one."""
        then, took = self._earlier
        return (self._sent_bytes - took) * _S // max(now - then, _MS)

    def is_active(self, now: int) -> bool:
        """Return True if the account is sending, or sent within GUARANTEE_LOOK_MS."""
        return bool(self.waiting_threads or self.flow.waiting) or now - self.sent_at <= _LOOK

    def demand(self, now: int) -> int:
        """Return the wanted rate in bytes per second: the maximum if the account's own bucket delays it.

        An account with waiting bytes that does not use its rate is delayed by the receiver of the bytes.
        """
        waiting = self.flow.waiting
        if self.waiting_threads or (waiting and now - self.held_at <= _TICK):
            return limits.RATE_BYTES_S_MAX
        if waiting:
            recent = self.recent(now)
            return recent + recent * limits.GUARANTEE_HEADROOM_PERCENT // 100 + _ROOM
        # A stream may continue at any time, while the end of a transfer is final.
        return self.recent(now) if self.flow.streams and now - self.sent_at <= _IDLE else 0


class LocalController:
    """Guarantees with a lease. Every method is called under one lock, except for reads of attributes.

    ``capacity`` returns the link's bytes per second, and True if they were configured and not measured.
    ``caps`` are the rates of principals.
    """

    def __init__(self, capacity: Callable[[], tuple[int, bool]]) -> None:
        self._capacity: Final = capacity
        self._edges: tuple[_ActiveGuarantee, ...] = ()
        self._senders: dict[Account, SendingAccount] = {}
        self._until = 0
        self._divided = self._forgot_idle_at = 0
        self._due = 0
        self._next_step = 0
        self.on = False
        """True if guarantees hold, or held until recently."""
        self.accounts: Mapping[TaskId, TaskAccount] = {}
        """The accounts of the tasks that guarantees name."""
        self.caps: Mapping[Account, int] = {}

    def set(self, guarantee: Iterable[Guarantee], until: int, now: int) -> None:
        """Enforce these guarantees from now on, until the time ``until``."""
        self._edges = tuple(_ActiveGuarantee(edge, now) for edge in guarantee)
        ends = (end for edge in self._edges for end in (edge.source, edge.target) if end)
        self.accounts = {account.task: account for account in ends}
        self._until = until
        self._due = self._next_step = 0
        self.on = bool(self._edges)
        if not self.on:
            self._senders = {}

    def holds(self, now: int) -> bool:
        """Return True if guarantees hold now."""
        if self.on and now >= self._until:
            self.set((), 0, now)
        return self.on

    def sender(self, account: Account, flow: TrafficFlow, now: int) -> SendingAccount:
        """Return the sender of an account with its present rate; only while guarantees hold."""
        sender = self._senders.get(account)
        if sender is None:
            sender = self._senders[account] = SendingAccount(flow, now)
            self.request_division()
        sender.flow = flow
        if now >= self._due:
            self._divide(now)
        return sender

    def owes(self, account: Account, now: int) -> bool:
        """Return True if the account sent more inside messages than its rate allows."""
        sender = self._senders.get(account)
        return sender is not None and sender.inline.wait_ns(now) > 0

    def note_delay(self, sender: SendingAccount, now: int) -> int:
        """Note that a sender must wait. Return the longest time in ns until it checks again."""
        sender.held_at = now
        if not sender.hungry:
            self.request_division()
        return max(1, min(self._due, self._until) - now)

    def request_division(self) -> None:
        """Make the next sender that checks divide the link again, because a demand has changed."""
        self._due = min(self._due, self._divided + _GAP)

    def piece(self, account: Account) -> int:
        """Return the number of bytes to send at a time: few at a low rate, so that it holds each second."""
        sender = self._senders.get(account)
        rate = limits.GUARANTEE_BYTES_S_MIN if sender is None else sender.bucket.bytes_s
        wanted = rate * limits.GUARANTEE_PIECE_MS // 1000
        return max(limits.GUARANTEE_PIECE_BYTES_MIN, min(limits.DATA_PIECE_BYTES, wanted))

    def rates(self) -> dict[Account, int]:
        """Return the present rate of each account in bytes per second."""
        return {account: sender.bucket.bytes_s for account, sender in self._senders.items()}

    # -- dividing -------------------------------------------------------------------------------------
    def _divide(self, now: int) -> None:
        """Set the rate of every sender (Algorithm 2)."""
        if now >= self._next_step:
            self._next_step = min((edge.step(now) for edge in self._edges), default=_NEVER)
        if now - self._forgot_idle_at >= _LOOK:
            self._forget_idle(now)
        promised = self._promised(now)
        claims = []
        for account, sender in self._senders.items():
            guarantee, weight = promised.get(account, (0, limits.GUARANTEE_WEIGHT_OTHERS))
            demand = min(sender.demand(now), self.caps.get(account, limits.RATE_BYTES_S_MAX))
            claims.append(LinkClaim(guarantee, demand, weight))
        capacity, said = self._capacity()
        if not said:
            # The measured capacity may be too low; guarantees were decided with knowledge of the link.
            capacity = max(capacity, sum(min(claim.guarantee, claim.demand) for claim in claims))
        rates = divide_link(capacity, claims)
        # Capacity that nobody wants now may be used by senders that want more before the next division.
        spare = max(0, capacity - sum(rates)) // max(1, len(rates))
        for (account, sender), claim, rate in zip(self._senders.items(), claims, rates, strict=True):
            sender.hungry = claim.demand > rate
            most = min(rate + spare, self.caps.get(account, limits.RATE_BYTES_S_MAX))
            sender.set_rate(max(most, limits.GUARANTEE_BYTES_S_MIN), now)
        self._divided = now
        self._due = min(now + _TICK, self._next_step)

    def _forget_idle(self, now: int) -> None:
        """Forget senders that stopped, and mark the bytes sent so far of the others."""
        self._forgot_idle_at = now
        self._senders = {
            account: sender
            for account, sender in self._senders.items()
            if sender.is_active(now) or sender.recent(now)
        }
        for sender in self._senders.values():
            sender.mark(now)

    def _promised(self, now: int) -> dict[Account, tuple[int, int]]:
        """Return the sum of the guarantees of each account, and its weight.

        A guarantee counts for its target if only the target moves bytes (by reading remotely), for its source
        if only the source does (by writing remotely), and half for each if both do.
        """
        moving = {account for account, sender in self._senders.items() if sender.is_active(now)}
        promised: dict[Account, tuple[int, int]] = {}

        def give(account: TaskAccount, bytes_s: int, weight: int) -> None:
            had, heaviest = promised.get(account, (0, 0))
            promised[account] = (had + bytes_s, max(heaviest, weight))

        for edge in self._edges:
            ends = [end for end in (edge.target, edge.source) if end is not None and end in moving]
            for end in ends:
                give(end, edge.bytes_s // len(ends), edge.weight)
        return promised
