"""Processes of principals are made in turns, so that nobody waits for all tasks of a neighbour."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import trio
from msgspec import structs
from trio.testing import wait_all_tasks_blocked

from dios.core.effects import Spawn, TaskShare
from dios.errors import DiosError, NotSupportedError
from dios.host.process.task_process import TaskProcess
from dios.ids import ObjectId, Principal, TaskId
from dios.wire.messages import Limits
from dios.wire.types import Brand
from tests.support.host.harness import Rig, rig

GREEDY = 60
INNOCENT_MEMORY = 77


class SlowSpawner:
    """A spawner that makes a process when the test lets it, and then fails."""

    def __init__(self) -> None:
        self.begun: list[int] = []
        self.lineages: set[str] = set()
        self.send, self._go = trio.open_memory_channel[None](1_000)
        self.fit = trio.Event()
        self.fit.set()
        self.kept: Counter[str] = Counter()
        self.starting: dict[str, trio.Event] = {}
        """The lineages whose zygotes start, until the test sets the event."""

    async def wait_fit(self) -> None:
        """Wait until the test lets the machine be fit."""
        await self.fit.wait()

    @contextmanager
    def using(self, lineage: str, template: str = "") -> Iterator[None]:
        """Count the tasks for which a lineage is kept."""
        del template
        self.kept[lineage] += 1
        try:
            yield
        finally:
            self.kept[lineage] -= 1

    async def prepare(self, template: str, lineage: str = "", *, forkable: bool = False) -> None:
        """Start the zygote of the lineage. There are no templates."""
        if template or forkable:
            raise NotSupportedError(f"there is no template {template}")
        if lineage in self.starting:
            await self.starting[lineage].wait()

    def require_forkable(self) -> None:
        """Refuse."""
        raise NotSupportedError("there are no sessions")

    async def fork(self, task_limits: Limits, session: TaskProcess) -> TaskProcess:
        """Refuse."""
        raise DiosError(f"no forks of {session} with {task_limits} here")

    async def hold(self, child: TaskProcess, share: TaskShare) -> None:
        """Refuse."""
        raise DiosError(f"no {share} for {child} here")

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
        """Note the memory limit, by which the test knows the task."""
        del template, forkable
        self.lineages.add(lineage)
        self.begun.append(task_limits.memory_bytes)
        await self._go.receive()
        raise DiosError(f"no {brand.name} tasks here")


def spawn(number: int, principal: str, memory: int) -> Spawn:
    """The effect that starts a task."""
    bounds = Limits(memory_bytes=memory)
    return Spawn(TaskId(number), Brand.PURE, "", ObjectId(1), bounds, Principal(principal))


def flood(host: Rig) -> None:
    """Start many tasks of a greedy principal, and then one of another."""
    host.do(*(spawn(100 + number, "uid:1", number) for number in range(GREEDY)))
    host.do(spawn(1_000, "uid:2", INNOCENT_MEMORY))


async def test_a_neighbour_waits_for_few_processes_of_a_greedy_principal(tmp_path: Path) -> None:
    """Sixty processes are requested before one of another principal, which is among the next to be made."""
    spawner = SlowSpawner()
    async with rig(tmp_path, spawner=spawner) as host:
        flood(host)
        for _ in range(3):
            await wait_all_tasks_blocked()
            spawner.send.send_nowait(None)
        with trio.fail_after(60):
            while INNOCENT_MEMORY not in spawner.begun:  # noqa: ASYNC110 - the spawner sets no event
                await trio.sleep(0.01)
        assert len(spawner.begun) < GREEDY // 4


async def test_a_zygote_that_starts_takes_no_turn(tmp_path: Path) -> None:
    """The first tasks of a principal wait for its zygote, and those of others start meanwhile."""
    spawner = SlowSpawner()
    spawner.starting["of uid:1"] = trio.Event()
    async with rig(tmp_path, spawner=spawner) as host:
        flood(host)
        await wait_all_tasks_blocked()
        assert spawner.begun == [INNOCENT_MEMORY]
        spawner.starting["of uid:1"].set()
        for _ in range(GREEDY + 1):
            spawner.send.send_nowait(None)
        await host.host.tasks.wait_all_ended()
        assert len(spawner.begun) == GREEDY + 1


async def test_a_lineage_is_kept_while_its_tasks_wait_for_a_turn(tmp_path: Path) -> None:
    """The zygote that was started before the turn is still there when the turn comes."""
    spawner = SlowSpawner()
    async with rig(tmp_path, spawner=spawner) as host:
        flood(host)
        await wait_all_tasks_blocked()
        assert len(spawner.begun) < GREEDY
        assert spawner.kept == {"of uid:1": GREEDY, "of uid:2": 1}
        for _ in range(GREEDY + 1):
            spawner.send.send_nowait(None)
        await host.host.tasks.wait_all_ended()
    assert spawner.kept.total() == 0


async def test_each_principal_has_its_lineage_and_its_gateways_another(tmp_path: Path) -> None:
    """The node's own user has the lineage that starts with the node; names of principals make no other."""
    spawner = SlowSpawner()
    own = f"uid:{os.geteuid()}"
    async with rig(tmp_path, spawner=spawner) as host:
        gateway = structs.replace(spawn(1, "uid:20001", 1), is_gateway=True)
        own_gateway = structs.replace(spawn(2, own, 2), is_gateway=True)
        host.do(spawn(3, own, 3), spawn(4, "uid:20001", 4), spawn(5, "uid:20002", 5), gateway, own_gateway)
        with trio.fail_after(60):
            while len(spawner.begun) < 5:
                spawner.send.send_nowait(None)
                await trio.sleep(0.01)
    assert spawner.lineages == {
        "",
        "of uid:20001",
        "of uid:20002",
        "gateways ",
        "gateways of uid:20001",
    }


async def test_no_process_is_made_for_a_task_that_was_ended_while_it_waited(tmp_path: Path) -> None:
    """Tasks that are started and killed at once cost no process."""
    spawner = SlowSpawner()
    async with rig(tmp_path, spawner=spawner) as host:
        flood(host)
        await wait_all_tasks_blocked()
        begun = len(spawner.begun)
        for number in range(GREEDY):
            host.host.tasks.kill(TaskId(100 + number))
        for _ in range(GREEDY):
            spawner.send.send_nowait(None)
        with trio.fail_after(60):
            while INNOCENT_MEMORY not in spawner.begun:  # noqa: ASYNC110 - the spawner sets no event
                await trio.sleep(0.01)
        await wait_all_tasks_blocked()
        # The innocent task may have been among the first.
        assert set(spawner.begun[begun:]) <= {INNOCENT_MEMORY}


async def test_a_pure_task_waits_until_its_machine_is_known_to_be_fit(tmp_path: Path) -> None:
    """It starts late and takes nobody's turn meanwhile; one that is ended while it waits never starts."""
    spawner = SlowSpawner()
    spawner.fit = trio.Event()
    async with rig(tmp_path, spawner=spawner) as host:
        pure = [spawn(number, "uid:1", number) for number in range(1, 9)]
        limbo = Spawn(
            TaskId(9), Brand.LIMBO, "", ObjectId(1), Limits(memory_bytes=INNOCENT_MEMORY), Principal("uid:1")
        )
        host.do(*pure, limbo)
        await wait_all_tasks_blocked()
        assert spawner.begun == [INNOCENT_MEMORY]
        host.host.tasks.kill(TaskId(1))
        spawner.fit.set()
        for _ in range(9):
            spawner.send.send_nowait(None)
        await host.host.tasks.wait_all_ended()
        assert sorted(spawner.begun) == [*range(2, 9), INNOCENT_MEMORY]
