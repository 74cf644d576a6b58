"""The simple rule that places runs until the kernels are compiled."""

from __future__ import annotations

import math
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dios.firmament.coordinator import first_fit
from dios.firmament.coordinator.first_fit import FirstFitScheduler
from dios.firmament.descriptors import (
    BadDescriptorError,
    Block,
    Constraint,
    JobDescriptor,
    MachineDescriptor,
    Resources,
    TaskDescriptor,
)
from dios.wire.types import Affinity, Operator

GIB = 2.0**30
NO_LIMIT = math.inf


def machine(
    number: int, cpus: float = 4, memory: float = 8 * GIB, slots: int = 16, rack: str = "r1", **labels: str
) -> MachineDescriptor:
    """A machine whose name is a label, too."""
    name = f"m{number}"
    everything = tuple(sorted({"node": name, **labels}.items()))
    return MachineDescriptor(number, name, rack, Resources(cpus, memory), slots, labels=everything)


def scheduler(*machines: MachineDescriptor) -> FirstFitScheduler:
    """A scheduler that knows these machines."""
    made = FirstFitScheduler()
    for one in machines:
        made.add_machine(one, 0.0)
    return made


def submit(
    made: FirstFitScheduler, task: int, cpus: float = 1, memory: float = 0, **more: object
) -> TaskDescriptor:
    """Submit a task of its own job."""
    described = TaskDescriptor(task, Resources(cpus, memory), **more)  # type: ignore[arg-type] # see the callers
    made.submit(JobDescriptor(task, "uid:1"), [described], 0.0)
    return described


def gang(made: FirstFitScheduler, job: int, tasks: int, affinity: Affinity, cpus: float = 1) -> list[int]:
    """Submit a gang."""
    numbers = [100 * job + at for at in range(tasks)]
    described = [TaskDescriptor(number, Resources(cpus)) for number in numbers]
    made.submit(JobDescriptor(job, "uid:1", gang=tasks, affinity=affinity), described, 0.0)
    return numbers


def test_it_loads_without_numba_and_numpy() -> None:
    """The coordinator can place runs before the scheduler's libraries are loaded."""
    program = (
        "import sys; import dios.firmament.coordinator.coordinator; "
        "print(sorted({'numba', 'numpy', 'llvmlite'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_least_loaded_machine_is_chosen() -> None:
    """Equal tasks are spread, and ties go to the machine with the smaller identifier."""
    made = scheduler(machine(2), machine(1), machine(3))
    for task in range(3):
        submit(made, task)
    assert made.round(0.0) == [(0, 1), (1, 2), (2, 3)]
    submit(made, 9, cpus=2)
    submit(made, 10)
    assert made.round(0.0) == [(9, 1), (10, 2)]


def test_a_task_that_fits_nowhere_does_not_hold_up_others() -> None:
    """It waits, its obstacle is counted, and the next task is placed."""
    made = scheduler(machine(1), machine(2))
    submit(made, 1, cpus=8)
    submit(made, 2)
    assert made.round(0.0) == [(2, 1)]
    assert made.why_waiting(1, 0.0) == ["2 of 2 machines: too small: 8 CPUs wanted"]


def test_higher_priority_comes_first() -> None:
    """With room for one task the more important one gets it, though it came later."""
    made = scheduler(machine(1, cpus=1))
    submit(made, 1)
    submit(made, 2, priority=3)
    assert made.round(0.0) == [(2, 1)]


@pytest.mark.parametrize(
    ("constraint", "where"),
    [
        (Constraint("gpu", Operator.EQUAL, "a100"), {2}),
        (Constraint("gpu", Operator.UNEQUAL, "a100"), {1, 3}),
        (Constraint("gpu", Operator.PRESENT), {2, 3}),
        (Constraint("gpu", Operator.ABSENT), {1}),
    ],
)
def test_hard_constraints_hold(constraint: Constraint, where: set[int]) -> None:
    """Ten tasks go only to machines whose labels satisfy the constraint."""
    made = scheduler(machine(1), machine(2, gpu="a100"), machine(3, gpu="t4"))
    for task in range(10):
        submit(made, task, cpus=0, constraints=(constraint,))
    assert {to for _, to in made.round(0.0)} == where


def test_a_soft_constraint_and_local_input_are_preferences() -> None:
    """They decide between machines with room, and a full machine gives way to another."""
    made = scheduler(machine(1), machine(2, cpus=1, ssd="yes"), machine(3))
    wish = (Constraint("ssd", Operator.EQUAL, "yes", hard=False),)
    for task in range(2):
        submit(made, task, constraints=wish)
    submit(made, 2, blocks=(Block(100, (3,)),))
    assert made.round(0.0) == [(0, 2), (1, 1), (2, 3)]


def test_tasks_with_the_same_input_do_not_fill_one_machine() -> None:
    """Up to four tasks for each processor go to their input; of those beyond, both machines get as many."""
    made = scheduler(machine(1, cpus=2, slots=1000), machine(2, cpus=2, slots=1000))
    for task in range(30):
        submit(made, task, cpus=0, blocks=(Block(100, (2,)),))
    places = [placement.machine for placement in made.round(0.0)]
    assert places[:8] == [2] * 8
    assert places.count(1) == places.count(2) == 15


def test_a_drained_machine_gets_nothing() -> None:
    """It gets tasks again when it is no longer drained."""
    made = scheduler(machine(1))
    made.drain(1, True)
    submit(made, 1)
    assert made.round(0.0) == []
    assert made.why_waiting(1, 0.0) == ["1 of 1 machines: are drained"]
    made.drain(1, False)
    assert made.round(0.0) == [(1, 1)]


def test_a_refused_task_avoids_the_machine_for_a_while() -> None:
    """It goes to another machine, or to the same one after some seconds."""
    made = scheduler(machine(1), machine(2, cpus=8))
    submit(made, 1, cpus=4)
    assert made.round(0.0) == [(1, 1)]
    made.rejected(1, 0.0)
    assert made.round(0.0) == [(1, 2)]
    made.rejected(1, 1.0)
    assert made.round(1.0) == []
    assert made.round(10.0) == [(1, 1)]


def test_a_gang_starts_together_or_not() -> None:
    """Four tasks of a whole processor each wait until four processors are free."""
    made = scheduler(machine(1, cpus=2), machine(2, cpus=2))
    submit(made, 1)
    made.round(0.0)
    tasks = gang(made, 5, 4, Affinity.NONE)
    assert made.round(0.0) == []
    assert made.load_of(2).tasks == 0, "what was tried is undone"
    made.finished(1, 1.0)
    assert sorted(task for task, _ in made.round(1.0)) == tasks


@pytest.mark.parametrize(
    ("affinity", "places"),
    [
        (Affinity.SPREAD_NODES, [{1, 2}, {1, 3}, {2, 3}]),
        (Affinity.SPREAD_RACKS, [{1, 3}, {2, 3}]),
        (Affinity.SAME_NODE, [{2}]),
        (Affinity.SAME_RACK, [{2}, {1, 2}]),
    ],
)
def test_affinity_holds(affinity: Affinity, places: list[set[int]]) -> None:
    """Two tasks of two processors each keep apart or together; only m2 has room for both."""
    made = scheduler(machine(1, cpus=2), machine(2, cpus=4, rack="r1"), machine(3, cpus=2, rack="r2"))
    gang(made, 5, 2, affinity, cpus=2)
    assert {to for _, to in made.round(0.0)} in places


def test_a_quota_holds() -> None:
    """A principal with a quota of two processors gets no third one; another principal does."""
    made = scheduler(machine(1, cpus=8))
    made.set_quotas({"uid:1": (NO_LIMIT, 2.0, NO_LIMIT, NO_LIMIT, NO_LIMIT, NO_LIMIT)})
    for task in range(3):
        submit(made, task)
    made.submit(JobDescriptor(77, "uid:2"), [TaskDescriptor(77, Resources(1.0))], 0.0)
    assert [task for task, _ in made.round(0.0)] == [0, 1, 77]
    assert made.why_waiting(2, 0.0) == ["1 of 1 machines: uid:1 would hold 3 of cpus, and its quota is 2"]
    made.finished(0, 1.0)
    assert [task for task, _ in made.round(1.0)] == [2]


def test_machines_with_promised_room_and_admitted_tasks_are_left_out() -> None:
    """Room that is promised to a job over time is not given away, and the job's tasks wait."""
    made = scheduler(machine(1), machine(2))
    made.exclude({"m1"})
    submit(made, 1)
    submit(made, 2, admitted=True)
    assert made.round(0.0) == [(1, 2)]
    made.started(2, 1, 0.0)
    made.finished(2, 1.0)
    assert made.load_of(1).tasks == 0


def test_a_long_queue_costs_as_much_as_what_changed() -> None:
    """A round looks at one task of each kind, and at none if no room has appeared since the last one."""
    made = scheduler(machine(1, cpus=3), machine(2, cpus=3))
    for task in range(1000):
        submit(made, task, cpus=1 + task % 2)
    assert len(made.round(0.0)) == 5
    before = made.tried
    assert made.round(1.0) == []
    assert made.tried == before
    made.finished(0, 2.0)
    assert made.round(2.0) == [(8, 1)]
    assert made.tried - before <= 4


def test_kinds_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """With more kinds than one round looks at, every task is tried after some rounds."""
    monkeypatch.setattr(first_fit, "FIRST_FIT_KINDS_MAX", 10)
    made = scheduler(machine(1, cpus=1))
    for task in range(35):
        submit(made, task, cpus=2, memory=task)
    submit(made, 99)
    assert [placed for now in range(4) for placed in made.round(now)] == [(99, 1)]


def test_tasks_that_come_and_go_leave_nothing() -> None:
    """Queues of tasks that were withdrawn, or started by others, do not grow."""
    made = scheduler(machine(1, cpus=1))
    submit(made, 1)
    submit(made, 2)
    made.round(0.0)
    for task in range(10, 2000):
        submit(made, task)
        if task % 2:
            made.started(task, 1, 0.0)
        made.finished(task, 0.0)
    assert sum(len(queue.heap) for queue in made._waiting.values()) < 100


def test_identifiers_are_checked() -> None:
    """A machine or a task cannot be added twice, and one that does not exist cannot be used."""
    made = scheduler(machine(1))
    submit(made, 1)
    with pytest.raises(BadDescriptorError, match="machine m1"):
        made.add_machine(machine(1), 0.0)
    with pytest.raises(BadDescriptorError, match="task 1 already exists"):
        submit(made, 1)
    with pytest.raises(BadDescriptorError, match="machine 5 does not exist"):
        made.drain(5, True)
    with pytest.raises(BadDescriptorError, match="task 5 does not exist"):
        made.finished(5, 0.0)
    with pytest.raises(BadDescriptorError, match="the cluster has 16 slots"):
        gang(made, 9, 17, Affinity.NONE)


_DEMANDS = st.tuples(st.sampled_from([0.0, 0.1, 0.3, 0.7, 1.0, 2.5]), st.sampled_from([0.0, GIB, 3 * GIB]))
_MACHINES = st.lists(
    st.tuples(st.sampled_from([0.0, 1.0, 2.0, 4.0]), st.sampled_from([0.0, 4 * GIB]), st.integers(0, 4)),
    min_size=1,
    max_size=4,
)
_EVENTS = st.lists(
    st.tuples(
        st.sampled_from(
            ["submit", "submit", "gang", "finish", "drain", "reject", "remove", "round", "round"]
        ),
        _DEMANDS,
        st.integers(0, 30),
        st.sampled_from(["", "a", "b"]),
    ),
    max_size=40,
)


@given(machines=_MACHINES, events=_EVENTS)
def test_no_machine_is_ever_overfull(
    machines: list[tuple[float, float, int]],
    events: list[tuple[str, tuple[float, float], int, str]],
) -> None:
    """After any events each machine has room and slots for its tasks, and hard constraints hold.

    A capacity of 0 is unknown and limits nothing.
    """
    made = FirstFitScheduler()
    described = [
        machine(at, cpus, memory, slots, zone="ab"[at % 2])
        for at, (cpus, memory, slots) in enumerate(machines)
    ]
    for one in described:
        made.add_machine(one, 0.0)
    tasks: dict[int, TaskDescriptor] = {}
    on: dict[int, int] = {}
    gangs, drained = set[int](), set[int]()
    for now, (event, demand, number, zone) in enumerate(events):
        constraints = (Constraint("zone", value=zone),) if zone else ()
        if event in {"submit", "gang"}:
            size = 1 + number % 3 if event == "gang" else 1
            fresh = [
                TaskDescriptor(100 * now + at, Resources(*demand), constraints=constraints)
                for at in range(size)
            ]
            if event == "gang" and size > sum(one.slots for one in described):
                continue
            made.submit(JobDescriptor(now, gang=size if event == "gang" else 0), fresh, now)
            tasks.update((task.task, task) for task in fresh)
            gangs |= {task.task for task in fresh if event == "gang"}
        elif event == "drain":
            which = number % len(described)
            drained ^= {which}
            made.drain(which, which in drained)
        elif event == "finish" and tasks:
            task = sorted(tasks)[number % len(tasks)]
            made.finished(task, now)
            del tasks[task]
            on.pop(task, None)
        elif event == "reject" and on:
            task = sorted(on)[number % len(on)]
            made.rejected(task, now)
            del on[task]
        elif event == "remove":
            which = number % len(described)
            gone = made.remove_machine(which, now)
            assert gone == sorted(task for task, where in on.items() if where == which)
            on = {task: where for task, where in on.items() if where != which}
            made.add_machine(described[which], now)
            drained.discard(which)
        else:
            for task, where in made.round(now):
                assert task not in on, "placed twice"
                assert where not in drained
                on[task] = where
            left = [task for task in tasks if task not in on and task not in gangs]
            assert all(made.why_waiting(task, now) for task in left), "a task that fits is placed"
        for one in described:
            there = [tasks[task] for task, where in on.items() if where == one.machine]
            assert len(there) <= one.slots
            assert made.load_of(one.machine).tasks == len(there)
            for name in ("cpus", "memory"):
                capacity = getattr(one.capacity, name)
                used = math.fsum(getattr(task.demand, name) for task in there)
                assert not capacity or used <= capacity * (1 + 1e-6)
            for each in there:
                assert all(dict(one.labels)[wish.key] == wish.value for wish in each.constraints)


def job_of(made: FirstFitScheduler, job: int, tasks: range, **bounds: object) -> None:
    """Submit tasks of one job with bounds."""
    described = JobDescriptor(job, "uid:1", **bounds)  # type: ignore[arg-type] # see the callers
    made.submit(described, [TaskDescriptor(task, Resources(1)) for task in tasks], 0.0)


def test_a_job_runs_its_maximum_at_most() -> None:
    """The tasks beyond F_j wait, others are placed, and the reason names the bound until it is changed."""
    made = scheduler(machine(1))
    job_of(made, 1, range(3), maximum_running=1)
    submit(made, 10)
    assert made.round(0.0) == [(0, 1), (10, 1)]
    assert made.why_waiting(1, 0.0) == ["its series runs as many tasks as it may at once: 1 of 1"]
    assert made.round(1.0) == []
    made.finished(0, 2.0)
    assert made.round(2.0) == [(1, 1)]
    made.set_bounds(1, 0, None)
    assert made.round(3.0) == [(2, 1)]
    assert made.job(1) == JobDescriptor(1, "uid:1")


def test_tasks_that_a_minimum_needs_come_first() -> None:
    """E_j tasks are placed before those that were submitted earlier or have a higher priority."""
    made = scheduler(machine(1, cpus=2))
    for task in range(10, 13):
        submit(made, task, priority=5)
    job_of(made, 1, range(3), minimum_running=1)
    assert made.round(0.0) == [(0, 1), (10, 1)]
    made.set_bounds(1, 2, None)
    made.finished(10, 1.0)
    assert made.round(1.0) == [(1, 1)]
    made.set_bounds(99, 1, None)
    assert made.job(99) is None
