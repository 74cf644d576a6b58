"""The session behind the pages of one server or a terminal: a watcher, and calls to the node in threads.

The connection of the calls is not that of the watcher, so that a slow reading delays no click.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from functools import partial
from typing import Final, TypeVar

from dios.client.ops.status import Status
from dios.client.ops.usage import Description
from dios.client.plain_text import plain, plain_lines
from dios.client.sync.node import Node, Task
from dios.errors import ClosedError, DiosError, NoSuchTaskError, UnreachableError
from dios.lib.task_output import newest_output
from dios.web.observation.cluster_view import Row, ask
from dios.web.observation.watcher import Watcher

T = TypeVar("T")


def with_task(node: Node, status: Status, action: Callable[[Task], T]) -> T:
    """Run ``action`` with a handle of a task. Raise NoSuchTaskError if the node has none."""
    handle = None if status.name is None else node.find(status.name)
    if not isinstance(handle, Task):
        raise NoSuchTaskError(f"the node does not keep task {status.fingerprint} any more")
    with handle:
        return action(handle)


class ClusterSession:
    """A node with a watcher of its cluster; ``connect`` opens a session as the user."""

    def __init__(self, connect: Callable[[], Node]) -> None:
        self._connect: Final = connect
        self.watcher: Final = Watcher(connect)
        self._lock: Final = threading.Lock()
        self._node: Node | None = None

    async def call(self, action: Callable[[Node], T]) -> T:
        """Run ``action`` with a connected node in a thread; one at a time.

        Raises:
            DiosError: that of the action, or of the connection, which is opened again next time.
        """
        return await asyncio.to_thread(partial(self._call, action))

    def _call(self, action: Callable[[Node], T]) -> T:
        with self._lock:
            if self._node is None:
                self._node = self._connect()
            try:
                return action(self._node)
            except (ClosedError, UnreachableError, OSError):
                # The node has ended, perhaps to come back: the next call connects again.
                node, self._node = self._node, None
                with contextlib.suppress(DiosError, OSError):
                    node.close()
                raise

    async def ask(self, question: Row) -> Row:
        """Return the answer of the scheduler, or the reason under ``error``."""
        try:
            return await self.call(lambda node: ask(node, question))
        except (DiosError, OSError) as error:
            return {"error": str(error)}

    async def act_on_task(self, status: Status, action: Callable[[Task], T]) -> T:
        """Run ``action`` with a handle of the task. Raise NoSuchTaskError if the node has none."""
        return await self.call(lambda node: with_task(node, status, action))

    async def describe(self, status: Status) -> Description:
        """Return a task's limits and use. Raise NoSuchTaskError if the node does not keep it any more."""
        return await self.call(lambda node: with_task(node, status, node.describe))

    async def output(self, status: Status) -> str:
        """Return the last part of a task's output, at most CONSOLE_TAIL_BYTES, as harmless text."""

        def read(task: Task) -> str:
            with task.console() as console:
                data = newest_output(console)
                missing = console.size - len(data)
            text = plain_lines(data.decode(errors="backslashreplace"))
            return f"({missing:,} earlier bytes are not kept)\n{text}" if missing > 0 else text

        try:
            return await self.act_on_task(status, read)
        except (DiosError, OSError) as error:
            return f"The output cannot be shown: {plain(str(error))}"

    def close(self) -> None:
        """End the sessions with the node."""
        self.watcher.close()
        if self._node is not None:
            self._node.close()
