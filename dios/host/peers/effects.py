"""Carries out the core's effects about other nodes: messages, remote tasks, received answers.

Connections are kept by ``dios.host.peers.links``; ``dios.host.peers.remote_answers`` sends answers to remote
tasks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, TypeAlias

from msgspec.structs import replace

from dios.core import effects as fx
from dios.errors import UnreachableError
from dios.host.content.buffers import BackgroundWork, Buffers
from dios.host.content.contents import Content, Contents, Source, release_content, retain_content
from dios.host.content.received import answer_received
from dios.host.content.streams import Streams
from dios.host.handover import format as form
from dios.host.loop import effect_kinds
from dios.host.loop.fair_queue import TaskPrincipals
from dios.host.loop.outbox import Outbox
from dios.host.peers.bulk import FileRange
from dios.host.peers.interface import EffectHandler
from dios.host.peers.links import PeerLinks
from dios.host.peers.remote_answers import RemoteTaskRoute, for_remote_read, for_remote_task
from dios.host.peers.stream_pump import AttachedTask
from dios.host.peers.streams import RemoteStreams, StreamPlace
from dios.ids import NodeId, ObjectId, PayloadId, TaskId
from dios.wire import dcp
from dios.wire.messages import Attached, Failure
from dios.wire.types import Mode

Answer: TypeAlias = fx.AnswerRead | fx.AnswerWrite | fx.AnswerVector


class PeerEffects:
    """Carries out the effects about other nodes."""

    def __init__(
        self,
        links: PeerLinks,
        outbox: Outbox,
        buffers: Buffers,
        contents: Contents,
        owners: TaskPrincipals,
        streams: Streams,
        between: RemoteStreams,
    ) -> None:
        self._links: Final = links
        self._outbox: Final = outbox
        self._buffers: Final = buffers
        self._contents: Final = contents
        self._owners: Final = owners
        self._streams: Final = streams
        self._between: Final = between
        self._written_remotely: Final[set[tuple[ObjectId, Mode]]] = set()
        """The ends of streams that tasks of other nodes write to."""

    def contact(self, effect: fx.Contact) -> None:
        """Keep a connection with a node, or make one when something is sent to it."""
        self._links.contact(effect.node, effect.name, effect.address, on_demand=effect.on_demand)

    def hang_up(self, effect: fx.HangUp) -> None:
        """Close the connection with a node and do not reconnect."""
        self._links.hang_up(effect.node, effect.reason)

    def remove_node(self, effect: fx.RemoveNode) -> None:
        """Remove a node from the cluster for good."""
        self._links.remove(effect.node, effect.call, restore=effect.restore)

    def store_labels(self, effect: fx.StoreLabels) -> None:
        """Store this node's labels."""
        self._links.store_labels(effect.rack, effect.labels, effect.call)

    def store_register(self, effect: fx.StoreRegister) -> None:
        """Store a register of enrolled principals."""
        self._links.store_register(effect.register, effect.call)

    def rotate_secret(self, effect: fx.RotateSecret) -> None:
        """Make the next generation of the cluster's secret."""
        self._links.rotate_secret(effect.call)

    def end_connection(self, effect: fx.EndConnection) -> None:
        """Close the connections with a node, which may connect again."""
        session = self._links.session_of(effect.node)
        if session is not None:
            session.end()

    def open_deputy(self, effect: fx.OpenRemoteTask) -> None:
        """Register a remote task: answers to it are sent to its node from now on."""
        self._owners.add(effect.task, effect.principal, effect.home_id)
        self._outbox.open_remote(effect.task, RemoteTaskRoute(effect.task, effect.node, self._links))

    def take_over(self, owner: form.Owner, node: NodeId) -> None:
        """Continue with a remote task of the predecessor."""
        task = TaskId(owner.task)
        self._owners.add(task, owner.principal, TaskId(owner.home_id))
        self._outbox.open_remote(task, RemoteTaskRoute(task, node, self._links))

    def take_over_streams(self, state: form.HostState) -> None:
        """Continue with the streams between nodes of the predecessor, which wait for their nodes."""
        written = self._between.take_over(state.fetched_rings, state.between, self._streams)
        self._written_remotely.update(written)

    def close_deputy(self, effect: fx.CloseRemoteTask) -> None:
        """Forget a remote task."""
        self._owners.remove(effect.task)
        self._outbox.close_remote(effect.task)

    def handlers(self, payload_of: Callable[[PayloadId], Content | None]) -> Mapping[type, EffectHandler]:
        """Return a handler for each effect about other nodes; ``payload_of`` returns the step's payloads."""

        def send(effect: fx.Send) -> BackgroundWork | None:
            return self.send(effect, payload_of(effect.source.payload) if effect.source else None)

        def received(effect: fx.AnswerReceived) -> None:
            answered = answer_received(self._buffers, effect, payload_of(effect.payload))
            self._outbox.reply_and_close(effect.task, effect.seq, answered.result, answered.fds)

        def attach_away(effect: fx.AnswerAttachRemote) -> None:
            if not self._links.is_up(effect.node):
                raise UnreachableError("cannot attach to the stream: its node cannot be reached now")
            result, fds = self._between.fetch(effect, self._taker(effect.task))
            self._outbox.reply_and_close(effect.task, effect.seq, result, fds)

        handlers: dict[type, Callable[..., BackgroundWork | None]] = {  # type: ignore[explicit-any] # each takes its own key's type
            fx.Send: send,
            fx.AnswerReceived: received,
            fx.AnswerAttachRemote: attach_away,
            fx.OpenRemoteTask: self.open_deputy,
            fx.CloseRemoteTask: self.close_deputy,
            fx.Contact: self.contact,
            fx.EndConnection: self.end_connection,
            fx.HangUp: self.hang_up,
            fx.RemoveNode: self.remove_node,
            fx.StoreLabels: self.store_labels,
            fx.StoreRegister: self.store_register,
            fx.RotateSecret: self.rotate_secret,
        }
        return handlers

    def overrides(self, handlers: Mapping[type, EffectHandler]) -> Mapping[type, EffectHandler]:
        """Return replacements for local handlers that must treat remote tasks or objects differently."""
        is_away, contents = self._outbox.is_remote, self._contents

        def answering(answer: EffectHandler) -> EffectHandler:
            def mindful(effect: Answer) -> BackgroundWork | None:
                return answer(for_remote_task(effect, contents) if is_away(effect.task) else effect)

            return mindful

        def read(effect: fx.AnswerRead) -> BackgroundWork | None:
            if not is_away(effect.task):
                return handlers[fx.AnswerRead](effect)
            answer = for_remote_read(effect, contents)
            return None if self._send_read(answer) else handlers[fx.AnswerRead](answer)

        def attach(effect: fx.AnswerAttach) -> None:
            if is_away(effect.task):
                self._attach_remote(effect)
            else:
                handlers[fx.AnswerAttach](effect)

        def close_stream(effect: fx.CloseStreamEnd) -> None:
            if (effect.object, effect.mode) in self._written_remotely:
                # Bytes that the task wrote before it ended may still be on their way.
                self._written_remotely.remove((effect.object, effect.mode))
                self._streams.close_end(effect.object, effect.mode, notify=False)
            elif not self._between.close_end(effect.object, effect.mode):
                handlers[fx.CloseStreamEnd](effect)

        overrides: dict[type, EffectHandler] = {
            kind: answering(handlers[kind]) for kind in (fx.AnswerWrite, fx.AnswerVector)
        }
        overrides |= {fx.AnswerRead: read, fx.AnswerAttach: attach, fx.CloseStreamEnd: close_stream}
        return overrides

    def _send_read(self, effect: fx.AnswerRead) -> bool:
        """Send the bytes of a read in the frame of its answer. Return False if they need another way.

        No descriptor is opened for them, and they are copied once.
        """
        reading = self._buffers.read_next_to(effect, self._links.inline_bytes_max)
        if reading is None:
            return False
        result, data = reading
        route = self._outbox.remote_route(effect.task)
        self._links.send(route.node, dcp.PeerReply(effect.seq, result), data, effect.task)
        return True

    def _attach_remote(self, effect: fx.AnswerAttach) -> None:
        node = self._outbox.remote_route(effect.task).node
        end = self._streams.local_end(effect.object, effect.mode, effect.ring_bytes, duplex=effect.duplex)
        ring_bytes = end.ring_bytes
        if effect.mode is Mode.WRITE:
            self._written_remotely.add((effect.object, effect.mode))
        place = StreamPlace(effect.object, effect.mode, effect.duplex, self._taker(effect.task))
        self._between.keep(node, effect.seq, place, end)
        self._links.send(node, dcp.PeerReply(effect.seq, Attached(ring_bytes)))

    def _taker(self, task: TaskId) -> AttachedTask:
        return AttachedTask(self._owners.home_id(task), self._owners.of(task))

    # -- sending --------------------------------------------------------------------------------------
    def send(self, effect: fx.Send, payload: Content | None) -> BackgroundWork | None:
        """Send a message and its bytes to a node. Raise DamagedError if the bytes are not there."""
        order = effect.source
        if not self._links.is_up(effect.node, effect.epoch):
            return None
        if effect.extensions and isinstance(effect.message, dcp.Ask):
            asked = self._links.extended(effect.node, effect.message, effect.extensions)
            effect = replace(effect, message=asked, extensions=())
        if order is None:
            message = self._with_program(effect, effect.message)
            self._links.send(effect.node, message, None, _asked_by(message))
            return None
        if order.content_of and self._contents.is_slow(order.content_of):
            return self._fetch_and_send(effect)
        self._send_bytes(effect, self._buffers.source(order, payload))
        return None

    def _with_program(self, effect: fx.Send, message: dcp.Message) -> dcp.Message:
        """Return the message with the program of the task that it starts, if that is small and here now."""
        program = effect_kinds.program_of(effect)
        if not program or type(message) is not dcp.Ask or type(message.body) is not dcp.Start:
            return message
        held = message.body.program
        if held.node != self._links.node:
            return message
        source = self._contents.program(program, held.reference.size)
        return replace(message, body=replace(message.body, source=source))

    def _fetch_and_send(self, effect: fx.Send) -> BackgroundWork:
        """Read a large stored value for the first time; this reads all of it, to check its digest."""
        order = effect.source
        target = order.content_of if order is not None else ObjectId(0)
        fetched: list[Content] = []

        def done() -> None:
            self._contents.adopt_stored(target, fetched.pop())
            self.send(effect, None)

        def failed() -> None:
            while fetched:
                release_content(fetched.pop())

        return BackgroundWork(target, lambda: fetched.append(self._contents.fetch(target)), done, failed)

    def _send_bytes(self, effect: fx.Send, source: Source) -> None:
        node, message, content = effect.node, effect.message, source.content
        if isinstance(content, bytes) or source.length <= self._links.inline_bytes_max:
            data = source.read()
            asked = message.body if isinstance(message, dcp.Ask) else None
            if isinstance(asked, dcp.KeepOutput) and len(data) < asked.size:
                return  # the log was destroyed meanwhile, and the core gives the request up
            self._links.send(node, message, data or None, _asked_by(message))
            return
        held = retain_content(content)
        piece = FileRange(content.fd, source.start, source.length)
        self._links.send_bulk(node, _asked_by(message), message, (piece,), lambda: release_content(held))

    def send_failed(self, effect: fx.Send, failure: Failure) -> None:
        """Replace an answer by ``failure``, because its step failed; other messages are dropped."""
        if isinstance(effect.message, dcp.PeerReply) and self._links.is_up(effect.node, effect.epoch):
            self._links.send(effect.node, dcp.PeerReply(effect.message.number, failure))


def _asked_by(message: dcp.Message) -> TaskId:
    """Return the task on whose behalf a message is sent, or 0."""
    if isinstance(message, dcp.Ask) and isinstance(message.body, dcp.Forward | dcp.CreateReplica):
        return message.body.caller.task
    return TaskId(0)
