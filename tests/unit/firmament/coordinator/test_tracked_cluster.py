"""A coordinator's view of its cluster, against nodes whose queues it reads late, twice, and in any order."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from msgspec.structs import replace

from dios.firmament.cluster.state import RUNNING
from dios.firmament.coordinator.best_effort import NodeLoad
from dios.firmament.coordinator.cluster_state import Phase
from dios.firmament.coordinator.first_fit import FirstFitScheduler
from dios.firmament.coordinator.stated_bounds import JobBounds
from dios.firmament.descriptors import Level
from dios.firmament.models import catalogue
from dios.firmament.rounds.results import Change
from dios.firmament.scheduler import FlowScheduler
from dios.firmament.settings import SchedulerSettings
from dios.wire.messages import Constraint, DeviceRequest, Occupant, Placed, QueueRows, ThreadPlace, Work
from dios.wire.node_labels import NO_LIMBO
from dios.wire.types import Fitness, Operator, TaskState
from tests.support.firmament.coordinated_nodes import CoordinatedNodes, FakeNode


class FlowNodes(CoordinatedNodes):
    """Nodes whose runs the flow scheduler places."""

    def __init__(self) -> None:
        self.scheduler = FlowScheduler(catalogue.make("spread"), SchedulerSettings(certify_every=1))
        super().__init__(self.scheduler, self._place)

    def _place(self, now: float) -> list[tuple[int, int]]:
        deltas = self.scheduler.round(now).deltas
        assert all(delta.change is Change.PLACE for delta in deltas)
        return [(delta.task, delta.target) for delta in deltas]


def test_what_waits_is_placed_and_found_running() -> None:
    """Submissions of several nodes are placed, each once, and known to run where they do."""
    play = FlowNodes()
    tasks = [play.submit(host) for host in ("n1", "n1", "n2", "n3")]
    play.work_off()
    assert play.started == dict.fromkeys(tasks, 1)
    play.read()
    assert {play.cluster.tasks[task].phase for task in tasks} == {Phase.RUNNING}


def test_a_new_coordinator_takes_over_what_runs() -> None:
    """Books that begin empty learn from the boards alone what runs where, and place only what waits."""
    play = FlowNodes()
    old = [play.submit("n1", Work(cpus_milli=1000)) for _ in range(5)]
    play.work_off()
    fresh = play.submit("n2", Work(cpus_milli=1000))
    other = FlowNodes()
    other.nodes, other.started = play.nodes, play.started
    other.work_off()
    assert other.started == dict.fromkeys([*old, fresh], 1)
    table = other.scheduler.state.tasks
    assert all(table.status[table.row(task)] == RUNNING for task in [*old, fresh])


def test_tasks_go_on_when_their_node_is_labelled() -> None:
    """A node's new labels come with changed rows alone: what runs there keeps its place and its resources."""
    play = FlowNodes()
    task = play.submit("n1", Work(cpus_milli=1000))
    play.work_off()
    play.read()
    place = next(node for node in play.nodes.values() if task in node.running)
    labelled = replace(
        place.queue(), version=place.version + 1, rack="r7", labels=(("ssd", "yes"),), tasks=(), whole=False
    )
    play.take(labelled)
    assert play.cluster.tasks[task].phase is Phase.RUNNING
    state = play.scheduler.state
    assert state.tasks.status[state.tasks.row(task)] == RUNNING
    assert state.resources.reserved[state.machine_row(place.number), 0] == 1.0
    assert dict(play.cluster._machines[place.name].labels)["rack"] == "r7"


def test_devices_are_counted_on_the_nodes_that_have_them() -> None:
    """Runs go to a node with enough free devices of their kind, and the shares count them."""
    play = FlowNodes()
    play.nodes["n2"].devices = (DeviceRequest("gpu"), DeviceRequest("seat", 2))
    play.nodes["n3"].devices = (DeviceRequest("gpu"),)
    seats = [play.submit("n1", Work(devices=(DeviceRequest("seat", 2),))) for _ in range(2)]
    many = play.submit("n1", Work(devices=(DeviceRequest("gpu", 2),)))
    play.work_off()
    assert [task in play.nodes["n2"].running for task in seats] == [True, False]
    state = play.scheduler.state
    assert state.held[state.principals.number("uid:0")].tolist() == [1, 0, 0, 0, 0, 2]
    lines = " ".join(play.scheduler.explain(many).lines())
    assert "gpu devices >= 2" in lines
    assert "2 devices are needed" in " ".join(play.scheduler.explain(seats[1]).lines())
    play.end("n2", seats[0])
    play.work_off()
    assert play.started == dict.fromkeys(seats, 1)


def test_a_model_of_threads_gets_them_and_names_them() -> None:
    """CoCo has the insides of machines, names a thread for each task, and knows what runs on which."""
    play = FlowNodes()
    for node in play.nodes.values():
        node.threads = tuple(ThreadPlace(thread, thread // 2, 0, 0, 0) for thread in range(4))
    early = play.submit("n1")
    play.work_off()
    assert play.cluster.choose_threads(early, "n1", play.scheduler.thread_of(early)) == ()
    play.scheduler.set_model(catalogue.make("coco"), play.now)
    play.cluster.set_inside(True, play.now)
    state = play.scheduler.state
    assert len(state.resources.at(Level.THREAD)) == 12
    assert len(state.resources.at(Level.CORE)) == 6
    assert state.tasks.status[state.tasks.row(early)] == RUNNING
    for _ in range(12):
        play.submit("n1")
    named: dict[str, list[int]] = {"n1": [], "n2": [], "n3": []}
    for _ in range(12):
        play.read()
        for host, task, target in play.round():
            play.cluster.mark_starting(task, target, play.now)
            threads = play.cluster.choose_threads(task, target, play.scheduler.thread_of(task))
            named[target] += threads
            play.cluster.record_answer(host, [task], play.carry_out(host, task, target), play.now)
            there = play.nodes[target].running
            there[task] = replace(there[task], processors=threads)
        play.now += 1.0
    assert sum(map(len, named.values())) == 12
    assert all(max(map(threads.count, range(4))) <= 2 for threads in named.values())
    play.cluster.set_inside(False, play.now)
    assert len(state.resources.at(Level.THREAD)) == 0
    assert sum(state.tasks.status[state.tasks.all()] == RUNNING) == 13


def test_a_pinned_task_gets_whole_cores_that_no_pinned_task_has() -> None:
    """Its threads are one core, and those of pinned tasks on the node are left out."""
    play = FlowNodes()
    node = play.nodes["n1"]
    node.threads = tuple(ThreadPlace(thread, thread % 2, 0, 0, 0) for thread in range(4))
    play.submit("n1", Work(cpus_milli=1000, pinned=True, constraints=(Constraint("node", value="n1"),)))
    play.work_off()
    (first,) = node.running.values()
    node.running[first.id] = replace(first, processors=(0,))
    play.read()
    second = play.submit("n1", Work(cpus_milli=2000, pinned=True))
    play.read()
    assert play.cluster.choose_threads(second, "n1", "") == (1, 3)


def test_an_old_board_does_not_bring_a_placed_task_back() -> None:
    """A board from before the placement, read after it, changes nothing."""
    play = FlowNodes()
    task = play.submit("n1")
    old = play.nodes["n1"].queue()
    play.read()
    ((host, _, target),) = play.round()
    play.take(old)
    play.cluster.record_answer(host, [task], play.carry_out(host, task, target), play.now)
    play.take(old)
    assert play.cluster.tasks[task].phase is Phase.PLACED
    assert play.round() == []
    play.read()
    assert play.cluster.tasks[task].phase is Phase.RUNNING


def test_a_task_that_came_back_is_placed_elsewhere() -> None:
    """A node without room hands a task back; it goes to another one, and that once."""
    play = FlowNodes()
    task = play.submit("n1", Work(cpus_milli=2000))
    play.read()
    ((host, _, target),) = play.round()
    stranger = Occupant(
        7, "7", "by hand", "uid:0", TaskState.RUNNING, 1, 0, Work(cpus_milli=1000), 0, 0, False
    )
    play.nodes[target].running[7] = stranger
    play.cluster.record_answer(host, [task], play.carry_out(host, task, target), play.now)
    play.work_off()
    assert play.started == {task: 1}
    play.read()
    assert play.cluster.tasks[task].host != target


def test_a_refused_placement_waits_again() -> None:
    """What was placed by somebody else meanwhile is not placed twice, and what was not is tried again."""
    play = FlowNodes()
    task = play.submit("n1")
    play.read()
    ((host, _, target),) = play.round()
    play.cluster.record_answer(host, [task], None, play.now)
    assert play.cluster.tasks[task].phase is Phase.WAITING
    play.carry_out("n1", task, "n3")
    reasons = play.cluster.record_answer(host, [task], play.carry_out(host, task, target), play.now)
    assert reasons == ["placed already"]
    play.work_off()
    assert play.started == {task: 1}


def test_a_withdrawn_run_is_forgotten() -> None:
    """A run that its caller has given up is placed nowhere."""
    play = FlowNodes()
    task = play.submit("n1")
    play.read()
    play.nodes["n1"].waiting.clear()
    play.nodes["n1"].version += 1
    play.work_off()
    assert play.started == {}
    assert task not in play.cluster.tasks


def test_a_dead_node_takes_its_tasks_along() -> None:
    """What ran on a dead node, and what its callers had submitted, is gone from the cluster."""
    play = FlowNodes()
    tasks = [play.submit("n1", Work(cpus_milli=1000)) for _ in range(6)]
    play.work_off()
    play.read()
    late = play.submit("n3", Work(cpus_milli=1000))
    play.read("n3")
    on = {play.cluster.tasks[task].host for task in tasks}
    assert on == {"n1", "n2", "n3"}
    play.cluster.remove_node("n3", play.now)
    assert late not in play.cluster.tasks
    assert all(entry.host != "n3" for entry in play.cluster.tasks.values())
    assert play.scheduler.state.machine_row(3) < 0


def test_an_incomplete_gang_waits_to_be_complete() -> None:
    """The tasks of a gang come one by one; none is placed before the last has come."""
    play = FlowNodes()
    work = Work(cpus_milli=1000, job=9, gang=3, tasks=3)
    first = [play.submit("n1", work) for _ in range(2)]
    play.work_off()
    assert play.started == {}
    assert play.cluster.gang_of(first[0]) == (2, 3)
    last = play.submit("n2", work)
    play.work_off()
    assert play.started == dict.fromkeys([*first, last], 1)


def test_a_gang_that_cannot_fit_is_told_and_tried_when_a_node_comes() -> None:
    """A gang larger than the cluster is no task for the scheduler; its problem is on record."""
    play = FlowNodes()
    work = Work(job=9, gang=60, tasks=60)
    tasks = [play.submit("n1", work) for _ in range(60)]
    play.work_off()
    assert play.started == {}
    assert set(play.cluster.problems) == set(tasks)
    assert "gang" in play.cluster.problems[tasks[0]]
    play.nodes["n4"] = FakeNode(4)
    play.nodes["n5"] = FakeNode(5)
    play.work_off()
    assert play.started == dict.fromkeys(tasks, 1)


def test_a_number_of_a_job_is_its_users_own() -> None:
    """Two users who call their jobs by the same number have two jobs: no gang is made of both."""
    play = FlowNodes()
    work = Work(job=1, gang=2, tasks=2)
    first, other = play.submit("n1", work, "uid:1"), play.submit("n1", work, "uid:2")
    play.work_off()
    assert play.started == {}
    assert play.cluster.gang_of(first) == play.cluster.gang_of(other) == (1, 2)


def test_one_of_a_gang_that_runs_already_counts() -> None:
    """What another coordinator placed of an incomplete gang is known to run, and holds what it set aside."""
    play = FlowNodes()
    work = Work(cpus_milli=2000, job=1, gang=2, tasks=2)
    task = play.submit("n1", work)
    play.read()
    play.carry_out("n1", task, "n2")
    play.read()
    assert play.cluster.tasks[task].phase is Phase.RUNNING
    assert play.scheduler.state.resources.reserved[play.scheduler.state.machine_row(2), 0] == 2.0
    play.end("n2", task)
    play.read()
    assert task not in play.cluster.tasks


@pytest.mark.parametrize("seed", range(12))
def test_nothing_is_placed_twice_whatever_order_things_are_told_in(seed: int) -> None:
    """Random submissions, ends, stale boards, lost answers and second coordinators: each task starts once."""
    dice = random.Random(seed)  # noqa: S311 - a seed is wanted
    play = FlowNodes()
    rival = FlowNodes()
    rival.nodes, rival.started = play.nodes, play.started
    stale: list[QueueRows] = []
    submitted: list[int] = []
    for _ in range(60):
        coordinator = dice.choice([play, rival])
        coordinator.now += dice.choice([0.1, 1.0, 4.0])
        act = dice.randrange(5)
        if act == 0:
            submitted.append(
                play.submit(dice.choice(["n1", "n2", "n3"]), Work(cpus_milli=dice.choice([0, 500, 1000])))
            )
        elif act == 1 and (busy := [node for node in play.nodes.values() if node.running]):
            node = dice.choice(busy)
            play.end(node.name, dice.choice(list(node.running)))
        elif act == 2:
            stale.append(dice.choice(list(play.nodes.values())).queue())
        elif act == 3 and stale:
            coordinator.take(dice.choice(stale[-4:]))
        else:
            coordinator.read()
            for host, task, target in coordinator.round():
                answer = coordinator.carry_out(host, task, target)
                coordinator.cluster.record_answer(
                    host, [task], answer if dice.random() < 0.8 else None, coordinator.now
                )
        coordinator.cluster.expire_placements(coordinator.now)
    for node in play.nodes.values():
        for task in list(node.running):
            play.end(node.name, task)
    for _ in range(30):
        play.now += 20.0
        play.cluster.expire_placements(play.now)
        play.work_off()
        for node in play.nodes.values():
            for task in list(node.running):
                play.end(node.name, task)
    assert set(play.started.values()) <= {1}, f"seed {seed}"
    assert set(play.started) == set(submitted), f"seed {seed}: some never ran"


# -- changes instead of whole queues ----------------------------------------------------------------------
def sent(play: FlowNodes) -> tuple[int, FakeNode, QueueRows]:
    """A run of the first node whose placement is on the way; the node, and its queue without any rows."""
    task = play.submit("n1")
    play.read()
    assert [placed for _, placed, _ in play.round()] == [task]
    node = play.nodes["n1"]
    return task, node, replace(node.queue(), waiting=(), whole=False)


def test_a_run_that_was_cancelled_on_the_way_is_gone() -> None:
    """Its node refuses the placement, and its queue said before that the run has left."""
    play = FlowNodes()
    task, node, queue = sent(play)
    play.take(replace(queue, version=node.version + 1, gone=(task,)))
    play.cluster.record_answer("n1", [task], Placed(((task, "cancelled"),), node.version + 1), play.now)
    assert task not in play.cluster.tasks
    assert play.cluster.waiting == 0


def test_a_placement_without_an_answer_may_have_been_made() -> None:
    """If the run has left its queue it is not placed again; if not, it waits again."""
    for left in (True, False):
        play = FlowNodes()
        task, node, queue = sent(play)
        if left:
            play.take(replace(queue, version=node.version + 1, gone=(task,)))
        play.cluster.record_answer("n1", [task], None, play.now)
        assert play.cluster.tasks[task].phase is (Phase.PLACED if left else Phase.WAITING)


def test_a_run_that_came_back_before_the_answer_waits_again() -> None:
    """Its node had no room; the queue that lists it again is read before the answer to the placement."""
    play = FlowNodes()
    task, node, queue = sent(play)
    row = node.waiting[task]
    play.take(replace(queue, version=node.version + 2, waiting=(row,), gone=(task,)))
    play.cluster.record_answer("n1", [task], Placed((), node.version), play.now)
    assert play.cluster.tasks[task].phase is Phase.WAITING


def test_a_task_that_ends_is_one_change() -> None:
    """Other tasks of the node, which are not in the answer, still run."""
    play = FlowNodes()
    tasks = [play.submit("n1", Work(cpus_milli=500)) for _ in range(6)]
    play.work_off()
    play.read()
    name, node = next((name, node) for name, node in play.nodes.items() if len(node.running) > 1)
    first, *others = node.running
    play.end(name, first)
    queue = replace(node.queue(), tasks=tuple(node.ended[-1:]), waiting=(), whole=False, gone=(first,))
    play.take(queue)
    assert first not in play.cluster.tasks
    assert {play.cluster.tasks[task].phase for task in others} == {Phase.RUNNING}
    assert len(tasks) == 6


def test_a_run_is_lost_only_if_no_part_of_a_whole_queue_lists_it() -> None:
    """A part that does not list it is no sign of its end before the last part was read."""
    play = FlowNodes()
    tasks = [play.submit("n1", Work(cpus_milli=9000)) for _ in range(4)]
    play.read()
    node = play.nodes["n1"]
    node.version += 1
    rows = tuple(node.waiting.values())
    play.take(replace(node.queue(), waiting=rows[:1], partial=True, listed=1))
    assert play.cluster.waiting == 4
    play.take(replace(node.queue(), waiting=rows[2:], whole=False))
    assert [task for task in tasks if task in play.cluster.tasks] == [tasks[0], *tasks[2:]]


def test_tasks_that_are_starting_are_counted_until_they_run() -> None:
    """From the placement on, over the queue that shows it starting; also not for ever."""
    play = FlowNodes()
    (task,) = [play.submit("n1")]
    play.read()
    ((host, _, target),) = play.round()
    play.cluster.mark_starting(task, target, play.now)
    play.carry_out(host, task, target)
    node = play.nodes[target]
    running = node.running[task]
    node.running[task] = replace(running, state=TaskState.STARTING)
    play.cluster.record_answer(host, [task], Placed((), 1), play.now)
    play.read()
    assert play.cluster.starting(target, play.now) == 1
    assert play.cluster.starting(target, play.now + 60.0) == 0
    play.cluster.mark_starting(task, target, play.now)
    node.running[task] = running
    node.version += 1
    play.read()
    assert play.cluster.starting(target, play.now) == 0


def test_the_strictest_bounds_that_runs_of_a_job_state_hold() -> None:
    """The largest minimum and the smallest maximum count, until the run that stated them has ended."""
    play = FlowNodes()
    loose = [play.submit("n1", Work(job=7, job_maximum=3)) for _ in range(2)]
    strict = play.submit("n2", Work(job=7, job_minimum=1, job_maximum=2))
    last = play.submit("n3", Work(job=7))
    other = play.submit("n1", Work(job=7), "uid:1")
    play.work_off()
    assert len(play.started.keys() & {*loose, strict, last}) == 2
    assert other in play.started, "the same number of another user is another job"
    job = play.scheduler.job(play.cluster.tasks[last].job)
    assert job is not None
    assert (job.minimum_running, job.maximum_running) == (1, 2)
    waits = next(task for task in (*loose, strict, last) if task not in play.started)
    assert "its series runs as many tasks as it may" in " ".join(play.scheduler.explain(waits).lines())
    for node in play.nodes.values():
        node.waiting.pop(strict, None)
        if strict in node.running:
            play.end(node.name, strict)
        node.version += 1
    play.work_off()
    assert play.started.keys() == {*loose, last, other} | play.started.keys() & {strict}
    job = play.scheduler.job(play.cluster.tasks[last].job)
    assert job is not None
    assert (job.minimum_running, job.maximum_running) == (0, 3)


def test_a_new_coordinator_knows_the_bounds_of_running_jobs() -> None:
    """It reads them from the tasks that run, so it starts no more than the job may run."""
    play = FlowNodes()
    for _ in range(2):
        play.submit("n1", Work(job=7, job_maximum=2))
    play.work_off()
    play.submit("n2", Work(job=7))
    other = FlowNodes()
    other.nodes, other.started = play.nodes, play.started
    other.work_off()
    assert len(other.started) == 2


def test_bounds_that_contradict_each_other_leave_the_smaller() -> None:
    """A minimum of one run above the maximum of another is that maximum, and a gang is never cut."""
    bounds = JobBounds()
    bounds.add(1, Work(job=1, job_minimum=5))
    bounds.add(1, Work(job=1, job_maximum=3))
    assert bounds.of(1, 0) == (3, 3)
    assert bounds.of(1, 4) == (4, 4)
    assert bounds.remove(1, Work(job=1, job_maximum=3))
    assert bounds.of(1, 0) == (5, None)
    assert bounds.remove(1, Work(job=1, job_minimum=5))
    assert not bounds.remove(1, Work(job=1, job_minimum=5))
    assert bounds.of(1, 0) == (0, None)


def test_the_flow_scheduler_takes_over_the_bounds_of_the_simple_rule() -> None:
    """Bounds that were stated before it started hold for it, and go with the runs that stated them."""
    simple = FirstFitScheduler()
    play = CoordinatedNodes(simple, simple.round)
    tasks = [play.submit("n1", Work(job=7, job_maximum=2)) for _ in range(3)]
    play.work_off()
    other = FlowNodes()
    other.nodes, other.started, other.now = play.nodes, play.started, play.now
    other.cluster.adopt(play.cluster, play.now)
    other.work_off()
    assert len(other.started) == 2
    job = other.scheduler.job(other.cluster.tasks[tasks[2]].job)
    assert job is not None
    assert job.maximum_running == 2
    running = next(name for name, node in other.nodes.items() if tasks[0] in node.running)
    other.end(running, tasks[0])
    other.work_off()
    assert set(other.started) == set(tasks)


class FirstFitNodes(CoordinatedNodes):
    """Nodes whose runs the first-fit scheduler places."""

    def __init__(self) -> None:
        scheduler = FirstFitScheduler()
        super().__init__(
            scheduler, lambda now: [(placement.task, placement.machine) for placement in scheduler.round(now)]
        )


@pytest.mark.parametrize("nodes", [FlowNodes, FirstFitNodes])
@pytest.mark.parametrize("fitness", [Fitness.UNKNOWN, Fitness.UNFIT])
def test_pure_runs_go_to_nodes_that_are_fit(nodes: Callable[[], CoordinatedNodes], fitness: Fitness) -> None:
    """A node becomes unfit after runs were submitted: they wait for the others, and limbo runs go there."""
    play = nodes()
    play.read()
    pure = [play.submit("n1", Work(cpus_milli=1000), pure=True) for _ in range(6)]
    limbo = [play.submit("n1", Work(cpus_milli=1000)) for _ in range(2)]
    play.read("n1")
    play.nodes["n2"].fitness = fitness
    play.nodes["n2"].version += 1
    play.work_off()
    assert set(play.nodes["n2"].running) == set(limbo)
    assert len(set(play.started) & set(pure)) == 4
    play.nodes["n2"].fitness = Fitness.FIT
    play.nodes["n2"].version += 1
    for task in limbo:
        play.end("n2", task)
    play.work_off()
    assert set(pure) <= set(play.started)


@pytest.mark.parametrize("nodes", [FlowNodes, FirstFitNodes])
def test_limbo_runs_go_where_owners_let_them_in(nodes: Callable[[], CoordinatedNodes]) -> None:
    """A run whose node lets it leave goes to nodes that do the same; pure runs go to all."""
    play = nodes()
    for name in ("n1", "n2"):
        play.nodes[name].limbo_from_nodes = True
    work = Work(cpus_milli=1000, constraints=(Constraint(NO_LIMBO, Operator.ABSENT),))
    limbo = [play.submit("n1", work) for _ in range(12)]
    play.work_off()
    assert set(play.started) <= set(limbo)
    assert play.nodes["n1"].running
    assert play.nodes["n2"].running
    assert not play.nodes["n3"].running
    pure = play.submit("n1", Work(cpus_milli=1000), pure=True)
    play.work_off()
    assert pure in play.nodes["n3"].running


def test_a_best_effort_run_needs_a_fit_node_too() -> None:
    """It is offered to no node that is not known to be fit, and its owner learns which node that is."""
    play = FlowNodes()
    for node in play.nodes.values():
        node.fitness = Fitness.UNKNOWN
        play.cluster.note_load(node.name, NodeLoad(0, 0, 0, 0))
    task = play.submit("n1", Work(cpus_milli=1000, best_effort=True), pure=True)
    play.read()
    play.cluster.offer_best_effort(play.now)
    assert not play.round()
    assert "n2 is not fit for pure tasks" in " ".join(play.cluster.why_patient(task))
