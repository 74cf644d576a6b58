"""All parts of a host around a core that is told what to answer: for tests of the host alone."""

from __future__ import annotations

import gc
import os
import resource
import threading
from collections import deque
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager, nullcontext
from pathlib import Path
from typing import TypeVar

import trio

from dios.core.effects import Effect, Outcome, PutObject, StoreOperation, TaskShare, WriteSource
from dios.core.events import Event, ObjectRecord
from dios.core.machine import Core
from dios.errors import DiosError, NotSupportedError
from dios.host.audit.log import AuditLog
from dios.host.loop.entropy import Entropy
from dios.host.process.task_host import ProcessSpawner
from dios.host.process.task_process import TaskProcess
from dios.ids import Name, NodeId, ObjectId, PayloadId, Principal, TaskId, Ticket
from dios.node.assembly import NodeHost
from dios.node.settings import load
from dios.store.protocol import Change, Content, ContentState
from dios.wire.codec import decode_reply
from dios.wire.messages import AnyResult, Limits, Stat, WriteOnce
from dios.wire.types import Brand, Buffering, Deletion, ObjectType
from labs.sim.memory_store import MemoryStore

T = TypeVar("T")
TASK = TaskId(77)
WAIT_S = 10.0


class ScriptedCore:
    """Answers each event with the next outcome it was given, or with nothing to do."""

    def __init__(self) -> None:
        self.outcomes: deque[Outcome] = deque()
        self.events: list[Event] = []
        self.state = Core(Entropy(), Principal("uid:0")).state

    def step(self, event: Event) -> Outcome:
        """Take one event."""
        self.events.append(event)
        return self.outcomes.popleft() if self.outcomes else Outcome([], [], Ticket(0), Ticket(0), None)

    def has_request(self, node: NodeId, number: int) -> bool:
        """No request of another node was handled before."""
        del node, number
        return False

    def holder_id(self, node: NodeId, task: TaskId) -> TaskId:
        """No task of another node has a record."""
        del node, task
        return TaskId(0)

    def seen(self, kind: type[T]) -> list[T]:
        """Events of one kind so far."""
        return [event for event in self.events if isinstance(event, kind)]


class GatedStore:
    """A memory store whose writes wait for ``release`` while it is closed, and fail when told to."""

    def __init__(self) -> None:
        self.inner = MemoryStore()
        self.gate = threading.Event()
        self.gate.set()
        self.failures: deque[DiosError | None] = deque()
        self.batches: list[int] = []

    def recover(self) -> Iterator[ObjectRecord]:
        """As the memory store."""
        return self.inner.recover()

    def apply(self, changes: Sequence[Change]) -> None:
        """Wait for the gate, then write or fail."""
        self.gate.wait(WAIT_S)
        self.batches.append(len(changes))
        failure = self.failures.popleft() if self.failures else None
        if failure is not None:
            raise failure
        self.inner.apply(changes)

    def open_content(self, object_id: ObjectId) -> Content:
        """As the memory store."""
        return self.inner.open_content(object_id)

    def state_of(self, object_id: ObjectId) -> ContentState:
        """As the memory store."""
        return self.inner.state_of(object_id)

    def usage(self) -> dict[str, int]:
        """As the memory store."""
        return self.inner.usage()

    def close(self) -> None:
        """As the memory store."""
        self.inner.close()


class RecordingChannel:
    """A channel that keeps what it is sent; descriptors only as numbers."""

    queued_bytes = 0
    abandoned = False

    def __init__(self) -> None:
        self.replies: list[tuple[int, AnyResult, tuple[int, ...]]] = []
        self.failure: DiosError | None = None
        self.closed = False

    def send_nowait(self, frame: bytes, fds: Sequence[int] = ()) -> None:
        """Keep a frame, decoded."""
        if self.failure is not None:
            raise self.failure
        reply = decode_reply(frame[4:])
        self.replies.append((reply.seq, reply.result, tuple(fds)))

    def close(self) -> None:
        """Note it."""
        self.closed = True


class NoTasks:
    """Starts nothing."""

    async def wait_fit(self) -> None:
        """The machine of the test is fit."""

    def using(self, lineage: str, template: str = "") -> AbstractContextManager[None]:
        """Have no lineages."""
        del lineage, template
        return nullcontext()

    async def prepare(self, template: str, lineage: str = "", *, forkable: bool = False) -> None:
        """Have no templates."""
        del lineage
        if template or forkable:
            raise NotSupportedError(f"there is no template {template}")

    def require_forkable(self) -> None:
        """Refuse."""
        raise NotSupportedError("there are no sessions")

    def take(
        self, brand: Brand, task_limits: Limits, template: str = "", lineage: str = ""
    ) -> TaskProcess | None:
        """Have no process that waits."""

    async def spawn(
        self,
        brand: Brand,
        task_limits: Limits,
        template: str = "",
        *,
        lineage: str = "",
        forkable: bool = False,
    ) -> TaskProcess:
        """Refuse."""
        del template, lineage, forkable
        raise DiosError(f"no {brand.name} tasks with {task_limits} here")

    async def fork(self, task_limits: Limits, session: TaskProcess) -> TaskProcess:
        """Refuse."""
        raise DiosError(f"no forks of {session} with {task_limits} here")

    async def hold(self, child: TaskProcess, share: TaskShare) -> None:
        """Refuse."""
        raise DiosError(f"no {share} for {child} here")


class Rig:
    """A host, its scripted core, its store, and one connected task."""

    def __init__(self, host: NodeHost, core: ScriptedCore, store: GatedStore) -> None:
        self.host = host
        self.core = core
        self.store = store
        self.channel = RecordingChannel()
        self._ticket = 0
        host.pages.open(TASK)
        host.outbox.open(TASK, self.channel)  # type: ignore[arg-type] # all that the outbox asks of a channel

    @property
    def replies(self) -> list[tuple[int, AnyResult]]:
        """Sequence numbers and results sent so far."""
        return [(seq, result) for seq, result, _ in self.channel.replies]

    @property
    def next_payload(self) -> PayloadId:
        """What the payload of the next step with data will be called."""
        return PayloadId(self.host.driver._next_payload)

    def do(
        self,
        *after: Effect,
        persist: Sequence[StoreOperation] = (),
        wait_for: int | None = None,
        data: bytes | None = None,
    ) -> int:
        """One step with this outcome, whose event brings ``data``; returns its ticket, 0 for none."""
        ticket = 0
        if persist:
            self._ticket += 1
            ticket = self._ticket
        waits = ticket if wait_for is None else wait_for
        self.core.outcomes.append(Outcome(list(persist), list(after), Ticket(ticket), Ticket(waits), None))
        self.host.driver.call(TASK, 1, Stat(1) if data is None else WriteOnce(1, data))
        return ticket

    async def settled(self) -> None:
        """Wait until everything was carried out."""
        with trio.fail_after(WAIT_S):
            await self.host.driver.wait_idle()


@asynccontextmanager
async def rig(
    folder: Path, core: ScriptedCore | None = None, spawner: ProcessSpawner | None = None
) -> AsyncIterator[Rig]:
    """A host for one test."""
    store = GatedStore()
    list(store.recover())
    core = core or ScriptedCore()
    audit = AuditLog(folder / "audit")
    host: NodeHost | None = None
    try:
        async with trio.open_nursery() as nursery:
            host = NodeHost(
                load(folder, environ={}),
                store,
                audit,
                spawner or NoTasks(),
                nursery,
                complete=lambda info: info,
                core=core,
            )
            yield Rig(host, core, store)
            nursery.cancel_scope.cancel()
    finally:
        store.gate.set()
        if host is not None:
            await host.aclose()
        audit.close()


def record(number: int, size: int = 0) -> ObjectRecord:
    """A durable blob's record."""
    return ObjectRecord(
        ObjectId(number),
        Name(number.to_bytes(32, "big")),
        ObjectType.DURABLE_BLOB,
        (),
        Principal("uid:0"),
        Deletion.IMMEDIATE,
        Buffering.DOUBLE,
        size,
        0,
        0,
    )


def put(number: int, source: WriteSource | None = None) -> PutObject:
    """Store an object."""
    return PutObject(record(number, 0 if source is None else source.length), source)


def open_descriptors() -> int:
    """Return the number of descriptors that this process has open.

    Objects of earlier tests may still wait for the collector; they close theirs first.
    """
    gc.collect()
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


@contextmanager
def no_descriptors(spare: int = 0) -> Iterator[None]:
    """This process can open ``spare`` more, and no further one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    fillers: list[int] = []
    try:
        # All numbers below the limit must be taken.
        fillers.append(os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC))
        highest = max(int(entry.name) for entry in Path("/proc/self/fd").iterdir())
        while fillers[-1] < highest:
            fillers.append(os.dup(fillers[0]))
        resource.setrlimit(resource.RLIMIT_NOFILE, (fillers[-1] + 1 + spare, hard))
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for fd in fillers:
            os.close(fd)
