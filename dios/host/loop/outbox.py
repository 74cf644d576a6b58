"""Outgoing replies: encoding, one connection per task, and the queue of a connection that is not open yet.

A task that does not read its replies loses its connection, so that it cannot use up the node's memory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, Protocol

from dios import limits
from dios.errors import Code, WouldBlockError
from dios.host.handover import format as form
from dios.host.loop.call_meter import CallMeter
from dios.host.loop.call_tracer import CallTracer
from dios.ids import NodeId, TaskId
from dios.transport.memory.memfd import close_all, copies_of
from dios.transport.unix.server import TaskChannel
from dios.wire.codec import encode_reply
from dios.wire.messages import AnyResult, Failure


class ReplyConnection:
    """The outgoing side of one task or session. Frames sent before it has a channel are queued, bounded."""

    __slots__ = ("_early", "_early_bytes", "channel")

    def __init__(self, channel: TaskChannel | None = None) -> None:
        self.channel = channel
        self._early: list[tuple[bytes, list[int]]] = []
        self._early_bytes = 0

    def send(self, frame: bytes, fds: Sequence[int]) -> None:
        """Send now, or queue until there is a channel. Raise WouldBlockError if the queue is full."""
        channel = self.channel
        if channel is not None:
            channel.send_nowait(frame, fds)
            return
        self._early_bytes += len(frame)
        if self._early_bytes > limits.SEND_QUEUE_BYTES_MAX:
            raise WouldBlockError(
                f"over {limits.SEND_QUEUE_BYTES_MAX} bytes of replies wait for a task that has not connected"
            )
        self._early.append((frame, copies_of(fds)))

    def attach(self, channel: TaskChannel) -> None:
        """Set the channel and send the queued frames."""
        self.channel = channel
        early, self._early = self._early, []
        for frame, fds in early:
            try:
                channel.send_nowait(frame, fds)
            finally:
                close_all(fds)

    def discard(self) -> None:
        """Drop the queued frames: nothing will be sent any more."""
        early, self._early = self._early, []
        for _, fds in early:
            close_all(fds)


class RemoteReplyRoute(Protocol):
    """The route for replies to a task of another node."""

    @property
    def node(self) -> NodeId:
        """The node of the task."""

    def reply(self, seq: int, result: AnyResult, fds: Sequence[int]) -> None:
        """Send one answer. The caller keeps the descriptors. Raise OSError if descriptors are exhausted."""


class Outbox:
    """The connections of all tasks, and the routes to tasks of other nodes.

    ``overrun`` is called with a task that does not read its replies and the reason; it must then close the
    task's connection. ``meter`` counts the replies, and ``tracer`` has what goes with those to traced calls.
    """

    def __init__(
        self,
        overrun: Callable[[TaskId, str], None],
        meter: CallMeter | None = None,
        tracer: CallTracer | None = None,
    ) -> None:
        self._meter: Final = CallMeter() if meter is None else meter
        self._tracer: Final = CallTracer(enabled=False) if tracer is None else tracer
        self._connections: Final[dict[TaskId, ReplyConnection]] = {}
        self._remote_routes: Final[dict[TaskId, RemoteReplyRoute]] = {}
        self._overrun: Final = overrun

    def __len__(self) -> int:
        return len(self._connections)

    def open(self, task: TaskId, channel: TaskChannel | None = None) -> ReplyConnection:
        """Open the connection of a new task."""
        connection = self._connections[task] = ReplyConnection(channel)
        return connection

    def get(self, task: TaskId) -> ReplyConnection | None:
        """Return the connection of a task, or None if it has none."""
        return self._connections.get(task)

    def close(self, task: TaskId) -> None:
        """Forget a task's connection. The owner of its channel closes the channel."""
        connection = self._connections.pop(task, None)
        if connection is not None:
            connection.discard()
        if self._tracer.is_on or self._tracer.tasks:
            self._tracer.forget(task)

    def open_remote(self, task: TaskId, route: RemoteReplyRoute) -> None:
        """Send answers to a task of another node over ``route`` from now on."""
        self._remote_routes[task] = route

    def remote_tasks(self) -> tuple[form.RemoteTask, ...]:
        """Describe the tasks of other nodes for the successor of this process."""
        return tuple(form.RemoteTask(task, route.node) for task, route in self._remote_routes.items())

    def close_remote(self, task: TaskId) -> None:
        """Forget the route to a task of another node."""
        self._remote_routes.pop(task, None)

    def remote_route(self, task: TaskId) -> RemoteReplyRoute:
        """Return the route to a task of another node."""
        return self._remote_routes[task]

    def is_remote(self, task: TaskId) -> bool:
        """Return True if the task belongs to another node."""
        return task in self._remote_routes

    def reply(self, task: TaskId, seq: int, result: AnyResult, fds: Sequence[int] = ()) -> None:
        """Send one reply, or drop it if the task has no connection. The caller keeps the descriptors."""
        if self._meter.is_on:
            self._meter.end(task, seq, result)
        connection = self._connections.get(task)
        if connection is None:
            route = self._remote_routes.get(task)
            if route is not None:
                route.reply(seq, result, fds)
            return
        spans = self._tracer.end(task, seq) if self._tracer.is_on else ()
        frame = encode_reply(seq, result, spans)
        if len(frame) > limits.REPLY_BYTES_MAX:
            frame = encode_reply(seq, too_large(len(frame)))
            fds = ()
        try:
            channel = connection.channel
            if channel is not None:
                channel.send_nowait(frame, fds)
            else:
                connection.send(frame, fds)
        except WouldBlockError as error:
            self._overrun(task, error.message)

    def reply_and_close(self, task: TaskId, seq: int, result: AnyResult, fds: Sequence[int]) -> None:
        """Send one reply and close its descriptors, which were made for this receiver, in any case.

        Raise OSError if the reply must be queued and descriptors are exhausted; nothing was sent then.
        """
        try:
            self.reply(task, seq, result, fds)
        finally:
            close_all(fds)


def too_large(size: int) -> Failure:
    """Return the failure that replaces a reply which is too large for a message."""
    return Failure(
        int(Code.EFBIG),
        f"the reply has {size} bytes; a message holds {limits.REPLY_BYTES_MAX}. Ask for less at a time.",
    )
