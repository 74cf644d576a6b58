"""Prepared tasks: how many wait, and until when."""

from __future__ import annotations

import os
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from dios import limits
from dios.errors import OutOfMemoryError
from dios.host.process import prepared_tasks
from dios.host.process.prepared_tasks import PreparedTasks
from dios.host.process.task_process import ProcessLimits, TaskProcess
from dios.host.process.zygote_messages import ChildExited
from dios.wire.types import Brand

BOUNDS = ProcessLimits(memory_bytes=1 << 30, cpu_ms=0, processes=16)
MOST = 3


class Factory:
    """Makes processes that do not exist, up to a number, or fails."""

    def __init__(self) -> None:
        self.children: list[TaskProcess] = []
        self.room = 100
        self.fails = False
        self.go = trio.Event()
        self.go.set()

    async def make(self, forkable: bool) -> TaskProcess:  # noqa: FBT001 - the kind
        """Return a process whose number is odd if it can be forked."""
        await self.go.wait()
        if self.fails:
            raise OutOfMemoryError("no memory")
        ours, theirs = socket.socketpair()
        theirs.close()
        read_end, write_end = os.pipe()
        os.close(write_end)
        number = 2 * len(self.children) + forkable
        child = TaskProcess(number, Brand.PURE, BOUNDS, trio.socket.from_stdlib_socket(ours), read_end)
        self.children.append(child)
        return child

    def has_room(self) -> bool:
        """Return True for the first processes."""
        return len(self.children) < self.room


@asynccontextmanager
async def prepared(factory: Factory) -> AsyncIterator[PreparedTasks]:
    """The prepared tasks of a template, which are closed at the end."""
    async with trio.open_nursery() as nursery:
        tasks = PreparedTasks(nursery, MOST, factory.make, factory.has_room)
        try:
            yield tasks
        finally:
            tasks.close()
            nursery.cancel_scope.cancel()


async def settled(seconds: float = 2 * prepared_tasks.PAUSE_S) -> None:
    """Let time of the test's clock pass, by default the pause after a start, and what follows it."""
    await trio.sleep(seconds)
    await wait_all_tasks_blocked()


async def test_the_first_use_prepares_processes_of_its_kind_alone(autojump_clock: MockClock) -> None:
    """Nothing waits before; then the bound holds, and each kind has processes of its own."""
    del autojump_clock
    factory = Factory()
    async with prepared(factory) as tasks:
        await settled()
        assert not factory.children
        assert tasks.take(forkable=False) is None
        await settled()
        assert len(tasks) == MOST
        assert tasks.take(forkable=True) is None
        await settled()
        assert len(tasks) == 2 * MOST
        taken = tasks.take(forkable=True)
        assert taken is not None
        assert taken.number % 2 == 1
        await settled()
        assert len(tasks) == 2 * MOST
        taken.close()


async def test_none_waits_for_a_template_that_nobody_uses(autojump_clock: MockClock) -> None:
    """They end when the time has passed since the last use, and come back with the next one."""
    del autojump_clock
    factory = Factory()
    async with prepared(factory) as tasks:
        tasks.take(forkable=False)
        await settled()
        await settled(prepared_tasks.IDLE_S + 1)
        assert len(tasks) == 0
        assert tasks.take(forkable=False) is None
        await settled()
        assert len(tasks) == MOST


async def test_a_full_node_prepares_none(autojump_clock: MockClock) -> None:
    """Prepared processes never take the room of tasks."""
    del autojump_clock
    factory = Factory()
    factory.room = 1
    async with prepared(factory) as tasks:
        tasks.take(forkable=False)
        await settled()
        assert len(tasks) == 1


async def test_none_is_made_after_the_end(autojump_clock: MockClock) -> None:
    """The process that was being made is closed, and no other follows it."""
    del autojump_clock
    factory = Factory()
    factory.go = trio.Event()
    async with prepared(factory) as tasks:
        tasks.take(forkable=False)
        await settled()
        tasks.close()
        factory.go.set()
        await settled()
        assert len(factory.children) == 1
        assert len(tasks) == 0


async def test_processes_that_end_or_cannot_be_made_are_not_tried_for_ever(autojump_clock: MockClock) -> None:
    """After a few failures in a row tasks start on demand; a template that is loaded again begins anew."""
    del autojump_clock
    factory = Factory()
    async with prepared(factory) as tasks:
        tasks.take(forkable=False)
        await settled()
        for _ in range(5):
            for child in factory.children:
                if child.exit is None:
                    child.ended(ChildExited(child.number, 0, 0))
                tasks.ended(child)
            await settled()
        assert len(tasks) == 0
        assert len(factory.children) <= 2 * MOST
        factory.fails = True
        tasks.clear()
        tasks.take(forkable=False)
        await settled()
        assert len(tasks) == 0
        factory.fails = False
        tasks.clear()
        tasks.take(forkable=False)
        await settled()
        assert len(tasks) == MOST


async def test_processes_that_could_not_be_made_are_tried_again(autojump_clock: MockClock) -> None:
    """However often that failed, others wait again when the reason is gone and a pause is over."""
    del autojump_clock
    factory = Factory()
    factory.fails = True
    async with prepared(factory) as tasks:
        for _ in range(5):
            tasks.take(forkable=False)
            await settled()
        factory.fails = False
        await settled()
        assert len(tasks) == 0
        await settled(limits.POOL_RETRY_MS_MAX / 1000)
        assert len(tasks) == MOST
