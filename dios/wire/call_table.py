"""The table of calls: one row with all facts about each call of a task to its node.

All code that treats kinds of calls differently derives it from this table when it is imported. A message
without a row, a row without a cell, and a cell that contradicts its message are errors at import.
``dios.core.calls.handlers`` binds the function that executes each call.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import Final, NamedTuple, TypeAlias

from dios.errors import InvariantError
from dios.wire import admission, rates
from dios.wire import calls as c
from dios.wire import replies as r
from dios.wire import scheduling as s
from dios.wire.fields import Call
from dios.wire.types import Permission

Kinds: TypeAlias = frozenset[type[Call]]


class Route(enum.Enum):
    """The node that handles a call of a task."""

    LOCAL = "its own node"
    OBJECT = "the node of the object"
    NODE = "the node that it names"
    SEVERAL = "all nodes that it concerns"
    REQUEST = "its own node, with requests of their own to other nodes"


class Flow(enum.Enum):
    """The rule of secrecy labels for a call (``dios.core.calls.flows``)."""

    NONE = "shows nobody what the caller chose, and shows the caller only what others may always see"
    FILTERED = "answers show what tasks chose to readers with their labels alone"
    CREATE = "the new object has the caller's label"
    CHILD = "the child begins with the caller's label"
    OBSERVE = "raises the caller's label"
    WRITE = "needs an object with the caller's label"
    FILL = "like a write, and raises the label if it shows bytes"
    ATTACH = "like a write and a read, until the task ends"
    RELEASE = "like a write if it commits"
    DELETE = "like a write if it ends the object"
    DELEGATE = "needs a receiver with the caller's label"
    BOUND = "like a write if it names a reference, else needs authority"
    AUTHORITY = "needs authority over the caller's whole label"


class AuditRule(enum.Enum):
    """The way a call is treated while audit records cannot be written."""

    RECORDED = "refused: it leaves a record"
    UNRECORDED = "done until the backlog is long: it leaves no record, or makes room"
    ALWAYS = "done: it gives something back"


class Effect(enum.Enum):
    """The lasting effect of a call."""

    READS = "none that outlives the caller's connection to the object"
    CHANGES = "changes the state of the node"
    STORES = "may store bytes"
    COMMITS = "commits a buffer, which may have come next to the message"
    ENDS_READ = "gives a buffer back"
    ENDS_WRITE = "gives a buffer back, and may commit it"
    ENDS_REFERENCE = "gives a reference back, and may end the object"


class Closing(enum.Enum):
    """The condition under which a call waits for the end of leases on its object."""

    NEVER = "never"
    RIGHT = "always"
    ALONE = "if no other reader may be there"
    COMMIT = "if it commits"
    END = "if it ends the object"
    RETIRE = "if it takes rights back"


class Exemption(enum.Flag):
    """The strict rules from which a call is exempt."""

    NONE = 0
    VECTOR = enum.auto()
    """It may be part of a vector: it affects no other call, and the host takes no part in its answer."""
    LASTING = enum.auto()
    """It may wait for something else than the work of a node, such as the end of a task."""
    STALE = enum.auto()
    """It may be made on an object that was deleted."""
    VALID = enum.auto()
    """Its arguments come from answers of the node, so the client does not validate them."""
    PROMPT = enum.auto()
    """No debt of its principal delays it: a coordinator makes it, which sets the rates."""


class CallRow(NamedTuple):
    """The facts about one call.

    ``reference`` is the field with the reference that the call is about, which needs ``right``.
    ``results`` are the types of its answers other than Failure. An answer brings up to ``descriptors``.
    """

    message: type[Call]
    reference: str | None
    right: Permission
    route: Route
    results: tuple[type, ...]
    descriptors: int
    flow: Flow
    audit: AuditRule
    effect: Effect
    closing: Closing
    exemptions: Exemption


# fmt: off
_ROWS: Final = (
    CallRow(c.Create, None, Permission.NONE, Route.NODE, (r.Created,), 0,
        Flow.CREATE, AuditRule.RECORDED, Effect.STORES, Closing.NEVER, Exemption.VECTOR),
    CallRow(c.CreateLabelled, None, Permission.NONE, Route.NODE, (r.Created,), 0,
        Flow.CREATE, AuditRule.RECORDED, Effect.STORES, Closing.NEVER, Exemption.VECTOR),
    CallRow(c.Lookup, None, Permission.NONE, Route.REQUEST, (r.References,), 0,
        Flow.NONE, AuditRule.UNRECORDED, Effect.READS, Closing.NEVER, Exemption.VECTOR),
    CallRow(c.Copy, "ref", Permission.DELEGATE, Route.REQUEST, (r.Done, r.References), 0,
        Flow.DELEGATE, AuditRule.RECORDED, Effect.STORES, Closing.NEVER, Exemption.VECTOR),
    CallRow(c.Delete, "ref", Permission.NONE, Route.OBJECT, (r.Done,), 0,
        Flow.DELETE, AuditRule.UNRECORDED, Effect.ENDS_REFERENCE, Closing.END,
        Exemption.VECTOR | Exemption.VALID),
    CallRow(c.Run, None, Permission.NONE, Route.REQUEST, (r.Created,), 0,
        Flow.CHILD, AuditRule.RECORDED, Effect.CHANGES, Closing.NEVER, Exemption.VECTOR | Exemption.LASTING),
    CallRow(c.Pause, "task", Permission.NONE, Route.OBJECT, (r.Done,), 0,
        Flow.WRITE, AuditRule.RECORDED, Effect.CHANGES, Closing.NEVER, Exemption.VECTOR),
    CallRow(c.Resume, "task", Permission.NONE, Route.OBJECT, (r.Done,), 0,
        Flow.WRITE, AuditRule.RECORDED, Effect.CHANGES, Closing.NEVER, Exemption.VECTOR),
    CallRow(c.AcquireRead, "ref", Permission.READ, Route.OBJECT, (r.Buffer, r.References), 1,
        Flow.OBSERVE, AuditRule.UNRECORDED, Effect.READS, Closing.ALONE, Exemption.VECTOR),
    CallRow(c.CommitRead, "ref", Permission.READ, Route.OBJECT, (r.Committed,), 0,
        Flow.NONE, AuditRule.UNRECORDED, Effect.READS, Closing.NEVER, Exemption.VECTOR | Exemption.VALID),
    CallRow(c.ReleaseRead, "ref", Permission.NONE, Route.OBJECT, (r.Done,), 0,
        Flow.NONE, AuditRule.ALWAYS, Effect.ENDS_READ, Closing.NEVER,
        Exemption.VECTOR | Exemption.STALE | Exemption.VALID),
    CallRow(c.AcquireWrite, "ref", Permission.WRITE, Route.OBJECT, (r.Buffer,), 1,
        Flow.FILL, AuditRule.UNRECORDED, Effect.READS, Closing.RIGHT, Exemption.VECTOR),
    CallRow(c.CommitWrite, "ref", Permission.WRITE, Route.OBJECT, (r.Committed,), 0,
        Flow.WRITE, AuditRule.UNRECORDED, Effect.COMMITS, Closing.RIGHT, Exemption.VECTOR),
    CallRow(c.ReleaseWrite, "ref", Permission.NONE, Route.OBJECT, (r.Done,), 0,
        Flow.RELEASE, AuditRule.ALWAYS, Effect.ENDS_WRITE, Closing.COMMIT,
        Exemption.VECTOR | Exemption.STALE | Exemption.VALID),
    CallRow(c.Select, None, Permission.NONE, Route.SEVERAL, (r.Selected,), 0,
        Flow.NONE, AuditRule.UNRECORDED, Effect.READS, Closing.NEVER, Exemption.VECTOR | Exemption.LASTING),
    CallRow(c.ReadOnce, "ref", Permission.READ, Route.OBJECT, (r.Buffer, r.References), 0,
        Flow.OBSERVE, AuditRule.UNRECORDED, Effect.READS, Closing.NEVER, Exemption.VECTOR),
    CallRow(c.WriteOnce, "ref", Permission.WRITE, Route.OBJECT, (r.Committed,), 0,
        Flow.WRITE, AuditRule.UNRECORDED, Effect.STORES, Closing.RIGHT, Exemption.VECTOR),
    CallRow(c.CommitAcquireRead, "ref", Permission.READ, Route.OBJECT, (r.Buffer,), 1,
        Flow.OBSERVE, AuditRule.UNRECORDED, Effect.READS, Closing.ALONE, Exemption.VECTOR | Exemption.VALID),
    CallRow(c.CommitAcquireWrite, "ref", Permission.WRITE, Route.OBJECT, (r.Buffer, r.Committed),
        1, Flow.FILL, AuditRule.UNRECORDED, Effect.COMMITS, Closing.RIGHT, Exemption.VECTOR),
    CallRow(c.Attach, "ref", Permission.NONE, Route.OBJECT, (r.Attached,), 3,
        Flow.ATTACH, AuditRule.RECORDED, Effect.CHANGES, Closing.NEVER, Exemption.VECTOR | Exemption.VALID),
    CallRow(c.Retire, "ref", Permission.NONE, Route.OBJECT, (r.Done,), 0,
        Flow.WRITE, AuditRule.RECORDED, Effect.CHANGES, Closing.RETIRE, Exemption.VECTOR | Exemption.VALID),
    CallRow(c.Stat, "ref", Permission.NONE, Route.OBJECT, (r.References,), 0,
        Flow.NONE, AuditRule.UNRECORDED, Effect.READS, Closing.NEVER,
        Exemption.VECTOR | Exemption.STALE | Exemption.VALID),
    CallRow(c.ConsoleOf, "task", Permission.READ, Route.OBJECT, (r.References,), 0,
        Flow.NONE, AuditRule.UNRECORDED, Effect.CHANGES, Closing.NEVER, Exemption.VECTOR),
    CallRow(c.ListTasks, None, Permission.NONE, Route.REQUEST, (r.Tasks,), 0,
        Flow.FILTERED, AuditRule.UNRECORDED, Effect.READS, Closing.NEVER, Exemption.VECTOR),
    CallRow(c.NodeInfo, None, Permission.NONE, Route.NODE, (r.Info,), 0,
        Flow.NONE, AuditRule.UNRECORDED, Effect.READS, Closing.NEVER, Exemption.VECTOR),
    CallRow(c.Cancel, None, Permission.NONE, Route.SEVERAL, (r.Done,), 0,
        Flow.NONE, AuditRule.ALWAYS, Effect.READS, Closing.NEVER, Exemption.VALID),
    CallRow(c.Shutdown, None, Permission.NONE, Route.LOCAL, (r.Done,), 0,
        Flow.AUTHORITY, AuditRule.ALWAYS, Effect.CHANGES, Closing.NEVER, Exemption.NONE),
    CallRow(c.Describe, "task", Permission.READ, Route.OBJECT, (r.TaskDetail,), 0,
        Flow.OBSERVE, AuditRule.UNRECORDED, Effect.READS, Closing.NEVER, Exemption.VECTOR | Exemption.VALID),
    CallRow(c.ListLimits, None, Permission.NONE, Route.LOCAL, (r.LimitRows,), 0,
        Flow.FILTERED, AuditRule.UNRECORDED, Effect.READS, Closing.NEVER, Exemption.VECTOR),
    CallRow(c.SetLimits, "ref", Permission.NONE, Route.OBJECT, (r.LimitRows,), 0,
        Flow.BOUND, AuditRule.RECORDED, Effect.CHANGES, Closing.NEVER, Exemption.VECTOR),
    CallRow(c.ListNodes, None, Permission.NONE, Route.LOCAL, (r.Nodes,), 0,
        Flow.NONE, AuditRule.UNRECORDED, Effect.READS, Closing.NEVER, Exemption.VECTOR),
    CallRow(c.SetNode, None, Permission.NONE, Route.NODE, (r.Nodes,), 0,
        Flow.AUTHORITY, AuditRule.RECORDED, Effect.CHANGES, Closing.NEVER, Exemption.VECTOR),
    CallRow(c.LabelNode, None, Permission.NONE, Route.NODE, (r.Nodes,), 0,
        Flow.AUTHORITY, AuditRule.RECORDED, Effect.CHANGES, Closing.NEVER, Exemption.VECTOR),
    CallRow(s.ReadQueue, None, Permission.NONE, Route.NODE, (s.QueueRows,), 0,
        Flow.FILTERED, AuditRule.UNRECORDED, Effect.READS, Closing.NEVER,
        Exemption.VECTOR | Exemption.LASTING | Exemption.PROMPT),
    CallRow(s.Place, None, Permission.NONE, Route.NODE, (s.Placed,), 0,
        Flow.AUTHORITY, AuditRule.RECORDED, Effect.CHANGES, Closing.NEVER, Exemption.PROMPT),
    CallRow(s.KeepRooms, None, Permission.NONE, Route.NODE, (s.Placed,), 0,
        Flow.AUTHORITY, AuditRule.UNRECORDED, Effect.CHANGES, Closing.NEVER, Exemption.PROMPT),
    CallRow(s.AskScheduler, None, Permission.NONE, Route.LOCAL, (s.Advice,), 0,
        Flow.AUTHORITY, AuditRule.UNRECORDED, Effect.CHANGES, Closing.NEVER, Exemption.VECTOR),
    CallRow(s.Advise, None, Permission.NONE, Route.NODE, (r.Done,), 0,
        Flow.AUTHORITY, AuditRule.UNRECORDED, Effect.CHANGES, Closing.NEVER, Exemption.PROMPT),
    CallRow(s.Report, None, Permission.NONE, Route.LOCAL, (r.Done,), 0,
        Flow.AUTHORITY, AuditRule.UNRECORDED, Effect.CHANGES, Closing.NEVER, Exemption.VECTOR),
    CallRow(rates.Govern, None, Permission.NONE, Route.NODE, (rates.Metered,), 0,
        Flow.AUTHORITY, AuditRule.UNRECORDED, Effect.CHANGES, Closing.NEVER, Exemption.PROMPT),
    CallRow(admission.SetAdmission, None, Permission.NONE, Route.NODE, (r.Done,), 0,
        Flow.AUTHORITY, AuditRule.UNRECORDED, Effect.CHANGES, Closing.NEVER, Exemption.PROMPT),
    CallRow(c.RecordRequest, "ref", Permission.WRITE, Route.LOCAL, (r.Done,), 0,
        Flow.WRITE, AuditRule.RECORDED, Effect.CHANGES, Closing.NEVER, Exemption.VECTOR),
    CallRow(c.RecordUse, "task", Permission.WRITE, Route.LOCAL, (r.Done,), 0,
        Flow.WRITE, AuditRule.RECORDED, Effect.CHANGES, Closing.NEVER, Exemption.VECTOR),
    CallRow(c.ReadTable, None, Permission.NONE, Route.NODE, (r.TableRows,), 0,
        Flow.FILTERED, AuditRule.UNRECORDED, Effect.READS, Closing.NEVER, Exemption.VECTOR),
    CallRow(c.Present, None, Permission.NONE, Route.LOCAL, (r.References,), 0,
        Flow.AUTHORITY, AuditRule.RECORDED, Effect.CHANGES, Closing.NEVER, Exemption.VECTOR),
    CallRow(c.AwaitMove, None, Permission.NONE, Route.LOCAL, (r.Done,), 0,
        Flow.NONE, AuditRule.UNRECORDED, Effect.READS, Closing.NEVER, Exemption.VECTOR),
    CallRow(c.Leave, None, Permission.NONE, Route.LOCAL, (), 0,
        Flow.FILTERED, AuditRule.RECORDED, Effect.CHANGES, Closing.NEVER, Exemption.NONE),
    CallRow(c.ReportProgress, None, Permission.NONE, Route.LOCAL, (r.Done,), 0,
        Flow.FILTERED, AuditRule.UNRECORDED, Effect.CHANGES, Closing.NEVER, Exemption.VECTOR),
    CallRow(c.ShareGroup, "group", Permission.NONE, Route.LOCAL, (r.Created,), 0,
        Flow.AUTHORITY, AuditRule.RECORDED, Effect.CHANGES, Closing.NEVER, Exemption.VECTOR),
    CallRow(c.AcceptShare, None, Permission.NONE, Route.LOCAL, (r.References,), 0,
        Flow.AUTHORITY, AuditRule.RECORDED, Effect.CHANGES, Closing.NEVER, Exemption.NONE),
    CallRow(c.IssueToken, "group", Permission.NONE, Route.LOCAL, (r.Created,), 0,
        Flow.AUTHORITY, AuditRule.RECORDED, Effect.CHANGES, Closing.NEVER, Exemption.VECTOR),
    CallRow(c.RedeemToken, None, Permission.NONE, Route.LOCAL, (r.References,), 0,
        Flow.AUTHORITY, AuditRule.RECORDED, Effect.CHANGES, Closing.NEVER, Exemption.NONE),
    CallRow(c.ReadRegister, None, Permission.NONE, Route.LOCAL, (r.Enrolled,), 0,
        Flow.NONE, AuditRule.UNRECORDED, Effect.READS, Closing.NEVER, Exemption.VECTOR),
    CallRow(c.Enrol, None, Permission.NONE, Route.LOCAL, (r.Done,), 0,
        Flow.AUTHORITY, AuditRule.RECORDED, Effect.CHANGES, Closing.NEVER, Exemption.NONE),
    CallRow(c.Vouch, None, Permission.NONE, Route.NODE, (r.Done,), 0,
        Flow.AUTHORITY, AuditRule.RECORDED, Effect.CHANGES, Closing.NEVER, Exemption.NONE),
    CallRow(c.ReadMandateTerms, None, Permission.NONE, Route.NODE, (r.MandateWanted,), 0,
        Flow.NONE, AuditRule.UNRECORDED, Effect.READS, Closing.NEVER, Exemption.VECTOR),
    CallRow(c.PruneEnvironments, None, Permission.NONE, Route.LOCAL, (r.Done,), 0,
        Flow.AUTHORITY, AuditRule.RECORDED, Effect.CHANGES, Closing.NEVER, Exemption.VECTOR),
)
# fmt: on


_WITHOUT_REFERENCE: Final = frozenset({Flow.NONE, Flow.FILTERED, Flow.CREATE, Flow.CHILD, Flow.AUTHORITY})
"""The rules for calls that name no reference."""
_CLOSING_FIELDS: Final = {Closing.ALONE: "semantics", Closing.COMMIT: "flags", Closing.END: "flags"}
"""The field by which a call says if it closes its object to leases."""


def _kinds_below(kind: type[Call]) -> set[type[Call]]:
    return {kind}.union(*map(_kinds_below, kind.__subclasses__()))


def _fits(row: CallRow) -> bool:
    """Return True if a row agrees with its message, and its cells with each other."""
    fields = row.message.__struct_fields__
    if row.reference is None:
        needs_none = not row.right and row.closing is Closing.NEVER
        return needs_none and row.flow in _WITHOUT_REFERENCE
    return row.reference in fields and _CLOSING_FIELDS.get(row.closing, row.reference) in fields


def _complete(rows: tuple[CallRow, ...]) -> dict[type[Call], CallRow]:
    """Return the rows by message. Raise InvariantError unless each message has one that fits it."""
    table = {row.message: row for row in rows}
    without = (_kinds_below(Call) - {Call}) ^ table.keys()
    unfit = {row.message for row in rows if not _fits(row)}
    if without or unfit or len(table) < len(rows):
        names = ", ".join(sorted(kind.__name__ for kind in without | unfit)) or "a message has two"
        raise InvariantError(f"the table of calls has no row that fits: {names}")
    return table


CALLS: Final = _complete(_ROWS)
"""The row of each call."""


def kinds(condition: Callable[[CallRow], bool]) -> Kinds:
    """Return the calls whose row meets a condition."""
    return frozenset(row.message for row in CALLS.values() if condition(row))


def kinds_with(field: str) -> Kinds:
    """Return the calls whose message has a field of this name."""
    return kinds(lambda row: field in row.message.__struct_fields__)


CARRYING: Final = kinds(lambda row: row.effect in {Effect.STORES, Effect.COMMITS}) & kinds_with("data")
"""The calls that may carry bytes inside their message."""
GIVING_BACK: Final = kinds(
    lambda row: row.effect in {Effect.ENDS_READ, Effect.ENDS_WRITE, Effect.ENDS_REFERENCE}
)
"""The calls that give something back, which nobody would repeat."""
COMMITTING: Final = kinds(lambda row: row.effect is Effect.COMMITS)
"""The calls that commit a buffer in any case."""


def carried_bytes(call: Call) -> bytes | None:
    """Return the inline bytes of a call, which the host stores as a payload, or None."""
    data: bytes | None = getattr(call, "data", None) if type(call) in CARRYING else None
    return data
