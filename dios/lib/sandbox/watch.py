"""``FileWatch``: the changes of files in a sandbox, for blocking programs."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final, Self, cast

from dios.lib.sandbox.blocking_steps import finish, held
from dios.lib.sandbox.processes.records import FileEvent
from dios.lib.sandbox.processes.watches import WatchOps

if TYPE_CHECKING:
    from types import TracebackType


class FileWatch:
    """The changes of files from ``watch`` on; iterating yields them as ``dios.FileEvent``s until the end."""

    def __init__(self, ops: WatchOps) -> None:
        self._ops: Final = ops
        self._turn: Final = threading.Lock()

    def read(self, timeout: float | None = None) -> FileEvent | None:
        """Return the next change; None if the sandbox has ended.

        Raises TimeLimitError if there was none within ``timeout`` seconds.
        """
        with held([self._turn], timeout) as left:
            return finish(lambda: self._ops.node, self._ops.read_op(cast("float | None", left)))

    def close(self) -> None:
        """End the watch; a second call does nothing. A thread that reads gets None."""
        finish(lambda: self._ops.node, self._ops.leave_op())
        with self._turn:
            finish(lambda: self._ops.node, self._ops.close_op())

    def __iter__(self) -> Iterator[FileEvent]:
        while (event := self.read()) is not None:
            yield event

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
