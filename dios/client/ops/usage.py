"""What is used of what may be used, and what one task was given: the questions that grant nothing.

Not for: counting or refusing, which is the node's (``LimitError``), or how it is shown (``dios.cli``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

from dios.client.ops.attributes import Handle
from dios.client.ops.node_base import NodeBase
from dios.client.ops.status import Status, status_of
from dios.client.session import Operation, expect
from dios.errors import InvalidError
from dios.wire import messages
from dios.wire.types import ObjectType, Resource, Scope

Subject: TypeAlias = "Handle | str"


@dataclass(frozen=True, slots=True)
class Usage:
    """What one task with all it started, one group, one principal or the whole node uses, and may use
    (None: as it likes).

    ``subject`` is a principal such as ``uid:1000``, or a fingerprint; milliseconds of CPU time, bytes.
    """

    scope: Scope
    subject: str
    label: str
    used: Mapping[Resource, int]
    limits: Mapping[Resource, int | None]


@dataclass(frozen=True, slots=True)
class GivenReference:
    """One reference as a task was handed it at its start.

    ``gone`` says that the object is no more, ``changed`` that it was written since.
    """

    fingerprint: str
    label: str
    type: ObjectType
    permissions: int
    size: int
    gone: bool
    changed: bool


@dataclass(frozen=True, slots=True)
class Description:
    """Everything a node tells about one task; limits of 0 were not set.

    ``cpu_ms`` and ``memory_bytes`` are what its own process used, the latter at its peak; 0 while it runs.
    ``not_repeatable`` says why it cannot be run again as it was; empty when it can.
    """

    status: Status
    usage: Usage
    memory_limit_bytes: int
    cpu_limit_ms: int
    cpu_ms: int
    memory_bytes: int
    groups: tuple[str, ...]
    inputs: tuple[GivenReference, ...]
    outputs: tuple[GivenReference, ...]
    arguments: tuple[str, ...]
    executable: str
    not_repeatable: str


class UsageOps(NodeBase):
    """Questions about use and limits, and the one call that sets them."""

    def limits_op(self) -> Operation[list[Usage]]:
        """Use and limits of this principal, its groups and its tasks; of all principals for who runs it."""
        found = expect(messages.LimitRows, (yield messages.ListLimits()))
        return [usage_of(row) for row in found.rows]

    def set_limits_op(self, subject: Subject, /, **bounds: int | None) -> Operation[list[Usage]]:
        """Set limits of a principal ("uid:1000"), or of the task or group behind a reference.

        The words are ``objects``, ``bytes``, ``references``, ``requests``, ``tasks``, ``cpu_ms``,
        ``memory_bytes`` and ``volatile_bytes``; None lifts a limit. For who runs the node. Gives the subject
        as it is now.
        """
        chosen = tuple(messages.Bound(resource_of(word), value) for word, value in bounds.items())
        if not chosen:
            raise InvalidError(f"say which limit; known: {known_resources()}", call="set_limits")
        if isinstance(subject, str):
            call = messages.SetLimits(Scope.PRINCIPAL, chosen, principal=subject)
        else:
            scope = {ObjectType.TASK: Scope.TASK, ObjectType.GROUP: Scope.GROUP}.get(subject.type)
            if scope is None:
                raise InvalidError(
                    f"a {subject.type.name} has no limits; tasks, groups and principals have",
                    call="set_limits",
                )
            call = messages.SetLimits(scope, chosen, subject.ref)
        found = expect(messages.LimitRows, (yield call))
        return [usage_of(row) for row in found.rows]

    def describe_op(self, task: Handle) -> Operation[Description]:
        """What a task was given, what it may use and has used; for who may read it."""
        return description_of(expect(messages.TaskDetail, (yield messages.Describe(task.ref))))


def known_resources() -> str:
    """The words for what can be limited."""
    return ", ".join(resource.name.lower() for resource in Resource)


def resource_of(word: str) -> Resource:
    """What a word means; InvalidError with the nearest for one that means nothing."""
    try:
        return Resource[word.upper()]
    except KeyError:
        # Every task loads this module, and none is to pay for what only a mistake needs.
        import difflib  # noqa: PLC0415 - see above

        close = difflib.get_close_matches(word.upper(), Resource.__members__, n=1, cutoff=0.5)
        hint = f"did you mean {close[0].lower()}?" if close else f"known: {known_resources()}"
        raise InvalidError(f"nothing is called {word!r} that could be limited; {hint}") from None


def usage_of(row: messages.LimitRow) -> Usage:
    """A row from the wire by the names of its numbers; ones that a newer node adds are left out."""
    return Usage(
        row.scope,
        row.subject,
        row.label,
        dict(zip(Resource, row.used, strict=False)),
        dict(zip(Resource, row.limits, strict=False)),
    )


def _given(rows: tuple[messages.HandedRow, ...]) -> tuple[GivenReference, ...]:
    return tuple(
        GivenReference(row.fingerprint, row.label, row.type, row.permissions, row.size, row.gone, row.changed)
        for row in rows
    )


def description_of(detail: messages.TaskDetail) -> Description:
    """A description from the wire as a program may show it."""
    return Description(
        status_of(detail.status),
        usage_of(detail.usage),
        detail.memory_limit_bytes,
        detail.cpu_limit_ms,
        detail.cpu_ms,
        detail.memory_bytes,
        detail.groups,
        _given(detail.inputs),
        _given(detail.outputs),
        detail.arguments,
        detail.executable,
        detail.repeatable,
    )
