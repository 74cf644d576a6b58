"""The table of requests between nodes: one row with all facts about each message of ``dios.wire.dcp``.

As with ``call_table``, other packages derive their tables from it when they are imported, and whatever is
missing in it is an error then. The function that serves each request is in ``dios.core.remote.serving``.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Final, NamedTuple, TypeAlias, TypeVar

from dios.errors import InvariantError
from dios.wire import dcp
from dios.wire import replies as r
from dios.wire.call_table import CALLS, AuditRule, CallRow, Exemption, Flow, Route
from dios.wire.mandates import Purpose

RequestKinds: TypeAlias = frozenset[type[dcp.Body]]
V = TypeVar("V")


class RequestFlag(enum.Flag):
    """The properties that a request has or lacks."""

    NONE = 0
    REPEATED = enum.auto()
    """The asking node repeats it until it is answered; a second time does no harm."""
    READS = enum.auto()
    """It does not matter to the asking task whether it was carried out."""
    GATHERED = enum.auto()
    """The asking node asks several nodes. If one is silent, the answers of the others are enough."""
    LASTING = enum.auto()
    """It may wait at the other node for as long as a task runs."""
    FORWARDED = enum.auto()
    """It has a call of a task, and is answered, waits and reads as that call."""


class Naming(enum.Enum):
    """The field of a request with the principals that it is made for."""

    NOBODY = ""
    CALLER = "caller"
    PRINCIPAL = "principal"
    HOLDINGS = "holdings"
    """The callers of the holdings; each is checked when its holding is compared."""


class RequestRow(NamedTuple):
    """The facts about one request.

    ``results`` are the types of its answers other than Failure; those of a forwarded call are the
    call's. ``audit`` is the way it is treated while audit records cannot be written; None: as its call.
    ``naming`` says which principals it is made for, and ``purpose`` what their mandates must be for; NONE:
    the purpose of its call, or nobody is named.
    """

    message: type[dcp.Body]
    results: tuple[type, ...]
    audit: AuditRule | None
    flags: RequestFlag
    naming: Naming
    purpose: Purpose


# fmt: off
_ROWS: Final = (
    RequestRow(dcp.Forward, (), None, RequestFlag.FORWARDED,
        Naming.CALLER, Purpose.NONE),
    RequestRow(dcp.Resolve, (dcp.Found,), AuditRule.UNRECORDED, RequestFlag.READS | RequestFlag.GATHERED,
        Naming.CALLER, Purpose.OBJECTS),
    RequestRow(dcp.Offer, (dcp.Offered,), AuditRule.RECORDED, RequestFlag.NONE,
        Naming.CALLER, Purpose.TASKS),
    RequestRow(dcp.Delegate, (dcp.Offered, dcp.ReplicaCreated, r.Done), None, RequestFlag.NONE,
        Naming.CALLER, Purpose.OBJECTS),
    RequestRow(dcp.ReferenceGiven, (r.Done,), AuditRule.ALWAYS, RequestFlag.NONE,
        Naming.NOBODY, Purpose.NONE),
    RequestRow(dcp.Start, (r.Created,), None, RequestFlag.LASTING,
        Naming.CALLER, Purpose.TASKS),
    RequestRow(dcp.CreateReplica, (dcp.ReplicaCreated,), AuditRule.RECORDED, RequestFlag.NONE,
        Naming.CALLER, Purpose.COPIES),
    RequestRow(dcp.Release, (r.Done,), AuditRule.ALWAYS, RequestFlag.REPEATED,
        Naming.NOBODY, Purpose.NONE),
    RequestRow(dcp.TasksEnded, (r.Done,), AuditRule.ALWAYS, RequestFlag.REPEATED,
        Naming.NOBODY, Purpose.NONE),
    RequestRow(dcp.DeliverEvent, (r.Done,), AuditRule.ALWAYS, RequestFlag.REPEATED,
        Naming.NOBODY, Purpose.NONE),
    RequestRow(dcp.ReconcileReferences, (dcp.UnknownReferences,), AuditRule.ALWAYS, RequestFlag.REPEATED,
        Naming.HOLDINGS, Purpose.OBJECTS),
    RequestRow(dcp.Disband, (r.Done,), AuditRule.ALWAYS, RequestFlag.REPEATED,
        Naming.NOBODY, Purpose.NONE),
    RequestRow(dcp.Rows, (r.Tasks,), AuditRule.ALWAYS, RequestFlag.READS | RequestFlag.GATHERED,
        Naming.CALLER, Purpose.OBJECTS),
    RequestRow(dcp.KeepOutput, (r.Done,), AuditRule.RECORDED, RequestFlag.NONE,
        Naming.PRINCIPAL, Purpose.OBJECTS),
    RequestRow(dcp.ConfirmRemoval, (r.Done,), AuditRule.ALWAYS, RequestFlag.NONE,
        Naming.NOBODY, Purpose.NONE),
    RequestRow(dcp.Register, (r.Done,), AuditRule.ALWAYS, RequestFlag.GATHERED,
        Naming.NOBODY, Purpose.NONE),
    RequestRow(dcp.FindNames, (dcp.NameNodes,), AuditRule.ALWAYS, RequestFlag.READS | RequestFlag.GATHERED,
        Naming.NOBODY, Purpose.NONE),
    RequestRow(dcp.CallBack, (r.Done,), AuditRule.ALWAYS, RequestFlag.NONE,
        Naming.NOBODY, Purpose.NONE),
)
# fmt: on


def _fits(row: RequestRow) -> bool:
    """Return True if a row agrees with its message, and its cells with each other."""
    fields = row.message.__struct_fields__
    has_call, is_forwarded = "call" in fields, RequestFlag.FORWARDED in row.flags
    if row.audit is None and not has_call:
        return False
    naming = [naming for naming in Naming if naming.value in fields] or [Naming.NOBODY]
    has_purpose = row.naming is not Naming.NOBODY and not is_forwarded
    return (
        bool(row.results) is not is_forwarded and naming == [row.naming] and bool(row.purpose) is has_purpose
    )


def _complete(rows: tuple[RequestRow, ...]) -> dict[type[dcp.Body], RequestRow]:
    """Return the rows by message. Raise InvariantError unless each message has one that fits it."""
    table = {row.message: row for row in rows}
    unfit = {row.message for row in rows if not _fits(row)} | (set(dcp.Body.__subclasses__()) ^ table.keys())
    if unfit or len(table) < len(rows):
        names = ", ".join(sorted(kind.__name__ for kind in unfit)) or "a message has two"
        raise InvariantError(f"the table of requests has no row that fits: {names}")
    return table


REQUESTS: Final = _complete(_ROWS)
"""The row of each request."""


def _purpose_of(row: CallRow) -> Purpose:
    """Return what a mandate must be for with which another node makes a call here."""
    if Exemption.PROMPT in row.exemptions:
        return Purpose.SCHEDULING
    return Purpose.ADMINISTRATION if row.flow is Flow.AUTHORITY else Purpose.OBJECTS


PURPOSES: Final[Mapping[type, Purpose]] = {
    kind: _purpose_of(row) for kind, row in CALLS.items() if row.route not in {Route.LOCAL, Route.REQUEST}
}
"""The purpose of each call that can be forwarded."""


def requests_with(flag: RequestFlag) -> RequestKinds:
    """Return the requests that have a flag."""
    return frozenset(row.message for row in REQUESTS.values() if flag in row.flags)


def for_each_request(values: Mapping[type, V]) -> Mapping[type, V]:
    """Return values by request. Raise InvariantError unless each request has one, and nothing else."""
    unmatched = values.keys() ^ REQUESTS.keys()
    if unmatched:
        names = ", ".join(sorted(kind.__name__ for kind in unmatched))
        raise InvariantError(f"requests need both a row and a function, and these have not: {names}")
    return values
