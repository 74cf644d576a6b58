"""The types of the fields of messages, each with its range, and the base class of calls.

A message is valid if every number is in the range of its type and everything else within its length; the
decoder refuses all other messages. A field has the same type wherever it is sent on, so that a node accepts
nothing that the next node would refuse. A number that the receiver adds to stays at the end of its range.
"""

from __future__ import annotations

import re
from typing import Annotated, Final, TypeAlias

from msgspec import Meta, Struct

from dios import limits
from dios.errors import MESSAGE_CHARS_MAX

U63_MAX: Final = 2**63 - 1  # of a number that MessagePack, the pages and the store hold with its sign

# -- numbers ------------------------------------------------------------------------------------------
U63: TypeAlias = Annotated[int, Meta(ge=0, le=U63_MAX)]
"""Any number that is only compared: an option, a limit that a caller sets."""

Identifier: TypeAlias = Annotated[int, Meta(ge=0, le=U63_MAX)]
"""The random number of an object, reference, task or node, or a number that its sender chose; 0 for none."""

Count: TypeAlias = Annotated[int, Meta(ge=0, le=2**32 - 1)]
"""A number of things that exist at the same time."""

Counter: TypeAlias = Annotated[int, Meta(ge=0, le=limits.COUNTER_MAX)]
"""A number that counts up and never down: versions, incarnations, numbers of messages."""

Epoch: TypeAlias = Annotated[int, Meta(ge=0, le=limits.EPOCH_MAX)]
"""The number of times that a node has started."""

ByteCount: TypeAlias = Annotated[int, Meta(ge=0, le=limits.COUNTER_MAX)]
Nanoseconds: TypeAlias = Annotated[int, Meta(ge=0, le=limits.COUNTER_MAX)]
"""A time by a node's clock, or a duration."""

Offset: TypeAlias = Annotated[int, Meta(ge=-limits.COUNTER_MAX, le=limits.COUNTER_MAX)]
"""The nanoseconds by which a clock is ahead of another one."""

Milliseconds: TypeAlias = Annotated[int, Meta(ge=0, le=limits.COUNTER_MAX // 1_000_000)]
Thousandths: TypeAlias = Annotated[int, Meta(ge=0, le=limits.PROGRESS_WHOLE)]
"""The share of its work that a task has done, in thousandths."""

Port: TypeAlias = Annotated[int, Meta(ge=0, le=limits.PORT_MAX)]
ProcessId: TypeAlias = Annotated[int, Meta(ge=0, le=2**31 - 1)]
Permissions: TypeAlias = Annotated[int, Meta(ge=0, le=2**16 - 1)]
"""Rights of ``Permission``, with room for those of later versions."""

Slot: TypeAlias = Annotated[int, Meta(ge=0, le=limits.REFERENCES_PER_TASK_MAX - 1)]
"""The place of a reference on the public page of its task."""

# -- texts --------------------------------------------------------------------------------------------
Text: TypeAlias = Annotated[str, Meta(max_length=limits.TEXT_BYTES_MAX)]
Label: TypeAlias = Annotated[str, Meta(max_length=limits.NODE_NAME_BYTES_MAX)]
"""The name of a node or rack, or a short word of a user."""

User: TypeAlias = Annotated[str, Meta(pattern=r"\A(uid:(0|[1-9][0-9]{0,9}))?\Z", max_length=14)]
"""A principal that another node names: one of its users, or nobody. It is never the name of a node."""

Message: TypeAlias = Annotated[str, Meta(max_length=MESSAGE_CHARS_MAX)]
"""The text of an error, or of the end of a task."""

LabelText: TypeAlias = Annotated[str, Meta(max_length=limits.NODE_LABELS_CHARS_MAX)]
"""The labels of a node, as ``dios.wire.node_labels`` writes them."""

Address: TypeAlias = Annotated[str, Meta(max_length=limits.NODE_ADDRESS_CHARS_MAX)]
Fingerprint: TypeAlias = Annotated[str, Meta(max_length=limits.FINGERPRINT_CHARS_MAX)]

TAG: Final = re.compile(r"\A(uid:(0|[1-9][0-9]{0,9})/)?[a-z0-9][a-z0-9._-]{0,31}\Z")

Tag: TypeAlias = Annotated[str, Meta(pattern=TAG.pattern, max_length=47)]
"""A tag of secrecy: its owner and a word, as uid:1000/payroll. Without an owner it is the caller's own."""

# -- bytes --------------------------------------------------------------------------------------------
NameBytes: TypeAlias = Annotated[bytes, Meta(min_length=limits.NAME_BYTES, max_length=limits.NAME_BYTES)]
Inline: TypeAlias = Annotated[bytes, Meta(max_length=limits.INLINE_BYTES_MAX)]
ProgramBytes: TypeAlias = Annotated[bytes, Meta(max_length=limits.WELCOME_PROGRAM_BYTES_MAX)]
AnswerBytes: TypeAlias = Annotated[bytes, Meta(max_length=limits.CONSOLE_READ_BYTES)]
"""The bytes of a read that are in the answer itself."""

# -- several ------------------------------------------------------------------------------------------
Groups: TypeAlias = Annotated[tuple[Identifier, ...], Meta(max_length=limits.GROUPS_PER_CALL_MAX)]
Secrecy: TypeAlias = Annotated[tuple[Tag, ...], Meta(max_length=limits.SECRECY_TAGS_MAX)]
"""A secrecy label: the tags of what a task has read, or of what an object may contain, with owners."""

Arguments: TypeAlias = Annotated[tuple[Text, ...], Meta(max_length=limits.ARGUMENTS_MAX)]


TraceContext: TypeAlias = Annotated[
    bytes, Meta(min_length=limits.TRACE_CONTEXT_BYTES, max_length=limits.TRACE_CONTEXT_BYTES)
]
"""The trace that a call belongs to, the span that made it, and flags, as in W3C's ``traceparent``."""


TRACE_OUTPUT: Final = "traceparent "
"""The beginning of the label of the output by which a traced task gets its context and returns its spans."""


class TraceSpan(Struct, frozen=True, array_like=True):
    """A part of the work on a traced call: its place, its time, and the span that it is a part of.

    ``start_ns`` counts from the arrival of the call at the node that answers it. ``parent`` is a place in the
    list of spans, -1 for the first one.
    """

    name: Label
    node: Label
    parent: Annotated[int, Meta(ge=-1, le=limits.TRACE_SPANS_MAX - 1)]
    start_ns: Counter
    length_ns: Counter


TraceSpans: TypeAlias = Annotated[tuple[TraceSpan, ...], Meta(max_length=limits.TRACE_SPANS_MAX)]


class Call(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The base class of every call of a task to its node."""
