"""The membership protocol: rows about nodes, and the six messages that carry them.

Each message is one-way and may be lost, doubled, late or out of order. It is sent inside a ``Gossip`` of
``dios.wire.dcp``; ``docs/membership.md`` has the tables. New fields are added at the end with a default,
and a receiver ignores fields that it does not know. ``dios.core.membership.swim`` acts on the messages.
"""

from __future__ import annotations

from typing import Annotated, Final, TypeAlias

import msgspec
from msgspec import Meta, Struct

from dios import limits
from dios.errors import ProtocolError
from dios.ids import NodeId
from dios.wire.fields import Address, ByteCount, Count, Counter, Epoch, Label, LabelText, Nanoseconds
from dios.wire.types import Fitness, NodeStatus

Node: TypeAlias = Annotated[NodeId, Meta(ge=1, le=2**63 - 1)]
TableHash: TypeAlias = Annotated[int, Meta(ge=0, le=2**63 - 1)]


class Load(Struct, frozen=True, array_like=True):
    """The load of a node: its running tasks, its processors, and the bytes of free memory."""

    tasks: Count = 0
    cpus: Count = 0
    memory_bytes: ByteCount = 0


class MemberRow(Struct, frozen=True, array_like=True):
    """One node, as another node knows it.

    ``epoch`` counts the starts of the node. Within one epoch, ``incarnation`` counts the times that the node
    itself denied that it is suspect or dead, and ``version`` its changes of everything but ``status``. Only
    the node itself raises any of them.
    """

    node: Node
    name: Label
    rack: Label = ""
    address: Address = ""
    epoch: Epoch = 0
    incarnation: Counter = 0
    status: NodeStatus = NodeStatus.ALIVE
    draining: bool = False
    load: Load = Load()
    version: Counter = 0
    coordinated: bool = False
    """True if the node has a living coordinator."""
    labels: LabelText = ""
    fitness: Fitness = Fitness.FIT
    """Releases without this field count as fit, as they always did."""
    barred: Annotated[tuple[Node, ...], Meta(max_length=limits.SCHEDULERS_BARRED_MAX)] = ()
    """The nodes whose schedulers have lost their lease on its queue."""
    secrets: TableHash = 0
    """The mark of the later secrets of the cluster that it has, 0 for none."""


Updates: TypeAlias = Annotated[tuple[MemberRow, ...], Meta(max_length=limits.GOSSIP_UPDATES_MAX)]


class Ping(Struct, frozen=True, array_like=True, tag=60):
    """A question for a sign of life; ``row`` is the sender's own row, as in every message."""

    row: MemberRow
    number: Counter
    updates: Updates = ()


class Ack(Struct, frozen=True, array_like=True, tag=61):
    """``subject`` is alive: the sender itself, or the target of a ping-request.

    ``clock_ns`` is the sender's clock when it answered, 0 if it does not report that.
    """

    row: MemberRow
    number: Counter
    subject: Node
    updates: Updates = ()
    clock_ns: Nanoseconds = 0


class PingRequest(Struct, frozen=True, array_like=True, tag=62):
    """Ping ``target`` on behalf of the sender, and report its answer; silence is not reported."""

    row: MemberRow
    number: Counter
    target: Node
    updates: Updates = ()


class News(Struct, frozen=True, array_like=True, tag=63):
    """News that should not wait for the next ping; it is not answered."""

    row: MemberRow
    updates: Updates = ()


class Table(Struct, frozen=True, array_like=True, tag=64):
    """Rows of the parts of the sender's table that differ; ``more`` if further ones did not fit."""

    row: MemberRow
    updates: Annotated[tuple[MemberRow, ...], Meta(max_length=limits.GOSSIP_TABLE_ROWS_MAX)]
    more: bool = False


class Digests(Struct, frozen=True, array_like=True, tag=65):
    """The digest of each part of the sender's table; with ``answer`` it asks for the receiver's, too.

    The receiver sends its rows of the parts that differ.
    """

    row: MemberRow
    parts: Annotated[
        tuple[TableHash, ...], Meta(min_length=limits.GOSSIP_DIGESTS, max_length=limits.GOSSIP_DIGESTS)
    ]
    answer: bool = False
    updates: Updates = ()


GossipMessage: TypeAlias = Ping | Ack | PingRequest | News | Table | Digests

_encoder: Final = msgspec.msgpack.Encoder()
_decoder: Final[msgspec.msgpack.Decoder[GossipMessage]] = msgspec.msgpack.Decoder(GossipMessage)


def encode(message: GossipMessage) -> bytes:
    """Return the bytes of a message."""
    return _encoder.encode(message)


def decode(body: bytes) -> GossipMessage:
    """Validate the bytes of a message; raises ProtocolError."""
    try:
        return _decoder.decode(body)
    except (msgspec.DecodeError, msgspec.ValidationError, RecursionError, UnicodeDecodeError) as error:
        raise ProtocolError(f"malformed gossip: {error}") from None
