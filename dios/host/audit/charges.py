"""Charges each principal for the audit records that its actions leave, at a rate of bytes per second.

The log grows with what users do, and a disk is shared by all of them. A principal may use the records of two
minutes at once; beyond that, each of its jobs owes what it has written, and makes no further call until that
is paid. The rate pays the debts of all jobs of a principal in equal parts, so that a job which writes much
does not delay another one for long. A job is a session, or a task that a session started with everything
that the task starts.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Final

import trio

from dios import limits

_NS: Final = 1_000_000_000
_JOBS_MAX: Final = 256
"""Jobs of one principal that owe separately; all further ones owe together."""
_OTHER_JOBS: Final = 0
_SHARES: Final = 16
"""All principals together, except the node's own, get at most the rate times this number."""
_DEBT_S: Final = limits.AUDIT_BURST_S // 4
_DEBT_BYTES_MIN: Final = 4 * limits.MIB
"""While a principal owes more than this, and more than _DEBT_S seconds pay, none of its jobs makes a call."""
_RESERVED: Final = 4
"""Places for the node's own principals and for the account that further principals share."""
_PAID_AT_ONCE_NS: Final = _NS // 10
"""A credit is brought up to date no more often than this while it is enough."""
_PAUSE_S_MIN: Final = 0.001
_PAUSE_S_MAX: Final = 0.1


class _Account:
    """The credit of a principal, or the debts of its jobs; never both."""

    __slots__ = ("credit", "debts", "paid_ns")

    def __init__(self, credit: float, now: int) -> None:
        self.credit = credit
        self.debts: Final[dict[int, float]] = {}
        self.paid_ns = now

    def pay(self, amount: float, most: float) -> None:
        """Divide ``amount`` among the debts in equal parts; add the rest to the credit, up to ``most``."""
        left = len(self.debts)
        for job, debt in sorted(self.debts.items(), key=lambda item: item[1]):
            paid = min(debt, amount / left)
            left, amount = left - 1, amount - paid
            if paid == debt:
                del self.debts[job]
            else:
                self.debts[job] = debt - paid
        self.credit = min(self.credit + amount, most)


class AuditCharges:
    """The accounts of all principals.

    ``rate`` is in bytes per second for each principal; ``own`` are the principals of the node's user and
    root, whose rate is not shared with others. ``now`` is a clock in nanoseconds.
    """

    def __init__(self, rate: int, own: Collection[str], now: Callable[[], int]) -> None:
        self._rate: Final = rate
        self._own: Final = frozenset(own)
        self._now: Final = now
        self._accounts: Final[dict[str, _Account]] = {}
        self._indebted: Final[set[str]] = set()
        self._swept_ns = -_NS
        self.any_debts = False
        """True while a job owes something, so that calls have to be checked."""

    def charge(self, principal: str, job: int, size: int) -> None:
        """Charge a principal for a record of ``size`` bytes that a job of it caused."""
        known = self._accounts.get(principal)
        if known is not None and known.credit >= size and self._now() - known.paid_ns < _PAID_AT_ONCE_NS:
            known.credit -= size
            return
        name = self._name_of(principal)
        if not name:
            self._forget_full()
            name = self._name_of(principal)
        account = self._paid(name)
        used = min(account.credit, size)
        account.credit -= used
        if used < size:
            key = job if job in account.debts or len(account.debts) < _JOBS_MAX else _OTHER_JOBS
            account.debts[key] = account.debts.get(key, 0.0) + size - used
            self._indebted.add(name)
            self.any_debts = True

    def owes(self, principal: str, job: int) -> bool:
        """Return True if the job may not make a call now."""
        return self.any_debts and self.wait_s(principal, job) > 0

    def wait_s(self, principal: str, job: int) -> float:
        """Return the estimated seconds until the job may make its next call; 0 if it may now."""
        name = self._name_of(principal)
        if name not in self._indebted:
            return 0
        account = self._paid(name)
        debts, rate = account.debts, self._rate_of(name)
        wait = (sum(debts.values()) - max(_DEBT_S * rate, _DEBT_BYTES_MIN)) / rate
        debt = debts.get(job, 0.0)
        if not debt and len(debts) >= _JOBS_MAX:
            debt = debts.get(_OTHER_JOBS, 0.0)
        return max(0.0, wait, debt * len(debts) / rate)

    async def wait_for_credit(self, principal: str, job: int, ended: Callable[[], bool]) -> None:
        """Wait until the job may make its next call, or ``ended`` returns True."""
        # Debts are paid by time alone, so no event could be waited for.
        while (wait := self.wait_s(principal, job)) > 0 and not ended():  # noqa: ASYNC110 - see above
            await trio.sleep(min(max(wait, _PAUSE_S_MIN), _PAUSE_S_MAX))

    def _name_of(self, principal: str) -> str:
        """Return the name of a principal's account; further principals than the table holds share ""."""
        known = principal in self._accounts or principal in self._own
        return principal if known or len(self._accounts) < limits.AUDIT_DEBTORS_MAX - _RESERVED else ""

    def _forget_full(self) -> None:
        """Forget accounts with full credit, once a second: a new one would have as much."""
        now = self._now()
        if now < self._swept_ns + _NS:
            return
        self._swept_ns = now
        for name in [name for name in self._accounts if name not in self._indebted]:
            if self._paid(name).credit >= self._most:
                del self._accounts[name]

    @property
    def _most(self) -> int:
        return self._rate * limits.AUDIT_BURST_S

    def _rate_of(self, name: str) -> float:
        if name in self._own:
            return self._rate
        return min(self._rate, self._rate * _SHARES / max(len(self._indebted - self._own), 1))

    def _paid(self, name: str) -> _Account:
        """Return an account after the payment for the time since the last one."""
        now = self._now()
        account = self._accounts.get(name)
        if account is None:
            # With very many principals, a new one has to earn its credit: another node may have made it up.
            first = name in self._own or len(self._accounts) < _SHARES
            account = self._accounts[name] = _Account(self._most if first else 0.0, now)
            return account
        account.pay((now - account.paid_ns) / _NS * self._rate_of(name), self._most)
        account.paid_ns = now
        if not account.debts and name in self._indebted:
            self._indebted.discard(name)
            self.any_debts = bool(self._indebted)
        return account
