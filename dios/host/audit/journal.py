"""The way of a record to the audit log: equal refusals are merged, and its principal is charged for it."""

from __future__ import annotations

from typing import Final

from msgspec.structs import replace

from dios import limits
from dios.core.effects import Audit
from dios.host.audit.charges import AuditCharges
from dios.host.audit.log import AuditLog, BacklogLevel
from dios.ids import Principal

# Without "empty", because then the lookup of a name would take less time when it is repeated.
_MERGED: Final = frozenset({"denied"})
"""Outcomes of actions that changed nothing. Every other record is written by itself."""
_STRANGERS: Final = "strangers"
"""The account of connections that were refused before they had a principal."""
_WINDOW_NS_MIN: Final = limits.AUDIT_SYNC_MS * 1_000_000
_WINDOW_NS_MAX: Final = limits.AUDIT_MERGE_MS * 1_000_000


class _Repeats:
    """The repeats of a record that was written: their number, the first one's time, and the newest one."""

    __slots__ = ("began_ns", "count", "first_ns", "record", "window_ns")

    def __init__(self, record: Audit) -> None:
        self.began_ns = record.now
        self.window_ns = _WINDOW_NS_MIN
        self.count = 0
        self.first_ns = 0
        self.record = record

    def add(self, record: Audit) -> None:
        """Count one more; the newest record stands for all."""
        if not self.count:
            self.first_ns = record.now
        self.count += 1
        self.record = record

    def is_over(self, now: int) -> bool:
        """Return True if the time within which repeats are merged is over."""
        return now - self.began_ns >= self.window_ns

    def begin_again(self, now: int) -> None:
        """Begin to count again, within a window that is twice as long."""
        self.began_ns, self.count = now, 0
        self.window_ns = min(2 * self.window_ns, _WINDOW_NS_MAX)


class AuditJournal:
    """The audit log as the node's loop uses it.

    The first of several equal refusals is written at once. Those that follow soon, within AUDIT_SYNC_MS at
    first and within AUDIT_MERGE_MS while they go on, become one record with their number and the time of the
    first. The numbers of all records add up to the number of refusals.
    """

    def __init__(self, log: AuditLog, charges: AuditCharges) -> None:
        self._log: Final = log
        self.charges: Final = charges
        self._repeats: Final[dict[tuple[str, ...], _Repeats]] = {}

    @property
    def pressure(self) -> BacklogLevel:
        """The amount of records that could not be written yet."""
        return self._log.pressure

    @property
    def trouble(self) -> str:
        """The reason why the log could not be written."""
        return self._log.trouble

    @property
    def counts(self) -> dict[str, int]:
        """The number of records and of bytes in the log."""
        return {"audit_records": self._log.records, "audit_bytes": self._log.size}

    def append(self, record: Audit) -> None:
        """Add a record and keep it until it can be written."""
        if record.outcome not in _MERGED:
            self._write(record)
            return
        key = (record.action, record.outcome, record.principal, record.task, record.subject, record.detail)
        repeats = self._repeats.get(key)
        if repeats is None:
            if len(self._repeats) >= limits.AUDIT_MERGED_KEYS_MAX:
                self._write_repeats(self._repeats.pop(next(iter(self._repeats))))
            self._repeats[key] = _Repeats(record)
            self._write(record)
            return
        repeats.add(record)
        if repeats.is_over(record.now):
            self._write_repeats(repeats)
            repeats.begin_again(record.now)

    def append_refused(self, record: Audit) -> None:
        """Add a record of a connection that was refused.

        Nobody can be made to wait for it. While such records exceed a principal's rate, those with one action
        become one record without peers and reasons, so that strangers cannot fill the log.
        """
        if self.charges.owes(_STRANGERS, 0):
            record = replace(record, principal=Principal("various"), detail="various peers and reasons")
        self.append(record)

    def settle(self, now: int) -> None:
        """Write the repeats whose time is over, and forget records without further ones."""
        for key in [key for key, repeats in self._repeats.items() if repeats.is_over(now)]:
            repeats = self._repeats[key]
            if repeats.count:
                self._write_repeats(repeats)
                repeats.begin_again(now)
            else:
                del self._repeats[key]

    def settle_all(self) -> None:
        """Write all repeats: the node stops."""
        for repeats in self._repeats.values():
            self._write_repeats(repeats)
        self._repeats.clear()

    def flush(self) -> None:
        """Write the kept records to the file. On failure keep them and raise DiosError."""
        self._log.flush()

    def _write_repeats(self, repeats: _Repeats) -> None:
        if repeats.count:
            self._write(repeats.record, repeats.count, repeats.first_ns)

    def _write(self, record: Audit, count: int = 1, first_ns: int = 0) -> None:
        size = self._log.append(record, count, first_ns)
        if record.job:
            self.charges.charge(record.principal, record.job, size)
        elif not record.task and record.outcome in _MERGED:
            self.charges.charge(_STRANGERS, 0, size)
