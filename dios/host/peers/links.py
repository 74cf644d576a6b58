"""Makes, accepts, serves and replaces the control connections with other nodes, one for each (thesis §4.8).

The core processes the messages; ``dios.host.peers.bulk`` moves attached bytes.

A connection is kept, or made when something is sent to the node and closed when nothing was for a while;
the core decides which. Both nodes of a pair may try to connect. If both succeed at once, the connection made
by the node with the lower id stays. An invalid message, or one that the core refuses, ends the connection and
is audited; the nodes then connect again.
"""

from __future__ import annotations

import logging
import socket
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from typing import Final, Protocol, TypeAlias

import trio
from msgspec.structs import replace

from dios import limits
from dios.core.effects import Extension
from dios.core.events import (
    ExtensionsFailed,
    LabelsStored,
    NodesRemoved,
    PeerDown,
    PeerPaused,
    PeerUp,
    UnderWay,
)
from dios.errors import (
    DiosError,
    InvalidError,
    NotPermittedError,
    ProtocolError,
    UnreachableError,
    WouldBlockError,
)
from dios.host.audit.heads import AuditHead
from dios.host.handover import format as form
from dios.host.loop.node_log import correlate
from dios.host.peers import handshake
from dios.host.peers.bulk import FileRange
from dios.host.peers.connection_protocols import NodeDescription, PeerConnection, PeerNetwork
from dios.host.peers.heads import HeadKeeper
from dios.host.peers.link import PeerLink, PeerSession
from dios.host.peers.liveness_probe import refuses_connections
from dios.host.peers.mandates import MandateSigner, UserKeys
from dios.host.peers.receiving import LinkParts, MessageReader
from dios.host.peers.sending import TransferQueue
from dios.host.peers.shared_documents import SecretStore, SharedDocuments
from dios.host.peers.statements import RevocationList
from dios.ids import NodeId, Principal, TaskId
from dios.wire import dcp
from dios.wire.codec import MANDATES_VERSION
from dios.wire.dcp_frames import (
    CONTINUING_VERSION,
    AuditHeads,
    Channel,
    Continuing,
    Revoked,
    encode_frame,
    version_with,
)

_log: Final = logging.getLogger(__name__)
_NOBODY: Final = TaskId(0)


class StreamAcceptor(Protocol):
    """The acceptor of connections that carry one stream each."""

    def accept(self, node: NodeId, channel: Channel, sock: socket.socket, session: PeerSession) -> None:
        """Take over a connection. Raise ProtocolError if no such stream was requested."""

    def met(self, node: NodeId, session: PeerSession) -> None:
        """Continue the streams that wait for a node, which is connected."""

    def peer_continues(self, node: NodeId, session: PeerSession, *, begins: bool) -> None:
        """Stop sending to a node that replaces its program, or go on."""


Labels: TypeAlias = tuple[tuple[str, str], ...]
LabelWriter: TypeAlias = Callable[[str, Labels], None]
"""Stores this node's rack and labels for its next starts. It may block; raise OSError."""


class PeerLinks:
    """The connections with all other nodes. Tasks run in ``nursery``, which is left by cancelling it."""

    def __init__(
        self,
        me: NodeDescription,
        network: PeerNetwork,
        guard: RevocationList,
        around: LinkParts,
        nursery: trio.Nursery,
        write_labels: LabelWriter,
        user_keys: UserKeys,
        later_secrets: SecretStore,
    ) -> None:
        self._signer: Final = MandateSigner(user_keys.key)
        self._write_labels: Final = write_labels
        self._labels: tuple[str, Labels] = "", ()
        self._storing_labels: Final = trio.Lock()
        self._me: Final = me
        self._network: Final = network
        self._guard: Final = guard
        self._parts: Final = around
        self._nursery: Final = nursery
        self._links: Final[dict[NodeId, PeerLink]] = {}
        self._channels = handshake.CONTROL
        self._met = trio.Event()
        self._pauses = False
        self._unsigned_why = ""
        """The last reason why a mandate could not be extended: the log has each once."""
        self.counts: Final[Counter[str]] = Counter()
        self._documents: Final = SharedDocuments(
            me.node,
            user_keys.register,
            later_secrets,
            around.driver,
            around.clock,
            nursery,
            self._connected_nodes,
            self._deny_register,
        )
        self._reading: Final = MessageReader(
            around, guard, nursery, self.counts, self._restated, self._continued, self._documents
        )
        self.streamer: StreamAcceptor

    @property
    def node(self) -> NodeId:
        """The id of this node."""
        return self._me.node

    @property
    def heads(self) -> HeadKeeper:
        """The keeper of other nodes' audit heads."""
        return self._parts.heads

    @property
    def inline_bytes_max(self) -> int:
        """The most bytes that are sent inside a message; more are attached to it."""
        return self._parts.rates.inline_bytes_max

    def sessions(self) -> Iterator[tuple[str, PeerSession | None]]:
        """Yield the name of each known node, and the session with it or None."""
        for link in self._links.values():
            yield link.name, link.session

    # -- what the core asks ---------------------------------------------------------------------------
    def contact(self, node: NodeId, name: str, address: str, *, on_demand: bool = False) -> None:
        """Keep a connection with this node from now on; ``on_demand`` not before something is sent to it."""
        if node == self._me.node:
            return
        link = self._links.get(node)
        if link is None:
            link = self._links[node] = PeerLink(node, name, address)
        link.name, link.address = name, address or link.address
        link.kept = not on_demand
        if link.kept:
            self._keep_connected(link)

    def hang_up(self, node: NodeId, reason: str) -> None:
        """Close the connections with a node and do not reconnect."""
        link = self._links.pop(node, None)
        if link is not None:
            if link.keeper_scope is not None:
                link.keeper_scope.cancel()
            link.reported_epoch = None
            if link.session is not None:
                link.session.end()
            _log.info("a node was disconnected for good", extra={"peer": link.name, "why": reason})

    def remove(self, node: NodeId, call: tuple[TaskId, int, int], *, restore: bool) -> None:
        """Store durably that a node is removed; then send it to all others, and report it to the core."""
        self._nursery.start_soon(partial(self._remove, node, call, restore=restore), name="remove a node")

    async def _remove(self, node: NodeId, call: tuple[TaskId, int, int], *, restore: bool) -> None:
        failure = ""
        try:
            statement = await self._guard.remove(node, restore=restore)
            self._restated(self._me.node, statement, report=False)
        except DiosError as error:
            failure = error.message
        except OSError as error:
            failure = f"it cannot be stored ({error.strerror}). Free some space, then try again."
        self._report_removed(call, failure)
        if not failure:
            await self._documents.removed()

    def store_labels(self, rack: str, labels: Labels, call: tuple[TaskId, int, int]) -> None:
        """Store this node's rack and labels durably, and report that to the core."""
        self._labels = rack, labels
        self._nursery.start_soon(self._store_labels, call, name="store labels")

    async def _store_labels(self, call: tuple[TaskId, int, int]) -> None:
        failure = ""
        async with self._storing_labels:
            # The latest of several changes is written for all of them, in whatever order they come here.
            try:
                await trio.to_thread.run_sync(self._write_labels, *self._labels)
            except OSError as error:
                failure = f"{error.strerror or error}. Free some space, then give the command again."
        self._parts.driver.post(LabelsStored(self._parts.clock.now(), call, failure))

    # -- users with keys, and the secret ----------------------------------------------------------------
    def report_documents(self) -> None:
        """Report the stored register of principals and the later secrets to the core, if there are any."""
        self._documents.report()

    def store_register(self, data: bytes, call: tuple[TaskId, int, int]) -> None:
        """Store a register of principals durably; then send it to all nodes, and report it to the core."""
        self._nursery.start_soon(
            self._documents.store_register, data, call, name="store the register of principals"
        )

    def rotate_secret(self, call: tuple[TaskId, int, int]) -> None:
        """Store a new secret durably; then send it to all nodes, and report it to the core."""
        self._nursery.start_soon(self._documents.rotate, call, name="change the cluster's secret")

    def _deny_register(self, source: NodeId, error: DiosError) -> None:
        link = self._links.get(source)
        self._deny("" if link is None else link.name, error)

    def _connected_nodes(self) -> list[tuple[NodeId, PeerSession]]:
        sessions = ((link.node, link.session) for link in self._links.values())
        return [(node, session) for node, session in sessions if session is not None and not session.closed]

    def extended(self, node: NodeId, asked: dcp.Ask, extensions: tuple[Extension, ...]) -> dcp.Ask:
        """Return a request with the signed extensions for its node.

        Report those that cannot be signed to the core.
        """
        session = self.session_of(node)
        if session is None or session.version < MANDATES_VERSION:
            return asked
        signed: list[bytes] = []
        unsigned: list[bytes] = []
        for extension in extensions:
            try:
                signed.append(self._signer.sign(extension, node, session.line.peer.key))
            except (DiosError, OSError) as error:
                unsigned.append(extension.key)
                if self._unsigned_why != str(error):
                    self._unsigned_why = str(error)
                    _log.warning("cannot extend a mandate for a node", extra={"why": str(error)})
        if unsigned:
            self._parts.driver.post(ExtensionsFailed(self._parts.clock.now(), node, tuple(unsigned)))
        return replace(asked, extensions=tuple(signed))

    def _restated(self, source: NodeId, statement: bytes, *, report: bool = True) -> None:
        """Send a statement that is new here to every connected node except its source."""
        for link in self._links.values():
            if link.session is not None and link.node != source:
                link.session.send_message(Revoked(statement))
        if report:
            self._report_removed()
            self._documents.look()

    def _continued(self, node: NodeId, session: PeerSession, begins: bool) -> None:  # noqa: FBT001 - a callback
        self.streamer.peer_continues(node, session, begins=begins)
        around = self._parts
        around.driver.post(PeerPaused(around.clock.now(), node, session.epoch, begins))

    # -- the replacement of this node's program ---------------------------------------------------------
    def announce_pause(self, *, begins: bool) -> None:
        """Announce to the connected nodes that this node's program is being replaced, or is not after all."""
        if begins == self._pauses:
            return
        self._pauses = begins
        for session in self._open_sessions():
            if session.version >= CONTINUING_VERSION:
                session.send_message(Continuing(begins=begins))

    async def flush(self) -> None:
        """Wait until all that is queued was sent to the nodes, at most CONTINUATION_NOTICE_MS_MAX."""
        with trio.move_on_after(limits.CONTINUATION_NOTICE_MS_MAX / 1000):
            for session in self._open_sessions():
                await session.line.flush()

    def _open_sessions(self) -> list[PeerSession]:
        sessions = (link.session for link in self._links.values())
        return [session for session in sessions if session is not None and not session.closed]

    def publish_head(self, head: AuditHead) -> None:
        """Send the newest head of this node's audit log to some connected nodes."""
        open_links = ((link.node, link.session) for link in self._links.values())
        self._parts.heads.publish(
            head, [(node, session) for node, session in open_links if session is not None]
        )

    def _report_removed(self, call: tuple[TaskId, int, int] | None = None, failure: str = "") -> None:
        around = self._parts
        removed = tuple(sorted(self._guard.revoked))
        around.driver.post(NodesRemoved(around.clock.now(), removed, call, failure))

    def hand_over(self) -> tuple[form.Peer, ...]:
        """Describe the nodes with which connections are kept or made on demand."""
        return tuple(
            form.Peer(link.node, link.name, link.address, link.kept)
            for link in self._links.values()
            if link.address
        )

    def session_of(self, node: NodeId) -> PeerSession | None:
        """Return the connection with a node, or None."""
        link = self._links.get(node)
        return None if link is None else link.session

    def is_up(self, node: NodeId, epoch: int = 0) -> bool:
        """Return True if there is a connection with a node, and with its start ``epoch`` if that is given."""
        session = self.session_of(node)
        return session is not None and epoch in {0, session.epoch}

    def knows_name(self, name: str) -> bool:
        """Return True if this node knows a node of this name."""
        return any(link.name == name for link in self._links.values())

    async def wait_connected(self) -> None:
        """Wait until the next connection is established."""
        await self._met.wait()

    @property
    def addresses(self) -> tuple[str, ...]:
        """The addresses of the known nodes."""
        return tuple(link.address for link in self._links.values() if link.address)

    # -- sending --------------------------------------------------------------------------------------
    def send(
        self, node: NodeId, message: dcp.Message, attached: bytes | None = None, task: TaskId = _NOBODY
    ) -> None:
        """Send a message for ``task``, with few attached bytes.

        Without a connection the message is lost. Only gossip waits for a connection, which is made then.
        """
        link = self._links.get(node)
        if link is None:
            return
        if self._parts.tracer.is_on:
            message = self._parts.tracer.outgoing(node, message)
        if link.session is not None:
            link.session.send_message(message, attached, task)
        elif not link.kept and link.address and type(message) is dcp.Gossip:
            link.waiting = [*link.waiting, message][-limits.PEER_WAITING_GOSSIP_MAX :]
            self._keep_connected(link)

    def send_bulk(
        self,
        node: NodeId,
        task: TaskId,
        message: dcp.Message,
        pieces: tuple[FileRange, ...],
        done: Callable[[], None],
    ) -> None:
        """Send a message with many attached bytes when it is the turn of ``task``.

        ``done`` is called once, when the transfer has ended, successfully or not.
        """
        session = self.session_of(node)
        if session is None:
            done()
        else:
            if self._parts.tracer.is_on:
                message = self._parts.tracer.outgoing(node, message)
            session.send_bulk(task, message, pieces, done)

    # -- accepting ------------------------------------------------------------------------------------
    async def welcome(self, line: PeerConnection) -> None:
        """Serve a connection that another node made, until it ends."""
        try:
            try:
                opened = await handshake.receive_hello(line)
                hello = opened.hello
                if hello.channel == handshake.CONTROL:
                    await self._accept_control(line, opened)
                elif hello.channel == handshake.HEADS:
                    await self._return_heads(line, hello.node)
                else:
                    await self._accept_data(line, opened)
            except (UnreachableError, WouldBlockError, OSError) as error:
                _log.info("an incoming connection of a node failed", extra={"why": str(error)})
            except DiosError as error:
                self._deny(line.peer.name, error)
            except Exception as error:
                if not self._parts.driver.sound:
                    raise
                _log.exception("an internal error ended a connection with a node", exc_info=error)
        finally:
            line.close()

    async def _accept_control(self, line: PeerConnection, opened: handshake.ReceivedHello) -> None:
        hello = opened.hello
        link = self._links.get(hello.node)
        if link is None:
            link = self._links[hello.node] = PeerLink(hello.node, hello.name, hello.address)
        session = link.session
        if self._me.node < hello.node and (
            link.dialling is not None
            or (session is not None and session.ours and session.epoch == hello.epoch)
        ):
            return  # this node's own connection stays; the other node learns this from the close
        if link.dialling is not None:
            link.dialling.cancel()
        # Sent even to a node without a common version, so that it can report the reason to its operator.
        handshake.send_hello(line, self._me)
        handshake.check_version(hello)
        await self._serve(link, self._establish(link, line, opened, ours=False), opened.rest)

    async def _return_heads(self, line: PeerConnection, node: NodeId) -> None:
        """Send a node all heads of its audit log that are kept here."""
        stored = await self._parts.heads.kept_of(node)
        handshake.send_hello(line, self._me, handshake.HEADS)
        line.send_nowait(encode_frame(AuditHeads(tuple(head.line for head in stored.heads))))
        await line.flush()

    async def _accept_data(self, line: PeerConnection, opened: handshake.ReceivedHello) -> None:
        hello = opened.hello
        purpose = await handshake.receive_purpose(line, opened)
        link = self._links.get(hello.node)
        session = None if link is None else link.session
        if session is None or session.epoch != hello.epoch:
            raise UnreachableError("a data connection arrived without its control connection")
        handshake.send_hello(line, self._me, hello.channel)
        await line.flush()
        sock = line.detach()
        try:
            if purpose.stream:
                self.streamer.accept(hello.node, purpose, sock, session)
            else:
                session.receive_on(
                    sock,
                    lambda arrived: self._reading.arrived(hello.node, session, arrived),
                    lambda reason: self._reading.data_ended(session, reason),
                )
        except ProtocolError as error:
            sock.close()
            session.end(error)

    # -- making ---------------------------------------------------------------------------------------
    def _keep_connected(self, link: PeerLink) -> None:
        if link.keeper_scope is None and self._links.get(link.node) is link:
            link.keeper_scope = trio.CancelScope()
            self._nursery.start_soon(self._keep, link, link.keeper_scope, name="keep a node connected")

    async def _keep(self, link: PeerLink, scope: trio.CancelScope) -> None:
        with scope:
            wait_ms = limits.PEER_RETRY_MS_MIN
            if self._me.node > link.node:
                # Of two connections the other node's would stay, so give it time to connect first.
                await trio.sleep(handshake.jittered_s(2 * wait_ms))
            while True:
                began = trio.current_time()
                if link.session is not None:
                    await link.lost.wait()
                elif link.dialling is None:
                    await self._dial(link)
                if not link.kept and link.session is None:
                    link.keeper_scope = None
                    link.waiting.clear()
                    return
                # A connection that ends at once counts as a failed attempt, and the delay grows.
                if (trio.current_time() - began) * 1000 > 2 * limits.PEER_RETRY_MS_MAX:
                    wait_ms = limits.PEER_RETRY_MS_MIN
                await trio.sleep(handshake.jittered_s(wait_ms))
                wait_ms = min(2 * wait_ms, limits.PEER_RETRY_MS_MAX)

    async def _dial(self, link: PeerLink, line: PeerConnection | None = None) -> None:
        """Connect, unless ``line`` is a connection already, and serve the connection until it ends."""
        opened: handshake.ReceivedHello | None = None
        try:
            link.dialling = trio.CancelScope()
            with link.dialling:
                try:
                    if line is None:
                        line = await self._network.dial(link.address, expect=link.node)
                    handshake.send_hello(line, self._me)
                    opened = await handshake.receive_hello(line)
                    handshake.check_version(opened.hello)
                except (DiosError, OSError) as error:
                    opened = None
                    self._report_unreachable(link, error)
                except Exception as error:  # noqa: BLE001 - no node may end this one by its address
                    opened = None
                    self._report_unreachable(link, _defect_of(error))
                finally:
                    link.dialling = None
            if line is not None and opened is not None:
                await self._serve(link, self._establish(link, line, opened, ours=True), opened.rest)
        finally:
            if line is not None:
                line.close()

    def _report_unreachable(self, link: PeerLink, error: DiosError | OSError) -> None:
        if isinstance(error, ProtocolError):
            self._deny(link.name, error)
        elif str(error) != link.last_error:
            # Log each reason once, not at every attempt.
            link.last_error = str(error)
            _log.warning("a node cannot be reached", extra={"peer": link.name, "why": link.last_error})

    async def seek(self, address: str) -> None:
        """Try to connect to an address until a node of this cluster answers there."""
        wait_ms = limits.PEER_RETRY_MS_MIN
        refused = ""
        while address not in self.addresses:
            try:
                line = await self._network.dial(address)
            except InvalidError:
                return  # the address is this node's own
            except Exception as raised:  # noqa: BLE001 - as in _dial
                error = raised if isinstance(raised, DiosError | OSError) else _defect_of(raised)
                why = str(error)
                _log.debug("no node of the cluster answers", extra={"address": address, "why": why})
                if isinstance(error, NotPermittedError) and why != refused:
                    # A silent node may come back by itself; a refusal needs the operator, so log it once.
                    refused = why
                    _log.warning("a node refuses this node", extra={"address": address, "why": why})
                await trio.sleep(handshake.jittered_s(wait_ms))
                wait_ms = min(2 * wait_ms, limits.PEER_RETRY_MS_MAX)
                continue
            peer = line.peer
            link = self._links.setdefault(peer.node, PeerLink(peer.node, peer.name, address))
            if link.session is None and link.dialling is None:
                await self._dial(link, line)
            line.close()
            self._keep_connected(link)
            return

    async def open_data(self, node: NodeId, purpose: Channel) -> socket.socket:
        """Make a data connection to a connected node. Raise DiosError or OSError."""
        link = self._links.get(node)
        if link is None or link.session is None:
            raise UnreachableError("there is no control connection with that node now")
        self._channels += 1
        line = await self._network.dial(link.address, expect=node)
        try:
            handshake.send_hello(line, self._me, self._channels, purpose)
            handshake.check_version((await handshake.receive_hello(line)).hello)
            return line.detach()
        except BaseException:
            line.close()
            raise

    # -- serving --------------------------------------------------------------------------------------
    def _establish(
        self, link: PeerLink, line: PeerConnection, opened: handshake.ReceivedHello, *, ours: bool
    ) -> PeerSession:
        hello = opened.hello
        former = link.session
        if former is not None:
            former.end()
            self._lost(link, former)
        self._report_down(link, "it connected anew")
        node = link.node

        def under_way(number: int) -> None:
            around = self._parts
            around.driver.post(UnderWay(around.clock.now(), node, number))

        sending = TransferQueue(
            self._nursery,
            self._parts.owners,
            self._parts.rates,
            lambda: self.open_data(node, Channel()),
        )
        session = link.session = PeerSession(
            line,
            hello.epoch,
            sending,
            self.counts,
            self._parts.rates,
            self._parts.receiving,
            under_way=under_way,
            ours=ours,
        )
        session.version = version_with(hello)
        link.name, link.address = hello.name, hello.address or link.address
        link.reported_epoch, link.last_error = hello.epoch, ""
        waiting, link.waiting = link.waiting, []
        for message in waiting:
            session.send_message(message)
        self.counts["connections"] += 1
        _log.info("a node is connected", extra={"peer": link.name, "epoch": hello.epoch})
        for statement in self._guard.statements:
            session.send_message(Revoked(statement))
        self._documents.send_to(node, session)
        self._parts.heads.met(node, session)
        self._met.set()
        self._met = trio.Event()
        self._parts.driver.feed(
            PeerUp(
                self._parts.clock.now(),
                node,
                hello.epoch,
                hello.name,
                hello.rack,
                hello.address,
                session.version,
                line.peer.roles,
                line.peer.key,
            )
        )
        self.streamer.met(node, session)
        return session

    async def _serve(self, link: PeerLink, session: PeerSession, bodies: list[bytes]) -> None:
        self._keep_connected(link)
        correlate(peer=link.name)
        try:
            try:
                await self._reading.read(link.node, session, bodies)
            except Exception as error:
                # An error outside a step of the core: end this connection, not the node.
                if not self._parts.driver.sound:
                    raise
                session.end(error)
        finally:
            session.end()
            self._lost(link, session)
        reason = session.fault
        if isinstance(reason, ProtocolError):
            self._deny(link.name, reason)
        elif reason is not None and not isinstance(reason, DiosError | OSError):
            _log.error("an internal error ended a connection with a node", exc_info=reason)
        if link.reported_epoch == session.epoch and link.session is None:
            if session.resting:
                self._report_down(link, "it was not used", idle=True)
                return
            refused = await refuses_connections(self._network, link)
            if link.session is None:
                self._report_down(link, str(reason or "the connection ended"), refused=refused)

    def _lost(self, link: PeerLink, session: PeerSession) -> None:
        if link.session is session:
            link.session = None
            link.lost.set()
            link.lost = trio.Event()

    def _report_down(self, link: PeerLink, reason: str, *, refused: bool = False, idle: bool = False) -> None:
        if link.reported_epoch is None:
            return
        epoch, link.reported_epoch = link.reported_epoch, None
        _log.info("a node is disconnected", extra={"peer": link.name, "why": reason, "refused": refused})
        self._parts.driver.feed(
            PeerDown(
                self._parts.clock.now(), link.node, epoch, reason[: limits.TEXT_BYTES_MAX], refused, idle
            )
        )

    def _deny(self, name: str, error: DiosError) -> None:
        self.counts["denied"] += 1
        _log.warning("a node's connection was refused", extra={"peer": name, "why": error.message})
        self._parts.denied(Principal(f"node:{name}"), error.message)

    async def close_idle(self) -> None:
        """Close the connections that were not used for PEER_IDLE_MS and are not kept, until cancelled."""
        while True:
            await trio.sleep(limits.PEER_IDLE_MS / 4000)
            since_s = trio.current_time() - limits.PEER_IDLE_MS / 1000
            for link in self._links.values():
                session = link.session
                if not link.kept and session is not None and not session.resting and session.is_idle(since_s):
                    self._nursery.start_soon(session.rest, name="end an unused connection")

    async def aclose(self) -> None:
        """End every connection and wait for their threads, in bounded time."""
        sessions = [link.session for link in self._links.values() if link.session is not None]
        for session in sessions:
            session.end()
        with trio.move_on_after(limits.TASK_DRAIN_MS_MAX / 1000, shield=True):
            for session in sessions:
                await session.wait_ended()


def _defect_of(error: Exception) -> UnreachableError:
    """Log an exception that no connection should raise, and return the error to go on with."""
    _log.error("an internal error ended a connection with a node", exc_info=error)
    return UnreachableError("an internal error; see the node's log")
