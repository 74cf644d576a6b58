"""Carries out the core's effects about other nodes: messages, remote tasks, received answers.

Connections are kept by ``dios.host.peers.links``; ``dios.host.peers.remote_answers`` sends answers to remote
tasks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, TypeAlias

from dios.core import effects as fx
from dios.errors import UnreachableError
from dios.host.content.buffers import Buffers, Work
from dios.host.content.contents import Content, Contents, Source, keep, let_go
from dios.host.content.received import answer_received
from dios.host.content.streams import Streams
from dios.host.loop.fair_queue import Owners
from dios.host.loop.outbox import Outbox
from dios.host.peers.bulk import Piece
from dios.host.peers.interface import Do
from dios.host.peers.links import Links
from dios.host.peers.remote_answers import Outlet, for_deputy
from dios.host.peers.stream_pump import Taker
from dios.host.peers.streams import StreamsBetween
from dios.ids import ObjectId, PayloadId, TaskId
from dios.wire import dcp
from dios.wire.messages import Attached, Failure
from dios.wire.types import Mode

Answer: TypeAlias = fx.AnswerRead | fx.AnswerWrite | fx.AnswerVector


class Peers:
    """Carries out the effects about other nodes."""

    def __init__(
        self,
        links: Links,
        outbox: Outbox,
        buffers: Buffers,
        contents: Contents,
        owners: Owners,
        streams: Streams,
        between: StreamsBetween,
    ) -> None:
        self._links: Final = links
        self._outbox: Final = outbox
        self._buffers: Final = buffers
        self._contents: Final = contents
        self._owners: Final = owners
        self._streams: Final = streams
        self._between: Final = between
        self._written_away: Final[set[tuple[ObjectId, Mode]]] = set()
        """The ends of streams that tasks of other nodes write to."""

    def contact(self, effect: fx.Contact) -> None:
        """Keep a connection with a node."""
        self._links.contact(effect.node, effect.name, effect.address)

    def hang_up(self, effect: fx.HangUp) -> None:
        """Close the connection with a node and do not reconnect."""
        self._links.hang_up(effect.node, effect.reason, revoked=effect.revoked)

    def open_deputy(self, effect: fx.OpenDeputy) -> None:
        """Register a remote task: answers to it are sent to its node from now on."""
        self._owners.add(effect.task, effect.principal)
        self._outbox.open_away(effect.task, Outlet(effect.task, effect.node, self._links))

    def close_deputy(self, effect: fx.CloseDeputy) -> None:
        """Forget a remote task."""
        self._owners.remove(effect.task)
        self._outbox.close_away(effect.task)

    def handlers(self, payload_of: Callable[[PayloadId], Content | None]) -> Mapping[type, Do]:
        """Return a handler for each effect about other nodes; ``payload_of`` returns the step's payloads."""

        def send(effect: fx.Send) -> Work | None:
            return self.send(effect, payload_of(effect.source.payload) if effect.source else None)

        def received(effect: fx.AnswerReceived) -> None:
            answered = answer_received(self._buffers, effect, payload_of(effect.payload))
            self._outbox.hand_over(effect.task, effect.seq, answered.result, answered.fds)

        def attach_away(effect: fx.AnswerAttachAway) -> None:
            if not self._links.is_up(effect.node):
                raise UnreachableError("cannot attach to the stream: its node cannot be reached now")
            result, fds = self._between.fetch(effect, self._taker(effect.task))
            self._outbox.hand_over(effect.task, effect.seq, result, fds)

        found: dict[type, Callable[..., Work | None]] = {  # type: ignore[explicit-any] # each takes its own key's type
            fx.Send: send,
            fx.AnswerReceived: received,
            fx.AnswerAttachAway: attach_away,
            fx.OpenDeputy: self.open_deputy,
            fx.CloseDeputy: self.close_deputy,
            fx.Contact: self.contact,
            fx.HangUp: self.hang_up,
        }
        return found

    def minding(self, handlers: Mapping[type, Do]) -> Mapping[type, Do]:
        """Return replacements for local handlers that must treat remote tasks or objects differently."""
        is_away, contents = self._outbox.is_away, self._contents

        def answering(answer: Do) -> Do:
            def mindful(effect: Answer) -> Work | None:
                return answer(for_deputy(effect, contents) if is_away(effect.task) else effect)

            return mindful

        def attach(effect: fx.AnswerAttach) -> None:
            if is_away(effect.task):
                self._attach_deputy(effect)
            else:
                handlers[fx.AnswerAttach](effect)

        def close_stream(effect: fx.CloseStreamEnd) -> None:
            if (effect.object, effect.mode) in self._written_away:
                # Bytes that the task wrote before it ended may still be on their way.
                self._written_away.remove((effect.object, effect.mode))
                self._streams.close_end(effect.object, effect.mode, tell=False)
            elif not self._between.close_end(effect.object, effect.mode):
                handlers[fx.CloseStreamEnd](effect)

        found: dict[type, Do] = {
            kind: answering(handlers[kind]) for kind in (fx.AnswerRead, fx.AnswerWrite, fx.AnswerVector)
        }
        found |= {fx.AnswerAttach: attach, fx.CloseStreamEnd: close_stream}
        return found

    def _attach_deputy(self, effect: fx.AnswerAttach) -> None:
        node = self._outbox.away(effect.task).node
        end = self._streams.local_end(effect.object, effect.mode, effect.ring_bytes, duplex=effect.duplex)
        ring_bytes = end.ring_bytes
        if effect.mode is Mode.WRITE:
            self._written_away.add((effect.object, effect.mode))
        self._between.keep(node, effect.seq, effect.mode, end, self._taker(effect.task))
        self._links.send(node, dcp.Reply(effect.seq, Attached(ring_bytes)))

    def _taker(self, task: TaskId) -> Taker:
        return Taker(task, self._owners.of(task))

    # -- sending --------------------------------------------------------------------------------------
    def send(self, effect: fx.Send, payload: Content | None) -> Work | None:
        """Send a message and its bytes to a node. Raise DamagedError if the bytes are not there."""
        order = effect.source
        if order is None:
            self._links.send(effect.node, effect.message, None, _asked_by(effect.message))
            return None
        if not self._links.is_up(effect.node):
            return None
        if order.content_of and self._contents.is_slow(order.content_of):
            return self._looked_up_first(effect)
        self._send_bytes(effect, self._buffers.source(order, payload))
        return None

    def _looked_up_first(self, effect: fx.Send) -> Work:
        """Read a large stored value for the first time; this reads all of it, to check its digest."""
        order = effect.source
        target = order.content_of if order is not None else ObjectId(0)
        found: list[Content] = []

        def done() -> None:
            self._contents.adopt_stored(target, found.pop())
            self.send(effect, None)

        def failed() -> None:
            while found:
                let_go(found.pop())

        return Work(target, lambda: found.append(self._contents.fetch(target)), done, failed)

    def _send_bytes(self, effect: fx.Send, source: Source) -> None:
        node, message, content = effect.node, effect.message, source.content
        if isinstance(content, bytes) or source.length <= self._links.inline_bytes_max:
            self._links.send(node, message, source.read() or None, _asked_by(message))
            return
        held = keep(content)
        piece = Piece(content.fd, source.start, source.length)
        self._links.send_bulk(node, _asked_by(message), message, (piece,), lambda: let_go(held))

    def send_failed(self, effect: fx.Send, failure: Failure) -> None:
        """Replace an answer by ``failure``, because its step failed; other messages are dropped."""
        if isinstance(effect.message, dcp.Reply):
            self._links.send(effect.node, dcp.Reply(effect.message.number, failure))


def _asked_by(message: dcp.Message) -> TaskId:
    """Return the task on whose behalf a message is sent, or 0."""
    if isinstance(message, dcp.Ask) and isinstance(message.body, dcp.Forward | dcp.Plant):
        return message.body.caller.task
    return TaskId(0)
