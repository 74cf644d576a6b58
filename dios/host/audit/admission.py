"""What may still be done while the audit log cannot be written: what cannot be recorded is not done.

Not for: the log itself (``dios.host.audit.log``), or who may do what (the core).
"""

from __future__ import annotations

from typing import Final, Protocol

from dios import limits
from dios.core.effects import Audit
from dios.errors import NoSpaceError
from dios.host.audit.log import Pressure
from dios.wire import dcp, messages
from dios.wire.messages import AnyCall, Hello, Vector
from dios.wire.types import Flag, ObjectType


class Journal(Protocol):
    """Where audit records go."""

    pressure: Pressure
    trouble: str

    def append(self, record: Audit) -> None:
        """Take one record, and keep it until it can be written."""
        ...

    def flush(self) -> None:
        """Hand what was taken to the operating system; raises DiosError and keeps it when that fails."""
        ...


# Named are those that leave no record unless they are denied: a call that is new is refused rather than
# done without a record.
_LEAVE_NO_RECORD: Final = frozenset(
    {
        messages.AcquireRead,
        messages.CommitRead,
        messages.ReleaseRead,
        messages.AcquireWrite,
        messages.CommitWrite,
        messages.ReleaseWrite,
        messages.ReadOnce,
        messages.WriteOnce,
        messages.CommitAcquireRead,
        messages.CommitAcquireWrite,
        messages.Select,
        messages.Stat,
        messages.ConsoleOf,
        messages.ListTasks,
        messages.ListLimits,
        messages.NodeInfo,
        messages.ReadTable,
        messages.Describe,
        messages.Cancel,
        messages.ReadQueue,
        messages.AskScheduler,
        messages.Advise,
        messages.Report,
        messages.Govern,
    }
)
_MAKE_ROOM: Final = frozenset({messages.Lookup, messages.Delete, messages.Shutdown})
_SOMETHING_NEW: Final = messages.Create(ObjectType.SHMEM_BLOB)
_A_LOOKUP: Final = messages.Lookup(bytes(limits.NAME_BYTES))
_ALWAYS: Final = frozenset({messages.ReleaseRead, messages.ReleaseWrite, messages.Cancel, messages.Shutdown})


def refusal(journal: Journal, call: AnyCall) -> NoSpaceError | None:
    """Why ``call`` may not be made now; None when it may. Asked only while there is pressure."""
    parts = call.calls if isinstance(call, Vector) else (call,)
    if all(_may_be_done(part, journal.pressure) for part in parts):
        return None
    return NoSpaceError(
        f"what cannot be recorded is not done, and the audit log cannot be written ({journal.trouble}): "
        "free space on the disk of the node's data directory; what leaves no record goes on"
    )


def refusal_of_request(journal: Journal, body: dcp.RequestBody) -> NoSpaceError | None:
    """As ``refusal``, for what another node asks for."""
    match body:
        case dcp.Forward() | dcp.Start() | dcp.Delegate():
            return refusal(journal, body.call)
        case dcp.Offer() | dcp.Plant() | dcp.Keep():
            return refusal(journal, _SOMETHING_NEW)
        case dcp.Resolve():
            return refusal(journal, _A_LOOKUP)
        case _:
            return None


def _may_be_done(call: AnyCall, pressure: Pressure) -> bool:
    kind = type(call)
    if isinstance(call, messages.Delete) and call.flags & Flag.HANDLE_ONLY:
        return True
    if pressure is Pressure.HIGH:
        return kind in _ALWAYS
    return kind in _LEAVE_NO_RECORD or kind in _MAKE_ROOM or isinstance(call, Hello)
