"""Runs that move: a task that must leave its node is started again elsewhere, with the state that it saved.

The caller's node has the object with the checkpoint. Each task of a run gets a fresh reference to it, and the
former one is taken back before the next task starts. So a task that was taken for dead and still runs cannot
change the state of its successor.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Final, NamedTuple

from msgspec.structs import replace

from dios import limits
from dios.client.ops.attributes import Handed
from dios.client.ops.status import Status
from dios.client.sync.checkpointed import LABEL
from dios.client.sync.node import Node, Reference, Task
from dios.errors import DiosError, InvalidError
from dios.wire.messages import Work
from dios.wire.types import Cause, NameKind, ObjectType

if TYPE_CHECKING:
    from typing import Self

_AGAIN: Final = frozenset({Cause.MOVED, Cause.PREEMPTED})
_LOST: Final = frozenset({Cause.NODE, Cause.NODE_LOST})


class TaskEnd(NamedTuple):
    """The end of one task of a run, after which the next one began."""

    node: str
    cause: Cause
    reason: str
    kept_bytes: int
    """The bytes of the checkpoint that the next one began with."""


StartTask = Callable[[Work, list[Handed]], Task]
"""Starts a task with these needs, and with these outputs in addition to its own."""


class MovableRun:
    """A run whose task is started again when it has left its node, or was stopped or lost.

    A run with ``work.grace_ms`` has a checkpoint: ``checkpoint`` if that is given, such as a durable blob
    with the state of an earlier run, else an object in the memory of the caller's node, which ``close``
    destroys. Without a grace, it is started again only after it was stopped for another task.
    """

    def __init__(
        self, node: Node, start: StartTask, work: Work, *, checkpoint: Reference | None = None
    ) -> None:
        self._node: Final = node
        self._start: Final = start
        self._work: Final = work
        self._given: Final = checkpoint
        self._checkpoint = checkpoint
        self.history: Final[list[TaskEnd]] = []
        self.task: Task | None = None

    @property
    def moves(self) -> int:
        """The number of times that a task left its node with its state saved."""
        return sum(1 for end in self.history if end.cause is Cause.MOVED)

    @property
    def restarts(self) -> int:
        """The number of other times that a task was started again, from the last checkpoint if any."""
        return len(self.history) - self.moves

    def start(self) -> Task:
        """Start the task, and return it when it has its place."""
        if self._work.grace_ms and self._checkpoint is None:
            self._checkpoint = self._node.create(ObjectType.SHMEM_BLOB, naming=NameKind.ANONYMOUS)
        outputs: list[Handed] = []
        kept = 0
        if self._checkpoint is not None:
            kept = self._checkpoint.size
            outputs.append(self._checkpoint.restrict("read", "write", label=LABEL))
        work = replace(self._work, moves=self.moves, restarts=self.restarts, kept_bytes=kept)
        self.task = self._start(work, outputs)
        return self.task

    def again(self, ended: Status) -> Task | None:
        """Start the next task if the run goes on after this end; return None if it is over."""
        causes = _AGAIN | _LOST if self._work.grace_ms else _AGAIN
        # The node of a task of an admitted job, and its time, are fixed.
        if not self._work.restartable or self._work.reservation or ended.cause not in causes:
            return None
        self._fence()
        kept = 0 if self._checkpoint is None else self._checkpoint.size
        reason = ended.detail.partition("\n")[0]
        self.history.append(TaskEnd(ended.node, ended.cause, reason, kept))
        return self.start()

    def wait(self) -> Status:
        """Wait until the run is over, and return the status of its last task. ``start`` must come first."""
        task = self.task
        if task is None:
            raise InvalidError("start the run before you wait for it", call="wait")
        while True:
            ended = task.wait()
            following = self.again(ended)
            if following is None:
                return ended
            task = following

    def close(self) -> None:
        """Destroy the checkpoint, unless the caller gave it."""
        if self._checkpoint is not None and self._given is None:
            with suppress(DiosError):
                self._checkpoint.destroy()
        self._checkpoint = self._given

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _fence(self) -> None:
        """Take the checkpoint away from the former task, and drop one that is larger than it may be."""
        if self._checkpoint is None:
            return
        self._checkpoint.retire()
        if self._checkpoint.size > limits.CHECKPOINT_BYTES_MAX:
            self._checkpoint.write_bytes(b"", replace=True)
