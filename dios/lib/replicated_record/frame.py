"""The bytes of a replica: a header with the accepted value's place in history, and then its content."""

from __future__ import annotations

from typing import Annotated, Final, NamedTuple, TypeAlias

import msgspec
from blake3 import blake3
from msgspec import Meta

from dios import limits
from dios.errors import DamagedError
from dios.wire.fields import U63, Identifier
from dios.wire.fields import Label as NodeName

FORMAT_VERSION: Final = 1
HEADER_BYTES_MAX: Final = 4 * limits.KIB
"""Any header fits: a reader that needs no content reads this much."""

CHANGES_KEPT: Final = 32
"""The number of the last changes of which a value has the marks."""

_MAGIC: Final = b"DIOSREC\x01"
_LENGTH_BYTES: Final = 2
_BEGIN: Final = len(_MAGIC) + _LENGTH_BYTES

Ballot: TypeAlias = tuple[U63, U63]
"""The rank of a proposal: its round, and its client; 0 for the client that held every replica."""

ZERO: Final[Ballot] = (0, 0)

_Digest = Annotated[bytes, Meta(min_length=limits.DIGEST_BYTES, max_length=limits.DIGEST_BYTES)]


class Member(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, order=True):
    """A replica that takes part: the id of the physical object, and the name of its node for messages."""

    object_id: Identifier
    node: NodeName


Members: TypeAlias = Annotated[tuple[Member, ...], Meta(max_length=limits.KEPT_REPLICAS_MAX)]


class _Header(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    format: int
    promised: Ballot
    ballot: Ballot
    members: Members
    former: Members
    version: U63
    size: U63
    digest: _Digest
    changes: Annotated[tuple[U63, ...], Meta(max_length=CHANGES_KEPT)]
    signature: Annotated[bytes, Meta(max_length=limits.RECORD_SIGNATURE_BYTES_MAX)] = b""


class Value(NamedTuple):
    """A value of the record with its place in history.

    ``version`` only rises. After a change of the members, ``former`` are those before it, until the next
    value. ``content``, of ``size`` bytes, is None if only the header was read. ``changes`` are random marks
    of the last changes, by which a client that got no answer finds out if its change was made. ``signature``
    is kept for that of the owner, and empty.
    """

    ballot: Ballot
    members: tuple[Member, ...]
    former: tuple[Member, ...]
    version: int
    size: int
    digest: bytes
    content: bytes | None
    changes: tuple[int, ...] = ()
    signature: bytes = b""

    @property
    def groups(self) -> tuple[tuple[Member, ...], ...]:
        """The sets of members of which a decision needs a majority each."""
        return (self.members, self.former) if self.former else (self.members,)

    @property
    def nodes(self) -> set[str]:
        """The names of the members' nodes."""
        return {member.node for member in self.members}

    @property
    def object_ids(self) -> set[int]:
        """The ids of all members, former ones included."""
        return {member.object_id for group in self.groups for member in group}

    def with_content(self, content: bytes, ballot: Ballot, mark: int) -> Value:
        """Return the next value with these bytes and the same members; ``mark`` is that of the change."""
        digest = blake3(content).digest()
        changes = (*self.changes, mark)[-CHANGES_KEPT:]
        return Value(ballot, self.members, (), self.version + 1, len(content), digest, content, changes)


class ReplicaState(NamedTuple):
    """The state of a replica: it accepts no ballot below ``promised``, and has accepted ``value``.

    A replica is ``plain`` if its bytes are content without a header: the only replica of a record, or one
    that an earlier release wrote.
    """

    promised: Ballot
    value: Value
    plain: bool = False


_encode: Final = msgspec.msgpack.Encoder().encode
_decode: Final = msgspec.msgpack.Decoder(_Header).decode


def encode(state: ReplicaState) -> bytes:
    """Return the bytes of a replica, whose content must be known."""
    value = state.value
    if value.content is None:
        raise ValueError("the content of a value that is stored must be known")
    header = _encode(
        _Header(
            FORMAT_VERSION,
            state.promised,
            value.ballot,
            value.members,
            value.former,
            value.version,
            value.size,
            value.digest,
            value.changes,
            value.signature,
        )
    )
    return _MAGIC + len(header).to_bytes(_LENGTH_BYTES) + header + value.content


def decode(data: bytes | memoryview, here: Member, *, whole: bool = True) -> ReplicaState:
    """Return the state of the replica ``here``; with ``whole`` False, data may end within the content.

    Bytes after the content, as in a buffer that is longer, are ignored.
    Raises DamagedError if the bytes are not those of a replica.
    """
    if not has_header(bytes(data[: len(_MAGIC)])):
        content = bytes(data) if whole else None
        digest = blake3(content).digest() if content is not None else bytes(limits.DIGEST_BYTES)
        value = Value(ZERO, (here,), (), 0, len(content or b""), digest, content)
        return ReplicaState(ZERO, value, plain=True)
    begin = _BEGIN + int.from_bytes(data[len(_MAGIC) : _BEGIN])
    try:
        header = _decode(data[_BEGIN:begin])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise DamagedError(
            f"the header of the list's replica on {here.node} cannot be read: {error}"
        ) from None
    if header.format != FORMAT_VERSION:
        raise DamagedError(
            f"the list's replica on {here.node} has version {header.format}, this program reads "
            f"{FORMAT_VERSION}. Update it."
        )
    content = bytes(data[begin : begin + header.size]) if whole else None
    if content is not None and blake3(content).digest() != header.digest:
        raise DamagedError(f"the list's replica on {here.node} has other bytes than were written")
    value = Value(
        header.ballot,
        header.members,
        header.former,
        header.version,
        header.size,
        header.digest,
        content,
        header.changes,
        header.signature,
    )
    return ReplicaState(header.promised, value)


def has_header(data: bytes) -> bool:
    """Return True if these are the bytes of a replica with a history, and not plain content."""
    return data[: len(_MAGIC)] == _MAGIC


def content_of(data: bytes) -> bytes:
    """Return the content of a replica's bytes, with and without a header. Raises DamagedError."""
    if not has_header(data):
        return data
    content = decode(data, Member(0, "")).value.content
    return b"" if content is None else content
