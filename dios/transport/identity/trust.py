"""The nodes that a node trusts: known nodes, revoked nodes, and nodes that stay after their admitter's end.

A chain of certificates is valid as long as no node in it is revoked: everything that a revoked node signed,
before or later, becomes invalid. So that the nodes which it had admitted stay, the revocation lists the nodes
known at that time with their keys; for them the chain above is ignored. Both lists only grow and are merged
by union, so that repetitions and the order of messages do not matter. TLS checks the signatures, and
``dios.host.peers`` sends the lists.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Annotated, Final, TypeAlias

import msgspec
from msgspec import Meta, Struct

from dios import limits
from dios.errors import DamagedError, LimitError, ProtocolError
from dios.ids import NodeId
from dios.transport.identity import durable_files
from dios.transport.identity.certificates import CertificateDetails, CertificateRole

_Id: TypeAlias = Annotated[int, Meta(ge=1, le=2**63 - 1)]
_Digest: TypeAlias = Annotated[bytes, Meta(min_length=32, max_length=32)]
_VERSION: Final = 1


class Known(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A node and its key (SHA-256 of the public key)."""

    node: _Id
    name: Annotated[str, Meta(min_length=1, max_length=limits.NODE_NAME_BYTES_MAX)]
    key: _Digest


class _Revocations(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    version: Annotated[int, Meta(ge=_VERSION, le=_VERSION)]
    revoked: Annotated[tuple[_Id, ...], Meta(max_length=limits.NODES_FORGOTTEN_MAX)]
    kept: Annotated[tuple[tuple[_Id, _Digest], ...], Meta(max_length=limits.NODES_FORGOTTEN_MAX)]


class _Roster(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    version: Annotated[int, Meta(ge=_VERSION, le=_VERSION)]
    nodes: Annotated[tuple[Known, ...], Meta(max_length=limits.NODES_MAX)]


_encode: Final = msgspec.msgpack.Encoder().encode
_revocations: Final = msgspec.msgpack.Decoder(_Revocations)
_roster: Final = msgspec.msgpack.Decoder(_Roster)

NO_REVOCATIONS: Final = _encode(_Revocations(_VERSION, (), ()))
"""The encoded list of a new cluster."""


def roster_of(nodes: Iterable[Known]) -> bytes:
    """Return the content of the file of known nodes."""
    return _encode(_Roster(_VERSION, tuple(sorted(nodes, key=lambda known: known.node))))


class Trust:
    """The lists of one node, stored in the folder of its identity (files ``revoked`` and ``known``)."""

    def __init__(self, folder: Path) -> None:
        """Read the lists; raises DamagedError if they are not what was written."""
        self._folder: Final = folder
        self._watchers: Final[list[Callable[[], None]]] = []
        try:
            listed = _revocations.decode((folder / "revoked").read_bytes())
            roster = _roster.decode((folder / "known").read_bytes())
        except (msgspec.MsgspecError, UnicodeDecodeError, FileNotFoundError) as error:
            raise DamagedError(
                f"cannot read the lists of nodes in {folder}: {error}. Restore the files 'revoked' and "
                "'known' from a backup, or let the node join again with another data directory."
            ) from None
        self._revoked = frozenset(listed.revoked)
        self._kept = frozenset(listed.kept)
        self._known: Final = {known.node: known for known in roster.nodes}

    @property
    def revoked(self) -> frozenset[NodeId]:
        """Return the revoked nodes."""
        return frozenset(NodeId(node) for node in self._revoked)

    @property
    def known(self) -> Sequence[Known]:
        """Return all nodes that this one has met or admitted, with itself and without the revoked ones."""
        return tuple(self._known.values())

    def refusal(self, chain: Sequence[CertificateDetails]) -> str:
        """Return the reason why a peer with this chain is refused; empty if it is not."""
        peer = chain[0]
        known = self._known.get(peer.number)
        if peer.role is CertificateRole.NODE and known is not None and known.key != peer.key:
            return f"{peer.name} has another key than before, so it is not the node that was admitted"
        for card in chain[:-1]:
            if card.number in self._revoked and card.role is CertificateRole.NODE:
                if card is peer:
                    return f"{peer.name} was revoked"
                return (
                    f"{peer.name} was admitted by {card.name}, which was revoked. Join it again with a token."
                )
            if (card.number, card.key) in self._kept:
                return ""
        return ""

    def check_room(self) -> None:
        """Raise LimitError if the maximum number of nodes of a cluster is known."""
        if len(self._known) >= limits.NODES_MAX:
            raise LimitError(
                f"a cluster has at most {limits.NODES_MAX} nodes. `dios node forget` those that are gone."
            )

    def note(self, node: Known) -> None:
        """Record a node durably. A node that is known under this id stays unchanged.

        Raises LimitError if NODES_MAX nodes are known.
        """
        if node.node in self._known or node.node in self._revoked:
            return
        self.check_room()
        self._known[node.node] = node
        self._write_roster()

    def revoke(self, node: NodeId) -> None:
        """Refuse this node, and all unknown nodes that it admitted, from now on and durably.

        Raises LimitError if NODES_FORGOTTEN_MAX nodes were revoked in the cluster's life.
        """
        if node in self._revoked:
            return
        kept = {(known.node, known.key) for known in self._known.values()}
        self._grow(self._revoked | {int(node)}, self._kept | kept)

    def encode(self) -> bytes:
        """Return the revocations for ``merge`` at another node; at most TRUST_BYTES_MAX."""
        return _encode(_Revocations(_VERSION, tuple(sorted(self._revoked)), tuple(sorted(self._kept))))

    @property
    def digest(self) -> bytes:
        """Return the SHA-256 of ``encode``, which is equal for equal lists."""
        return hashlib.sha256(self.encode()).digest()

    def merge(self, data: bytes) -> bool:
        """Add the revocations of a trusted node; return True if any was new.

        Raises ProtocolError if they are malformed, LimitError if both lists together are too long.
        """
        listed = decode_revocations(data)
        revoked = self._revoked | set(listed.revoked)
        kept = self._kept | set(listed.kept)
        return self._grow(revoked, kept)

    def _grow(self, revoked: frozenset[int], kept: frozenset[tuple[int, bytes]]) -> bool:
        kept = frozenset(each for each in kept if each[0] not in revoked)
        if revoked == self._revoked and kept == self._kept:
            return False
        if max(len(revoked), len(kept)) > limits.NODES_FORGOTTEN_MAX:
            raise LimitError(
                f"more than {limits.NODES_FORGOTTEN_MAX} nodes were revoked in this cluster. Create a new one"
            )
        listed = _Revocations(_VERSION, tuple(sorted(revoked)), tuple(sorted(kept)))
        durable_files.write(self._folder / "revoked", _encode(listed))
        self._revoked, self._kept = revoked, kept
        gone = revoked & self._known.keys()
        for node in gone:
            del self._known[node]
        if gone:
            self._write_roster()
        for notify in tuple(self._watchers):
            notify()
        return True

    def _write_roster(self) -> None:
        durable_files.write(self._folder / "known", roster_of(self._known.values()))

    def watch(self, notify: Callable[[], None]) -> Callable[[], None]:
        """Call ``notify`` after each revocation; call the returned function to end that."""
        self._watchers.append(notify)
        return lambda: self._watchers.remove(notify) if notify in self._watchers else None


def decode_revocations(data: bytes) -> _Revocations:
    """Read the result of ``Trust.encode``; raises ProtocolError."""
    if len(data) > limits.TRUST_BYTES_MAX:
        raise ProtocolError(f"a list of revocations of {len(data)} bytes is over {limits.TRUST_BYTES_MAX}")
    try:
        return _revocations.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ProtocolError(f"malformed list of revocations: {error}") from None
