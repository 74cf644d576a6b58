"""The tasks of one client of a soak: starting, watching, disturbing, and checking how they ended.

Their program is ``task_program``.
"""

from __future__ import annotations

import contextlib
import random
import signal
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import dios
from dios.lib.channels import channel
from dios.limits import MIB
from dios.wire.types import TaskState
from labs.benchmarks.soak.data import Data, digest

PROGRAM: Final = Path(__file__).with_name("task_program.py")
WRONG_BYTES: Final = 86
LONG_S: Final = (2.0, 60.0)
"""The bounds of the duration of long tasks."""

_WAIT_S: Final = 60.0
_SHARES: Final = {
    "brief": 20,
    "long": 60,
    "memory": 2,
    "spin": 3,
    "flood": 3,
    "family": 4,
    "receiver": 4,
    "careless": 5,
    "failing": 6,
    "exiting": 6,
}
_LIMITS: Final = {
    "memory": dios.Limits(memory_bytes=96 * MIB),
    "spin": dios.Limits(cpu_ms=300),
}
_SHORT_OF_MEMORY: Final = {
    dios.Cause.MEMORY,
    dios.Cause.EXCEPTION,
    dios.Cause.EXITED,
    dios.Cause.SIGNAL,
}
_ENDS: Final[dict[str, Callable[[dios.Status], bool]]] = {
    "failing": lambda status: status.cause is dios.Cause.EXCEPTION,
    "exiting": lambda status: (status.cause, status.exit_code) == (dios.Cause.EXITED, 3),
    # Without memory even the interpreter's last messages may fail.
    "memory": lambda status: not status.ok and status.cause in _SHORT_OF_MEMORY,
    "spin": lambda status: status.cause is dios.Cause.CPU,
    # The object for which it waits may never arrive.
    "receiver": lambda status: status.ok or "TimeLimitError" in status.detail,
}


class TaskError(Exception):
    """A task ended in an unexpected way."""


@dataclass(slots=True)
class SoakTask:
    """A running task and its expected result."""

    task: dios.Task
    kind: str
    answer: bytes = b""
    objects: list[dios.Reference] = field(default_factory=list)
    delegated: bool = False


class SoakTasks:
    """Up to ``most`` tasks of one client."""

    def __init__(self, node: dios.Node, data: Data, source: random.Random, most: int) -> None:
        self._node: Final = node
        self._data: Final = data
        self._random: Final = source
        self._most: Final = most
        self._children: Final[list[SoakTask]] = []
        self._program: Final = node.create_program(PROGRAM)

    @property
    def wanting(self) -> bool:
        """Return True if there are fewer tasks than there should be."""
        return len(self._children) < self._most

    def start(self) -> None:
        """Start a task; if there are enough, check one that has ended instead."""
        if not self.wanting:
            self.reap()
            return
        kind = self._random.choices(list(_SHARES), list(_SHARES.values()))[0]
        data = self._data.of(self._random.choice((10, 5_000, 60_000)))
        source = self._node.create(dios.SHMEM_BLOB, data=data)
        answer = self._node.create(dios.SHMEM_BLOB)
        seconds = self._random.uniform(*LONG_S)
        expected = data if kind != "receiver" else data[::-1]
        task = self._node.run(
            self._program,
            args=[kind, f"{seconds:.1f}", digest(expected).hex()],
            inputs={"data": source.restrict("read", "delegate")},
            outputs={"answer": answer.restrict("write")},
            label=f"soak {kind}",
            limits=_LIMITS.get(kind),
            wait=self._random.random() < 0.5,
        )
        child = SoakTask(task, kind, digest(data[::-1]), [source, answer])
        if kind == "receiver":
            child.objects.append(self._node.create(dios.SHMEM_BLOB, data=expected))
        self._children.append(child)

    def _one(self) -> SoakTask | None:
        return self._random.choice(self._children) if self._children else None

    def look(self) -> None:
        """Read the status and the output of a task."""
        child = self._one()
        if child is not None:
            child.task.status()
            with (
                contextlib.closing(child.task.console()) as console,
                contextlib.suppress(dios.TimeLimitError),
                contextlib.suppress(dios.EndOfStreamError),
            ):
                console.receive(timeout=0)

    def pause(self) -> None:
        """Suspend a task, sometimes for longer."""
        child = self._one()
        if (
            child is not None
            and not child.task.resume()
            and child.task.pause()
            and self._random.random() < 0.7
        ):
            child.task.resume()

    def kill(self) -> None:
        """Kill a task."""
        child = self._one()
        if child is not None:
            child.task.kill()

    def delegate(self) -> None:
        """Delegate an object to a running task, first to a receiver that waits for one."""
        child = next(
            (child for child in self._children if child.kind == "receiver" and not child.delegated), None
        )
        if child is not None:
            child.delegated = True
            with contextlib.suppress(dios.NoSuchTaskError):
                child.objects[-1].delegate(child.task, "read")
            return
        child = self._one()
        if child is not None:
            with contextlib.suppress(dios.NoSuchTaskError):
                child.objects[0].delegate(child.task, "read")

    def reap(self) -> None:
        """Check a task that has ended, if there is one."""
        for child in self._children:
            status = child.task.status()
            if status.state is TaskState.PAUSED:
                child.task.resume()
            if status.ended:
                self._children.remove(child)
                self._judge(child, status)
                self._drop(child)
                return

    def _judge(self, child: SoakTask, status: dios.Status) -> None:
        with contextlib.closing(child.task.console()) as console:
            printed = b"".join(console)
        if status.exit_code == WRONG_BYTES and status.cause is dios.Cause.EXITED:
            raise TaskError(f"a task ({child.kind}) read wrong bytes")
        if status.cause is dios.Cause.KILLED or status.signal == signal.SIGKILL:
            return
        right = _ENDS.get(child.kind)
        if not (status.ok if right is None else right(status)):
            raise TaskError(
                f"a task ({child.kind}) ended by {status.cause.name} {status.exit_code} {status.signal}:"
                f" {status.detail} {printed[-500:]!r}"
            )
        if child.kind in {"brief", "family"} and printed != b"ok\n":
            raise TaskError(f"a task ({child.kind}) printed {printed[:200]!r}")
        if child.kind == "brief" and child.objects[1].read_bytes() != child.answer:
            raise TaskError("the answer of a task is wrong")

    def _drop(self, child: SoakTask) -> None:
        child.task.close()
        for item in child.objects:
            item.close()

    def stream(self) -> None:
        """Read the messages of a task from a stream, to the end; the task may be killed meanwhile."""
        # With the right to write left here, a sender that is killed before it attaches would not be missed.
        sender, receiver = channel(self._node, bytes, ring_bytes=32 * 1024)
        stream = receiver.stream
        with sender.stream:
            task = self._node.run(
                self._program, args=["sender", "0", "-"], outputs=[sender.stream], label="soak sender"
            )
        messages: list[bytes] = []
        with contextlib.suppress(dios.EndOfStreamError):
            while True:
                messages.append(stream.receive(timeout=_WAIT_S))
        status = task.wait(timeout=_WAIT_S)
        if status.ok and messages[-1] != digest(b"".join(messages[:-1])):
            raise TaskError(f"a stream of {len(messages)} messages had wrong bytes")
        child = SoakTask(task, "sender", objects=[stream])
        self._judge(child, status)
        self._drop(child)

    def end_all(self) -> None:
        """End every task and release everything."""
        for child in self._children:
            child.task.kill()
        for child in self._children:
            self._judge(child, child.task.wait(timeout=_WAIT_S))
            self._drop(child)
        self._children.clear()
        self._program.close()
