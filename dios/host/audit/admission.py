"""Refuses calls while the audit log cannot be written, because an operation must not go unrecorded."""

from __future__ import annotations

from typing import Final, Protocol

from dios import limits
from dios.core.effects import Audit
from dios.errors import NoSpaceError
from dios.host.audit.log import BacklogLevel
from dios.wire import dcp, messages
from dios.wire.call_table import AuditRule, kinds
from dios.wire.messages import AnyCall, calls_of
from dios.wire.types import Flag, ObjectType


class Journal(Protocol):
    """The writer of audit records."""

    @property
    def pressure(self) -> BacklogLevel:
        """The amount of records that could not be written yet."""
        ...

    @property
    def trouble(self) -> str:
        """The reason why the log could not be written."""
        ...

    def append(self, record: Audit) -> object:
        """Add a record and keep it until it can be written."""
        ...

    def flush(self) -> None:
        """Write the kept records to the file. On failure keep them and raise DiosError."""
        ...


_SOMETHING_NEW: Final = messages.Create(ObjectType.SHMEM_BLOB)
_A_LOOKUP: Final = messages.Lookup(bytes(limits.NAME_BYTES))
_ALWAYS: Final[frozenset[type]] = kinds(lambda row: row.audit is AuditRule.ALWAYS)
_RECORDED: Final[frozenset[type]] = kinds(lambda row: row.audit is AuditRule.RECORDED)


def refusal(journal: Journal, call: AnyCall) -> NoSpaceError | None:
    """Return the reason to refuse ``call``, or None. Called only while there is pressure."""
    if all(_may_be_done(part, journal.pressure) for part in calls_of(call) or (call,)):
        return None
    return NoSpaceError(
        f"the audit log cannot be written ({journal.trouble}), and an unrecorded call is refused. "
        "Free space on the disk of the node's data directory. Calls that leave no record still work."
    )


def refusal_of_request(journal: Journal, body: dcp.RequestBody) -> NoSpaceError | None:
    """Return the reason to refuse a request of another node, or None."""
    match body:
        case dcp.Forward() | dcp.Start() | dcp.Delegate():
            return refusal(journal, body.call)
        case dcp.Offer() | dcp.CreateReplica() | dcp.KeepOutput():
            return refusal(journal, _SOMETHING_NEW)
        case dcp.Resolve():
            return refusal(journal, _A_LOOKUP)
        case _:
            return None


def _may_be_done(call: AnyCall, pressure: BacklogLevel) -> bool:
    kind = type(call)
    if isinstance(call, messages.Delete) and call.flags & Flag.HANDLE_ONLY:
        return True
    if pressure is BacklogLevel.HIGH:
        return kind in _ALWAYS
    return kind not in _RECORDED
