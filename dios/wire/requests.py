"""The requests of a task to its node: one call, a vector of calls, or the first message of a session."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, TypeAlias, Union

from msgspec import Meta, Struct

from dios import limits
from dios.wire.call_table import CALLS, carried_bytes
from dios.wire.fields import U63, Call, Identifier, NameBytes, Text, TraceContext

if TYPE_CHECKING:
    PlainCall: TypeAlias = Call
else:
    PlainCall = Union[tuple(CALLS)]  # noqa: UP007 - made from the table


class Vector(Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag=40):
    """Independent calls in one message, answered in one reply in their order; none may wait."""

    calls: Annotated[tuple[PlainCall, ...], Meta(min_length=1, max_length=limits.VECTOR_CALLS_MAX)]


class Hello(Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag=41):
    """The first message of a user's process: protocol version, and the groups of its keyring."""

    version: U63
    groups: Annotated[tuple[NameBytes, ...], Meta(max_length=limits.GROUPS_PER_CALL_MAX)] = ()
    label: Text = ""


AnyCall: TypeAlias = PlainCall | Vector | Hello


class Request(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """One frame from a task; the reply repeats ``seq``, which the task chose.

    A call with a ``trace`` is answered with the times of its parts. A client sends one only if the Welcome
    says that the node answers with them.
    """

    seq: Identifier
    call: AnyCall
    trace: TraceContext | None = None


def calls_of(call: AnyCall) -> tuple[PlainCall, ...]:
    """Return the calls of a vector, or the only call; the first message of a session has none."""
    if isinstance(call, Vector):
        return call.calls
    return (call,) if isinstance(call, Call) else ()


def payloads_of(call: AnyCall) -> list[bytes]:
    """Return the inline bytes of the calls of a message, in their order."""
    return [data for part in calls_of(call) if (data := carried_bytes(part)) is not None]
