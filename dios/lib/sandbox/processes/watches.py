"""The changes of files in a sandbox as its owner sees them, for both faces."""

from __future__ import annotations

import time
from collections import deque
from typing import Final

from dios.client.sync.node import Node
from dios.errors import ProtocolError
from dios.lib.amounts import seconds_of
from dios.lib.executor import frames
from dios.lib.sandbox.processes.channels import Channel
from dios.lib.sandbox.processes.records import PATH_CHARS_MAX, RECORD, FileEvent, decoded_event
from dios.lib.sandbox.steps import Steps

_EVENT_BYTES_MAX: Final = 4 * PATH_CHARS_MAX + 64


class WatchOps:
    """A watch of files, and its channel."""

    def __init__(self, node: Node, channel: Channel) -> None:
        self.node: Final = node
        self._channel: Final = channel
        self._buffer: Final = frames.FrameBuffer(_EVENT_BYTES_MAX)
        self._events: Final[deque[FileEvent]] = deque()

    def read_op(self, timeout: float | None = None) -> Steps[FileEvent | None]:
        """Return the next change; None if the sandbox has ended.

        Raises TimeLimitError if there was none within ``timeout`` seconds.
        """
        limit_s = None if timeout is None else 0.0 if timeout == 0 else seconds_of(timeout, "timeout")
        deadline = None if limit_s is None else time.monotonic() + limit_s
        while not self._events:
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            part = yield from self._channel.part(left)
            if part is None:
                return None
            for kind, body in self._buffer.feed(part.data):
                if kind != RECORD:
                    raise ProtocolError(
                        f"the sandbox sent a frame of kind {kind}, which is no change of a file"
                    )
                self._events.append(decoded_event(body))
        return self._events.popleft()

    def leave_op(self) -> Steps[None]:
        """Make the sandbox end the watch, so that a reader who waits returns."""
        yield from self._channel.leave()

    def close_op(self) -> Steps[None]:
        """Close the streams of the watch."""
        yield from self._channel.close()
