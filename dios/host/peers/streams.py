"""Streams between nodes: a ring at both ends and a data connection between them (thesis §4.7.4).

Rings within one node are in ``dios.host.content.streams``; ``dios.host.peers.stream_pump`` moves the bytes.

The node of the stream keeps the end that a task of another node attached to. The other node creates a ring
for its task, connects, and names the request that attached to the end.
"""

from __future__ import annotations

import logging
import socket
from typing import Final, NamedTuple

import trio

from dios import limits
from dios.core.effects import AnswerAttachRemote
from dios.errors import DiosError, LimitError, ProtocolError
from dios.host.bandwidth.rates import Rates
from dios.host.peers.link import PeerSession
from dios.host.peers.links import PeerLinks
from dios.host.peers.stream_pump import AttachedTask, StreamPump
from dios.ids import NodeId, ObjectId
from dios.transport.rings.end import RingEnd
from dios.transport.rings.layout import RingDescriptors, create_ring
from dios.transport.rings.reader import RingReader
from dios.transport.rings.writer import RingWriter
from dios.wire.dcp_frames import Channel
from dios.wire.messages import Attached
from dios.wire.types import Mode

_log: Final = logging.getLogger(__name__)

_OPPOSITE: Final = {Mode.READ: Mode.WRITE, Mode.WRITE: Mode.READ}


class _KeptEnd(NamedTuple):
    """An end that a task of another node attached to, until that node connects for it."""

    end: RingEnd
    mode: Mode
    taker: AttachedTask
    scope: trio.CancelScope


class RemoteStreams:
    """Every stream between this node and another. Its tasks run in ``nursery``."""

    def __init__(self, links: PeerLinks, nursery: trio.Nursery, rates: Rates) -> None:
        self._links: Final = links
        self._rates: Final = rates
        self._nursery: Final = nursery
        self._kept: Final[dict[tuple[NodeId, int], _KeptEnd]] = {}
        self._pumps: Final[set[StreamPump]] = set()
        self._rings: Final[dict[tuple[ObjectId, Mode], RingDescriptors]] = {}

    def __len__(self) -> int:
        return len(self._pumps) + len(self._kept)

    # -- the node that has the stream -----------------------------------------------------------------
    def keep(self, node: NodeId, number: int, mode: Mode, end: RingEnd, taker: AttachedTask) -> None:
        """Keep one end of a ring until the node of the task ``taker`` connects to it or the time is over.

        Raise LimitError over PEER_STREAMS_MAX streams; the end is closed then.
        """
        if len(self) >= limits.PEER_STREAMS_MAX:
            end.close()
            raise _too_many()
        session = self._links.session_of(node)
        if session is None:
            end.close()
            return
        scope = trio.CancelScope()
        self._kept[node, number] = _KeptEnd(end, mode, taker, scope)
        session.ends.add(scope.cancel)
        self._nursery.start_soon(self._forget_later, node, number, session, scope, name="keep an end")

    async def _forget_later(
        self, node: NodeId, number: int, session: PeerSession, scope: trio.CancelScope
    ) -> None:
        try:
            with scope:
                await trio.sleep(2 * limits.PEER_CONNECT_MS_MAX / 1000)
        finally:
            session.ends.discard(scope.cancel)
            kept = self._kept.pop((node, number), None)
            if kept is not None:
                kept.end.close()

    def accept(self, node: NodeId, channel: Channel, sock: socket.socket, session: PeerSession) -> None:
        """Accept the connection for an end that was kept. Raise ProtocolError if its direction is wrong."""
        kept = self._kept.get((node, channel.stream))
        if kept is None:
            # The connection came too late, or the task ended first.
            sock.close()
            return
        if (kept.mode is Mode.WRITE) is not channel.writes:
            raise ProtocolError(f"stream {channel.stream} has the opposite direction")
        del self._kept[node, channel.stream]
        kept.scope.cancel()
        self._pump(kept.end, sock, session, kept.taker)

    # -- the node whose task took an end ---------------------------------------------------------------
    def fetch(self, effect: AnswerAttachRemote, taker: AttachedTask) -> tuple[Attached, tuple[int, ...]]:
        """Create a ring for the local task ``taker``, and connect for the stream's bytes.

        Return the task's end: the reply and three descriptors, which the caller closes. Raise LimitError,
        OutOfMemoryError or OSError.
        """
        if len(self) >= limits.PEER_STREAMS_MAX:
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
        channel = Channel(effect.number, writes=mode is Mode.WRITE)
        self._nursery.start_soon(self._connect, effect.node, channel, end, taker, name="connect for a stream")
        return Attached(ring.ring_bytes), theirs

    def close_end(self, target: ObjectId, mode: Mode) -> bool:
        """Close a local task's end of another node's stream. Return False if it has no such end."""
        ring = self._rings.pop((target, mode), None)
        if ring is None:
            return False
        ring.mark_closed(mode)
        ring.close()
        return True

    async def _connect(self, node: NodeId, channel: Channel, end: RingEnd, taker: AttachedTask) -> None:
        session = self._links.session_of(node)
        try:
            sock = await self._links.open_data(node, channel)
        except Exception as error:  # noqa: BLE001 - whatever it is, it ends this stream alone
            if not isinstance(error, DiosError | OSError):
                _log.error("an internal error ended a stream", exc_info=error)
            break_off(end)
            return
        except BaseException:
            end.close()
            raise
        if session is None or session.closed:
            sock.close()
            break_off(end)
            return
        self._pump(end, sock, session, taker)

    async def run(self) -> None:
        """Wait until cancelled, then close all streams."""
        try:
            await trio.sleep_forever()
        finally:
            self._close()

    def _close(self) -> None:
        for pump in list(self._pumps):
            pump.close()
        for ring in self._rings.values():
            ring.close()
        self._rings.clear()

    # -- both -----------------------------------------------------------------------------------------
    def _pump(self, end: RingEnd, sock: socket.socket, session: PeerSession, taker: AttachedTask) -> None:
        def ended() -> None:
            self._pumps.discard(pump)
            session.ends.discard(pump.close)

        pump = StreamPump(end, sock, self._rates, taker, ended)
        self._pumps.add(pump)
        # A stream ends with its control connection, because a later one may belong to a restarted node.
        session.ends.add(pump.close)


def _too_many() -> LimitError:
    return LimitError(
        f"cannot open a stream: {limits.PEER_STREAMS_MAX} streams between nodes are open here. Close some."
    )


def break_off(end: RingEnd) -> None:
    """Close an end so that the other end learns that the stream was interrupted."""
    if isinstance(end, RingWriter):
        end.break_off()
    else:
        end.close()
