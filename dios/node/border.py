"""The border of a node: the place where users of this and of trusted clusters use sealed tokens (ADR 0101).

Programs of this machine reach it by a socket of its own, and nodes of trusted clusters by a port of its own.
It carries the few calls of ``dios.wire.border``, and nothing about members or tasks. A call with a token of
this cluster gets a session of the node, in which the core redeems the token, and which ends with the call. So
each call is verified anew, and a revocation counts at the next one, and in the middle of a file. A call with
a token of a trusted cluster is sent on to that cluster's border.
"""

from __future__ import annotations

import contextlib
import logging
import socket
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final, Protocol

import trio

from dios import limits
from dios.errors import (
    BadReferenceError,
    Code,
    DiosError,
    InvalidError,
    NotPermittedError,
    ProtocolError,
    StaleError,
    UnreachableError,
    error_for,
)
from dios.host.bandwidth.token_bucket import TokenBucket
from dios.ids import Principal
from dios.transport.identity.identity import Identity
from dios.transport.identity.trusted_clusters import TrustedCluster, trusted_clusters
from dios.transport.tcp.border import BorderListener, call_border, cluster_of
from dios.transport.tcp.secured import Secured
from dios.transport.tcp.tls import bind
from dios.transport.unix.credentials import peer_of
from dios.transport.unix.server import close_listener, open_listener
from dios.wire.border import (
    AnswerCheck,
    AskCluster,
    BorderAnswer,
    BorderCall,
    CheckedToken,
    CheckToken,
    ClusterIdentity,
    FileHead,
    FileList,
    FilePart,
    FileRow,
    ForwardedCall,
    ListFiles,
    ReadFile,
    Refusal,
    decode_answer,
    decode_call,
    decode_forwarded,
    encode_frame,
)
from dios.wire.codec import FrameSplitter
from dios.wire.sealed_tokens import (
    SealedToken,
    TokenHolder,
    TokenTerms,
    cluster_text,
    decode_token,
    terms_of,
    token_mark,
)
from dios.wire.types import ObjectType

if TYPE_CHECKING:
    from dios.client.aio.node import AsyncGroup, AsyncNode, AsyncReference
    from dios.host.process.session_server import SessionServer
    from dios.lib.catalogue import CatalogueEntry
    from dios.node.settings import Settings

_IDLE_S: Final = limits.BORDER_IDLE_MS_MAX / 1000
_BLOBS: Final = frozenset({ObjectType.DURABLE_BLOB, ObjectType.SHMEM_BLOB, ObjectType.PRIVMEM_BLOB})
_S: Final = 1_000_000_000

_log: Final = logging.getLogger(__name__)

Send = Callable[[BorderAnswer], Awaitable[None]]
Recorder = Callable[[str, Principal, str, str], None]
"""Called with an outcome, a principal, the mark of a token and a detail, for the audit log."""


class _Line(Protocol):
    """A connection with frames in both directions."""

    async def receive(self) -> bytes | None:
        """Return the next body; None at the end. Raise ProtocolError for a frame over the limit."""
        ...

    async def send(self, frame: bytes) -> None:
        """Send a frame, and wait until the other end has taken most of it."""
        ...


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
        self._identity: Final = identity
        self._server: Final = server
        self._own_uid: Final = own_uid
        self._record: Final = record
        self._denied: Final = denied
        self._open: Final[Counter[bytes | int]] = Counter()
        self._rates: Final[dict[bytes | int, TokenBucket]] = {}

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
                    lambda: trusted_clusters(self._identity),
                    nursery,
                    lambda where, why: self._denied(Principal(f"address:{where}"), f"at the border: {why}"),
                )
                _log.info("the border listens for trusted clusters", extra={"address": port.address})
                nursery.start_soon(self._accept_programs, local, nursery)
                try:
                    while True:
                        nursery.start_soon(self._serve_foreign, await port.accept())
                finally:
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
        line = _LocalLine(sock)
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
            trusted = cluster_of(secured, trusted_clusters(self._identity))
            forwarded = decode_forwarded(body)
            if not forwarded.user:
                raise ProtocolError("a forwarded call names no user")
            return forwarded.call, TokenHolder(trusted.cluster, forwarded.user)

        try:
            trusted = cluster_of(secured, trusted_clusters(self._identity))
            await self._serve(trusted.cluster, _ForeignLine(secured), received)
        except DiosError as error:
            _log.warning("a connection at the border ended", extra={"why": error.message})
        finally:
            secured.close()

    # -- calls --------------------------------------------------------------------------------------
    async def _serve(
        self, origin: bytes | int, line: _Line, received: Callable[[bytes], tuple[BorderCall, TokenHolder]]
    ) -> None:
        """Answer the calls of one connection until it ends or is silent."""
        alike = sum(count for one, count in self._open.items() if type(one) is type(origin))
        if alike >= limits.BORDER_CONNECTIONS_MAX or self._open[origin] >= limits.BORDER_CONNECTIONS_EACH_MAX:
            await line.send(
                encode_frame(
                    Refusal(int(Code.EDQUOT), "the border has too many connections. Try again later.")
                )
            )
            return
        self._open[origin] += 1
        try:
            while True:
                with trio.move_on_after(_IDLE_S) as waiting:
                    body = await line.receive()
                if waiting.cancelled_caught or body is None:
                    return
                await self._keep_to_rate(origin)
                call, holder = received(body)
                await self._answer(call, holder, line)
        except ProtocolError as error:
            _log.warning("a connection at the border ended", extra={"why": error.message})
        except (OSError, trio.BrokenResourceError, trio.ClosedResourceError):
            return
        finally:
            self._open[origin] -= 1
            if not self._open[origin]:
                del self._open[origin]

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

    async def _answer(self, call: BorderCall, holder: TokenHolder, line: _Line) -> None:
        async def send(answer: BorderAnswer) -> None:
            with trio.move_on_after(_IDLE_S) as sending:
                await line.send(encode_frame(answer))
            if sending.cancelled_caught:
                raise BrokenPipeError("the other end does not read")

        try:
            await self._execute(call, holder, send)
        except DiosError as error:
            await send(Refusal(int(error.code), error.message))
        except (OSError, trio.BrokenResourceError, trio.ClosedResourceError):
            raise
        except Exception as error:  # noqa: BLE001 - a defect here must not end the node
            _log.exception("an internal error ended a call at the border", exc_info=error)
            await send(Refusal(int(Code.EIO), "an internal error of the node; its log has the details"))

    async def _execute(self, call: BorderCall, holder: TokenHolder, send: Send) -> None:
        if isinstance(call, AskCluster):
            await send(ClusterIdentity(self._identity.cluster))
            return
        token = decode_token(call.token)
        mark = token_mark(token.grant)
        who = Principal(f"{holder.user}@{holder.cluster.hex()[:16]}" if holder.cluster else holder.user)
        what = (
            f"{type(call).__name__} for {cluster_text(holder.cluster) if holder.cluster else 'a user here'}"
        )
        try:
            if token.grant.cluster == self._identity.cluster:
                await self._serve_here(call, token, holder, send)
            elif holder.cluster:
                raise NotPermittedError(
                    "another cluster issued the token, and a border does not pass on calls of other clusters"
                )
            else:
                what = f"{type(call).__name__} at {cluster_text(token.grant.cluster)}"
                await self._send_on(call, token, holder.user, send)
        except DiosError as error:
            self._record("denied", who, mark, f"{what}: {error.message}")
            raise
        self._record("ok", who, mark, what)

    # -- tokens of this cluster ---------------------------------------------------------------------
    async def _serve_here(
        self, call: BorderCall, token: SealedToken, holder: TokenHolder, send: Send
    ) -> None:
        """Redeem the token in a session of the node, and carry out the call with what that session finds."""
        from dios.client.aio.node import open_session  # noqa: PLC0415 - few nodes need a client

        failure: Exception | None = None
        async with trio.open_nursery() as nursery:
            sock = self._server.open_for(self._own_uid, nursery)
            if sock is None:
                raise UnreachableError("the node takes no sessions now. Try again later.")
            try:
                async with open_session(sock, label="border") as node:
                    group = await node.redeem_token(token, cluster=holder.cluster, user=holder.user)
                    await self._carry_out(call, _Redeemed(node, group, token, holder), send)
            except (BadReferenceError, StaleError):
                failure = StaleError(
                    "while it was read, the token was revoked or ended, or the file was replaced. Read again."
                )
            except (DiosError, OSError, trio.BrokenResourceError, trio.ClosedResourceError) as error:
                failure = error
        if failure is not None:
            raise failure

    async def _carry_out(self, call: BorderCall, redeemed: _Redeemed, send: Send) -> None:
        match call:
            case CheckToken():
                terms = redeemed.terms
                await send(CheckedToken(int(terms.rights), terms.expires_ns, terms.paths))
            case ListFiles():
                await send(_page_of(await redeemed.files(), call.after))
            case ReadFile():
                await redeemed.read(call, send)

    # -- tokens of trusted clusters -----------------------------------------------------------------
    async def _send_on(self, call: BorderCall, token: SealedToken, user: str, send: Send) -> None:
        """Ask the border of the issuing cluster, and pass its answers on.

        Only answers that the call can have are passed on, and no more bytes than announced.
        """
        issuer = trusted_clusters(self._identity).get(token.grant.cluster)
        if issuer is None or isinstance(call, AskCluster):
            raise NotPermittedError(
                f"{cluster_text(token.grant.cluster)} issued the token, and this node does not trust it. Its "
                "operator can: dios-node trust add NAME --authority FILE --address HOST:PORT"
            )
        failure: Exception | None = None
        async with trio.open_nursery() as nursery:
            try:
                await self._exchange(call, issuer, user, send, nursery)
            except (DiosError, OSError, trio.BrokenResourceError, trio.ClosedResourceError) as error:
                failure = error
            nursery.cancel_scope.cancel()
        if failure is not None:
            raise failure

    async def _exchange(
        self,
        call: CheckToken | ListFiles | ReadFile,
        issuer: TrustedCluster,
        user: str,
        send: Send,
        nursery: trio.Nursery,
    ) -> None:
        secured = await call_border(self._identity, issuer, nursery)
        line, check = _ForeignLine(secured), AnswerCheck(call)
        try:
            await line.send(encode_frame(ForwardedCall(user, call)))
            while not check.is_complete:
                with trio.move_on_after(_IDLE_S):
                    body = await line.receive()
                    if body is not None:
                        answer = decode_answer(body)
                        check.take(answer)
                        if isinstance(answer, Refusal):
                            raise _refused_by(issuer, answer)
                        await send(answer)
                        continue
                raise UnreachableError(f"the border of {issuer.name} stopped in the middle. Try again later.")
        finally:
            secured.close()


class _Redeemed:
    """A session of the node that has redeemed a token, for one call."""

    def __init__(self, node: AsyncNode, group: AsyncGroup, token: SealedToken, holder: TokenHolder) -> None:
        self._node: Final = node
        self._group: Final = group
        self._catalogue: Final = token.grant.catalogue
        # The core has compared the time, with its own clock.
        self.terms: Final[TokenTerms] = terms_of(token, holder, 0)

    async def files(self) -> dict[str, CatalogueEntry]:
        """Return the entries of the files that the token is for, by path in their order."""
        from dios.lib import catalogue  # noqa: PLC0415 - as above
        from dios.lib.files.paths import stored_path  # noqa: PLC0415 - as above
        from dios.lib.files.tree import is_directory  # noqa: PLC0415 - as above

        found = await self._node.lookup(self._catalogue, group=self._group)
        living = [one for one in found if not one.zombie]
        if not living:
            if found.incomplete:
                raise UnreachableError(
                    "the group's catalogue is on a node that does not answer. Try again later."
                )
            return {}
        latest = max(living, key=lambda one: (one.v_w, -one.object_id))
        data = await latest.read_bytes()
        entries = await trio.to_thread.run_sync(catalogue.decode, data)
        files = {stored_path(one.file): one for one in entries if not is_directory(one)}
        return {path: files[path] for path in sorted(files) if self.terms.admits(path)}

    async def read(self, call: ReadFile, send: Send) -> None:
        """Send a file. Raise NotPermittedError if the token is not for it, InvalidError if it is missing."""
        if not self.terms.admits(call.path):
            raise NotPermittedError(
                f"the token is not for {call.path!r}, but for {' and '.join(self.terms.paths)} alone"
            )
        entry = (await self.files()).get(call.path)
        if entry is None:
            raise InvalidError(f"there is no file {call.path!r} in the group of the token")
        found = await self._node.lookup(entry.name, group=self._group, limit=1)
        if not found:
            why = "is on a node that does not answer" if found.incomplete else "was destroyed"
            raise UnreachableError(f"the file {call.path!r} {why}")
        reference = found[0]
        if reference.type not in _BLOBS:
            raise InvalidError(f"{call.path!r} is a {reference.type.name}, not a file")
        size = reference.size
        head = FileRow(call.path, size, entry.put_ns, entry.digest)
        unchanged = bool(entry.digest) and call.known == entry.digest
        await send(FileHead(head, unchanged))
        if not unchanged:
            await _send_parts(reference, size, send)


async def _send_parts(reference: AsyncReference, size: int, send: Send) -> None:
    at = 0
    while at < size:
        data = await reference.read_bytes(min(limits.BORDER_PART_BYTES, size - at), at)
        if not data:
            raise StaleError("the file became shorter while it was read. Read again.")
        await send(FilePart(data))
        at += len(data)


def _page_of(files: dict[str, CatalogueEntry], after: str) -> FileList:
    rows: list[FileRow] = []
    size = 0
    for path, entry in files.items():
        if path <= after:
            continue
        size += len(path.encode()) + 128
        if size > limits.BORDER_LIST_BYTES:
            return FileList(tuple(rows), more=True)
        rows.append(FileRow(path, entry.size, entry.put_ns, entry.digest))
    return FileList(tuple(rows), more=False)


def _refused_by(issuer: TrustedCluster, refusal: Refusal) -> DiosError:
    shown = "".join(letter if letter.isprintable() else "?" for letter in refusal.message)
    return error_for(refusal.code, f"{issuer.name}: {shown}")


# -- connections ------------------------------------------------------------------------------------
class _LocalLine:
    """The connection of a program on this machine."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock: Final = trio.socket.from_stdlib_socket(sock)
        self._splitter: Final = FrameSplitter(limits.BORDER_FRAME_BYTES_MAX)
        self._bodies: list[bytes] = []

    async def receive(self) -> bytes | None:
        while not self._bodies:
            data = await self._sock.recv(limits.RECEIVE_BYTES)
            if not data:
                return None
            self._bodies += self._splitter.feed(data)
        return self._bodies.pop(0)

    async def send(self, frame: bytes) -> None:
        rest = memoryview(frame)
        while rest:
            rest = rest[await self._sock.send(rest) :]

    def close(self) -> None:
        self._sock.close()


class _ForeignLine:
    """The connection of a trusted cluster's node."""

    def __init__(self, secured: Secured) -> None:
        self._secured: Final = secured
        self._bodies: list[bytes] = []

    async def receive(self) -> bytes | None:
        if not self._bodies:
            self._bodies = await self._secured.receive()
        if not self._bodies:
            return None
        body = self._bodies.pop(0)
        if len(body) > limits.BORDER_FRAME_BYTES_MAX:
            raise ProtocolError("a frame at the border is over its limit")
        return body

    async def send(self, frame: bytes) -> None:
        if self._secured.closed:
            raise BrokenPipeError("the border is closed")
        self._secured.send_nowait(frame)
        await self._secured.flush()


async def keep_border(border: Border, stopping: trio.Event) -> None:
    """Run the border, and again after a pause if its port cannot be used, until cancelled."""
    while True:
        try:
            await border.run()
        except* (OSError, DiosError) as group:
            if not stopping.is_set():
                _log.warning("the border does not listen", extra={"why": str(group.exceptions[0])})
        await trio.sleep(limits.SERVICE_REPAIR_MS / 1000)
