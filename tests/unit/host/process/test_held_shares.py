"""The shares to which running tasks are held, against processes that only record them."""

from __future__ import annotations

from typing import cast

import trio
from trio.testing import MockClock

from dios.core.effects import TaskShare
from dios.host.process.held_shares import HeldShares
from dios.host.process.task_process import TaskProcess
from dios.ids import TaskId

ONE, TWO = TaskId(1), TaskId(2)
HALF, WHOLE = TaskShare(500, 4000, replaces=True), TaskShare(1000, 4000, replaces=True)
FREE = TaskShare(replaces=True)


class Recorded:
    """Held shares, the processes that run, and the shares that were applied to each."""

    def __init__(self, nursery: trio.Nursery) -> None:
        self.processes = {ONE: object(), TWO: object()}
        self.applied: list[tuple[TaskId, TaskShare]] = []
        self.shares = HeldShares(nursery, self._hold, self._process_of)

    async def _hold(self, process: TaskProcess, share: TaskShare) -> None:
        (task,) = [task for task, candidate in self.processes.items() if candidate is process]
        self.applied.append((task, share))

    def _process_of(self, task: TaskId) -> TaskProcess | None:
        return cast("TaskProcess | None", self.processes.get(task))

    async def settled(self, seconds: float = 0.1) -> list[tuple[TaskId, TaskShare]]:
        """Return what was applied since the last call."""
        await trio.sleep(seconds)
        applied, self.applied = self.applied, []
        return applied


async def test_shares_are_applied_once_and_end_with_their_lease(autojump_clock: MockClock) -> None:
    """Repeated shares cost nothing; a task that is no longer named, or whose lease ends, is free again."""
    del autojump_clock
    async with trio.open_nursery() as nursery:
        recorded = Recorded(nursery)
        recorded.shares.set((), 5_000)
        assert await recorded.settled() == []
        recorded.shares.set(((ONE, HALF), (TWO, HALF)), 5_000)
        assert await recorded.settled() == [(ONE, HALF), (TWO, HALF)]
        recorded.shares.set(((ONE, HALF), (TWO, WHOLE)), 5_000)
        assert await recorded.settled() == [(TWO, WHOLE)]
        recorded.shares.set(((ONE, HALF),), 5_000)
        assert await recorded.settled() == [(TWO, FREE)]
        assert await recorded.settled(6.0) == [(ONE, FREE)]
        recorded.shares.set(((TWO, HALF),), 5_000)
        assert await recorded.settled() == [(TWO, HALF)]
        nursery.cancel_scope.cancel()


async def test_tasks_without_a_process_are_held_when_they_have_one(autojump_clock: MockClock) -> None:
    """A task that starts gets its share with the next message; one that has ended is forgotten."""
    del autojump_clock
    async with trio.open_nursery() as nursery:
        recorded = Recorded(nursery)
        late = recorded.processes.pop(TWO)
        recorded.shares.set(((ONE, HALF), (TWO, HALF)), 5_000)
        assert await recorded.settled() == [(ONE, HALF)]
        recorded.processes[TWO] = late
        del recorded.processes[ONE]
        recorded.shares.set(((ONE, HALF), (TWO, HALF)), 5_000)
        assert await recorded.settled() == [(TWO, HALF)]
        nursery.cancel_scope.cancel()
