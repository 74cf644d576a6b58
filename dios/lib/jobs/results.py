"""The results of a job: its outputs, and the work and the costs of each task."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final, Self, TypeAlias

from dios.client.ops.status import Status
from dios.client.sync.node import Reference
from dios.errors import Code, DiosError
from dios.lib.closing import close_all
from dios.lib.jobs import chunks
from dios.lib.jobs.ledger import Role
from dios.wire.types import Semantics


@dataclass(frozen=True, slots=True)
class TaskReport:
    """One attempt of one task: its node, its run time, and its work.

    ``pairs`` were sent by a mapper or written by a reducer; ``input_bytes`` are a mapper's records. The
    figures of a failed task are 0.
    """

    role: Role
    number: int
    attempt: int
    status: Status
    seconds: float
    cpu_seconds: float
    peak_bytes: int
    input_bytes: int
    pairs: int
    spilled: int

    @property
    def ok(self) -> bool:
        """Return True if it completed its work."""
        return self.status.ok


@dataclass(frozen=True, slots=True)
class JobProgress:
    """The progress of a job: bytes of input mapped, mappers' parts that arrived, outputs written."""

    bytes_done: int
    bytes_total: int
    parts_taken: int
    parts_total: int
    outputs_done: int
    outputs_total: int
    running: int


OnProgress: TypeAlias = Callable[[JobProgress], None]


class JobFailedError(DiosError):
    """A task of the job failed as often as it may; the message has the last reason, ``failures`` all.

    Correct the program or the input, then run the job again.
    """

    code = Code.EIO

    def __init__(self, message: str, failures: tuple[TaskReport, ...] = ()) -> None:
        super().__init__(message)
        self.failures: Final = failures


class JobResult:
    """A job's outputs, one object for each reducer, and its tasks' reports.

    A ``with`` body drops the references to the outputs at its end.
    """

    def __init__(
        self, outputs: tuple[Reference, ...], tasks: tuple[TaskReport, ...], input_bytes: int, seconds: float
    ) -> None:
        self.outputs: Final = outputs
        self.tasks: Final = tasks
        self.input_bytes: Final = input_bytes
        self.seconds: Final = seconds

    def __iter__(self) -> Iterator[tuple[chunks.Key, chunks.Value]]:
        """Yield every pair of key and value, output by output."""
        for output in self.outputs:
            with output.read(Semantics.ANY) as request:
                yield from chunks.pairs_of(chunks.unframed(request.view))

    @property
    def cpu_seconds(self) -> float:
        """Return the CPU time of all tasks that succeeded."""
        return sum(task.cpu_seconds for task in self.tasks)

    @property
    def failures(self) -> tuple[TaskReport, ...]:
        """Return the failed attempts, which were repeated."""
        return tuple(task for task in self.tasks if not task.ok)

    def close(self) -> None:
        """Drop the references to the outputs; anonymous outputs are deleted then."""
        close_all(self.outputs)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
