"""Streams between nodes: a ring at both ends and a data connection between them (thesis §4.7.4).

Rings within one node are in ``dios.host.content.streams``; ``dios.host.peers.stream_pump`` moves the bytes.

The node of the stream keeps the end that a task of another node attached to. The other node creates a ring
for its task, connects, and names the request that attached to the end.
"""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final, NamedTuple

import trio

from dios import limits
from dios.core.effects import AnswerAttachRemote
from dios.errors import DiosError, LimitError, ProtocolError
from dios.host.bandwidth.rates import Rates
from dios.host.content.streams import Streams
from dios.host.handover import format as form
from dios.host.peers.link import PeerSession
from dios.host.peers.links import PeerLinks
from dios.host.peers.stream_pump import AttachedTask, StreamPump
from dios.ids import NodeId, ObjectId, TaskId
from dios.transport.rings.end import RingEnd
from dios.transport.rings.layout import RingDescriptors, TakenRing, create_ring
from dios.transport.rings.reader import RingReader
from dios.transport.rings.writer import RingWriter
from dios.wire.dcp_frames import CONTINUING_VERSION, Channel, Continuing
from dios.wire.messages import Attached
from dios.wire.types import Mode

_log: Final = logging.getLogger(__name__)

_OPPOSITE: Final = {Mode.READ: Mode.WRITE, Mode.WRITE: Mode.READ}
_DIALS_MAX: Final = 20
"""The attempts to connect for a stream that goes on."""


class StreamKey(NamedTuple):
    """A stream with another node: the request that attached to its end, and the node that connects for it."""

    node: NodeId
    number: int
    dials: bool
    """True if this node connects, because its task attached to an end of a stream of the other node."""


class StreamPlace(NamedTuple):
    """The ring of a stream between nodes: its object, and the mode with which the task attached."""

    object: ObjectId
    mode: Mode
    duplex: bool
    taker: AttachedTask


@dataclass(slots=True)
class _Waiting:
    """An end without a connection: of a new stream, or of one that goes on over another connection."""

    place: StreamPlace
    end: RingEnd
    scope: trio.CancelScope
    pending: bytes = b""
    epoch: int | None = None
    """The start of the other node if the stream goes on; None if it is new."""
    finished: bool = False
    """True if ``pending`` is all that is left of the stream."""


@dataclass(slots=True)
class _Open:
    """A stream that moves: with a connection, or its last bytes.

    ``successor`` is a connection that came before the present one ended.
    """

    place: StreamPlace
    end: RingEnd
    pump: StreamPump
    session: PeerSession | None
    successor: tuple[socket.socket, PeerSession] | None = None
    is_watched: bool = False
    """True if the stream is interrupted unless its node comes back."""


class RemoteStreams:
    """Every stream between this node and another. Its tasks run in ``nursery``."""

    def __init__(self, links: PeerLinks, nursery: trio.Nursery, rates: Rates) -> None:
        self._links: Final = links
        self._rates: Final = rates
        self._nursery: Final = nursery
        self._waiting: Final[dict[StreamKey, _Waiting]] = {}
        self._open: Final[dict[StreamKey, _Open]] = {}
        self._rings: Final[dict[tuple[ObjectId, Mode], RingDescriptors]] = {}
        self._connecting: Final[dict[StreamKey, _Waiting]] = {}
        self._pauses = False
        """True while this node tries to replace its program."""

    def __len__(self) -> int:
        return len(self._open) + len(self._waiting) + len(self._connecting)

    def _leaves_room(self, holder: NodeId | str) -> bool:
        """Return True if a node, or a principal of this node, may have another stream."""
        own = sum(
            holder == (place.taker.principal if key.dials else key.node)
            for streams in (self._waiting, self._connecting, self._open)
            for key, place in ((key, stream.place) for key, stream in streams.items())
        )
        return limits.may_take(own, len(self), limits.PEER_STREAMS_MAX)

    # -- the node that has the stream -----------------------------------------------------------------
    def keep(self, node: NodeId, number: int, place: StreamPlace, end: RingEnd) -> None:
        """Keep one end of a ring until the node of the task that attached connects, or the time is over.

        Raise LimitError over PEER_STREAMS_MAX streams; the end is closed then.
        """
        if not self._leaves_room(node):
            end.close()
            raise _too_many()
        session = self._links.session_of(node)
        if session is None:
            end.close()
            return
        waiting = _Waiting(place, end, trio.CancelScope())
        session.ends.add(waiting.scope.cancel)
        self._wait_for(StreamKey(node, number, dials=False), waiting, 2 * limits.PEER_CONNECT_MS_MAX, session)

    def _wait_for(
        self, key: StreamKey, waiting: _Waiting, limit_ms: int, session: PeerSession | None = None
    ) -> None:
        self._waiting[key] = waiting
        self._nursery.start_soon(self._give_up_later, key, waiting, limit_ms, session, name="keep an end")

    async def _give_up_later(
        self, key: StreamKey, waiting: _Waiting, limit_ms: int, session: PeerSession | None
    ) -> None:
        try:
            with waiting.scope:
                await trio.sleep(limit_ms / 1000)
        finally:
            if session is not None:
                session.ends.discard(waiting.scope.cancel)
            if self._waiting.get(key) is waiting:
                del self._waiting[key]
                if waiting.epoch is None:
                    waiting.end.close()
                else:
                    break_off(waiting.end)

    def _take(self, key: StreamKey) -> _Waiting | None:
        """Return the end that waits, which the caller serves from now on."""
        waiting = self._waiting.pop(key, None)
        if waiting is not None:
            waiting.scope.cancel()
        return waiting

    def accept(self, node: NodeId, channel: Channel, sock: socket.socket, session: PeerSession) -> None:
        """Accept the connection for an end that was kept. Raise ProtocolError if its direction is wrong."""
        key = StreamKey(node, channel.stream, dials=False)
        waiting, opened = self._waiting.get(key), self._open.get(key)
        place = waiting.place if waiting is not None else None if opened is None else opened.place
        if place is None or (waiting is None and opened is not None and opened.successor is not None):
            # The connection came too late, or the task ended first.
            sock.close()
            return
        if (place.mode is Mode.WRITE) is not channel.writes:
            raise ProtocolError(f"stream {channel.stream} has the opposite direction")
        if waiting is None and opened is not None:
            # The last bytes of the former connection have not been read.
            opened.successor = sock, session
            return
        stream = self._take(key)
        if stream is not None:
            self._pump(key, stream, sock, session)

    # -- the node whose task took an end ---------------------------------------------------------------
    def fetch(self, effect: AnswerAttachRemote, taker: AttachedTask) -> tuple[Attached, tuple[int, ...]]:
        """Create a ring for the local task ``taker``, and connect for the stream's bytes.

        Return the task's end: the reply and three descriptors, which the caller closes. Raise LimitError,
        OutOfMemoryError or OSError.
        """
        if not self._leaves_room(taker.principal):
            raise _too_many()
        mode = effect.mode
        ring = create_ring(effect.ring_bytes)
        try:
            theirs = ring.hand_out(mode)
            opposite = ring.hand_out(_OPPOSITE[mode])
        except OSError:
            ring.close()
            raise
        self._rings[effect.object, mode] = ring
        end = (RingWriter if mode is Mode.READ else RingReader)(opposite, ring.ring_bytes)
        key = StreamKey(effect.node, effect.number, dials=True)
        waiting = _Waiting(
            StreamPlace(effect.object, mode, duplex=False, taker=taker), end, trio.CancelScope()
        )
        self._begin_to_connect(key, waiting)
        return Attached(ring.ring_bytes), theirs

    def close_end(self, target: ObjectId, mode: Mode) -> bool:
        """Close a local task's end of another node's stream. Return False if it has no such end."""
        ring = self._rings.pop((target, mode), None)
        if ring is None:
            return False
        ring.mark_closed(mode)
        ring.close()
        return True

    def _begin_to_connect(self, key: StreamKey, waiting: _Waiting) -> None:
        self._connecting[key] = waiting
        self._nursery.start_soon(self._connect, key, waiting, name="connect for a stream")

    async def _connect(self, key: StreamKey, waiting: _Waiting) -> None:
        session = self._links.session_of(key.node)
        try:
            sock = await self._dial(key, waiting)
        except Exception as error:  # noqa: BLE001 - whatever it is, it ends this stream alone
            if not isinstance(error, DiosError | OSError):
                _log.error("an internal error ended a stream", exc_info=error)
            break_off(waiting.end)
            return
        except BaseException:
            waiting.end.close()
            raise
        finally:
            del self._connecting[key]
        if session is None or session.closed:
            sock.close()
            break_off(waiting.end)
            return
        self._pump(key, waiting, sock, session)

    async def _dial(self, key: StreamKey, waiting: _Waiting) -> socket.socket:
        """Connect. For a stream that goes on try again, because the other node may not be ready for it."""
        channel = Channel(key.number, writes=waiting.place.mode is Mode.WRITE)
        tries = 1 if waiting.epoch is None else _DIALS_MAX
        while True:
            try:
                return await self._links.open_data(key.node, channel)
            except (DiosError, OSError):
                tries -= 1
                if not tries:
                    raise
            await trio.sleep(limits.PEER_RETRY_MS_MIN / 1000)

    async def run(self) -> None:
        """Wait until cancelled, then close all streams."""
        try:
            await trio.sleep_forever()
        finally:
            self._close()

    def _close(self) -> None:
        for opened in list(self._open.values()):
            opened.pump.close()
        for ring in self._rings.values():
            ring.close()
        self._rings.clear()

    # -- both -----------------------------------------------------------------------------------------
    def _pump(self, key: StreamKey, waiting: _Waiting, sock: socket.socket, session: PeerSession) -> None:
        def close() -> None:
            # A stream ends with its control connection, because a later one may belong to a restarted node;
            # unless that node has said that its program is being replaced.
            if not session.continues:
                opened.pump.close()

        opened = self._start(key, waiting, sock, session, lambda: session.ends.discard(close))
        session.ends.add(close)
        if self._pauses:
            session.send_message(Continuing(begins=True))
        if session.continues:
            opened.pump.pause()

    def _start(
        self,
        key: StreamKey,
        waiting: _Waiting,
        sock: socket.socket | None,
        session: PeerSession | None,
        over: Callable[[], None],
    ) -> _Open:
        def ended() -> None:
            over()
            if self._open.get(key) is opened:
                del self._open[key]
            if opened.pump.paused:
                self._paused(key, opened, waiting.epoch if session is None else session.epoch)
            elif opened.successor is not None:
                opened.successor[0].close()

        place = waiting.place
        pump = StreamPump(waiting.end, sock, self._rates, place.taker, ended, waiting.pending)
        opened = self._open[key] = _Open(place, waiting.end, pump, session)
        if self._pauses:
            pump.pause()
        return opened

    # -- the replacement of a node's program ------------------------------------------------------------
    def _paused(self, key: StreamKey, opened: _Open, epoch: int | None) -> None:
        """Let a stream wait for its next connection, or go on at once if that is possible."""
        pump = opened.pump
        waiting = _Waiting(
            opened.place, opened.end, trio.CancelScope(), bytes(pump.pending), epoch or 0, pump.finished
        )
        self._wait_for(key, waiting, limits.NODE_START_MS_MAX)
        if waiting.finished:
            self._give_rest(key, waiting)
            return
        if opened.successor is not None:
            if self._take(key) is not None:
                self._pump(key, waiting, *opened.successor)
            return
        session = self._links.session_of(key.node)
        if session is not None and not session.closed and not session.continues:
            self._go_on(key, waiting, session)

    def _give_rest(self, key: StreamKey, waiting: _Waiting) -> None:
        """Write the last bytes of a stream into its ring, for which no other node is needed."""
        if not self._pauses and self._take(key) is not None:
            self._start(key, waiting, None, None, _nothing)

    def _go_on(self, key: StreamKey, waiting: _Waiting, session: PeerSession) -> None:
        if self._pauses:
            return
        if session.epoch != waiting.epoch:
            # Another start of the node does not know the stream.
            waiting.scope.cancel()
        elif key.dials and self._take(key) is not None:
            self._begin_to_connect(key, waiting)

    def met(self, node: NodeId, session: PeerSession) -> None:
        """Continue the streams with a node that is connected, or whose program is not replaced after all."""
        for key, waiting in list(self._waiting.items()):
            if key.node == node and waiting.epoch is not None and not waiting.finished:
                self._go_on(key, waiting, session)

    def peer_continues(self, node: NodeId, session: PeerSession, *, begins: bool) -> None:
        """Stop the streams with a node that replaces its program, or go on."""
        session.continues = begins
        if not begins:
            self.met(node, session)
            return
        for key, opened in self._open.items():
            if key.node == node:
                opened.pump.pause()
                if not opened.is_watched:
                    opened.is_watched = True
                    self._nursery.start_soon(self._close_later, opened, name="wait for a node that restarts")

    async def _close_later(self, opened: _Open) -> None:
        """Interrupt a stream whose other node does not come back."""
        await trio.sleep(limits.NODE_START_MS_MAX / 1000)
        if (opened.session is None or opened.session.closed) and any(
            stream is opened for stream in self._open.values()
        ):
            opened.pump.close()

    def pause(self) -> None:
        """Stop all streams, because the program of this node is being replaced."""
        self._pauses = True
        for opened in self._open.values():
            opened.pump.pause()

    def resume(self) -> None:
        """Continue with the streams after ``pause``: the program was not replaced."""
        if not self._pauses:
            return
        self._pauses = False
        for key, waiting in list(self._waiting.items()):
            if waiting.finished:
                self._give_rest(key, waiting)
        for node in {key.node for key in (*self._waiting, *self._open)}:
            session = self._links.session_of(node)
            if session is not None:
                self.met(node, session)

    def obstacle(self) -> str:
        """Return why streams cannot be handed over for some time, or an empty text."""
        sessions = [opened.session for opened in self._open.values()]
        old = [
            session for session in sessions if session is not None and session.version < CONTINUING_VERSION
        ]
        if not old:
            return ""
        return f"{len(old)} streams to nodes of an earlier release are open, which cannot wait. Close them."

    def unfinished(self) -> str:
        """Return why streams cannot be handed over at this moment, or an empty text."""
        if self._open:
            return "streams to other nodes still move: their readers do not read, or their rate is low"
        if self._connecting or any(opening.epoch is None for opening in self._waiting.values()):
            return "streams to other nodes are being opened"
        return ""

    def hand_over(self) -> tuple[tuple[form.Ring, ...], tuple[form.PeerStream, ...]]:
        """Return the rings of this node's tasks and the streams, as this process's successor reads them."""
        rings = tuple(
            form.Ring(target, mode, ring.ring_bytes, *ring.hand_over())
            for (target, mode), ring in self._rings.items()
        )
        peer_streams = []
        for key, waiting in self._waiting.items():
            place = waiting.place
            wakeups, wait_number, rung_for = waiting.end.hand_over()
            peer_streams.append(
                form.PeerStream(
                    key.node,
                    key.number,
                    key.dials,
                    place.object,
                    place.mode,
                    place.duplex,
                    place.taker.task,
                    place.taker.principal,
                    waiting.epoch or 0,
                    wakeups,
                    wait_number,
                    rung_for,
                    waiting.pending,
                    waiting.finished,
                )
            )
        return rings, tuple(peer_streams)

    def take_over(
        self, rings: Iterable[form.Ring], peer_streams: Iterable[form.PeerStream], streams: Streams
    ) -> list[tuple[ObjectId, Mode]]:
        """Continue with the streams of the predecessor. Return the ends that tasks of other nodes write."""
        for described_ring in rings:
            if described_ring.mode is not None:
                taken = TakenRing(
                    described_ring.writer,
                    described_ring.reader,
                    described_ring.write_socket,
                    described_ring.read_socket,
                    described_ring.wanting,
                )
                self._rings[ObjectId(described_ring.object), described_ring.mode] = RingDescriptors(
                    described_ring.ring_bytes, taken
                )
        written: list[tuple[ObjectId, Mode]] = []
        for peer_stream in peer_streams:
            target = ObjectId(peer_stream.object)
            taker = AttachedTask(TaskId(peer_stream.task), peer_stream.principal)
            place = StreamPlace(target, peer_stream.mode, peer_stream.duplex, taker)
            mode = _OPPOSITE[peer_stream.mode] if peer_stream.dials else peer_stream.mode
            ring = self._rings.get((target, peer_stream.mode)) if peer_stream.dials else None
            if ring is None and not peer_stream.dials:
                ring = streams.ring_of(target, peer_stream.mode, duplex=peer_stream.duplex)
            if ring is None:
                os.close(peer_stream.wakeups)
                continue
            kind = RingReader if mode is Mode.READ else RingWriter
            end = kind(ring.own_end(mode, peer_stream.wakeups), ring.ring_bytes)
            end.take_over(peer_stream.wait_number, peer_stream.rung_for)
            waiting = _Waiting(
                place, end, trio.CancelScope(), peer_stream.pending, peer_stream.epoch, peer_stream.finished
            )
            key = StreamKey(NodeId(peer_stream.node), peer_stream.number, peer_stream.dials)
            self._wait_for(key, waiting, limits.NODE_START_MS_MAX)
            if waiting.finished:
                self._give_rest(key, waiting)
            if not peer_stream.dials and peer_stream.mode is Mode.WRITE:
                written.append((target, peer_stream.mode))
        return written


def _nothing() -> None:
    return


def _too_many() -> LimitError:
    return LimitError(
        "cannot open a stream: of the streams between nodes that are open here, no more are left for others. "
        "Close some."
    )


def break_off(end: RingEnd) -> None:
    """Close an end so that the other end learns that the stream was interrupted."""
    if isinstance(end, RingWriter):
        end.break_off()
    else:
        end.close()
