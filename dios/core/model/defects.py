"""The account of defects: how often the work for a user or a node ended in an exception of this node.

Each exception costs an examination of all tables (``dios.core.containment``). So that nobody slows the node
down with a defect that they can repeat, their work is refused after ``DEFECTS_MAX`` of them for a while.
"""

from __future__ import annotations

from typing import Final

DEFECTS_MAX: Final = 8
"""Defects of one party within a period; its further calls are refused until the period is over."""

DEFECT_PERIOD_NS: Final = 600 * 1_000_000_000
PARTIES_MAX: Final = 1_024


class DefectAccount:
    """The defects of one party since ``since_ns``."""

    __slots__ = ("count", "since_ns")

    def __init__(self, since_ns: int) -> None:
        self.since_ns = since_ns
        self.count = 0


class DefectAccounts:
    """The number of all defects since the start, and those of each party within its period."""

    __slots__ = ("_accounts", "total")

    def __init__(self) -> None:
        self.total = 0
        self._accounts: dict[str, DefectAccount] = {}

    def note(self, party: str, now: int) -> None:
        """Count a defect in the account of a party."""
        account = self._accounts.get(party)
        if account is None or now - account.since_ns > DEFECT_PERIOD_NS:
            self._accounts.pop(party, None)
            if len(self._accounts) >= PARTIES_MAX:
                del self._accounts[next(iter(self._accounts))]
            account = self._accounts[party] = DefectAccount(now)
        account.count += 1

    def has_too_many(self, party: str, now: int) -> bool:
        """Return True if no more work of a party is accepted now."""
        account = self._accounts.get(party)
        return (
            account is not None
            and account.count >= DEFECTS_MAX
            and now - account.since_ns <= DEFECT_PERIOD_NS
        )
