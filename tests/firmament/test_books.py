"""A coordinator's books against nodes that tell late, twice, and in any order."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest
from msgspec.structs import replace

from dios.firmament.cluster.state import RUNNING
from dios.firmament.coordinator.cluster_state import Books, Phase
from dios.firmament.models import catalogue
from dios.firmament.rounds.results import Change
from dios.firmament.scheduler import FlowScheduler
from dios.firmament.settings import SchedulerSettings
from dios.wire.messages import QueueRows, Occupant, Placed, Submission, Work
from dios.wire.types import TaskState

CPUS = 2


@dataclass
class FakeNode:
    """A node's board as it really is: what waits, what runs, what has ended."""

    number: int
    version: int = 1
    waiting: dict[int, Submission] = field(default_factory=dict)
    running: dict[int, Occupant] = field(default_factory=dict)
    ended: list[Occupant] = field(default_factory=list)

    @property
    def name(self) -> str:
        """What people call it."""
        return f"n{self.number}"

    def board(self) -> QueueRows:
        """What it would tell now."""
        return QueueRows(
            self.version, self.number, self.name, "r1", CPUS, 2**30, 16, (), draining=False, coordinated=True,
            waiting=tuple(self.waiting.values()),
            tasks=(*self.running.values(), *self.ended[-8:]),
            asked=(), reports=(), partial=False,
        )  # fmt: skip

    def reserved(self) -> int:
        """Thousandths of processors that are set aside."""
        return sum(row.work.cpus_milli for row in self.running.values())


class Play:
    """Three nodes, and one coordinator's books about them."""

    def __init__(self) -> None:
        settings = SchedulerSettings(certify_every=1)
        self.scheduler = FlowScheduler(catalogue.make("spread"), settings)
        self.books = Books(self.scheduler)
        self.nodes = {f"n{number}": FakeNode(number) for number in (1, 2, 3)}
        self.now = 0.0
        self.started: dict[int, int] = {}
        self._next = 100

    def submit(self, host: str, work: Work = Work(), principal: str = "uid:0") -> int:  # noqa: B008 - it is frozen
        """A task asks for a run on a node."""
        self._next += 1
        node = self.nodes[host]
        node.waiting[self._next] = Submission(
            self._next, f"{self._next:012x}", f"job {self._next}", principal, 0, work, host
        )
        node.version += 1
        return self._next

    def read(self, *names: str) -> None:
        """The coordinator reads boards as they are now."""
        for name in names or self.nodes:
            self.take(self.nodes[name].board())

    def take(self, board: QueueRows) -> None:
        """The coordinator reads a board, maybe an old one."""
        self.books.read(board, self.now, attend=True, machine=True)

    def round(self) -> list[tuple[str, int, str]]:
        """A round; host, task and target of each placement that goes out."""
        names = {node.number: node.name for node in self.nodes.values()}
        orders = []
        for delta in self.scheduler.round(self.now).deltas:
            assert delta.change is Change.PLACE
            entry = self.books.sent(delta.task, names[delta.target], self.now)
            assert entry is not None
            orders.append((entry.host, delta.task, names[delta.target]))
        return orders

    def carry_out(self, host: str, task: int, target: str) -> Placed:
        """A node does what a placement says, as the core does: once, and only where there is room."""
        node, there = self.nodes[host], self.nodes[target]
        version = node.version
        row = node.waiting.pop(task, None)
        if row is None:
            return Placed(((task, "placed already"),), version)
        node.version += 1
        if there.reserved() + row.work.cpus_milli > CPUS * 1000:
            node.waiting[task] = row
            node.version += 1
            return Placed((), version)
        self.started[task] = self.started.get(task, 0) + 1
        there.running[task] = Occupant(
            task, row.fingerprint, row.label, row.principal, TaskState.RUNNING, 1, 0, row.work, 0, 0, False
        )
        there.version += 1
        return Placed((), version)

    def end(self, name: str, task: int) -> None:
        """A task is over."""
        node = self.nodes[name]
        row = node.running.pop(task)
        node.ended.append(replace(row, state=TaskState.ENDED, completed=True))
        node.version += 1

    def work_off(self) -> None:
        """Read, decide and carry out until nothing waits that could run."""
        for _ in range(20):
            self.read()
            orders = self.round()
            if not orders:
                return
            for host, task, target in orders:
                answer = self.carry_out(host, task, target)
                self.books.answered(host, [task], answer, self.now)
            self.now += 1.0
        raise AssertionError("the coordinator does not come to an end")


def test_what_waits_is_placed_and_found_running() -> None:
    """Submissions of several nodes are placed, each once, and known to run where they do."""
    play = Play()
    tasks = [play.submit(host) for host in ("n1", "n1", "n2", "n3")]
    play.work_off()
    assert play.started == dict.fromkeys(tasks, 1)
    play.read()
    assert {play.books.tasks[task].phase for task in tasks} == {Phase.RUNNING}


def test_a_new_coordinator_takes_over_what_runs() -> None:
    """Books that begin empty learn from the boards alone what runs where, and place only what waits."""
    play = Play()
    old = [play.submit("n1", Work(cpus_milli=1000)) for _ in range(5)]
    play.work_off()
    fresh = play.submit("n2", Work(cpus_milli=1000))
    other = Play()
    other.nodes, other.started = play.nodes, play.started
    other.work_off()
    assert other.started == dict.fromkeys([*old, fresh], 1)
    table = other.scheduler.state.tasks
    assert all(table.status[table.row(task)] == RUNNING for task in [*old, fresh])


def test_an_old_board_does_not_bring_a_placed_task_back() -> None:
    """A board from before the placement, read after it, changes nothing."""
    play = Play()
    task = play.submit("n1")
    old = play.nodes["n1"].board()
    play.read()
    ((host, _, target),) = play.round()
    play.take(old)
    play.books.answered(host, [task], play.carry_out(host, task, target), play.now)
    play.take(old)
    assert play.books.tasks[task].phase is Phase.PLACED
    assert play.round() == []
    play.read()
    assert play.books.tasks[task].phase is Phase.RUNNING


def test_a_task_that_came_back_is_placed_elsewhere() -> None:
    """A node without room hands a task back; it goes to another one, and that once."""
    play = Play()
    task = play.submit("n1", Work(cpus_milli=2000))
    play.read()
    ((host, _, target),) = play.round()
    stranger = Occupant(
        7, "7", "by hand", "uid:0", TaskState.RUNNING, 1, 0, Work(cpus_milli=1000), 0, 0, False
    )
    play.nodes[target].running[7] = stranger
    play.books.answered(host, [task], play.carry_out(host, task, target), play.now)
    play.work_off()
    assert play.started == {task: 1}
    play.read()
    assert play.books.tasks[task].host != target


def test_a_refused_placement_waits_again() -> None:
    """What was placed by somebody else meanwhile is not placed twice, and what was not is tried again."""
    play = Play()
    task = play.submit("n1")
    play.read()
    ((host, _, target),) = play.round()
    play.books.answered(host, [task], None, play.now)
    assert play.books.tasks[task].phase is Phase.WAITING
    play.carry_out("n1", task, "n3")
    reasons = play.books.answered(host, [task], play.carry_out(host, task, target), play.now)
    assert reasons == ["placed already"]
    play.work_off()
    assert play.started == {task: 1}


def test_a_withdrawn_run_is_forgotten() -> None:
    """A run that its caller has given up is placed nowhere."""
    play = Play()
    task = play.submit("n1")
    play.read()
    play.nodes["n1"].waiting.clear()
    play.nodes["n1"].version += 1
    play.work_off()
    assert play.started == {}
    assert task not in play.books.tasks


def test_a_dead_node_takes_its_tasks_along() -> None:
    """What ran on a dead node, and what its callers had submitted, is gone from the books."""
    play = Play()
    tasks = [play.submit("n1", Work(cpus_milli=1000)) for _ in range(6)]
    play.work_off()
    play.read()
    late = play.submit("n3", Work(cpus_milli=1000))
    play.read("n3")
    on = {play.books.tasks[task].host for task in tasks}
    assert on == {"n1", "n2", "n3"}
    play.books.lost("n3", play.now)
    assert late not in play.books.tasks
    assert all(entry.host != "n3" for entry in play.books.tasks.values())
    assert play.scheduler.state.machine_row(3) < 0


def test_an_incomplete_gang_waits_to_be_complete() -> None:
    """The tasks of a gang come one by one; none is placed before the last has come."""
    play = Play()
    work = Work(cpus_milli=1000, job=9, gang=3, tasks=3)
    first = [play.submit("n1", work) for _ in range(2)]
    play.work_off()
    assert play.started == {}
    assert play.books.gang_of(first[0]) == (2, 3)
    last = play.submit("n2", work)
    play.work_off()
    assert play.started == dict.fromkeys([*first, last], 1)


def test_a_gang_that_cannot_fit_is_told_and_tried_when_a_node_comes() -> None:
    """A gang larger than the cluster is no task for the scheduler; its problem is on record."""
    play = Play()
    work = Work(job=9, gang=60, tasks=60)
    tasks = [play.submit("n1", work) for _ in range(60)]
    play.work_off()
    assert play.started == {}
    assert set(play.books.problems) == set(tasks)
    assert "gang" in play.books.problems[tasks[0]]
    play.nodes["n4"] = FakeNode(4)
    play.nodes["n5"] = FakeNode(5)
    play.work_off()
    assert play.started == dict.fromkeys(tasks, 1)


def test_a_number_of_a_job_is_its_users_own() -> None:
    """Two users who call their jobs by the same number have two jobs: no gang is made of both."""
    play = Play()
    work = Work(job=1, gang=2, tasks=2)
    one, other = play.submit("n1", work, "uid:1"), play.submit("n1", work, "uid:2")
    play.work_off()
    assert play.started == {}
    assert play.books.gang_of(one) == play.books.gang_of(other) == (1, 2)


def test_one_of_a_gang_that_runs_already_counts() -> None:
    """What another coordinator placed of an incomplete gang is known to run, and holds what it set aside."""
    play = Play()
    work = Work(cpus_milli=2000, job=1, gang=2, tasks=2)
    task = play.submit("n1", work)
    play.read()
    play.carry_out("n1", task, "n2")
    play.read()
    assert play.books.tasks[task].phase is Phase.RUNNING
    assert play.scheduler.state.resources.reserved[play.scheduler.state.machine_row(2), 0] == 2.0
    play.end("n2", task)
    play.read()
    assert task not in play.books.tasks


@pytest.mark.parametrize("seed", range(12))
def test_nothing_is_placed_twice_whatever_order_things_are_told_in(seed: int) -> None:
    """Random submissions, ends, stale boards, lost answers and second coordinators: each task starts once."""
    dice = random.Random(seed)  # noqa: S311 - a seed is wanted
    play = Play()
    rival = Play()
    rival.nodes, rival.started = play.nodes, play.started
    stale: list[QueueRows] = []
    submitted: list[int] = []
    for _ in range(60):
        one = dice.choice([play, rival])
        one.now += dice.choice([0.1, 1.0, 4.0])
        act = dice.randrange(5)
        if act == 0:
            submitted.append(
                play.submit(dice.choice(["n1", "n2", "n3"]), Work(cpus_milli=dice.choice([0, 500, 1000])))
            )
        elif act == 1 and (busy := [node for node in play.nodes.values() if node.running]):
            node = dice.choice(busy)
            play.end(node.name, dice.choice(list(node.running)))
        elif act == 2:
            stale.append(dice.choice(list(play.nodes.values())).board())
        elif act == 3 and stale:
            one.take(dice.choice(stale[-4:]))
        else:
            one.read()
            for host, task, target in one.round():
                answer = one.carry_out(host, task, target)
                one.books.answered(host, [task], answer if dice.random() < 0.8 else None, one.now)
        one.books.expire(one.now)
    for node in play.nodes.values():
        for task in list(node.running):
            play.end(node.name, task)
    for _ in range(30):
        play.now += 20.0
        play.books.expire(play.now)
        play.work_off()
        for node in play.nodes.values():
            for task in list(node.running):
                play.end(node.name, task)
    assert set(play.started.values()) <= {1}, f"seed {seed}"
    assert set(play.started) == set(submitted), f"seed {seed}: some never ran"
