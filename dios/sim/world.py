"""One node in virtual time under a seeded workload, with crashes and failing stores between steps.

Not for: several nodes, which come with the coordination protocol. The same seed gives the same trace
digest under every PYTHONHASHSEED; a failing seed is a test.
"""

from __future__ import annotations

from random import Random
from typing import Final

from blake3 import blake3
from msgspec import Struct

from dios.core import events
from dios.ids import Name, TaskId
from dios.sim.disk import SimDisk
from dios.sim.host import NODE_OWNER, SimHost
from dios.sim.workload import Client, Promise
from dios.wire import messages
from dios.wire.types import Cause, ObjectType

SESSIONS_MAX: Final = 4


class Report(Struct, frozen=True):
    """What one seed's run did; ``digest`` stands for every event and outcome of it."""

    seed: int
    steps: int
    crashes: int
    failures: int
    promises: int
    digest: str


class BrokenPromiseError(AssertionError):
    """The node lost, tore or invented something it had vouched for."""


class World:
    """The disk that lasts, the node that crashes, and the clients that remember."""

    def __init__(self, seed: int) -> None:
        self._seed: Final = seed
        self._rng: Final = Random(seed)  # noqa: S311 - a simulation repeats itself
        self._trace: Final = blake3()
        self._disk: Final = SimDisk(self._rng)
        self._promises: dict[Name, Promise] = {}
        self._named: dict[int, Name] = {}
        self._clients: dict[TaskId, Client] = {}
        self._next_task = 1
        self._steps = 0
        self._crashes = 0
        self._failures = 0
        self._host = self._start(now=1)

    def run(self, steps: int) -> Report:
        """Live through ``steps`` random moments, then crash once more and look at what is left."""
        for _ in range(steps):
            self._steps += 1
            self._moment()
        self._crash()
        return Report(
            self._seed,
            self._steps,
            self._crashes,
            self._failures,
            len(self._promises),
            self._trace.hexdigest(),
        )

    def _moment(self) -> None:
        dice = self._rng.random()
        if len(self._clients) < 2:
            self._join_or_leave()
        elif dice < 0.75:
            self._rng.choice(list(self._clients.values())).act()
        elif dice < 0.86:
            self._host.sync()
        elif dice < 0.90:
            self._host.advance(self._rng.randint(1, 1_000_000))
        elif dice < 0.92:
            self._join_or_leave()
        elif dice < 0.96:
            self._host.sync()
        elif dice < 0.968:
            self._failures += 1
            self._host.sync(fail=True)
        elif dice < 0.975:
            self._crash()
        else:
            self._tasks()

    # -- sessions and tasks ------------------------------------------------------------------------
    def _join_or_leave(self) -> None:
        host = self._host
        if self._clients and (len(self._clients) >= SESSIONS_MAX or self._rng.random() < 0.3):
            task = self._rng.choice(list(self._clients))
            # What it had sent may still happen: its promises stay as they are.
            del self._clients[task]
            host.step(events.Disconnected(host.now, task, self._rng.choice(("", "sent rubbish"))))
            return
        task = TaskId(self._next_task)
        self._next_task += 1
        self._clients[task] = Client(self._rng, task, self._promises, self._named, host.call)
        host.step(events.SessionOpened(host.now, task, 1, NODE_OWNER, (), "simulated", 1))

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

    def _run_something(self, client: Client) -> None:
        blobs = [one for one in client.references if one.type is ObjectType.SHMEM_BLOB]
        if client.welcome is not None and blobs:
            handed = messages.Handed(self._rng.choice(client.references).ref, self._rng.randrange(32))
            self._host.call(
                client.task,
                1_000_000 + self._steps,
                messages.Run(self._rng.choice(blobs).ref, inputs=(handed,)),
            )

    # -- crash and return --------------------------------------------------------------------------
    def _start(self, now: int) -> SimHost:
        return SimHost(self._rng, self._disk, self._reply, self._trace, now=now)

    def _reply(self, task: TaskId, seq: int, result: messages.AnyResult, data: bytes | None) -> None:
        client = self._clients.get(task)
        if client is not None:
            client.answered(seq, result, data)

    def _crash(self) -> None:
        self._crashes += 1
        self._host.crash()
        self._clients.clear()
        self._host = self._start(now=self._host.now + 1)
        found = {
            target.name: target
            for target in self._host.core.state.objects.values()
            if target.name is not None and target.type is ObjectType.DURABLE_BLOB
        }
        for name, promise in self._promises.items():
            target = found.get(name)
            value = None if target is None else self._host.contents.get(target.id, b"")
            if value != promise.acknowledged and value not in promise.possible:
                raise BrokenPromiseError(
                    f"seed {self._seed}, step {self._steps}: found {value!r}, acknowledged was"
                    f" {promise.acknowledged!r}, possible {promise.possible!r}"
                )
            if target is not None and target.size != len(value or b""):
                raise BrokenPromiseError(f"seed {self._seed}, step {self._steps}: size and bytes differ")
            promise.acknowledged, promise.possible = value, []


def simulate(seed: int, steps: int = 600) -> Report:
    """Run one seed; raises BrokenPromiseError or InvariantError where the node is wrong."""
    return World(seed).run(steps)
