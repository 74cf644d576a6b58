"""Replies on their way out: encoding, one connection for each task, and what waits for its channel.

Not for: what is replied. A task that does not read loses its connection, never the node its memory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, Protocol

from dios import limits
from dios.errors import Code, WouldBlockError
from dios.ids import NodeId, TaskId
from dios.transport.memory.memfd import close_all, copies_of
from dios.transport.unix.server import TaskChannel
from dios.wire.codec import encode_reply
from dios.wire.messages import AnyResult, Failure


class Connection:
    """One task's or session's way out; frames sent before there is a channel wait, within a bound."""

    __slots__ = ("_early", "_early_bytes", "channel")

    def __init__(self, channel: TaskChannel | None = None) -> None:
        self.channel = channel
        self._early: list[tuple[bytes, list[int]]] = []
        self._early_bytes = 0

    def send(self, frame: bytes, fds: Sequence[int]) -> None:
        """Send now, or keep until there is a channel; raises WouldBlockError over the bound."""
        channel = self.channel
        if channel is not None:
            channel.send_nowait(frame, fds)
            return
        self._early_bytes += len(frame)
        if self._early_bytes > limits.SEND_QUEUE_BYTES_MAX:
            raise WouldBlockError("too much waits for a task that has not started")
        self._early.append((frame, copies_of(fds)))

    def attach(self, channel: TaskChannel) -> None:
        """Here is the channel: send what waited."""
        self.channel = channel
        early, self._early = self._early, []
        for frame, fds in early:
            try:
                channel.send_nowait(frame, fds)
            finally:
                close_all(fds)

    def discard(self) -> None:
        """Nothing will be sent any more."""
        early, self._early = self._early, []
        for _, fds in early:
            close_all(fds)


class Away(Protocol):
    """The way out to a task of another node."""

    @property
    def node(self) -> NodeId:
        """Which node that is."""
        ...

    def reply(self, seq: int, result: AnyResult, fds: Sequence[int]) -> None:
        """Send one answer; the descriptors stay the caller's. Raises OSError without descriptors."""
        ...


class Outbox:
    """All connections by task, and the ways to tasks of other nodes.

    ``overrun`` is called with a task that does not read what it is sent; its connection must then go.
    """

    def __init__(self, overrun: Callable[[TaskId, str], None]) -> None:
        self._connections: Final[dict[TaskId, Connection]] = {}
        self._away: Final[dict[TaskId, Away]] = {}
        self._overrun: Final = overrun

    def __len__(self) -> int:
        return len(self._connections)

    def open(self, task: TaskId, channel: TaskChannel | None = None) -> Connection:
        """A new task's connection."""
        connection = self._connections[task] = Connection(channel)
        return connection

    def get(self, task: TaskId) -> Connection | None:
        """The connection of a task, while there is one."""
        return self._connections.get(task)

    def close(self, task: TaskId) -> None:
        """Forget a connection; its channel is its owner's to close."""
        connection = self._connections.pop(task, None)
        if connection is not None:
            connection.discard()

    def open_away(self, task: TaskId, away: Away) -> None:
        """Answers to a task of another node go there."""
        self._away[task] = away

    def close_away(self, task: TaskId) -> None:
        """Nothing goes there any more."""
        self._away.pop(task, None)

    def away(self, task: TaskId) -> Away:
        """The way to a task that is away."""
        return self._away[task]

    def is_away(self, task: TaskId) -> bool:
        """Whether the task is another node's."""
        return task in self._away

    def reply(self, task: TaskId, seq: int, result: AnyResult, fds: Sequence[int] = ()) -> None:
        """Send one reply; nothing when the task's connection is gone. The descriptors stay the caller's."""
        connection = self._connections.get(task)
        if connection is None:
            away = self._away.get(task)
            if away is not None:
                away.reply(seq, result, fds)
            return
        frame = encode_reply(seq, result)
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

    def hand_over(self, task: TaskId, seq: int, result: AnyResult, fds: Sequence[int]) -> None:
        """As ``reply``, with descriptors that were made for this one receiver: they are closed in any case.

        Raises OSError when they would have to wait and there are no descriptors for that; nothing was sent
        then.
        """
        try:
            self.reply(task, seq, result, fds)
        finally:
            close_all(fds)


def too_large(size: int) -> Failure:
    """The refusal of a reply that no message can hold."""
    return Failure(
        int(Code.EFBIG),
        f"the reply would take {size} bytes, over {limits.REPLY_BYTES_MAX}; ask for less at once",
    )
