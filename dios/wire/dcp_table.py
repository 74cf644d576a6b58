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
from dios.wire.call_table import AuditRule

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


class RequestRow(NamedTuple):
    """The facts about one request.

    ``results`` are the types of its answers other than Failure; those of a forwarded call are the
    call's. ``audit`` is the way it is treated while audit records cannot be written; None: as its call.
    """

    message: type[dcp.Body]
    results: tuple[type, ...]
    audit: AuditRule | None
    flags: RequestFlag


_ROWS: Final = (
    RequestRow(dcp.Forward, (), None, RequestFlag.FORWARDED),
    RequestRow(dcp.Resolve, (dcp.Found,), AuditRule.UNRECORDED, RequestFlag.READS | RequestFlag.GATHERED),
    RequestRow(dcp.Offer, (dcp.Offered,), AuditRule.RECORDED, RequestFlag.NONE),
    RequestRow(dcp.Delegate, (dcp.Offered, dcp.ReplicaCreated, r.Done), None, RequestFlag.NONE),
    RequestRow(dcp.ReferenceGiven, (r.Done,), AuditRule.ALWAYS, RequestFlag.NONE),
    RequestRow(dcp.Start, (r.Created,), None, RequestFlag.LASTING),
    RequestRow(dcp.CreateReplica, (dcp.ReplicaCreated,), AuditRule.RECORDED, RequestFlag.NONE),
    RequestRow(dcp.Release, (r.Done,), AuditRule.ALWAYS, RequestFlag.REPEATED),
    RequestRow(dcp.TasksEnded, (r.Done,), AuditRule.ALWAYS, RequestFlag.REPEATED),
    RequestRow(dcp.DeliverEvent, (r.Done,), AuditRule.ALWAYS, RequestFlag.REPEATED),
    RequestRow(dcp.ReconcileReferences, (dcp.UnknownReferences,), AuditRule.ALWAYS, RequestFlag.REPEATED),
    RequestRow(dcp.Disband, (r.Done,), AuditRule.ALWAYS, RequestFlag.REPEATED),
    RequestRow(dcp.Rows, (r.Tasks,), AuditRule.ALWAYS, RequestFlag.READS | RequestFlag.GATHERED),
    RequestRow(dcp.KeepOutput, (r.Done,), AuditRule.RECORDED, RequestFlag.NONE),
    RequestRow(dcp.ConfirmRemoval, (r.Done,), AuditRule.ALWAYS, RequestFlag.NONE),
    RequestRow(dcp.Register, (r.Done,), AuditRule.ALWAYS, RequestFlag.GATHERED),
    RequestRow(dcp.FindNames, (dcp.NameNodes,), AuditRule.ALWAYS, RequestFlag.READS | RequestFlag.GATHERED),
    RequestRow(dcp.CallBack, (r.Done,), AuditRule.ALWAYS, RequestFlag.NONE),
)


def _fits(row: RequestRow) -> bool:
    """Return True if a row agrees with its message, and its cells with each other."""
    has_call = "call" in row.message.__struct_fields__
    return (row.audit is not None or has_call) and bool(row.results) is not (
        RequestFlag.FORWARDED in row.flags
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
