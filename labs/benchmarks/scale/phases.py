"""The phases of a simulated cluster: it joins, idles, resolves names, places tasks, loses a rack, heals.

Each phase ends when its goal is reached, and has its costs for each node.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Final

import trio
from msgspec import Struct

from dios.ids import NodeId
from dios.wire import messages
from dios.wire.types import Brand, NameKind, ObjectType
from labs.benchmarks.scale.coordinated import Rounds, coordinate, without_threads
from labs.benchmarks.scale.virtual_time import Driver, VirtualClock
from labs.sim.event_queue import MS, S
from labs.sim.scale.nodes import Costs, ScaleWorld, Session, require

QUIET_NS: Final = 80 * S  # longer than two rounds of reconciliation and the time of unused connections
IDLE_NS: Final = 30 * S
PATIENCE_NS: Final = 900 * S
SETTLED_NS: Final = 12 * S  # until nodes that joined do not count as new
CHECK_NS: Final = S // 2
NAMES_EACH: Final = 4


class Phase(Struct, frozen=True):
    """The costs of one phase, for each node or for each operation (``per``)."""

    nodes: int
    name: str
    per: str
    seconds: float
    """Of virtual time; NaN if the phase did not reach its goal."""
    messages: float
    bytes: float
    steps: float
    step_us: float
    """The processor time of the steps."""
    dials: float
    connections: int
    """The median of the open connections of a node at the end."""
    connections_max: int
    busiest: float
    """The messages that the busiest node received."""
    kinds: str
    """The most frequent messages."""


class Report(Struct):
    """All about one size."""

    nodes: int
    phases: list[Phase]
    rounds: dict[str, float]
    notes: list[str]
    took_s: float = 0.0


class Town:
    """A cluster with sessions, a coordinator, and the record of its phases."""

    def __init__(self, size: int, seed: int, tasks: int) -> None:
        self.world: Final = ScaleWorld(size, seed)
        self.driver: Final = Driver(self.world)
        self.rounds: Final = Rounds()
        self.size: Final = size
        self.tasks: Final = tasks
        self.report: Final = Report(size, [], {}, [])
        self.sessions: list[Session] = []
        self.names: list[tuple[bytes, NodeId]] = []

    def say(self, text: str) -> None:
        """Show the progress."""
        sys.stderr.write(
            f"{time.strftime('%H:%M:%S')} {self.size} nodes, {self.world.now / S:.0f} s: {text}\n"
        )
        sys.stderr.flush()

    @contextmanager
    def phase(self, name: str, *, per: str = "node", count: float = 0) -> Iterator[list[float]]:
        """Record the costs of what happens inside; the caller may put the seconds into the list."""
        world = self.world
        world.costs, began, took = Costs(), world.now, list[float]()
        yield took
        costs, nodes = world.costs, count or self.size
        counts = world.connection_counts() or [0]
        self.report.phases.append(
            Phase(
                self.size,
                name,
                per,
                took[0] if took else (world.now - began) / S,
                costs.messages / nodes,
                costs.bytes / nodes,
                costs.steps / nodes,
                costs.step_ns / 1000 / nodes,
                costs.dials / nodes,
                counts[len(counts) // 2],
                counts[-1],
                max(costs.handled.values(), default=0),
                ", ".join(f"{kind} {number / nodes:.3g}" for kind, number in costs.kinds.most_common(5)),
            )
        )
        self.say(f"{name}: {costs.messages / nodes:.1f} messages, {costs.steps / nodes:.1f} steps per {per}")

    async def run(self, span_ns: int, until: Callable[[], bool] = lambda: False) -> None:
        """Advance the virtual time, until a condition at the latest checks holds."""
        end = self.world.now + span_ns
        while self.world.now < end and not until():
            await self.driver.run(min(CHECK_NS, end - self.world.now))

    async def settle(self) -> float:
        """Run until all live views are true; return the seconds, or NaN."""
        began = self.world.now
        await self.run(PATIENCE_NS, lambda: not self.world.wrong())
        return math.nan if self.world.wrong() else (self.world.now - began) / S

    # -- sessions ---------------------------------------------------------------------------------------
    async def open_sessions(self) -> None:
        """Open a session on each node."""
        opened: list[messages.AnyResult] = []
        running = self.world.running()
        self.sessions = [self.world.open_session(node, opened.append) for node in running]
        await self.run(PATIENCE_NS, lambda: len(opened) == len(running))

    async def ask(
        self,
        calls: Iterable[tuple[Session, messages.AnyCall]],
        *,
        every_ns: int,
        patience_ns: int = PATIENCE_NS,
    ) -> list[messages.AnyResult | None]:
        """Make calls one after the other without waiting; return the answers, None for a missing one."""
        wanted = list(calls)
        answers: list[messages.AnyResult | None] = [None] * len(wanted)
        missing = len(wanted)

        def answered(place: int, result: messages.AnyResult) -> None:
            nonlocal missing
            answers[place] = result
            missing -= 1

        for place, (session, call) in enumerate(wanted):
            self.world.after(
                place * every_ns,
                lambda place=place, session=session, call=call: session.call(  # type: ignore[misc]
                    call, lambda result: answered(place, result)
                ),
            )
        await self.run(patience_ns + len(wanted) * every_ns, lambda: not missing)
        return answers

    # -- phases -----------------------------------------------------------------------------------------
    async def join(self) -> None:
        """Start all nodes within some seconds."""
        span = max(2, self.size // 50) * S
        with self.phase("join") as took:
            self.world.start_all(span)
            await self.run(span)
            took.append(await self.settle())
            await self.run(SETTLED_NS)

    async def idle(self) -> None:
        """Do nothing."""
        await self.run(QUIET_NS)
        with self.phase("idle", per="node and second", count=self.size * IDLE_NS / S):
            await self.run(IDLE_NS)

    async def create(self) -> None:
        """Create objects with names on every node."""
        calls = [
            (
                member,
                messages.Create(
                    ObjectType.SHMEM_BLOB, (self._home(member),), NameKind.RANDOM, data=b"x" * 100
                ),
            )
            for member in self.sessions
            for _ in range(NAMES_EACH)
        ]
        with self.phase("a create", per="create", count=len(calls)):
            answers = await self.ask(calls, every_ns=MS)
        for (session, _), answer in zip(calls, answers, strict=True):
            if isinstance(answer, messages.Created) and answer.name is not None:
                self.names.append((answer.name, session.machine.node))
        self._note(f"{len(self.names):,} of {len(calls):,} named objects created")

    @staticmethod
    def _home(session: Session) -> int:
        assert session.welcome is not None
        assert session.welcome.home is not None
        return session.welcome.home.ref

    async def lookups(self, when: str = "") -> None:
        """Look up names of other nodes' objects, and names of nothing."""
        rng, count = self.world.rng, max(200, 2 * self.size)
        running = [
            session for session in self.sessions if session.machine.sessions.get(session.task) is session
        ]
        alive = {session.machine.node for session in running}
        known = [(name, node) for name, node in self.names if node in alive]
        chosen = [rng.choice(known) for _ in range(count)]
        present = [
            (
                rng.choice(
                    [
                        session
                        for session in rng.sample(running, min(3, len(running)))
                        if session.machine.node != node
                    ]
                    or running
                ),
                name,
            )
            for name, node in chosen
        ]
        with self.phase(f"a lookup{when}", per="lookup", count=count):
            answers = await self.ask(
                [(session, messages.Lookup(name)) for session, name in present], every_ns=MS
            )
        hits = sum(
            isinstance(answer, messages.References) and len(answer.references) == 1 for answer in answers
        )
        self._note(f"{hits:,} of {count:,} names found{when}")
        absent = [(rng.choice(running), messages.Lookup(rng.randbytes(32))) for _ in range(count)]
        with self.phase(f"a lookup of an absent name{when}", per="lookup", count=count):
            answers = await self.ask(absent, every_ns=MS)
        empty = sum(isinstance(answer, messages.References) and not answer.references for answer in answers)
        self._note(f"{empty:,} of {count:,} absent names answered as absent{when}")

    async def place(self) -> None:
        """Submit the same number of runs on each node, and run them all by the coordinator."""
        rounds = max(1, self.tasks // self.size)
        programs = await self.ask(
            [
                (session, messages.Create(ObjectType.SHMEM_BLOB, (), NameKind.ANONYMOUS, data=b"pass"))
                for session in self.sessions
            ],
            every_ns=0,
        )
        references = [
            require(created, "the program").reference.ref if created is not None else 0  # type: ignore[union-attr]
            for created in programs
        ]
        calls = [
            (session, messages.Run(ref, label="job", brand=Brand.PURE))
            for _ in range(rounds)
            for session, ref in zip(self.sessions, references, strict=True)
        ]
        self.rounds.clear()
        self.world.started, busy = 0, self.driver.busy_ns
        with self.phase("a task", per="task", count=len(calls)):
            answers = await self.ask(calls, every_ns=0)
        failed = [answer for answer in answers if answer is None or isinstance(answer, messages.Failure)]
        self._note(f"{len(calls) - len(failed):,} of {len(calls):,} tasks ran, {self.world.started:,} starts")
        if failed:
            self._note(f"a failure: {failed[0]}")
        times = sorted(self.rounds.seconds) or [0.0]
        self.report.rounds = {
            "rounds": len(times),
            "median of a round, ms": times[len(times) // 2] * 1000,
            "longest round, ms": times[-1] * 1000,
            "rounds in all, s": sum(times),
            "coordinator in all, s": (self.driver.busy_ns - busy) / 1e9,
            "coordinator for a task, ms": (self.driver.busy_ns - busy) / 1e6 / len(calls),
            "tasks": len(calls),
        }

    async def lose_rack(self) -> None:
        """Cut the power of a rack, and later start it again."""
        world = self.world
        racks = sorted({machine.rack for machine in world.machines.values()})
        last = [node for node in world.ids if world.machines[node].rack == racks[-1]]
        rack = (last if len(racks) > 1 else last[-max(1, self.size // 3) :])[: max(1, self.size // 3)]
        with self.phase("a rack fails") as took:
            world.kill(rack)
            took.append(await self.settle())
        await self.run(SETTLED_NS)
        await self.lookups(" without the rack")
        with self.phase("the rack returns") as took:
            for node in rack:
                world.start(node, world.rng.sample([peer for peer in world.ids if peer not in rack], 1))
            took.append(await self.settle())
            await self.run(SETTLED_NS)

    async def partition(self) -> None:
        """Cut the cluster into halves, and heal it."""
        await self.run(QUIET_NS // 2)
        with self.phase("a partition") as took:
            self.world.part(self.world.ids[: self.size // 2], 1)
            took.append(await self.settle())
        with self.phase("it heals") as took:
            self.world.heal()
            took.append(await self.settle())
            await self.run(SETTLED_NS)
        await self.lookups(" after the partition")

    def _note(self, text: str) -> None:
        self.report.notes.append(text)
        self.say(text)

    # -- all of it --------------------------------------------------------------------------------------
    async def everything(self) -> None:
        """Run all phases."""
        with without_threads(self.rounds):
            async with trio.open_nursery() as nursery:
                await self.join()
                nursery.start_soon(coordinate, self.world, self.driver, self.world.ids[0])
                await self.idle()
                await self.open_sessions()
                await self.run(SETTLED_NS)
                await self.create()
                await self.lookups()
                await self.place()
                await self.lose_rack()
                await self.partition()
                nursery.cancel_scope.cancel()


def run_size(size: int, seed: int, tasks: int) -> Report:
    """Run a cluster of one size through all phases."""
    began = time.process_time()
    town = Town(size, seed, tasks)
    trio.run(town.everything, clock=VirtualClock(town.world))
    town.report.took_s = time.process_time() - began
    return town.report
