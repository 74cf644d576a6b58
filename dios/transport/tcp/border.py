"""Connections between two clusters: TLS 1.3 with certificates of one trusted cluster at each end (ADR 0101).

A border has its own port and its own TLS contexts: a certificate of a foreign cluster opens nothing on the
port for nodes, and one of the own cluster nothing here. ``dios.transport.identity.trusted_clusters`` has the
clusters; both sides must trust each other.
"""

from __future__ import annotations

import hashlib
import socket
import ssl
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Final, Protocol

import trio

from dios import limits
from dios.errors import DiosError, InvalidError, NotPermittedError, UnreachableError
from dios.ids import NodeId
from dios.transport.identity.certificates import CertificateRole, card_of, cards_of, end_of
from dios.transport.identity.identity import Identity, bare_context, load_own
from dios.transport.identity.trusted_clusters import TrustedCluster
from dios.transport.tcp.secured import PeerIdentity, Secured, close_socket, frame_of
from dios.transport.tcp.tls import Listener, Refused, connect, handshake, verified_chain, wrapped
from dios.transport.tcp.tls_socket import TlsSocket
from dios.wire.node_roles import NodeRight

TrustedNow = Callable[[], Mapping[bytes, TrustedCluster]]
"""Returns the present trusted clusters, the same mapping until they change; raises DamagedError."""


class HandshakeBound(Protocol):
    """A bound of the handshakes that strangers can cause."""

    def admits(self, address: str, /) -> bool:
        """Return True if a handshake with this address may begin now, and count it."""
        ...

    def passed(self, address: str, /) -> None:
        """Note that a node of a trusted cluster has come from this address."""
        ...


class BorderListener(Listener):
    """A port for the nodes of trusted clusters."""

    def __init__(
        self,
        sockets: Sequence[socket.socket],
        identity: Identity,
        trusted: TrustedNow,
        nursery: trio.Nursery,
        refused: Refused,
        bound: HandshakeBound,
    ) -> None:
        super().__init__(sockets, identity, nursery, refused)
        self._trusted: Final = trusted
        self._bound: Final = bound
        self._trusted_by_context: Mapping[bytes, TrustedCluster] | None = None

    def adopt(self, identity: Identity) -> None:
        self._identity, self._trusted_by_context = identity, None

    @property
    def _handshakes_max(self) -> int:
        return limits.BORDER_HANDSHAKES_AT_ONCE_MAX

    def _admits(self, host: str) -> bool:
        return self._bound.admits(host)

    def _passed(self, host: str) -> None:
        self._bound.passed(host)

    async def _shake(self, sock: socket.socket) -> Secured:
        try:
            trusted = self._trusted()
            if trusted is not self._trusted_by_context:
                self._context = _context(self._identity, ssl.PROTOCOL_TLS_SERVER, [*trusted.values()])
                self._context.num_tickets = 0
                self._trusted_by_context = trusted
        except BaseException:
            sock.close()
            raise
        tls = wrapped(self._context, sock, server=True)
        try:
            await handshake(tls, self._turn)
            try:
                peer = _foreign_peer(tls, trusted)
            except DiosError as error:
                tls.write(frame_of(error.message.encode()[: limits.REFUSAL_BYTES_MAX]))
                raise
            tls.write(frame_of(b""))
            return Secured(tls, peer, self._nursery, None)
        except BaseException:
            close_socket(tls)
            raise


async def call_border(identity: Identity, trusted: TrustedCluster, nursery: trio.Nursery) -> Secured:
    """Connect to the border of a trusted cluster.

    Raises InvalidError if no address is known, UnreachableError if nobody answers, NotPermittedError if the
    peer is of another cluster or does not trust this one, ProtocolError if it does not speak TLS 1.3.
    """
    if not trusted.address:
        raise InvalidError(
            f"no address of the border of {trusted.name} is known. Remove it with `dios-node trust rm`, and "
            "add it again with --address HOST:PORT."
        )
    try:
        peer, tls = await connect(
            trusted.address, _client_context(identity, trusted), trusted.cluster, _require_border
        )
    except NotPermittedError as error:
        raise NotPermittedError(
            f"the border of {trusted.name} and this node do not trust each other: {error.message}"
        ) from None
    except UnreachableError as error:
        raise UnreachableError(
            f"the border of {trusted.name} does not answer: {error.message}. Try again later."
        ) from None
    return Secured(tls, peer, nursery, None)


def cluster_of(secured: Secured, trusted: Mapping[bytes, TrustedCluster]) -> TrustedCluster:
    """Return the trusted cluster of an accepted peer. Raise NotPermittedError if it is trusted no longer."""
    authority = secured.peer.chain[-1]
    for cluster in trusted.values():
        if card_of(cluster.authority) == authority:
            return cluster
    raise NotPermittedError("this cluster is trusted no longer")


@lru_cache(maxsize=limits.TRUSTED_CLUSTERS_MAX)
def _client_context(identity: Identity, trusted: TrustedCluster) -> ssl.SSLContext:
    return _context(identity, ssl.PROTOCOL_TLS_CLIENT, [trusted])


def _context(identity: Identity, kind: ssl._SSLMethod, trusted: Sequence[TrustedCluster]) -> ssl.SSLContext:
    # Without a trusted cluster every peer is refused: after the handshake if it is of the own cluster.
    context = bare_context(kind, identity.chain[-1] if not trusted else trusted[0].authority)
    for cluster in trusted[1:]:
        context.load_verify_locations(cadata=cluster.authority)
    load_own(context, identity.chain[:-1], identity.key())
    return context


def _foreign_peer(tls: TlsSocket, trusted: Mapping[bytes, TrustedCluster]) -> PeerIdentity:
    chain = verified_chain(tls)
    cards = cards_of(chain)
    if cards[0].role is not CertificateRole.NODE:
        raise NotPermittedError("the peer is not a node")
    if hashlib.sha256(chain[-1]).digest() not in trusted:
        raise NotPermittedError("the certificate is of a cluster that is not trusted here")
    over = end_of(cards)
    if over:
        raise NotPermittedError(over)
    peer = PeerIdentity(cards[0].role, NodeId(cards[0].number), cards[0].name, cards)
    _require_border(peer)
    return peer


def _require_border(peer: PeerIdentity) -> None:
    """Raise NotPermittedError if the roles of a node do not let it speak for its cluster."""
    refusal = peer.chain[0].why_not(NodeRight.BORDER)
    if refusal:
        raise NotPermittedError(refusal)
