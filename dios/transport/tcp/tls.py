"""Connections between nodes: listening, connecting, and the handshake before any byte counts.

``dios.transport.tcp.secured`` is the connection itself; ``dios.transport.identity.joining`` admits nodes.

Every connection is TLS 1.3 with certificates of one cluster at both ends; no port ever serves a stranger.
After its checks, the listening node sends its acceptance or the reason of its refusal, because TLS 1.3 alone
leaves the connecting node in doubt. A stranger can hold a handshake for HANDSHAKE_MS_MAX. Of
HANDSHAKES_AT_ONCE_MAX the oldest one of the address with the most is ended for the next, so that strangers
never keep a node out.
"""

from __future__ import annotations

import errno
import hashlib
import socket
import ssl
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Final, Protocol, cast

import trio

from dios import limits
from dios.errors import (
    DiosError,
    InvalidError,
    NotPermittedError,
    ProtocolError,
    UnreachableError,
)
from dios.ids import NodeId
from dios.transport.identity.certificates import CertificateRole, cards_of, end_of
from dios.transport.identity.identity import RENEWAL_PROTOCOL, Identity, known_of
from dios.transport.identity.trust import Trust
from dios.transport.tcp.secured import PeerIdentity, Secured, close_socket, frame_of
from dios.transport.tcp.tls_socket import TlsSocket
from dios.wire.addresses import join_address, listen_advice, split_address
from dios.wire.codec import FrameSplitter
from dios.wire.node_roles import NodeRight

_BACKLOG: Final = 128
_RETRY_ACCEPT_S: Final = 0.05
_OUT_OF_RESOURCES: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})

Refused = Callable[[str, str], None]
"""Called for every refused connection, with its address and the reason."""


# -- listening --------------------------------------------------------------------------------------
class Listener:
    """A port of this node, and the peers that have passed the handshake there."""

    def __init__(
        self, sockets: Sequence[socket.socket], identity: Identity, nursery: trio.Nursery, refused: Refused
    ) -> None:
        self.address: Final = join_address(*sockets[0].getsockname()[:2])
        """The address "HOST:PORT"; for port 0 with the port that the system chose."""
        self._sockets: Final = tuple(sockets)
        self._identity = identity
        self._context = identity.server_context
        self._nursery: Final = nursery
        self._refused: Final = refused
        # One step of one handshake per pass of the loop, so that strangers do not block other users of the
        # loop; and one accept per turn, so that no handshake is ended before its first step.
        self._turn: Final = trio.Lock()
        self._shaking: Final[dict[trio.CancelScope, str]] = {}
        self._ready_in, self._ready_out = trio.open_memory_channel[Secured](0)
        self._closed = False
        for sock in self._sockets:
            nursery.start_soon(self._listen, sock, name=f"listen at {self.address}")

    def filenos(self) -> tuple[int, ...]:
        """Return the descriptors of the sockets, which a program that continues the node listens with."""
        return tuple(sock.fileno() for sock in self._sockets)

    async def accept(self) -> Secured:
        """Wait for the next peer that has passed; raises trio.EndOfChannel after the listener was closed."""
        return await self._ready_out.receive()

    def adopt(self, identity: Identity) -> None:
        """Use this identity from now on, after its chain was renewed. Raises DamagedError."""
        self._context = identity.server_context
        self._identity = identity

    def close(self) -> None:
        """Stop listening and end open handshakes; accepted connections stay."""
        if self._closed:
            return
        self._closed = True
        for sock in self._sockets:
            trio.lowlevel.notify_closing(sock)
            sock.close()
        for scope in tuple(self._shaking):
            scope.cancel()
        self._ready_in.close()

    async def _listen(self, listener: socket.socket) -> None:
        while listener.fileno() >= 0:
            try:
                await trio.lowlevel.wait_readable(listener)
                async with self._turn:
                    sock, endpoint = listener.accept()
            except BlockingIOError:
                continue
            except trio.ClosedResourceError:
                return
            except OSError as error:
                if error.errno in _OUT_OF_RESOURCES:
                    await trio.sleep(_RETRY_ACCEPT_S)
                # Otherwise the peer was gone before it was accepted.
                continue
            host = endpoint[0]
            if not self._admits(host):
                sock.close()
                self._refused(host, "too many connections of strangers")
                continue
            if len(self._shaking) >= self._handshakes_max:
                self._oldest_of_the_busiest().cancel()
            scope = trio.CancelScope()
            self._shaking[scope] = host
            self._nursery.start_soon(self._receive_peer, sock, host, scope, name="handshake with a peer")

    @property
    def _handshakes_max(self) -> int:
        return limits.HANDSHAKES_AT_ONCE_MAX

    def _admits(self, host: str) -> bool:
        """Return True if a handshake with an address may begin now."""
        del host
        return True

    def _passed(self, host: str) -> None:
        """Note that a peer at this address has passed the handshake."""

    def _oldest_of_the_busiest(self) -> trio.CancelScope:
        """Return the oldest handshake of the address that has the most of them."""
        counts = Counter(self._shaking.values())
        return max(self._shaking, key=lambda scope: counts[self._shaking[scope]])

    async def _receive_peer(self, sock: socket.socket, host: str, scope: trio.CancelScope) -> None:
        reason = "no handshake in time"
        try:
            with scope:
                scope.deadline = trio.current_time() + limits.HANDSHAKE_MS_MAX / 1000
                secured = await self._shake(sock)
                self._passed(host)
                try:
                    await self._ready_in.send(secured)
                    reason = ""
                except (trio.ClosedResourceError, trio.BrokenResourceError):
                    reason = "this node is stopping"
                finally:
                    if reason:
                        secured.close()
        except (OSError, ValueError, DiosError) as error:
            reason = _reason(error)
        finally:
            del self._shaking[scope]
        if reason and not self._closed:
            self._refused(host, reason)

    async def _shake(self, sock: socket.socket) -> Secured:
        identity = self._identity
        tls = wrapped(self._context, sock, server=True)
        try:
            await handshake(tls, self._turn)
            peer = await _accepted(tls, identity)
            return Secured(tls, peer, self._nursery, identity.trust)
        except BaseException:
            close_socket(tls)
            raise


async def _accepted(tls: TlsSocket, identity: Identity) -> PeerIdentity:
    """Send the acceptance and return the peer's identity; else send the reason and raise it."""
    try:
        peer = _peer_of(tls, identity.cluster)
        refusal = identity.trust.refusal(peer.chain)
        if peer.renews:
            refusal = identity.card.why_not(NodeRight.SIGN) or refusal
        else:
            # A certificate that is over opens nothing but the way to the next one.
            refusal = refusal or end_of(peer.chain)
        if peer.role is CertificateRole.JOIN and peer.chain[1].number != identity.node:
            refusal = for_another(identity.name, peer.chain[1].name)
        if not refusal:
            await _record(identity.trust, peer)
            # A statement may have removed it while it was recorded.
            refusal = identity.trust.refusal(peer.chain)
    except DiosError as error:
        peer, refusal = None, error.message
    tls.write(frame_of(refusal.encode()[: limits.REFUSAL_BYTES_MAX]))
    if refusal or peer is None:
        raise NotPermittedError(refusal)
    return peer


def for_another(name: str, meant: str) -> str:
    """Return the error for a token that is used at the wrong node."""
    return f"this is {name}, and the invitation is for {meant}. Join at the address of {meant}."


def listen_again(
    sockets: Iterable[int], identity: Identity, nursery: trio.Nursery, *, refused: Refused
) -> Listener:
    """Listen with the sockets of a predecessor of this process's program."""
    return Listener([socket.socket(fileno=number) for number in sockets], identity, nursery, refused)


async def listen(
    address: str, identity: Identity, nursery: trio.Nursery, *, refused: Refused = lambda _where, _why: None
) -> Listener:
    """Listen at "HOST:PORT" for nodes of the cluster; a host name means all of its addresses.

    The listener runs in ``nursery``. Raises InvalidError for the address, OSError if it cannot be used.
    """
    return Listener(await bind(address), identity, nursery, refused)


async def bind(address: str) -> list[socket.socket]:
    """Return listening sockets at "HOST:PORT". Raises InvalidError and OSError as ``listen`` does."""
    host, port = split_address(address)
    resolved = await trio.socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    sockets: list[socket.socket] = []
    try:
        for family, kind, protocol, _, endpoint in dict.fromkeys(resolved):
            sock = socket.socket(family, kind, protocol)
            sockets.append(sock)
            sock.setblocking(False)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            # The port for 0 is chosen once, for all addresses.
            chosen = sockets[0].getsockname()[1] if len(sockets) > 1 else port
            sock.bind((endpoint[0], chosen, *endpoint[2:]))
            sock.listen(_BACKLOG)
    except OSError as error:
        for sock in sockets:
            sock.close()
        raise OSError(
            error.errno, f"cannot listen at {address}: {error.strerror}. {listen_advice(error)}"
        ) from None
    except BaseException:
        for sock in sockets:
            sock.close()
        raise
    return sockets


# -- dialling ---------------------------------------------------------------------------------------
async def dial(
    address: str, identity: Identity, nursery: trio.Nursery, *, expect: NodeId | None = None
) -> Secured:
    """Connect to the node at "HOST:PORT", which must be ``expect`` if that is given.

    Raises UnreachableError if nobody answers within PEER_CONNECT_MS_MAX, NotPermittedError if the peer is not
    a node of this cluster, is another node, is refused here or refuses this node, InvalidError if it is this
    node itself, ProtocolError if it does not speak TLS 1.3. The message has the reason and the remedy.
    """

    def check(peer: PeerIdentity) -> None:
        if peer.node == identity.node:
            raise InvalidError("this is the address of this node itself")
        if expect is not None and peer.node != expect:
            raise NotPermittedError(f"{peer.name} answers, which is not the expected node")
        refusal = identity.trust.refusal(peer.chain)
        if refusal:
            raise NotPermittedError(refusal)

    peer, tls = await connect(address, identity.client_context, identity.cluster, check)
    try:
        await _record(identity.trust, peer)
        check(peer)
    except OSError as error:
        close_socket(tls)
        raise UnreachableError(f"{peer.name} at {address} cannot be recorded: {_os_reason(error)}") from error
    except BaseException:
        close_socket(tls)
        raise
    return Secured(tls, peer, nursery, identity.trust)


class SilentError(UnreachableError):
    """Nobody answered in time, and nobody refused: the node may be busy or stopped. Try again."""


async def connect(
    address: str, context: ssl.SSLContext, cluster: bytes, check: Callable[[PeerIdentity], None]
) -> tuple[PeerIdentity, TlsSocket]:
    """Connect and shake hands; return peer and socket. Raises the errors of ``dial`` and ``check``."""
    host, port = split_address(address)
    with trio.move_on_after(limits.PEER_CONNECT_MS_MAX / 1000):
        try:
            stream = await trio.open_tcp_stream(host, port)
        except OSError as error:
            raise UnreachableError(f"nobody answers at {address}: {_os_reason(error)}") from error
        sock = socket.socket(fileno=stream.socket.detach())
        tls = wrapped(context, sock, server=False)
        try:
            await handshake(tls, trio.Lock())
            peer = _peer_of(tls, cluster)
            _check_node(peer)
            check(peer)
            _check_end(peer)
            await _receive_acceptance(tls)
        except ssl.SSLCertVerificationError as error:
            close_socket(tls)
            raise NotPermittedError(
                f"the peer at {address} is not a node of this cluster: {error.verify_message}"
            ) from None
        except (ssl.SSLEOFError, ssl.SSLZeroReturnError):
            close_socket(tls)
            raise UnreachableError(f"{address} closed the connection during the handshake") from None
        except ssl.SSLError as error:
            close_socket(tls)
            raise _refused_by_tls(address, error) from None
        except DiosError as error:
            close_socket(tls)
            raise type(error)(f"{address}: {error.message}") from None
        except OSError as error:
            close_socket(tls)
            raise UnreachableError(f"{address} closed the connection: {_os_reason(error)}") from None
        except BaseException:
            close_socket(tls)
            raise
        return peer, tls
    raise SilentError(f"nobody answers at {address} within {limits.PEER_CONNECT_MS_MAX} ms")


def _refused_by_tls(address: str, error: ssl.SSLError) -> DiosError:
    reason = error.reason or ""
    if "ALERT" in reason:
        why = _reason(error)
        hint = (
            "the invitation has expired. Make a new one there with `dios-node invite`."
            if "EXPIRED" in reason
            else "this node may be of another cluster"
        )
        return NotPermittedError(f"{address} refuses this node: {why}; {hint}")
    return ProtocolError(f"{address} does not speak TLS 1.3 like a node: {_reason(error)}")


def _check_node(peer: PeerIdentity) -> None:
    if peer.role is not CertificateRole.NODE:
        raise NotPermittedError("the peer is not a node")


def _check_end(peer: PeerIdentity) -> None:
    over = end_of(peer.chain)
    if over:
        raise NotPermittedError(over)


async def _receive_acceptance(tls: TlsSocket) -> None:
    splitter = FrameSplitter(limits.REFUSAL_BYTES_MAX)
    while True:
        data = tls.read_record()
        if data is None:
            await trio.lowlevel.wait_readable(tls)
            tls.fetch()
            continue
        if not data:
            raise ConnectionResetError(errno.ECONNRESET, "closed without a word")
        bodies = splitter.feed(data)
        if not bodies:
            continue
        if len(bodies) > 1 or splitter.pending:
            raise ProtocolError("the node sent more than its acceptance")
        if bodies[0]:
            raise NotPermittedError(bodies[0].decode("utf-8", "replace"))
        return


# -- both -------------------------------------------------------------------------------------------
def wrapped(context: ssl.SSLContext, sock: socket.socket, *, server: bool) -> TlsSocket:
    """Return the socket with TLS, before the handshake; it is closed if that fails."""
    try:
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        # A silent machine is given up after a while, whether this node sends or waits.
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, limits.TCP_USER_TIMEOUT_MS)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, limits.TCP_USER_TIMEOUT_MS // 3_000)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, limits.TCP_USER_TIMEOUT_MS // 3_000)
        return TlsSocket(context, sock, server=server)
    except BaseException:
        sock.close()
        raise


async def handshake(tls: TlsSocket, turn: trio.Lock) -> None:
    """Shake hands, one step in each turn. Raises ssl.SSLError and OSError."""
    while True:
        try:
            async with turn:
                tls.do_handshake()
        except ssl.SSLWantReadError:
            await trio.lowlevel.wait_readable(tls)
        except ssl.SSLWantWriteError:
            await trio.lowlevel.wait_writable(tls)
        else:
            return


class _Certificate(Protocol):
    def public_bytes(self) -> str: ...


class _Inside(Protocol):
    def get_verified_chain(self) -> list[_Certificate]: ...


class _Older(Protocol):
    _sslobj: _Inside


def _reason(error: Exception) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is refused: {error.verify_message}"
    if isinstance(error, ssl.SSLError):
        return (error.reason or str(error)).lower().replace("_", " ")
    return str(error) if isinstance(error, DiosError) or not isinstance(error, OSError) else _os_reason(error)


def _os_reason(error: OSError) -> str:
    return error.strerror or str(error)


def _peer_of(tls: TlsSocket, cluster: bytes) -> PeerIdentity:
    """Return the peer's identity from the chain of certificates that TLS has verified."""
    chain = verified_chain(tls)
    cards = cards_of(chain)
    if hashlib.sha256(chain[-1]).digest() != cluster:
        raise NotPermittedError("the certificate is of another cluster")
    renews = cards[0].role is CertificateRole.NODE and tls.tls.selected_alpn_protocol() == RENEWAL_PROTOCOL
    certificates = tuple(chain) if renews else ()
    return PeerIdentity(cards[0].role, NodeId(cards[0].number), cards[0].name, cards, renews, certificates)


def verified_chain(tls: TlsSocket) -> list[bytes]:
    """Return the certificates (DER) that TLS has verified, from the peer's to the root's."""
    if sys.version_info >= (3, 13):
        return list(tls.tls.get_verified_chain())
    # Public from Python 3.13 on; nothing else has the node that admitted the peer.
    inside = cast("_Older", tls.tls)._sslobj  # noqa: SLF001 - see above
    return [
        ssl.PEM_cert_to_DER_cert(certificate.public_bytes()) for certificate in inside.get_verified_chain()
    ]


async def _record(trust: Trust, peer: PeerIdentity) -> None:
    if peer.role is CertificateRole.NODE:
        await trust.record(known_of(peer.chain))
