"""The service at a border: it listens, keeps callers to their limits, and serves or sends on each call.

Programs of this machine reach it by a socket of its own, and nodes of trusted clusters by a port of its own.
It carries the few calls of ``dios.wire.border``, and nothing about members or tasks. A call with a token of
this cluster gets a session of the node, in which the core redeems the token, and which ends with the call. So
each call is verified again, and a revocation counts at the next, and in the middle of a file. A call with
a token of a trusted cluster is sent on to that cluster's border.
"""

from __future__ import annotations

import contextlib
import logging
import socket
from collections import Counter
from collections.abc import AsyncIterator, Callable, Hashable
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Final

import trio

from dios import limits
from dios.errors import (
    BadReferenceError,
    Code,
    DiosError,
    LimitError,
    NotPermittedError,
    ProtocolError,
    StaleError,
    error_for,
    unwrap_group,
)
from dios.host.bandwidth.token_bucket import TokenBucket
from dios.host.loop.shared_places import SharedPlaces
from dios.ids import Principal
from dios.node.border.connections import IDLE_S, CallConnection, ForeignLine, Line, LocalLine, next_answer
from dios.node.border.pace import HandshakePace
from dios.node.border.redeemed import RedeemedToken, page_of
from dios.node.border.writing import receive_file, store_file
from dios.transport.identity.identity import Identity
from dios.transport.identity.trusted_clusters import TrustedCluster, TrustedFolder
from dios.transport.tcp.border import BorderListener, call_border, cluster_of
from dios.transport.tcp.secured import Secured
from dios.transport.tcp.tls import bind
from dios.transport.unix.credentials import peer_of
from dios.transport.unix.server import close_listener, open_listener
from dios.wire.border import (
    AnswerCheck,
    AskCluster,
    BorderCall,
    CheckedToken,
    CheckToken,
    ClusterIdentity,
    ForwardedCall,
    ListFiles,
    ReadFile,
    Refusal,
    TokenCall,
    WriteFile,
    WriteReady,
    WrittenFile,
    decode_answer,
    decode_call,
    decode_forwarded,
    encode_frame,
)
from dios.wire.sealed_tokens import (
    SealedToken,
    TokenHolder,
    cluster_text,
    decode_token,
    token_mark,
)

if TYPE_CHECKING:
    from dios.host.process.session_server import SessionServer
    from dios.node.settings import Settings

_S: Final = 1_000_000_000
_WRITES: Final = limits.POOLS["writes at a border"]
_SENT_ON: Final = limits.POOLS["calls sent on to a cluster"]

_log: Final = logging.getLogger(__name__)

Recorder = Callable[[str, Principal, str, str], None]
"""Called with an outcome, a principal, the mark of a token and a detail, for the audit log."""


class Border:
    """The border of one node, which runs until it is cancelled.

    ``record`` writes to the audit log, and ``denied`` records a refused connection.
    """

    def __init__(
        self,
        settings: Settings,
        identity: Identity,
        server: SessionServer,
        own_uid: int,
        record: Recorder,
        denied: Callable[[Principal, str], None],
    ) -> None:
        self._settings: Final = settings
        self._identity = identity
        self._port: BorderListener | None = None
        self._server: Final = server
        self._own_uid: Final = own_uid
        self._record: Final = record
        self._denied: Final = denied
        self._trusted: Final = TrustedFolder(identity)
        self._open: Final[dict[type, Counter[bytes | int]]] = {bytes: Counter(), int: Counter()}
        self._writes: Final = SharedPlaces(_WRITES.places)
        self._sent: Final[dict[bytes, SharedPlaces]] = {}
        self._rates: Final[dict[bytes | int, TokenBucket]] = {}

    def adopt(self, identity: Identity) -> None:
        """Use this identity from now on, after its certificate was renewed."""
        self._identity = identity
        if self._port is not None:
            self._port.adopt(identity)

    async def run(self) -> None:
        """Serve programs and trusted clusters. Raise OSError if the port or the socket cannot be used."""
        path = self._settings.border_socket
        sockets = await bind(self._settings.border)
        mode = 0o666 if self._settings.allowed_uids else 0o600
        local = open_listener(path, mode)
        try:
            async with trio.open_nursery() as nursery:
                port = BorderListener(
                    sockets,
                    self._identity,
                    self._trusted.clusters,
                    nursery,
                    lambda peer_address, why: self._denied(
                        Principal(f"address:{peer_address}"), f"at the border: {why}"
                    ),
                    HandshakePace(),
                )
                self._port = port
                _log.info("the border listens for trusted clusters", extra={"address": port.address})
                nursery.start_soon(self._accept_programs, local, nursery)
                try:
                    while True:
                        nursery.start_soon(self._serve_foreign, await port.accept())
                finally:
                    self._port = None
                    port.close()
        finally:
            close_listener(local, path)

    # -- programs of this machine -------------------------------------------------------------------
    async def _accept_programs(self, local: socket.socket, nursery: trio.Nursery) -> None:
        while True:
            await trio.lowlevel.wait_readable(local)
            with contextlib.suppress(BlockingIOError, ConnectionError):
                sock, _ = local.accept()
                sock.setblocking(False)
                nursery.start_soon(self._serve_program, sock)

    async def _serve_program(self, sock: socket.socket) -> None:
        uid = peer_of(sock).uid
        line = LocalLine(sock)
        try:
            if not self._server.admits(uid):
                self._denied(Principal(f"uid:{uid}"), "at the border: the user is not in allowed_uids")
                return
            holder = TokenHolder(b"", f"uid:{uid}")
            await self._serve(uid, line, lambda body: (decode_call(body), holder))
        finally:
            line.close()

    # -- nodes of trusted clusters ------------------------------------------------------------------
    async def _serve_foreign(self, secured: Secured) -> None:
        def received(body: bytes) -> tuple[BorderCall, TokenHolder]:
            # The operator may have ended the trust since the last call.
            trusted = cluster_of(secured, self._trusted.clusters())
            forwarded = decode_forwarded(body)
            if not forwarded.user:
                raise ProtocolError("a forwarded call names no user")
            return forwarded.call, TokenHolder(trusted.cluster, forwarded.user)

        try:
            trusted = cluster_of(secured, self._trusted.clusters())
            await self._serve(trusted.cluster, ForeignLine(secured), received)
        except DiosError as error:
            _log.warning("a connection at the border ended", extra={"why": error.message})
        finally:
            secured.close()

    # -- calls --------------------------------------------------------------------------------------
    async def _serve(
        self, origin: bytes | int, line: Line, received: Callable[[bytes], tuple[BorderCall, TokenHolder]]
    ) -> None:
        """Answer the calls of one connection until it ends or is silent."""
        open_connections = self._open[type(origin)]
        if not limits.may_take(
            open_connections[origin], open_connections.total(), limits.BORDER_CONNECTIONS_MAX
        ):
            await line.send(
                encode_frame(
                    Refusal(int(Code.EDQUOT), "the border has too many connections. Try again later.")
                )
            )
            return
        open_connections[origin] += 1
        try:
            while True:
                with trio.move_on_after(IDLE_S) as waiting:
                    body = await line.receive()
                if waiting.cancelled_caught or body is None:
                    return
                await self._keep_to_rate(origin)
                call, holder = received(body)
                await self._answer(call, holder, CallConnection(line))
        except ProtocolError as error:
            _log.warning("a connection at the border ended", extra={"why": error.message})
        except (OSError, trio.BrokenResourceError, trio.ClosedResourceError):
            return
        except Exception as error:  # noqa: BLE001 - a defect here must not end the node
            _log.exception("an internal error ended a connection at the border", exc_info=error)
        finally:
            open_connections[origin] -= 1
            if not open_connections[origin]:
                del open_connections[origin]

    async def _keep_to_rate(self, origin: bytes | int) -> None:
        now = int(trio.current_time() * _S)
        bucket = self._rates.get(origin)
        if bucket is None:
            while len(self._rates) >= 4 * limits.BORDER_CONNECTIONS_MAX:
                del self._rates[next(iter(self._rates))]
            burst_ns = limits.BORDER_REQUESTS_BURST * _S // limits.BORDER_REQUESTS_S
            bucket = self._rates[origin] = TokenBucket(limits.BORDER_REQUESTS_S, now, burst_ns)
        wait_ns = bucket.wait_ns(now)
        bucket.take(1, now)
        if wait_ns:
            await trio.sleep(wait_ns / _S)

    async def _answer(self, call: BorderCall, holder: TokenHolder, caller: CallConnection) -> None:
        try:
            await self._execute(call, holder, caller)
        except DiosError as error:
            await caller.send(Refusal(int(error.code), error.message))
        except (OSError, trio.BrokenResourceError, trio.ClosedResourceError):
            raise
        except Exception as error:  # noqa: BLE001 - a defect here must not end the node
            _log.exception("an internal error ended a call at the border", exc_info=error)
            await caller.send(
                Refusal(int(Code.EIO), "an internal error of the node; its log has the details")
            )

    async def _execute(self, call: BorderCall, holder: TokenHolder, caller: CallConnection) -> None:
        if isinstance(call, AskCluster):
            await caller.send(ClusterIdentity(self._identity.cluster))
            return
        token = decode_token(call.token)
        mark = token_mark(token.grant)
        who = Principal(f"{holder.user}@{holder.cluster.hex()[:16]}" if holder.cluster else holder.user)
        description = (
            f"{type(call).__name__} for {cluster_text(holder.cluster) if holder.cluster else 'a user here'}"
        )
        try:
            if token.grant.cluster == self._identity.cluster:
                await self._serve_here(call, token, holder, caller)
            elif holder.cluster:
                raise NotPermittedError(
                    "another cluster issued the token, and a border does not pass on calls of other clusters"
                )
            else:
                description = f"{type(call).__name__} at {cluster_text(token.grant.cluster)}"
                await self._send_on(call, token, holder.user, caller)
        except DiosError as error:
            self._record("denied", who, mark, f"{description}: {error.message}")
            raise
        self._record("ok", who, mark, description)

    # -- tokens of this cluster ---------------------------------------------------------------------
    async def _serve_here(
        self, call: TokenCall, token: SealedToken, holder: TokenHolder, caller: CallConnection
    ) -> None:
        """Redeem the token in a session of the node, and carry out the call with what that session finds."""
        from dios.client.aio.node import open_session  # noqa: PLC0415 - few nodes need a client

        try:
            async with trio.open_nursery() as nursery:
                sock = self._session_for(self._own_uid, nursery)
                async with open_session(sock, label="border") as node:
                    group = await node.redeem_token(token, cluster=holder.cluster, user=holder.user)
                    redeemed = RedeemedToken(node, group, token, holder)
                    if isinstance(call, WriteFile):
                        await self._write(call, redeemed, caller, nursery)
                    else:
                        await self._read(call, redeemed, caller)
        except ExceptionGroup as errors:
            error = unwrap_group(errors)
            if isinstance(error, BadReferenceError | StaleError):
                error = StaleError(
                    "meanwhile the token was revoked or is over, or the file was replaced. Try again."
                )
            raise error from None

    def _session_for(self, uid: int, nursery: trio.Nursery) -> socket.socket:
        """Return a session of the node that acts for a user. Raise NotPermittedError for a former user."""
        sock = self._server.open_for(uid, nursery)
        if sock is None:
            raise NotPermittedError("the issuer of the token may not use this node any more")
        return sock

    async def _read(
        self, call: CheckToken | ListFiles | ReadFile, redeemed: RedeemedToken, caller: CallConnection
    ) -> None:
        match call:
            case CheckToken():
                terms = redeemed.terms
                await caller.send(CheckedToken(int(terms.rights), terms.expires_ns, terms.paths))
            case ListFiles():
                await caller.send(page_of(await redeemed.files(), call.after))
            case ReadFile():
                await redeemed.read(call, caller.send)

    async def _write(
        self, call: WriteFile, redeemed: RedeemedToken, caller: CallConnection, nursery: trio.Nursery
    ) -> None:
        """Receive a file, and let a session of the token's issuer store it if the token is still valid."""
        redeemed.require_writing(call.path)
        async with self._place(self._writes, *redeemed.holders):
            with await receive_file(call, caller) as file:
                # The core takes the references of this session away when the token is revoked or over.
                await redeemed.require_valid()
                sock = self._session_for(redeemed.issuer_uid, nursery)
                grant = redeemed.grant
                written = await trio.to_thread.run_sync(partial(store_file, sock, grant, call, file))
        await caller.send(WrittenFile(written))

    @asynccontextmanager
    async def _place(self, places: SharedPlaces, *holders: Hashable) -> AsyncIterator[None]:
        """Hold a place. Raise LimitError if there is none in time."""
        async with AsyncExitStack() as kept:
            with trio.move_on_after(limits.BORDER_PLACE_MS_MAX / 1000) as waiting:
                await kept.enter_async_context(places.place(*holders))
            if waiting.cancelled_caught:
                raise LimitError("the border has too many calls of this kind. Try again later.")
            yield

    # -- tokens of trusted clusters -----------------------------------------------------------------
    async def _send_on(self, call: TokenCall, token: SealedToken, user: str, caller: CallConnection) -> None:
        """Ask the border of the issuing cluster, and pass its answers on.

        Only answers that the call can have are passed on, and no more bytes than announced.
        """
        issuer = self._trusted.clusters().get(token.grant.cluster)
        if issuer is None:
            raise NotPermittedError(
                f"{cluster_text(token.grant.cluster)} issued the token, and this node does not trust it. Its "
                "operator can: dios-node trust add NAME --authority FILE --address HOST:PORT"
            )
        places = self._sent.setdefault(issuer.cluster, SharedPlaces(_SENT_ON.places))
        try:
            async with self._place(places, user), trio.open_nursery() as nursery:
                await self._exchange(call, issuer, user, caller, nursery)
                nursery.cancel_scope.cancel()
        except ExceptionGroup as group:
            raise unwrap_group(group) from None

    async def _exchange(
        self,
        call: TokenCall,
        issuer: TrustedCluster,
        user: str,
        caller: CallConnection,
        nursery: trio.Nursery,
    ) -> None:
        secured = await call_border(self._identity, issuer, nursery)
        line, check = ForeignLine(secured), AnswerCheck(call)
        try:
            await line.send(encode_frame(ForwardedCall(user, call)))
            while not check.is_complete:
                answer = decode_answer(await next_answer(line, issuer.name))
                check.take(answer)
                if isinstance(answer, Refusal):
                    raise _refused_by(issuer, answer)
                await caller.send(answer)
                if isinstance(answer, WriteReady) and isinstance(call, WriteFile):
                    await _pass_parts(call.size, caller, CallConnection(line))
        finally:
            secured.close()


async def _pass_parts(size: int, caller: CallConnection, issuer: CallConnection) -> None:
    """Pass on the bytes that a program writes, as many as it announced."""
    while size > 0:
        part = await caller.receive_part()
        size -= len(part.data)
        await issuer.send(part)


def _refused_by(issuer: TrustedCluster, refusal: Refusal) -> DiosError:
    shown = "".join(letter if letter.isprintable() else "?" for letter in refusal.message)
    return error_for(refusal.code, f"{issuer.name}: {shown}")


async def keep_border(border: Border, stopping: trio.Event) -> None:
    """Run the border, and again after a pause if its port cannot be used, until cancelled."""
    while True:
        try:
            await border.run()
        except* (OSError, DiosError) as group:
            if not stopping.is_set():
                _log.warning("the border does not listen", extra={"why": str(unwrap_group(group))})
        await trio.sleep(limits.SERVICE_REPAIR_MS / 1000)
