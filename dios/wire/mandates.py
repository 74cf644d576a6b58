"""The signed statements by which a node acts for a user at other nodes, and the register of users' keys.

A *mandate* is signed by the user's key and names one node, its purposes and its end. A node that starts a
task of the user at another node signs an *extension* of its own mandate: it names that node, has no purpose
and no time that the mandate lacks, and can be extended in turn. The *register* binds principals to keys, and
is signed by the key of the cluster's administrator. All readers here are pure functions of bytes: they check
the signatures, and ``dios.core.remote.authority`` decides what counts. ``docs/clusters.md`` has the formats.

Cryptography is loaded with the first statement, because most nodes and programs never read one.
"""

from __future__ import annotations

import enum
import hashlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Final, TypeAlias, TypeVar

import msgspec
from msgspec import Meta, Struct

from dios import limits
from dios.errors import ProtocolError
from dios.wire.fields import Counter, Identifier, Milliseconds, User

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

T = TypeVar("T")

Digest: TypeAlias = Annotated[bytes, Meta(min_length=32, max_length=32)]
PublicKey: TypeAlias = Annotated[bytes, Meta(min_length=32, max_length=32)]
"""An Ed25519 public key."""

Keys: TypeAlias = Annotated[tuple[PublicKey, ...], Meta(max_length=limits.KEYS_PER_PRINCIPAL_MAX)]
"""The keys of one user, who may have one on each machine."""

MandateBytes: TypeAlias = Annotated[bytes, Meta(min_length=1, max_length=limits.MANDATE_BYTES_MAX)]
RegisterBytes: TypeAlias = Annotated[bytes, Meta(max_length=limits.REGISTER_BYTES_MAX)]

_Signature: TypeAlias = Annotated[bytes, Meta(min_length=64, max_length=64)]
_Purposes: TypeAlias = Annotated[int, Meta(ge=0, le=2**16 - 1)]
_Signed: TypeAlias = tuple[Annotated[bytes, Meta(max_length=limits.MANDATE_BYTES_MAX)], _Signature]

_MANDATE_TAG: Final = b"dios mandate of a user 1\0"
_EXTENSION_TAG: Final = b"dios extension of a mandate 1\0"
_REGISTER_TAG: Final = b"dios register of principals 1\0"
_VERSION: Final = 1
_SPKI: Final = bytes.fromhex("302a300506032b6570032100")
"""The beginning of an Ed25519 key in DER, as certificates have it and as digests of keys are made."""


class Purpose(enum.IntFlag):
    """The kinds of requests that a node may make for a user."""

    NONE = 0
    OBJECTS = 1
    """Create, find, read, change and delegate objects."""
    TASKS = 2
    """Start tasks and hand them references."""
    COPIES = 4
    """Make copies of objects on other nodes."""
    SCHEDULING = 8
    """Read queues, place runs and set quotas and rates."""
    ADMINISTRATION = 16
    """Drain, label and remove nodes, and administer them."""


EVERY_PURPOSE: Final = (
    Purpose.OBJECTS | Purpose.TASKS | Purpose.COPIES | Purpose.SCHEDULING | Purpose.ADMINISTRATION
)
FOR_CHILDREN: Final = Purpose.OBJECTS | Purpose.TASKS | Purpose.COPIES
"""The purposes of an extension for a task on another node: tasks schedule and administer nothing."""


class _Grant(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The part that the user signs. ``node_key`` is the SHA-256 of the node's public key."""

    version: Annotated[int, Meta(ge=_VERSION, le=_VERSION)]
    cluster: Digest
    principal: User
    key: PublicKey
    node: Identifier
    node_key: Digest
    purposes: _Purposes
    made_ms: Milliseconds
    end_ms: Milliseconds


class _Extension(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The part that a node signs with ``key``, whose digest the statement before it has."""

    key: PublicKey
    node: Identifier
    node_key: Digest
    purposes: _Purposes
    end_ms: Milliseconds


class _Chain(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    grant: _Signed
    extensions: Annotated[tuple[_Signed, ...], Meta(max_length=limits.MANDATE_EXTENSIONS_MAX)] = ()


class _Content(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    version: Annotated[int, Meta(ge=_VERSION, le=_VERSION)]
    cluster: Digest
    number: Counter
    keys: Annotated[tuple[tuple[User, Keys], ...], Meta(max_length=limits.ENROLLED_MAX)]


class _SignedContent(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    content: Annotated[bytes, Meta(max_length=limits.REGISTER_BYTES_MAX)]
    administrator: PublicKey
    signature: _Signature


_encode: Final = msgspec.msgpack.Encoder().encode
_grants: Final = msgspec.msgpack.Decoder(_Grant)
_extensions: Final = msgspec.msgpack.Decoder(_Extension)
_chains: Final = msgspec.msgpack.Decoder(_Chain)
_contents: Final = msgspec.msgpack.Decoder(_Content)
_registers: Final = msgspec.msgpack.Decoder(_SignedContent)


class Mandate(Struct, frozen=True, array_like=True):
    """A mandate whose signatures are right, for ``node``, the last node that it names.

    ``key`` is the user's key as the mandate states it. ``purposes`` and ``end_ms`` are what all its parts
    leave; times are milliseconds since 1970. ``nodes`` are all nodes that it names, the user's first.
    """

    data: bytes
    cluster: bytes
    principal: str
    key: bytes
    node: int
    node_key: bytes
    purposes: Purpose
    made_ms: int
    end_ms: int
    nodes: tuple[int, ...]

    def __repr__(self) -> str:
        return f"<Mandate of {self.principal} for node {self.node:x}>"


class MandateTerms(Struct, frozen=True, array_like=True):
    """The terms of a mandate, as a node states them to a user's program that may sign it.

    ``node_key`` is the SHA-256 of the node's public key, ``cluster`` that of the authority's certificate, and
    ``keys`` are the user's keys in the register. ``now_ms`` is the node's clock, and ``end_ms`` the end of
    the mandate that the node has for the user, or 0.
    """

    node: Identifier
    node_key: Digest
    cluster: Digest
    principal: User
    keys: Keys
    now_ms: Milliseconds
    end_ms: Milliseconds = 0


class Register(Struct, frozen=True, array_like=True):
    """A register whose signature is right: the keys of the enrolled principals.

    Other nodes act for a principal without keys in no case, because nobody can sign for it.
    ``administrator`` is the key that signed it. Of two registers of one administrator the one with the
    higher ``order`` counts, on every node.
    """

    data: bytes
    cluster: bytes
    number: int
    administrator: bytes
    keys: Mapping[str, tuple[bytes, ...]]

    @property
    def order(self) -> tuple[int, bytes]:
        """The number of the register; registers with the same number are ordered by their digests."""
        return self.number, hashlib.sha256(self.data).digest()

    def __repr__(self) -> str:
        return f"<Register {self.number} of {len(self.keys)} principals>"


# -- mandates -----------------------------------------------------------------------------------------
def make_mandate(
    key: Ed25519PrivateKey, terms: MandateTerms, purposes: Purpose, made_ms: int, end_ms: int
) -> bytes:
    """Return a mandate for the node with these terms, signed by the user's key."""
    grant = _encode(
        _Grant(
            _VERSION,
            terms.cluster,
            terms.principal,
            public_bytes(key),
            terms.node,
            terms.node_key,
            int(purposes),
            made_ms,
            end_ms,
        )
    )
    return _encode(_Chain((grant, key.sign(_MANDATE_TAG + grant))))


def extend(
    data: bytes, key: Ed25519PrivateKey, node: int, node_key: bytes, purposes: Purpose, end_ms: int
) -> bytes:
    """Return a mandate with one more extension, signed by the node that the mandate names last.

    ``node_key`` is the SHA-256 of the public key of the other node. Raise ProtocolError if the mandate has
    MANDATE_EXTENSIONS_MAX extensions already.
    """
    chain = _decoded(_chains, data, "mandate")
    if len(chain.extensions) >= limits.MANDATE_EXTENSIONS_MAX:
        raise ProtocolError(f"a mandate has at most {limits.MANDATE_EXTENSIONS_MAX} extensions")
    content = _encode(_Extension(public_bytes(key), node, node_key, int(purposes), end_ms))
    signature = key.sign(_extension_bytes(chain.grant, chain.extensions, content))
    return _encode(_Chain(chain.grant, (*chain.extensions, (content, signature))))


def read_mandate(data: bytes) -> Mandate:
    """Read a mandate and check its signatures; raise ProtocolError if nobody can have made it so.

    The caller checks that the principal has this key, and that the mandate is for this cluster and time.
    """
    mandate, chain = _stated(data)
    content, signature = chain.grant
    _verify(mandate.key, signature, _MANDATE_TAG + content, "mandate")
    for place, (content, signature) in enumerate(chain.extensions):
        key = _decoded(_extensions, content, "extension of a mandate").key
        signed = _extension_bytes(chain.grant, chain.extensions[:place], content)
        _verify(key, signature, signed, "extension of a mandate")
    return mandate


def stated_mandate(data: bytes) -> Mandate:
    """Return what a mandate says, which takes a hundredth of the time; no signature is checked.

    Raise ProtocolError if it is malformed, or extended by a key that is not that of the node which had it.
    """
    return _stated(data)[0]


def _stated(data: bytes) -> tuple[Mandate, _Chain]:
    if len(data) > limits.MANDATE_BYTES_MAX:
        raise ProtocolError(f"a mandate of {len(data)} bytes is over {limits.MANDATE_BYTES_MAX}")
    chain = _decoded(_chains, data, "mandate")
    grant = _decoded(_grants, chain.grant[0], "mandate")
    if not grant.principal or not grant.node:
        raise ProtocolError("a mandate names no principal or no node")
    node, node_key, nodes = grant.node, grant.node_key, [grant.node]
    purposes, end_ms = Purpose(grant.purposes) & EVERY_PURPOSE, grant.end_ms
    for content, _ in chain.extensions:
        extension = _decoded(_extensions, content, "extension of a mandate")
        if key_digest(extension.key) != node_key:
            raise ProtocolError("an extension of a mandate was not signed by the node that had it")
        node, node_key = extension.node, extension.node_key
        nodes.append(node)
        purposes &= Purpose(extension.purposes)
        end_ms = min(end_ms, extension.end_ms)
    return (
        Mandate(
            data,
            grant.cluster,
            grant.principal,
            grant.key,
            node,
            node_key,
            purposes,
            grant.made_ms,
            end_ms,
            tuple(nodes),
        ),
        chain,
    )


def _extension_bytes(grant: _Signed, before: Sequence[_Signed], content: bytes) -> bytes:
    """Return the bytes that an extension signs: everything before it, and its own content."""
    return _EXTENSION_TAG + hashlib.sha256(_encode((grant, tuple(before)))).digest() + content


# -- the register -------------------------------------------------------------------------------------
def make_register(
    key: Ed25519PrivateKey, cluster: bytes, number: int, keys: Mapping[str, tuple[bytes, ...]]
) -> Register:
    """Return a register that is signed by the administrator's key."""
    content = _encode(_Content(_VERSION, cluster, number, tuple(sorted(keys.items()))))
    signature = key.sign(_REGISTER_TAG + content)
    data = _encode(_SignedContent(content, public_bytes(key), signature))
    return Register(data, cluster, number, public_bytes(key), dict(keys))


def read_register(data: bytes) -> Register:
    """Read a register and check its signature; raise ProtocolError.

    The caller checks that it is for this cluster and signed by its administrator.
    """
    if len(data) > limits.REGISTER_BYTES_MAX:
        raise ProtocolError(f"a register of {len(data)} bytes is over {limits.REGISTER_BYTES_MAX}")
    signed = _decoded(_registers, data, "register of principals")
    content = _decoded(_contents, signed.content, "register of principals")
    _verify(signed.administrator, signed.signature, _REGISTER_TAG + signed.content, "register of principals")
    keys = dict(content.keys)
    if len(keys) < len(content.keys) or "" in keys:
        raise ProtocolError("a register names a principal twice, or none")
    return Register(data, content.cluster, content.number, signed.administrator, keys)


# -- keys ---------------------------------------------------------------------------------------------
def public_bytes(key: Ed25519PrivateKey) -> bytes:
    """Return the 32 bytes of the public key that belongs to a private key."""
    return key.public_key().public_bytes_raw()


def key_digest(key: bytes) -> bytes:
    """Return the SHA-256 of a public key as certificates have it."""
    return hashlib.sha256(_SPKI + key).digest()


def _verify(key: bytes, signature: bytes, message: bytes, name: str) -> None:
    from cryptography.exceptions import InvalidSignature  # noqa: PLC0415 - see the top
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey  # noqa: PLC0415 - the same

    try:
        Ed25519PublicKey.from_public_bytes(key).verify(signature, message)
    except (InvalidSignature, ValueError):
        raise ProtocolError(f"the signature of a {name} is wrong") from None


def _decoded(decoder: msgspec.msgpack.Decoder[T], data: bytes, name: str) -> T:
    try:
        return decoder.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ProtocolError(f"malformed {name}: {error}") from None
