"""The generations of the cluster's secret: a new one after each removal, which the removed node never gets.

The first secret (``cluster.secret``) names things, for ever. Later ones seal. All of them are in a document
that an authority signs and all members hold. The document with the highest order counts, and its last secret
is the one that seals now. It also says which nodes must not get it. ``docs/clusters.md`` has the format.

All secrets are kept, so that what an earlier one has sealed is still recognized.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Final, NamedTuple

import msgspec
import trio
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from msgspec import Meta, Struct

from dios import limits
from dios.errors import DamagedError, LimitError, NotPermittedError, ProtocolError, WouldBlockError
from dios.ids import NodeId
from dios.transport.identity import durable_files
from dios.transport.identity.certificates import CertificateDetails, cards_of
from dios.transport.identity.statements import Id, read_signed, sign
from dios.transport.identity.trust import Trust
from dios.wire.node_roles import NodeRight

FILE: Final = "generations"
SECRET_BYTES: Final = 32
_TAG: Final = b"dios generations of a secret 1\0"
_VERSION: Final = 1

Secret = Annotated[bytes, Meta(min_length=SECRET_BYTES, max_length=SECRET_BYTES)]


class _Content(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    version: Annotated[int, Meta(ge=_VERSION, le=_VERSION)]
    number: Annotated[int, Meta(ge=1, le=2**62)]
    secrets: Annotated[tuple[Secret, ...], Meta(min_length=1, max_length=limits.GENERATIONS_MAX)]
    withheld: Annotated[tuple[Id, ...], Meta(max_length=limits.NODES_FORGOTTEN_MAX)]


class _Stored(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    version: Annotated[int, Meta(ge=_VERSION, le=_VERSION)]
    document: Annotated[bytes, Meta(max_length=limits.STATEMENT_BYTES_MAX)]
    strays: Annotated[tuple[Secret, ...], Meta(max_length=limits.GENERATIONS_MAX)]


_encode: Final = msgspec.msgpack.Encoder().encode
_content: Final = msgspec.msgpack.Decoder(_Content)
_stored: Final = msgspec.msgpack.Decoder(_Stored)
_UNREADABLE: Final = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)


@dataclass(frozen=True, eq=False)
class Generations:
    """A checked document: the later secrets, the present one last, and the nodes that must not get them."""

    data: bytes = field(repr=False)
    chain: tuple[CertificateDetails, ...]
    """The certificates of the authority that signed it, and those above it."""
    number: int
    secrets: tuple[bytes, ...] = field(repr=False)
    withheld: frozenset[NodeId]

    @property
    def order(self) -> tuple[int, bytes]:
        """Of two documents the one with the higher order counts, on every node."""
        return self.number, hashlib.sha256(self.data).digest()


def make(
    chain: Sequence[bytes],
    key: Ed25519PrivateKey,
    number: int,
    secrets: Sequence[bytes],
    withheld: AbstractSet[NodeId],
) -> Generations:
    """Sign a document; ``chain`` are the signer's certificates, the root's last."""
    content = _encode(_Content(_VERSION, number, tuple(secrets), tuple(sorted(withheld))))
    data = sign(_TAG, chain, key, content)
    return Generations(data, cards_of(chain), number, tuple(secrets), frozenset(withheld))


def read(data: bytes, authority: bytes) -> Generations:
    """Read and check a document in the cluster of this root; raises ProtocolError."""
    signed, chain = read_signed(_TAG, data, authority, "list of generations")
    try:
        content = _content.decode(signed)
    except _UNREADABLE as error:
        raise ProtocolError(f"malformed list of generations: {error}") from None
    if len(set(content.secrets)) < len(content.secrets):
        raise ProtocolError("a list of generations has a secret twice")
    withheld = frozenset(NodeId(node) for node in content.withheld)
    return Generations(data, chain, content.number, content.secrets, withheld)


class KnownGenerations(NamedTuple):
    """The generations that one node knows.

    ``strays`` are secrets that the document does not have, because two authorities made documents at once. Of
    too many the first ones stay.
    """

    document: Generations | None = None
    strays: tuple[bytes, ...] = ()

    def __repr__(self) -> str:
        """Return a text without the secrets."""
        return f"<{len(self.secrets)} generations, {len(self.strays)} of them strays>"

    @property
    def secrets(self) -> tuple[bytes, ...]:
        """Return all later secrets; the last one seals now."""
        return self.strays if self.document is None else (*self.strays, *self.document.secrets)

    @property
    def mark(self) -> int:
        """Return a number of 63 bits that is equal on all nodes with this document; 0 without one."""
        if self.document is None:
            return 0
        return int.from_bytes(self.document.order[1][:8], "big") >> 1 or 1

    def followed_by(self, document: Generations) -> KnownGenerations | None:
        """Return what a node knows after it has heard of a document, None if that has nothing new."""
        known = self.document
        if known is None or document.order > known.order:
            strays = tuple(secret for secret in self.secrets if secret not in document.secrets)
            return KnownGenerations(document, strays[: limits.GENERATIONS_MAX])
        new = tuple(secret for secret in document.secrets if secret not in self.secrets)
        strays = (*self.strays, *new)[: limits.GENERATIONS_MAX]
        return KnownGenerations(known, strays) if strays != self.strays else None

    def is_due(self, removed: AbstractSet[NodeId]) -> bool:
        """Return True if a further document is needed: a removed node may have this one, or there are strays.

        None is due if there is no room for another secret.
        """
        if len(self.secrets) >= limits.GENERATIONS_MAX:
            return False
        return bool(self.strays) or not removed <= self.withheld

    @property
    def withheld(self) -> frozenset[NodeId]:
        """Return the nodes that must not get the document."""
        return frozenset() if self.document is None else self.document.withheld

    def may_have(self, node: NodeId) -> bool:
        """Return True if the document may be sent to this node."""
        return node not in self.withheld

    def next(
        self,
        chain: Sequence[bytes],
        key: Ed25519PrivateKey,
        secret: bytes,
        removed: Iterable[NodeId],
        *,
        exactly: bool,
    ) -> KnownGenerations:
        """Return what the node knows once it has made the next document, with this new secret.

        The removed nodes do not get it; nor, unless ``exactly`` is set, those that did not get the last one.
        Raises LimitError if there is no room for another secret.
        """
        if len(self.secrets) >= limits.GENERATIONS_MAX:
            raise LimitError(
                f"the cluster has made {len(self.secrets)} generations of its secret, the maximum. A new "
                "cluster begins with the first one."
            )
        withheld = frozenset(removed) | (frozenset() if exactly else self.withheld)
        if len(withheld) > limits.NODES_FORGOTTEN_MAX:
            raise LimitError(f"the cluster has removed {len(withheld)} nodes, too many for one list")
        number = 1 if self.document is None else self.document.number + 1
        return KnownGenerations(make(chain, key, number, (*self.secrets, secret), withheld))


class GenerationStore:
    """The generations that one node knows, stored in the folder of its identity (file ``generations``).

    A generation counts as soon as it is stored, and never before.
    """

    def __init__(self, folder: Path, trust: Trust) -> None:
        """Read the file, which may be absent. Raises DamagedError."""
        self._path: Final = folder / FILE
        self._trust: Final = trust
        self._storing: Final = trio.Lock()
        self.known = KnownGenerations()
        try:
            data = self._path.read_bytes()
        except FileNotFoundError:
            return
        try:
            stored = _stored.decode(data)
            self.known = KnownGenerations(read(stored.document, trust.authority), stored.strays)
        except (*_UNREADABLE, ProtocolError) as error:
            raise DamagedError(
                f"cannot read the generations of the cluster's secret in {self._path}: {error}. Remove the "
                "file: the other nodes of the cluster send it again."
            ) from None

    @property
    def document(self) -> bytes:
        """The document for other nodes, empty before the first one."""
        return b"" if self.known.document is None else self.known.document.data

    @property
    def secrets(self) -> tuple[bytes, ...]:
        """The later secrets, the present one last."""
        return self.known.secrets

    @property
    def mark(self) -> int:
        """A number that is equal on all nodes with this document, 0 without one."""
        return self.known.mark

    @property
    def withheld(self) -> frozenset[NodeId]:
        """The nodes that must not get the document."""
        return self.known.withheld

    @property
    def is_due(self) -> bool:
        """True if this node, or another authority, has to make the next document."""
        trust = self._trust
        return self.may_make and trust.own.number not in trust.revoked and self.known.is_due(trust.revoked)

    @property
    def may_make(self) -> bool:
        """True if this node is an authority: nobody else makes generations, and can use them up."""
        return self._trust.own.may(NodeRight.SIGN)

    @property
    def is_exact(self) -> bool:
        """True if the document is withheld from the removed nodes, and from no other."""
        return self.known.withheld == self._trust.revoked

    def may_have(self, node: NodeId) -> bool:
        """Return True if the document may be sent to this node."""
        return self.known.may_have(node) and node not in self._trust.revoked

    async def accept(self, data: bytes, admit: Callable[[int], bool] = lambda _signer: True) -> bool:
        """Store a document that a node has sent; return True if it has something new.

        A document of a removed node changes nothing. One that has something new is stored only if ``admit``
        returns True for its signer. Raises ProtocolError if no authority has made it, WouldBlockError if it
        is not admitted, OSError if it cannot be stored; then it does not count.
        """
        async with self._storing:
            if data == self.document:
                return False
            document = read(data, self._trust.authority)
            if not document.chain[0].may(NodeRight.SIGN):
                raise ProtocolError(f"{document.chain[0].name} is no authority: it makes no generations")
            if self._trust.refusal(document.chain):
                return False
            following = self.known.followed_by(document)
            if following is None:
                return False
            if not admit(document.chain[0].number):
                raise WouldBlockError("an authority has changed the cluster's secret too often")
            await self._store(following)
            return True

    async def rotate(self, *, exactly: bool) -> None:
        """Make and store the next generation, which the removed nodes do not get.

        ``exactly`` also gives it to nodes that did not get the last one and are not removed here. Raises
        NotPermittedError if the role of this node does not let it, LimitError for too many, OSError.
        """
        trust = self._trust
        if not self.may_make:
            raise NotPermittedError(
                f"{trust.own.name} is no authority and does not change the cluster's secret. Ask one with "
                "--node; `dios node ls` shows which nodes are."
            )
        async with self._storing:
            secret = os.urandom(SECRET_BYTES)
            chain, key = trust.signer()
            await self._store(self.known.next(chain, key, secret, trust.revoked, exactly=exactly))

    async def _store(self, following: KnownGenerations) -> None:
        await trio.to_thread.run_sync(durable_files.write, self._path, file_of(following))
        self.known = following


def file_of(known: KnownGenerations) -> bytes:
    """Return the content of the file of generations."""
    document = b"" if known.document is None else known.document.data
    return _encode(_Stored(_VERSION, document, known.strays))
