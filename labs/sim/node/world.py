"""One node in virtual time under a seeded workload, with crashes and a failing disk under its store.

The same seed gives the same trace digest under every PYTHONHASHSEED, so a failing seed is a test. Several
nodes are simulated by ``labs.sim.cluster``.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from random import Random
from typing import Final, TypeAlias

from blake3 import blake3
from msgspec import Struct

from dios.core import events
from dios.errors import DiosError
from dios.ids import TaskId
from dios.wire import messages
from dios.wire.types import Cause, NameKind, ObjectType
from labs.sim.disk.device import Device, PowerCutError
from labs.sim.disk.faults import FaultPlan, NoFaults, RandomFaults
from labs.sim.disk.model_store import ModelStore
from labs.sim.node.checker import Checker
from labs.sim.node.dormant_rows import DormantRows
from labs.sim.node.host import NODE_OWNER, SimHost
from labs.sim.node.workload import KnownPromises, WorkloadClient

SESSIONS_MAX: Final = 4
PAGE_BYTES: Final = 128
SECTOR_BYTES: Final = 32
INLINE_BYTES: Final = 64
FAULT_EVERY: Final = 30  # operations of the disk, in a run with random faults
JOBS_MAX: Final = 4
STARTS_MAX: Final = 50
CUT_WITHIN: Final = 12  # operations of the disk

OpenStore: TypeAlias = Callable[[Device, Random], ModelStore]


class NodeReport(Struct, frozen=True):
    """The result of one seed; ``digest`` covers every event and outcome."""

    seed: int
    steps: int
    crashes: int
    operations: int
    faults: dict[str, int]
    refusals: dict[int, int]
    promises: int
    damaged: int
    direct_reads: int
    digest: str


def open_store(device: Device, rng: Random) -> ModelStore:
    """Open a model store with sizes that fit the workload."""
    return ModelStore(device, rng, inline_bytes=INLINE_BYTES)


class NodeWorld:
    """A disk that lasts, a node that crashes, and clients that record what was promised.

    ``plan`` decides where the disk fails; with ``fills`` it is full from time to time; ``draw`` selects
    another random sequence for the disk in the same run.
    """

    def __init__(
        self,
        seed: int,
        plan: FaultPlan,
        opener: OpenStore = open_store,
        *,
        fills: bool = True,
        draw: int = 0,
    ) -> None:
        self._seed: Final = seed
        self._rng: Final = Random(seed)  # noqa: S311 - a seed must give the same run
        # The disk has its own random sequence, so that a fault changes nothing that happens before it.
        self._disk_rng: Final = Random(f"disk {seed} {draw}")  # noqa: S311 - likewise
        self._trace: Final = blake3()
        self.device: Final = Device(self._disk_rng, plan, page_bytes=PAGE_BYTES, sector_bytes=SECTOR_BYTES)
        self._opener: Final = opener
        self._fills: Final = fills
        self._memory: Final = KnownPromises()
        self._checker: Final = Checker(self._memory, self.device)
        self._clients: dict[TaskId, WorkloadClient] = {}
        self._next_task = 1
        self._steps = 0
        self._crashes = 0
        self._store: ModelStore
        self._host = self._start(now=1)

    @property
    def steps(self) -> int:
        """The number of steps so far."""
        return self._steps

    def run(self, steps: int) -> NodeReport:
        """Run ``steps`` random steps, check that the node still works, crash it and check it again."""
        for _ in range(steps):
            self._steps += 1
            try:
                self._moment()
            except PowerCutError:
                self._crash()
            self._drop_closed()
        self._probe()
        self._crash()
        return NodeReport(
            self._seed,
            self._steps,
            self._crashes,
            len(self.device.kinds),
            {str(fault): count for fault, count in sorted(self.device.faults.items())},
            dict(sorted(self._memory.refusals.items())),
            len(self._memory.promises),
            self._checker.damaged,
            self._memory.direct.count,
            self._trace.hexdigest(),
        )

    def _drop_closed(self) -> None:
        """Drop the clients whose connections the node has closed."""
        while self._host.closed:
            self._clients.pop(self._host.closed.pop(), None)

    def _moment(self) -> None:
        dice = self._rng.random()
        if len(self._clients) < 2:
            self._join_or_leave()
        elif dice < 0.75:
            self._rng.choice(list(self._clients.values())).act()
        elif dice < 0.88:
            self._host.sync(self._rng.randint(1, JOBS_MAX))
            self._look()
        elif dice < 0.91:
            self._host.advance(self._rng.randint(1, 1_000_000))
        elif dice < 0.93:
            self._join_or_leave()
        elif dice < 0.96:
            self._forget()
        elif dice < 0.968:
            if self._fills:
                self.device.fill_up()
        elif dice < 0.975:
            self._crash()
        else:
            self._tasks()

    def _look(self) -> None:
        if self._host.settled and not self._store.panicked:
            self._checker.agree(self._host, self._store)

    def _forget(self) -> None:
        for target in sorted(self._host.contents.stored):
            if self._rng.random() < 0.5:
                self._host.contents.forget(target)

    # -- sessions and tasks ------------------------------------------------------------------------
    def _join_or_leave(self) -> None:
        host = self._host
        if self._clients and (len(self._clients) >= SESSIONS_MAX or self._rng.random() < 0.3):
            task = self._rng.choice(list(self._clients))
            # Calls without an answer may still be carried out: their promises stay as they are.
            del self._clients[task]
            host.step(events.Disconnected(host.now, task, self._rng.choice(("", "sent rubbish"))))
            return
        self._join()

    def _join(self) -> WorkloadClient:
        task = TaskId(self._next_task)
        self._next_task += 1
        client = WorkloadClient(self._rng, task, self._memory, self._host.call)
        self._clients[task] = client
        self._host.step(events.SessionOpened(self._host.now, task, 1, NODE_OWNER, (), "simulated", 1))
        return client

    def _tasks(self) -> None:
        host = self._host
        if host.spawned and self._rng.random() < 0.5:
            task = host.spawned.pop(0)
            host.step(events.TaskStarted(host.now, task, 1))
            host.killed.append(task)
        elif host.killed:
            host.step(events.TaskEnded(host.now, host.killed.pop(0), Cause.SIGNAL, signal=9))
        elif self._clients:
            self._run_something(self._rng.choice(list(self._clients.values())))

    def _run_something(self, client: WorkloadClient) -> None:
        blobs = [reference for reference in client.references if reference.type is ObjectType.SHMEM_BLOB]
        if client.welcome is not None and blobs:
            handed = messages.Handed(self._rng.choice(client.references).ref, self._rng.randrange(32))
            self._host.call(
                client.task,
                1_000_000 + self._steps,
                messages.Run(self._rng.choice(blobs).ref, inputs=(handed,)),
            )

    # -- crash and return --------------------------------------------------------------------------
    def _start(self, now: int) -> SimHost:
        """Open the store, and try again when the disk fails, as a supervisor of the node would."""
        for _ in range(STARTS_MAX):
            try:
                self._store = self._opener(self.device, self._disk_rng)
                read = self._store.content
                rows = DormantRows(self._store, self.device)
                host = SimHost(
                    self._rng, self._store, self._reply, self._trace, now=now, read=read, rows=rows
                )
            except PowerCutError:
                self.device.restart()
            except DiosError:
                continue
            else:
                self._memory.direct.started(host)
                return host
        raise self._checker.broken(f"the node did not start in {STARTS_MAX} tries")

    def _reply(self, task: TaskId, seq: int, result: messages.AnyResult, data: bytes | None) -> None:
        client = self._clients.get(task)
        if client is not None:
            client.answered(seq, result, data, uncertain=self._store.panicked)

    def _crash(self) -> None:
        self._crashes += 1
        if not self.device.off:
            # The disk may have been busy.
            self.device.cut_soon(self._rng.randrange(CUT_WITHIN))
            with contextlib.suppress(PowerCutError):
                self._host.sync(JOBS_MAX)
        self.device.restart()
        self._clients.clear()
        self._host = self._start(now=self._host.now + 1)
        self._checker.check_after_start(
            self._host, self._store, place=f"seed {self._seed}, step {self._steps}"
        )

    def _probe(self) -> None:
        """Check that a node on a repaired disk accepts and keeps objects, after a restart if needed."""
        self.device.heal()
        if self._store.panicked:
            self._crash()
        client = self._join()
        self._flush()
        for value in (b"small", bytes(INLINE_BYTES + 1)):
            before = len(self._memory.promises)
            client.create(ObjectType.DURABLE_BLOB, NameKind.RANDOM, value)
            self._flush()
            if len(self._memory.promises) != before + 1:
                raise self._checker.broken("a node on a healthy disk does not store a new object")
        self._look()

    def _flush(self) -> None:
        while not self._host.settled:
            self._host.sync()


def simulate(
    seed: int, steps: int = 600, *, faults: bool = False, opener: OpenStore = open_store
) -> NodeReport:
    """Run one seed; raise BrokenPromiseError or InvariantError if the node is wrong.

    With ``faults`` the disk fails at random operations. Otherwise the disk is full and the power fails from
    time to time.
    """
    plan = RandomFaults(Random(f"faults {seed}"), FAULT_EVERY) if faults else NoFaults()  # noqa: S311 - repeats itself
    return NodeWorld(seed, plan, opener).run(steps)
