"""The real coordinator of one simulated node, whose connection, clock and threads are simulated."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final, TypeVar, TypeVarTuple, Unpack, cast

import trio

from dios.client.aio.connection import AsyncConnection
from dios.client.aio.node import AsyncNode
from dios.client.session import Operation, refusal
from dios.errors import Code, DiosError, TooManyCallsError
from dios.firmament.coordinator.assignment import SetUp, StartOptions
from dios.firmament.coordinator.coordinator import Coordinator
from dios.firmament.coordinator.kernel_compilation import KernelProgress
from dios.firmament.coordinator.scheduler_service import SchedulerService
from dios.firmament.knowledge.knowledge_base import KnowledgeBase
from dios.ids import NodeId
from dios.limits import RACK_DELEGATION_MS
from dios.wire import messages
from labs.benchmarks.scale.virtual_time import Driver
from labs.sim.scale.nodes import ScaleWorld, Session

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


class SimLink:
    """The connection of a session in the simulation, as an ``AsyncConnection`` would run operations."""

    page = None
    held_calls = 0
    refused = 0

    def __init__(self, session: Session, driver: Driver) -> None:
        self._session: Final = session
        self._driver: Final = driver
        self._answered = trio.Event()
        """Set, and replaced, when a call is answered."""

    async def run(self, operation: Operation[T]) -> T:
        """Run an operation to its end and return its result."""
        try:
            call = next(operation)
            while True:
                try:
                    answer = await self._make(call)
                except DiosError as error:
                    call = operation.throw(error)
                else:
                    call = operation.send((answer, ()))
        except StopIteration as done:
            return cast("T", done.value)

    async def _make(self, call: messages.AnyCall) -> messages.AnyResult:
        """Make a call, again after another answer if as many calls wait as may wait."""
        while True:
            try:
                return await self._call(call)
            except TooManyCallsError:
                self.refused += 1
                await self._answered.wait()

    async def _call(self, call: messages.AnyCall) -> messages.AnyResult:
        answered = trio.Event()
        results: list[messages.AnyResult] = []

        def then(result: messages.AnyResult) -> None:
            results.append(result)
            self._driver.woken = True
            answered.set()
            if not (isinstance(result, messages.Failure) and result.code == Code.ENOBUFS):
                self._answered.set()
                self._answered = trio.Event()

        seq = self._session.call(call, then)
        try:
            await answered.wait()
        except BaseException:
            self._session.cancel(seq)
            raise
        if isinstance(results[0], messages.Failure):
            raise refusal(results[0], call)
        return results[0]


class CompiledKernels:
    """The kernels of the flow scheduler, which ``make setup`` has compiled."""

    progress = KernelProgress()

    def is_ready(self) -> bool:
        """Return True."""
        return True

    async def compile(self, *, again: bool = False) -> None:
        """Do nothing."""


class Rounds:
    """The processor times of the scheduler's rounds, in seconds, and what they decided."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self.placed = 0

    def clear(self) -> None:
        """Forget all."""
        self.seconds.clear()
        self.placed = 0


@contextmanager
def without_threads(rounds: Rounds) -> Iterator[None]:
    """Run the work of threads at once, and let the virtual time pass that it took; note the rounds."""
    usual, usual_round = trio.to_thread.run_sync, SchedulerService.round

    async def run_sync(function: Callable[[Unpack[Ts]], T], *arguments: *Ts) -> T:
        began = time.process_time()
        result = function(*arguments)
        await trio.sleep(time.process_time() - began)
        return result

    def timed(service: SchedulerService, now: float) -> list[object]:
        began = time.process_time()
        actions = usual_round(service, now)
        rounds.seconds.append(time.process_time() - began)
        rounds.placed += sum(len(action.placements) for action in actions)
        return cast("list[object]", actions)

    trio.to_thread.run_sync = run_sync  # type: ignore[assignment]
    SchedulerService.round = timed  # type: ignore[assignment, method-assign]
    try:
        yield
    finally:
        trio.to_thread.run_sync = usual
        SchedulerService.round = usual_round  # type: ignore[method-assign]


async def coordinate(world: ScaleWorld, driver: Driver, node: NodeId) -> None:
    """Run the coordinator of a node until it is cancelled."""
    opened = trio.Event()

    def then(result: messages.AnyResult) -> None:
        del result
        driver.woken = True
        opened.set()

    session = world.open_session(node, then)
    await opened.wait()
    assert session.welcome is not None
    link = cast("AsyncConnection", SimLink(session, driver))
    name = world.machines[node].name
    coordinator = Coordinator(
        AsyncNode(link, session.welcome),
        StartOptions(SetUp.CENTRALISED, "spread"),
        knowledge=KnowledgeBase(name, 1),
        delegation_s=RACK_DELEGATION_MS / 1000,
        kernels=CompiledKernels(),
    )
    await coordinator.run()
