"""Use and limits of resources, and the description of a task.

The node counts and refuses (``LimitError``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from dios.client.ops.attributes import Handle, NodeBase
from dios.client.ops.status import Status, status_of
from dios.client.session import Operation, expect
from dios.errors import InvalidError
from dios.wire import messages
from dios.wire.suggestions import suggestion
from dios.wire.types import ObjectType, Resource, Scope

Subject: TypeAlias = "Handle | str"


@dataclass(frozen=True, slots=True)
class Usage:
    """The use and the limits of a task with everything it started, a group, a principal or the node.

    A limit of None means no limit. ``subject`` is a principal such as ``uid:1000``, or a fingerprint. CPU
    time is in milliseconds, memory in bytes.
    """

    scope: Scope
    subject: str
    label: str
    used: Mapping[Resource, int]
    limits: Mapping[Resource, int | None]


@dataclass(frozen=True, slots=True)
class GivenReference:
    """One reference that a task received at its start.

    ``gone`` is True if the object was deleted, ``changed`` if it was written since.
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
    """The description of one task; limits of 0 were not set.

    ``cpu_ms`` and ``memory_bytes`` are the use of its own process, the latter at its peak; 0 while it runs.
    ``not_repeatable`` is the reason why the run cannot be repeated; empty if it can. ``processors`` are those
    to which it is pinned, and ``devices`` the names of its devices by kind. It is ended after
    ``time_ms``.
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
    processors: tuple[int, ...] = ()
    devices: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    time_ms: int = 0


class UsageOps(NodeBase):
    """The operations on use and limits."""

    def limits_op(self) -> Operation[list[Usage]]:
        """Return use and limits of this principal, its groups and tasks; for the node's user of everyone."""
        answer = expect(messages.LimitRows, (yield messages.ListLimits()))
        return [usage_of(row) for row in answer.rows]

    def set_limits_op(self, subject: Subject, /, **bounds: int | None) -> Operation[list[Usage]]:
        """Set limits of a principal ("uid:1000"), or of the task or group of a reference; return its usage.

        The names are ``objects``, ``bytes``, ``references``, ``requests``, ``tasks``, ``cpu_ms``,
        ``memory_bytes``, ``volatile_bytes`` and ``descriptors``; None removes a limit. For the node's own
        user.
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
        answer = expect(messages.LimitRows, (yield call))
        return [usage_of(row) for row in answer.rows]

    def describe_op(self, task: Handle) -> Operation[Description]:
        """Return a task's references, limits and use; for tasks that may read it."""
        return description_of(expect(messages.TaskDetail, (yield messages.Describe(task.ref))))


def known_resources() -> str:
    """Return the names of the resources."""
    return ", ".join(resource.name.lower() for resource in Resource)


def resource_of(word: str) -> Resource:
    """Return the resource of a name; InvalidError with the nearest name if there is none."""
    try:
        return Resource[word.upper()]
    except KeyError:
        hint = suggestion(word, Resource.__members__, str.lower)
        raise InvalidError(f"nothing is called {word!r} that could be limited; {hint}") from None


def usage_of(row: messages.LimitRow) -> Usage:
    """Return a row from the wire with the names of its numbers; unknown ones of a newer node are omitted."""
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
    """Return a description from the wire as a Description."""
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
        detail.processors,
        {grant.kind: grant.names for grant in detail.devices},
        detail.time_ms,
    )
