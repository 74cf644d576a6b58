from __future__ import annotations

import math
import re
import threading
from collections.abc import Callable

import numpy as np
import pytest

from dios.firmament.cluster.columns import Ints
from dios.firmament.cluster.state import ClusterState
from dios.firmament.descriptors import (
    BadDescriptorError,
    Block,
    Inner,
    JobDescriptor,
    Level,
    MachineDescriptor,
    Resources,
    TaskDescriptor,
)
from dios.firmament.models.protocol import COST_MAX, NO_CLASS_ARCS, NO_OPTIONS, ClassArcs, Options
from dios.firmament.models.trivial import TrivialModel
from dios.firmament.rounds.model_guard import ModelError, ModelGuard
from dios.firmament.scheduler import FlowScheduler
from dios.firmament.settings import SchedulerSettings
from dios.firmament.solvers import FlowProblem, FlowSolution, registry
from dios.limits import SCHED_ABANDONED_THREADS_MAX
from tests.support.firmament.cluster_histories import check_sums, places


class BrokenModel(TrivialModel):
    """Right, until an answer is replaced."""

    name = "broken"

    def __init__(self) -> None:
        super().__init__()
        self.answers: dict[str, Callable[[], object]] = {}

    def __getattribute__(self, name: str) -> object:
        answers = object.__getattribute__(self, "__dict__").get("answers", {})
        if name in answers:
            return lambda *_: answers[name]()
        return object.__getattribute__(self, name)


def arcs(*columns: object) -> ClassArcs:
    """Class arcs from lists."""
    return ClassArcs(*(np.array(column, np.int64) for column in columns))


def options(*columns: object) -> Options:
    """Options from lists."""
    return Options(*(np.array(column, np.int64) for column in columns))


def fails() -> object:
    """Raise."""
    raise ZeroDivisionError("no cost")


WRONG: dict[str, tuple[str, Callable[[], object], str]] = {
    "raises": ("task_to_unscheduled", fails, "raised ZeroDivisionError: no cost"),
    "no array": ("task_to_unscheduled", lambda: [1, 2], "task_to_unscheduled: answered list"),
    "floats": ("task_to_unscheduled", lambda: np.zeros(2), "answered float64, not int64"),
    "not a number": ("leaf_to_sink", lambda: np.full(2, np.nan), "leaf_to_sink: answered float64"),
    "too short": ("task_to_unscheduled", lambda: np.zeros(1, np.int64), "the shape is (1,), not (2,)"),
    "two dimensions": ("leaf_to_sink", lambda: np.zeros((2, 1), np.int64), "the shape is (2, 1)"),
    "too dear": ("task_continuation", lambda: np.full(1, COST_MAX + 1), "is not within"),
    "too cheap": ("task_preemption", lambda: np.full(1, -COST_MAX - 1), "is not within"),
    "negative room": ("resource_capacity", lambda: np.full(3, -1), "resource_capacity: value -1"),
    "unknown row": ("task_options", lambda: options([0], [9], [1]), "task_options: row 9 is not in use"),
    "row out of range": ("task_options", lambda: options([0], [10**6], [1]), "is not within"),
    "unknown task": ("task_options", lambda: options([5], [0], [1]), "task_options, task: value 5"),
    "out of order": ("task_options", lambda: options([1, 0], [0, 0], [1, 1]), "tasks do not ascend"),
    "twice": ("task_options", lambda: options([0, 0], [0, 0], [1, 2]), "two arcs from 0 to 0"),
    "no options": ("task_options", lambda: None, "answered NoneType, not Options"),
    "negative class": ("task_classes", lambda: options([0], [-1], [1]), "task_classes, target: value -1"),
    "strange class": (
        "class_to_resources",
        lambda: arcs([8], [0], [0], [1]),
        "class_to_resources: class 8 was not asked about",
    ),
    "circle": ("class_to_classes", lambda: arcs([3], [3], [0], [1]), "class 3 leads back to itself"),
    "stale ghosts": ("stale_tasks", lambda: np.array([12]), "stale_tasks: row 12 is not in use"),
}


def cluster(model: TrivialModel, **settings: object) -> FlowScheduler:
    """Two machines, one running task and two that wait."""
    chosen = SchedulerSettings(**settings)  # type: ignore[arg-type]
    scheduler = FlowScheduler(model, chosen)
    for number in range(2):
        scheduler.add_machine(MachineDescriptor(number, f"n{number}", slots=2), 0.0)
    scheduler.submit(JobDescriptor(1), [TaskDescriptor(1)], 0.0)
    assert scheduler.round(0.0).stands
    scheduler.submit(JobDescriptor(2), [TaskDescriptor(2), TaskDescriptor(3)], 0.0)
    return scheduler


@pytest.mark.parametrize("case", WRONG)
def test_a_model_that_answers_nonsense_is_reported_and_the_schedule_stands(case: str) -> None:
    """A wrong answer is a fault with the model's name; nothing changes, and the next round tries again."""
    method, answer, says = WRONG[case]
    model = BrokenModel()
    scheduler = cluster(model)
    if "class" in method and method != "task_classes":
        model.answers["task_classes"] = lambda: options([0], [3], [1])
        model.answers["class_to_resources"] = lambda: NO_CLASS_ARCS
    model.answers[method] = answer
    before = places(scheduler.state)
    outcome = scheduler.round(1.0)
    assert not outcome.stands
    assert outcome.deltas == []
    assert [fault.source for fault in outcome.faults] == ["model broken"]
    assert says in outcome.faults[0].reason
    assert places(scheduler.state) == before
    check_sums(scheduler.state, case)
    model.answers.clear()
    again = scheduler.round(2.0)
    assert again.stands
    assert {delta.task for delta in again.deltas} == {2, 3}


def test_a_model_that_hangs_is_given_up_and_not_asked_for_ever() -> None:
    """A late answer is a fault; with too many hanging calls the model is refused until one of them ends."""
    gate = threading.Event()
    model = BrokenModel()
    scheduler = cluster(model, model_time_limit_s=0.05)
    model.answers["prepare"] = gate.wait
    try:
        for at in range(SCHED_ABANDONED_THREADS_MAX):
            assert "did not answer within 0.05 s" in scheduler.round(float(at)).faults[0].reason
        assert "still hang" in scheduler.round(9.0).faults[0].reason
    finally:
        gate.set()
    model.answers.clear()
    deadline = threading.Event()
    for _ in range(1_000):
        if scheduler.round(10.0).stands:
            break
        deadline.wait(0.01)
    assert scheduler.history[-1].stands


def test_another_model_is_asked_at_once_when_one_hangs() -> None:
    """set_model drops hanging calls; the new model receives everything as events and decides."""
    gate = threading.Event()
    model = BrokenModel()
    scheduler = cluster(model, model_time_limit_s=0.05)
    model.answers["prepare"] = gate.wait
    try:
        assert not scheduler.round(1.0).stands
        scheduler.set_model(TrivialModel(), 2.0)
        outcome = scheduler.round(2.0)
        assert outcome.stands
        assert outcome.model == "trivial"
        assert {delta.task for delta in outcome.deltas} == {2, 3}
    finally:
        gate.set()


class OpeningModel(TrivialModel):
    """A model without options until it opens; then it reports once that all tasks are stale."""

    name = "opening"

    def __init__(self) -> None:
        super().__init__()
        self.opened = self.told = self.broken = False

    def stale_tasks(self, state: ClusterState) -> Ints:
        """All, once."""
        stale, self.told = self.opened and not self.told, self.opened
        return state.tasks.all() if stale else super().stale_tasks(state)

    def task_options(self, state: ClusterState, tasks: Ints) -> Options:
        """Everywhere or nowhere."""
        return super().task_options(state, tasks) if self.opened else NO_OPTIONS

    def task_to_unscheduled(self, state: ClusterState, tasks: Ints) -> Ints:
        """Asked after the options."""
        if self.broken:
            fails()
        return super().task_to_unscheduled(state, tasks)


@pytest.mark.parametrize("how", ["round", "explain"])
def test_what_a_model_said_before_it_failed_is_asked_again(how: str) -> None:
    """A model reports stale tasks, then raises: neither a round nor an explanation loses them."""
    model = OpeningModel()
    scheduler = FlowScheduler(model)
    scheduler.add_machine(MachineDescriptor(0, "n0"), 0.0)
    scheduler.submit(JobDescriptor(1), [TaskDescriptor(1)], 0.0)
    assert scheduler.round(0.0).deltas == []
    model.opened = model.broken = True
    if how == "round":
        assert not scheduler.round(1.0).stands
    else:
        with pytest.raises(ModelError, match="ZeroDivisionError"):
            scheduler.explain(1)
    assert model.told == (how == "round"), "an explanation asks a copy of the model"
    model.broken = False
    assert [delta.task for delta in scheduler.round(2.0).deltas] == [1]


class ListeningModel(TrivialModel):
    """Records the names of the machines that join."""

    name = "listening"

    def __init__(self) -> None:
        super().__init__()
        self.heard: list[str] = []

    def add_machine(self, state: ClusterState, machine: int) -> None:
        """By its row."""
        self.heard.append(state.resources.names[machine])


def test_another_model_is_told_of_every_machine_by_its_row() -> None:
    """set_model reports existing machines to the new model as if they joined, whatever their identifiers."""
    scheduler = FlowScheduler(TrivialModel())
    for machine in (2**62, 5):
        scheduler.add_machine(MachineDescriptor(machine, f"n{machine}"), 0.0)
    model = ListeningModel()
    scheduler.set_model(model, 1.0)
    assert model.heard == [f"n{2**62}", "n5"]
    assert scheduler.round(1.0).faults == []


def test_errors_while_a_model_is_told_of_events_are_reported() -> None:
    """add_tasks raises: the tasks are there all the same, and the next round says what was wrong."""
    model = BrokenModel()
    scheduler = cluster(model)
    model.answers["add_tasks"] = fails
    model.__class__ = type("Listening", (BrokenModel,), {"add_tasks": lambda *_: None})
    scheduler.submit(JobDescriptor(5), [TaskDescriptor(5)], 1.0)
    outcome = scheduler.round(1.0)
    assert outcome.stands
    assert "add_tasks: raised ZeroDivisionError" in outcome.faults[0].reason
    assert 5 in {delta.task for delta in outcome.deltas}


def test_no_thread_outlives_a_guard_for_long() -> None:
    """An idle worker ends by itself, so that forgotten schedulers leave nothing behind."""
    guard = ModelGuard(5.0)
    assert guard.call(lambda: 7) == 7
    worker = guard._worker
    assert worker is not None
    worker._thread.join(30)
    assert not worker.running
    assert guard.call(lambda: 8) == 8


def test_an_error_keeps_its_words() -> None:
    """An exception of a model is reported with its type and text."""
    with pytest.raises(ModelError, match="raised ZeroDivisionError: no cost"):
        ModelGuard(5.0).call(fails)


@pytest.mark.parametrize("how", ["raises", "lies"])
def test_a_solver_that_fails_is_replaced_by_the_next(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A solver that raises, or whose certificate fails, is reported; another one answers, checked."""
    right = registry.ALGORITHMS["ortools"]

    def broken(problem: FlowProblem) -> FlowSolution:
        if how == "raises":
            raise MemoryError("no room")
        solution = right(problem)
        object.__setattr__(solution, "cost", solution.cost + 1)
        return solution

    monkeypatch.setitem(registry.ALGORITHMS, "ortools", broken)
    scheduler = FlowScheduler(TrivialModel(), SchedulerSettings(solver="ortools", certify_every=1))
    scheduler.add_machine(MachineDescriptor(0, "n0", slots=2), 0.0)
    scheduler.submit(JobDescriptor(1), [TaskDescriptor(1)], 0.0)
    outcome = scheduler.round(0.0)
    assert outcome.stands
    assert outcome.certified
    assert outcome.algorithm != "ortools"
    assert [fault.source for fault in outcome.faults] == ["solver ortools"]
    assert len(outcome.deltas) == 1


BAD = {
    "task twice": lambda s: s.submit(JobDescriptor(9), [TaskDescriptor(9), TaskDescriptor(9)], 5.0),
    "known task": lambda s: s.submit(JobDescriptor(9), [TaskDescriptor(1)], 5.0),
    "unknown pin": lambda s: s.submit(JobDescriptor(9), [TaskDescriptor(9, pinned=77)], 5.0),
    "other description": lambda s: s.submit(JobDescriptor(2, "somebody"), [TaskDescriptor(9)], 5.0),
    "gang of too few": lambda s: s.submit(JobDescriptor(9, gang=2), [TaskDescriptor(9)], 5.0),
    "known machine": lambda s: s.add_machine(MachineDescriptor(0, "again"), 5.0),
    "unknown machine": lambda s: s.remove_machine(7, 5.0),
    "unknown drain": lambda s: s.drain(7, drained=True),
    "unknown task ends": lambda s: s.finished(7, 5.0),
    "runs already": lambda s: s.started(1, 0, 5.0),
    "started nowhere": lambda s: s.started(2, 7, 5.0),
    "nothing to reject": lambda s: s.rejected(2, 5.0),
    "unknown measured": lambda s: s.measured(7, Resources()),
}


@pytest.mark.parametrize("case", BAD)
def test_a_refused_event_leaves_no_trace(case: str) -> None:
    """Bad input is an error that names the identifier, and the tables are as before."""
    scheduler = cluster(TrivialModel())
    state = scheduler.state
    before = (state.now, places(state), len(state.jobs), len(state.resources), state.jobs.tasks.tolist())
    with pytest.raises(BadDescriptorError, match=r"\d"):
        BAD[case](scheduler)
    after = (state.now, places(state), len(state.jobs), len(state.resources), state.jobs.tasks.tolist())
    assert after == before
    check_sums(state, case)


def test_bad_settings_name_the_setting() -> None:
    """A negative or contradictory setting is refused with its name."""
    with pytest.raises(BadDescriptorError, match="soft_penalty is -1"):
        SchedulerSettings(soft_penalty=-1)
    with pytest.raises(BadDescriptorError, match="model_time_limit_s is 0"):
        SchedulerSettings(model_time_limit_s=0)
    with pytest.raises(BadDescriptorError, match="retry_first_s is nan"):
        SchedulerSettings(retry_first_s=math.nan)
    with pytest.raises(BadDescriptorError, match="solver is 'simplex'; it must be one of auto, "):
        SchedulerSettings(solver="simplex")
    with pytest.raises(BadDescriptorError, match="at least retry_first_s"):
        SchedulerSettings(retry_first_s=5, retry_last_s=1)


@pytest.mark.parametrize(
    ("describe", "says"),
    [
        (lambda: TaskDescriptor(2**63), "task identifier 9223372036854775808"),
        (lambda: TaskDescriptor(1, Resources(cpus=-1.0)), "demand.cpus is -1.0"),
        (lambda: TaskDescriptor(1, priority=2**63), "priority is 9223372036854775808"),
        (lambda: TaskDescriptor(1, deadline=math.inf), "deadline is inf"),
        (lambda: TaskDescriptor(1, expected_runtime=math.nan), "expected_runtime is nan"),
        (lambda: TaskDescriptor(1, expected_runtime=-1.0), "expected_runtime is -1.0"),
        (lambda: TaskDescriptor(1, blocks=(Block(-1, ()),)), "a block has -1 bytes"),
        (lambda: JobDescriptor(1, gang=-1), "gang is -1"),
        (lambda: JobDescriptor(1, minimum_running=2**64), "minimum_running is 18446744073709551616"),
        (lambda: JobDescriptor(1, gang=3, maximum_running=2), "maximum_running is 2, below"),
        (lambda: Inner(Level.RACK, "r"), "r: level is RACK, but a part of a machine is below MACHINE"),
        (
            lambda: Inner(Level.CORE, "c", (Inner(Level.SOCKET, "s"),)),
            "s in c: level is SOCKET, not below CORE",
        ),
        (lambda: MachineDescriptor(1, "n1", slots=-1), "slots is -1"),
        (lambda: MachineDescriptor(1, "n1", slots=2**40), "slots is 1099511627776"),
        (lambda: MachineDescriptor(1, "n1", capacity=Resources(memory=math.nan)), "capacity.memory is nan"),
    ],
)
def test_a_description_that_cannot_be_meant_names_the_field(
    describe: Callable[[], object], says: str
) -> None:
    """A value that no table or network could hold is refused in the descriptor, with field and value."""
    with pytest.raises(BadDescriptorError, match=re.escape(says)):
        describe()


def test_who_takes_over_sees_what_runs() -> None:
    """A new scheduler that learns of running tasks by ``started`` places nothing twice."""
    scheduler = cluster(TrivialModel())
    scheduler.started(2, 1, 1.0)
    outcome = scheduler.round(1.0)
    assert {delta.task for delta in outcome.deltas} == {3}
    assert places(scheduler.state)[2] == 1
