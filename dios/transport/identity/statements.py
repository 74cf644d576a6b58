"""The signed statements of members: the nodes that a member removed, and the nodes that it keeps.

Each member has one statement, and a newer one, which has a higher number, replaces it. A statement contains
the certificates of its signer, so that any node of the cluster can check it, whoever passes it on.
``dios.transport.identity.trust`` decides which statements count; ``docs/clusters.md`` has the format.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Final, TypeAlias

import msgspec
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from msgspec import Meta, Struct

from dios import limits
from dios.errors import ProtocolError
from dios.transport.identity.certificates import (
    CertificateDetails,
    cards_of,
    check_signatures,
    public_key_of,
)
from dios.wire.node_roles import NodeRight

Id: TypeAlias = Annotated[int, Meta(ge=1, le=2**63 - 1)]
Digest: TypeAlias = Annotated[bytes, Meta(min_length=32, max_length=32)]
_Source: TypeAlias = Annotated[int, Meta(ge=0, le=2**63 - 1)]
_Certificate: TypeAlias = Annotated[bytes, Meta(min_length=1, max_length=limits.CERTIFICATE_BYTES_MAX)]
_TAG: Final = b"dios statement of a member 1\0"
_VERSION: Final = 1


class _Content(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The signed part: ``removed`` has ids, each with the node whose removal it confirms, or 0."""

    version: Annotated[int, Meta(ge=_VERSION, le=_VERSION)]
    number: Annotated[int, Meta(ge=1, le=2**62)]
    removed: Annotated[tuple[tuple[Id, _Source], ...], Meta(max_length=limits.NODES_REMOVED_BY_MEMBER_MAX)]
    kept: Annotated[tuple[tuple[Id, Digest], ...], Meta(max_length=limits.NODES_MAX)]


class _Signed(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Content that a member signed, and its certificates without the root's."""

    content: Annotated[bytes, Meta(max_length=limits.STATEMENT_BYTES_MAX)]
    signature: Annotated[bytes, Meta(min_length=64, max_length=64)]
    chain: Annotated[tuple[_Certificate, ...], Meta(max_length=limits.CHAIN_CERTIFICATES_MAX)]


_encode: Final = msgspec.msgpack.Encoder().encode
_content: Final = msgspec.msgpack.Decoder(_Content)
_signed: Final = msgspec.msgpack.Decoder(_Signed)
_UNREADABLE: Final = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)


@dataclass(frozen=True, eq=False)
class Statement:
    """The statement of one member, checked. ``chain`` has the member's certificates and its signers'."""

    data: bytes = field(repr=False)
    chain: tuple[CertificateDetails, ...]
    number: int
    removed: Mapping[int, int]
    """The removed nodes, each with the removed node whose removal this confirms, 0 for the signer's own."""
    kept: Mapping[int, bytes]
    """The nodes that stay although a removed node had admitted them, with the SHA-256 of their keys."""

    @property
    def signer(self) -> CertificateDetails:
        """The member that signed it."""
        return self.chain[0]

    @property
    def order(self) -> tuple[int, bytes]:
        """Of two statements of one member the one with the higher order counts, on every node."""
        return self.number, hashlib.sha256(self.data).digest()


def make(
    chain: Sequence[bytes],
    key: Ed25519PrivateKey,
    number: int,
    removed: Mapping[int, int],
    kept: Mapping[int, bytes],
) -> Statement:
    """Sign a statement; ``chain`` are the signer's certificates, the root's last."""
    content = _encode(_Content(_VERSION, number, tuple(sorted(removed.items())), tuple(sorted(kept.items()))))
    return Statement(sign(_TAG, chain, key, content), cards_of(chain), number, dict(removed), dict(kept))


def read(data: bytes, authority: bytes) -> Statement:
    """Read and check a statement in the cluster of this root; raises ProtocolError."""
    signed, cards = read_signed(_TAG, data, authority, "statement")
    try:
        content = _content.decode(signed)
    except _UNREADABLE as error:
        raise ProtocolError(f"malformed statement of a member: {error}") from None
    removed, kept = dict(content.removed), dict(content.kept)
    own = cards[0]
    if own.number in removed or (removed and kept.get(own.number) != own.key):
        raise ProtocolError("a statement removes its own member")
    if len(removed) < len(content.removed) or len(kept) < len(content.kept):
        raise ProtocolError("a statement names a node twice")
    return Statement(data, cards, content.number, removed, kept)


def sign(tag: bytes, chain: Sequence[bytes], key: Ed25519PrivateKey, content: bytes) -> bytes:
    """Return a document of a member: the content, signed for the use ``tag``, and the signer's chain."""
    return _encode(_Signed(content, key.sign(_signed_bytes(tag, chain[-1], content)), tuple(chain[:-1])))


def read_signed(
    tag: bytes, data: bytes, authority: bytes, name: str
) -> tuple[bytes, tuple[CertificateDetails, ...]]:
    """Return the content of a member's document called ``name``, and the certificates of its signer.

    Raises ProtocolError unless a node of the cluster with this root signed it whose role removes nodes.
    """
    if len(data) > limits.STATEMENT_BYTES_MAX:
        raise ProtocolError(f"a {name} of {len(data)} bytes is over {limits.STATEMENT_BYTES_MAX}")
    try:
        signed = _signed.decode(data)
    except _UNREADABLE as error:
        raise ProtocolError(f"malformed {name} of a member: {error}") from None
    chain = (*signed.chain, authority)
    cards = cards_of(chain)
    check_signatures(chain)
    if not cards[0].may(NodeRight.REMOVE):
        raise ProtocolError(f"a {name} was signed with a certificate that removes no nodes")
    try:
        public_key_of(chain[0]).verify(signed.signature, _signed_bytes(tag, authority, signed.content))
    except InvalidSignature:
        raise ProtocolError(f"the signature of a {name} is not its member's") from None
    return signed.content, cards


def _signed_bytes(tag: bytes, authority: bytes, content: bytes) -> bytes:
    return tag + hashlib.sha256(authority).digest() + content
