"""Coordinators know of each other's reservations by the promised starts in the queues of nodes."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import NamedTuple

import pytest

from dios.firmament.coordinator.assignment import Assignment, SetUp, StartOptions
from dios.firmament.coordinator.cluster_service import NodeActions
from dios.firmament.coordinator.scheduler_service import SchedulerService
from dios.firmament.knowledge.knowledge_base import KnowledgeBase
from dios.limits import RESERVATION_UNKNOWN_S
from dios.wire.messages import Asked, KeptRoom, Occupant, Placed, QueueRows, Submission, Work
from dios.wire.types import TaskState

NAMES = ("n1", "n2")
LARGE, SMALL, OTHER = 1, 2, 3
RUNNING = (11, 12)
"""The tasks that run on the two nodes, one on each."""
ONE_CPU, TWO_CPUS = Work(cpus_milli=1000), Work(cpus_milli=2000)


class Kept(NamedTuple):
    """The node where room is kept, and the time of the start in seconds."""

    node: str
    start: float


class Queues:
    """The queues of two nodes of two processors, on each of which a task of one processor runs."""

    def __init__(self) -> None:
        self.waiting: dict[int, Submission] = {}
        self.kept: dict[int, Kept] = {}
        self.version = 0

    def submit(self, host: str, task: int, work: Work, principal: str, waited_ms: int = 0) -> None:
        """Let a run wait on a node."""
        self.waiting[task] = Submission(task, f"{task:012x}", f"job{task}", principal, waited_ms, work, host)

    def rows(self, name: str, now: float) -> QueueRows:
        """Return the whole queue of a node, without promised starts that are void."""
        number = NAMES.index(name) + 1
        task = RUNNING[number - 1]
        self.version += 1
        waiting = tuple(row for row in self.waiting.values() if row.node == name)
        running = Occupant(
            task, f"{task:012x}", "running", "uid:9", TaskState.RUNNING, 1, 0, ONE_CPU, 0, 0,
            completed=False,
        )  # fmt: skip
        kept = tuple(
            KeptRoom(task, kept.node, max(0, round(1000 * (kept.start - now))), row.waited_ms, row.work)
            for task, kept in self.kept.items()
            if (row := self.waiting.get(task)) is not None and row.node == name
            if kept.start + RESERVATION_UNKNOWN_S >= now
        )
        return QueueRows(
            self.version, number, name, "r1", 2, 2**30, 16, (), draining=False, coordinated=True,
            waiting=waiting, tasks=(running,), asked=(), reports=(), partial=False, kept=kept,
        )  # fmt: skip

    def carry_out(self, actions: Iterable[NodeActions], now: float) -> dict[int, str]:
        """Note promised starts and remove what is placed; return where it goes."""
        placed: dict[int, str] = {}
        for action in actions:
            placed |= dict(action.placements)
            for promised in action.promised:
                if promised.node:
                    self.kept[promised.submission] = Kept(promised.node, now + promised.in_ms / 1000)
                else:
                    del self.kept[promised.submission]
        for task in placed:
            del self.waiting[task]
        return placed


def coordinator(attended: Iterable[str]) -> SchedulerService:
    """Return one that places the runs of some nodes on both nodes."""
    service = SchedulerService(StartOptions(SetUp.DISTRIBUTED, "spread"), "n1", KnowledgeBase("n1", 1), 1.7e9)
    service.change_assignment(Assignment(), Assignment(frozenset(attended), frozenset(NAMES)), 0.0)
    return service


def rounds(service: SchedulerService, queues: Queues, seconds: Iterable[float]) -> dict[int, str]:
    """Let a coordinator read both queues and decide, at these times; return what it has placed."""
    placed: dict[int, str] = {}
    for now in seconds:
        for name in NAMES:
            service.read(name, queues.rows(name, now), now)
        new = queues.carry_out(service.round(now), now)
        service.record_answer("n1", list(new), [], Placed((), 0), now)
        placed |= new
    return placed


@pytest.fixture
def promised() -> Queues:
    """Return queues in which a run of two processors on n1 has a promised start."""
    queues = Queues()
    queues.submit("n1", LARGE, TWO_CPUS, "uid:1", waited_ms=5_000)
    queues.submit("n1", SMALL, TWO_CPUS, "uid:9")
    rounds(coordinator({"n1"}), queues, (0.0, 1.0))
    del queues.waiting[SMALL]
    assert set(queues.kept) == {LARGE}
    return queues


def test_another_coordinator_leaves_the_room(promised: Queues) -> None:
    """It places one small run at the other node, and keeps the second one waiting."""
    for task in (OTHER, OTHER + 1):
        promised.submit("n2", task, ONE_CPU, "uid:2")
    placed = rounds(coordinator({"n2"}), promised, (2.0, 3.0, 4.0))
    assert list(placed.values()) == [name for name in NAMES if name != promised.kept[LARGE].node]


def test_a_start_long_past_keeps_nobody_out(promised: Queues) -> None:
    """The coordinator that promised it is gone, and the room is free for others."""
    service = coordinator({"n2"})
    rounds(service, promised, (0.0,))
    past = promised.kept[LARGE].start + RESERVATION_UNKNOWN_S + 1.0
    promised.submit("n2", OTHER, ONE_CPU, "uid:2")
    promised.submit("n2", OTHER + 1, ONE_CPU, "uid:2")
    assert rounds(service, promised, (past,)).keys() == {OTHER, OTHER + 1}


@pytest.mark.parametrize("node", NAMES)
def test_the_next_coordinator_continues_with_the_node(promised: Queues, node: str) -> None:
    """Whichever node it would choose itself, the run starts where it was promised, once there is room."""
    promised.kept[LARGE] = Kept(node, 2.0)
    service = coordinator(NAMES)
    for task in (OTHER, OTHER + 1):
        promised.submit("n2", task, ONE_CPU, "uid:2")
    placed = rounds(service, promised, (2.0, 3.0, 4.0))
    assert list(placed.values()) == [name for name in NAMES if name != node]
    assert promised.kept[LARGE].node == node


def test_of_two_promises_of_a_node_the_longer_wait_counts(promised: Queues) -> None:
    """A coordinator whose run has waited for a shorter time looks for another node."""
    first = promised.kept[LARGE].node
    promised.submit("n2", OTHER, TWO_CPUS, "uid:2")
    promised.kept[OTHER] = Kept(first, 61.0)
    rounds(coordinator({"n2"}), promised, (2.0, 3.0, 6.0, 9.0))
    assert promised.kept[LARGE].node == first
    assert promised.kept[OTHER].node != first


def test_nothing_stays_promised_for_a_run_that_may_not_start(promised: Queues) -> None:
    """A quota takes its turn away, and the promise goes from the queue."""
    service = coordinator({"n1"})
    rounds(service, promised, (2.0,))
    assert LARGE in promised.kept
    quota = {"ask": "quota", "principal": "uid:1", "quota": {"cpus": 1.0}}
    service.answer(Asked(1, "uid:0", True, json.dumps(quota).encode()))
    rounds(service, promised, (3.0, 6.0))
    assert not promised.kept
