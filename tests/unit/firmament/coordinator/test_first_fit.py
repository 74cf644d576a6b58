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
    placer = FirstFitScheduler()
    for descriptor in machines:
        placer.add_machine(descriptor, 0.0)
    return placer


def submit(
    placer: FirstFitScheduler, task: int, cpus: float = 1, memory: float = 0, **more: object
) -> TaskDescriptor:
    """Submit a task of its own job."""
    described = TaskDescriptor(task, Resources(cpus, memory), **more)  # type: ignore[arg-type] # see the callers
    placer.submit(JobDescriptor(task, "uid:1"), [described], 0.0)
    return described


def gang(placer: FirstFitScheduler, job: int, tasks: int, affinity: Affinity, cpus: float = 1) -> list[int]:
    """Submit a gang."""
    numbers = [100 * job + at for at in range(tasks)]
    described = [TaskDescriptor(number, Resources(cpus)) for number in numbers]
    placer.submit(JobDescriptor(job, "uid:1", gang=tasks, affinity=affinity), described, 0.0)
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
    placer = scheduler(machine(2), machine(1), machine(3))
    for task in range(3):
        submit(placer, task)
    assert placer.round(0.0) == [(0, 1), (1, 2), (2, 3)]
    submit(placer, 9, cpus=2)
    submit(placer, 10)
    assert placer.round(0.0) == [(9, 1), (10, 2)]


def test_a_task_that_fits_nowhere_does_not_hold_up_others() -> None:
    """It waits, its obstacle is counted, and the next task is placed."""
    placer = scheduler(machine(1), machine(2))
    submit(placer, 1, cpus=8)
    submit(placer, 2)
    assert placer.round(0.0) == [(2, 1)]
    assert placer.why_waiting(1, 0.0) == ["2 of 2 machines: too small: 8 CPUs wanted"]


def test_higher_priority_comes_first() -> None:
    """With room for one task the more important one gets it, though it came later."""
    placer = scheduler(machine(1, cpus=1))
    submit(placer, 1)
    submit(placer, 2, priority=3)
    assert placer.round(0.0) == [(2, 1)]


@pytest.mark.parametrize(
    ("constraint", "targets"),
    [
        (Constraint("gpu", Operator.EQUAL, "a100"), {2}),
        (Constraint("gpu", Operator.UNEQUAL, "a100"), {1, 3}),
        (Constraint("gpu", Operator.PRESENT), {2, 3}),
        (Constraint("gpu", Operator.ABSENT), {1}),
    ],
)
def test_hard_constraints_hold(constraint: Constraint, targets: set[int]) -> None:
    """Ten tasks go only to machines whose labels satisfy the constraint."""
    placer = scheduler(machine(1), machine(2, gpu="a100"), machine(3, gpu="t4"))
    for task in range(10):
        submit(placer, task, cpus=0, constraints=(constraint,))
    assert {to for _, to in placer.round(0.0)} == targets


def test_a_soft_constraint_and_local_input_are_preferences() -> None:
    """They decide between machines with room, and a full machine gives way to another."""
    placer = scheduler(machine(1), machine(2, cpus=1, ssd="yes"), machine(3))
    wish = (Constraint("ssd", Operator.EQUAL, "yes", hard=False),)
    for task in range(2):
        submit(placer, task, constraints=wish)
    submit(placer, 2, blocks=(Block(100, (3,)),))
    assert placer.round(0.0) == [(0, 2), (1, 1), (2, 3)]


def test_tasks_with_the_same_input_do_not_fill_one_machine() -> None:
    """Up to four tasks for each processor go to their input; of those beyond, both machines get as many."""
    placer = scheduler(machine(1, cpus=2, slots=1000), machine(2, cpus=2, slots=1000))
    for task in range(30):
        submit(placer, task, cpus=0, blocks=(Block(100, (2,)),))
    places = [placement.machine for placement in placer.round(0.0)]
    assert places[:8] == [2] * 8
    assert places.count(1) == places.count(2) == 15


def test_a_drained_machine_gets_nothing() -> None:
    """It gets tasks again when it is no longer drained."""
    placer = scheduler(machine(1))
    placer.drain(1, True)
    submit(placer, 1)
    assert placer.round(0.0) == []
    assert placer.why_waiting(1, 0.0) == ["1 of 1 machines: are drained"]
    placer.drain(1, False)
    assert placer.round(0.0) == [(1, 1)]


def test_a_refused_task_avoids_the_machine_for_a_while() -> None:
    """It goes to another machine, or to the same one after some seconds."""
    placer = scheduler(machine(1), machine(2, cpus=8))
    submit(placer, 1, cpus=4)
    assert placer.round(0.0) == [(1, 1)]
    placer.rejected(1, 0.0)
    assert placer.round(0.0) == [(1, 2)]
    placer.rejected(1, 1.0)
    assert placer.round(1.0) == []
    assert placer.round(10.0) == [(1, 1)]


def test_a_gang_starts_together_or_not() -> None:
    """Four tasks of a whole processor each wait until four processors are free."""
    placer = scheduler(machine(1, cpus=2), machine(2, cpus=2))
    submit(placer, 1)
    placer.round(0.0)
    tasks = gang(placer, 5, 4, Affinity.NONE)
    assert placer.round(0.0) == []
    assert placer.load_of(2).tasks == 0, "what was tried is undone"
    placer.finished(1, 1.0)
    assert sorted(task for task, _ in placer.round(1.0)) == tasks


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
    placer = scheduler(machine(1, cpus=2), machine(2, cpus=4, rack="r1"), machine(3, cpus=2, rack="r2"))
    gang(placer, 5, 2, affinity, cpus=2)
    assert {to for _, to in placer.round(0.0)} in places


def test_a_quota_holds() -> None:
    """A principal with a quota of two processors gets no third one; another principal does."""
    placer = scheduler(machine(1, cpus=8))
    placer.set_quotas({"uid:1": (NO_LIMIT, 2.0, NO_LIMIT, NO_LIMIT, NO_LIMIT, NO_LIMIT)})
    for task in range(3):
        submit(placer, task)
    placer.submit(JobDescriptor(77, "uid:2"), [TaskDescriptor(77, Resources(1.0))], 0.0)
    assert [task for task, _ in placer.round(0.0)] == [0, 1, 77]
    assert placer.why_waiting(2, 0.0) == ["1 of 1 machines: uid:1 would hold 3 of cpus, and its quota is 2"]
    placer.finished(0, 1.0)
    assert [task for task, _ in placer.round(1.0)] == [2]


def test_machines_with_promised_room_and_admitted_tasks_are_left_out() -> None:
    """Room that is promised to a job over time is not given away, and the job's tasks wait."""
    placer = scheduler(machine(1), machine(2))
    placer.exclude({"m1"})
    submit(placer, 1)
    submit(placer, 2, admitted=True)
    assert placer.round(0.0) == [(1, 2)]
    placer.started(2, 1, 0.0)
    placer.finished(2, 1.0)
    assert placer.load_of(1).tasks == 0


def test_a_long_queue_costs_as_much_as_what_changed() -> None:
    """A round looks at one task of each kind, and at none if no room has appeared since the last one."""
    placer = scheduler(machine(1, cpus=3), machine(2, cpus=3))
    for task in range(1000):
        submit(placer, task, cpus=1 + task % 2)
    assert len(placer.round(0.0)) == 5
    before = placer.tried
    assert placer.round(1.0) == []
    assert placer.tried == before
    placer.finished(0, 2.0)
    assert placer.round(2.0) == [(8, 1)]
    assert placer.tried - before <= 4


def test_kinds_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """With more kinds than one round looks at, every task is tried after some rounds."""
    monkeypatch.setattr(first_fit, "FIRST_FIT_KINDS_MAX", 10)
    placer = scheduler(machine(1, cpus=1))
    for task in range(35):
        submit(placer, task, cpus=2, memory=task)
    submit(placer, 99)
    assert [placed for now in range(4) for placed in placer.round(now)] == [(99, 1)]


def test_tasks_that_come_and_go_leave_nothing() -> None:
    """Queues of tasks that were withdrawn, or started by others, do not grow."""
    placer = scheduler(machine(1, cpus=1))
    submit(placer, 1)
    submit(placer, 2)
    placer.round(0.0)
    for task in range(10, 2000):
        submit(placer, task)
        if task % 2:
            placer.started(task, 1, 0.0)
        placer.finished(task, 0.0)
    assert sum(len(queue.heap) for queue in placer._waiting.values()) < 100


def test_identifiers_are_checked() -> None:
    """A machine or a task cannot be added twice, and one that does not exist cannot be used."""
    placer = scheduler(machine(1))
    submit(placer, 1)
    with pytest.raises(BadDescriptorError, match="machine m1"):
        placer.add_machine(machine(1), 0.0)
    with pytest.raises(BadDescriptorError, match="task 1 already exists"):
        submit(placer, 1)
    with pytest.raises(BadDescriptorError, match="machine 5 does not exist"):
        placer.drain(5, True)
    with pytest.raises(BadDescriptorError, match="task 5 does not exist"):
        placer.finished(5, 0.0)
    with pytest.raises(BadDescriptorError, match="the cluster has 16 slots"):
        gang(placer, 9, 17, Affinity.NONE)


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
    placer = FirstFitScheduler()
    described = [
        machine(at, cpus, memory, slots, zone="ab"[at % 2])
        for at, (cpus, memory, slots) in enumerate(machines)
    ]
    for descriptor in described:
        placer.add_machine(descriptor, 0.0)
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
            if event == "gang" and size > sum(candidate.slots for candidate in described):
                continue
            placer.submit(JobDescriptor(now, gang=size if event == "gang" else 0), fresh, now)
            tasks.update((task.task, task) for task in fresh)
            gangs |= {task.task for task in fresh if event == "gang"}
        elif event == "drain":
            which = number % len(described)
            drained ^= {which}
            placer.drain(which, which in drained)
        elif event == "finish" and tasks:
            task = sorted(tasks)[number % len(tasks)]
            placer.finished(task, now)
            del tasks[task]
            on.pop(task, None)
        elif event == "reject" and on:
            task = sorted(on)[number % len(on)]
            placer.rejected(task, now)
            del on[task]
        elif event == "remove":
            which = number % len(described)
            gone = placer.remove_machine(which, now)
            assert gone == sorted(task for task, host in on.items() if host == which)
            on = {task: host for task, host in on.items() if host != which}
            placer.add_machine(described[which], now)
            drained.discard(which)
        else:
            for task, target in placer.round(now):
                assert task not in on, "placed twice"
                assert target not in drained
                on[task] = target
            left = [task for task in tasks if task not in on and task not in gangs]
            assert all(placer.why_waiting(task, now) for task in left), "a task that fits is placed"
        for descriptor in described:
            there = [tasks[task] for task, host in on.items() if host == descriptor.machine]
            assert len(there) <= descriptor.slots
            assert placer.load_of(descriptor.machine).tasks == len(there)
            for name in ("cpus", "memory"):
                capacity = getattr(descriptor.capacity, name)
                used = math.fsum(getattr(task.demand, name) for task in there)
                assert not capacity or used <= capacity * (1 + 1e-6)
            for occupant in there:
                assert all(dict(descriptor.labels)[wish.key] == wish.value for wish in occupant.constraints)


def job_of(placer: FirstFitScheduler, job: int, tasks: range, **bounds: object) -> None:
    """Submit tasks of one job with bounds."""
    described = JobDescriptor(job, "uid:1", **bounds)  # type: ignore[arg-type] # see the callers
    placer.submit(described, [TaskDescriptor(task, Resources(1)) for task in tasks], 0.0)


def test_a_job_runs_its_maximum_at_most() -> None:
    """The tasks beyond F_j wait, others are placed, and the reason names the bound until it is changed."""
    placer = scheduler(machine(1))
    job_of(placer, 1, range(3), maximum_running=1)
    submit(placer, 10)
    assert placer.round(0.0) == [(0, 1), (10, 1)]
    assert placer.why_waiting(1, 0.0) == ["its series runs as many tasks as it may at once: 1 of 1"]
    assert placer.round(1.0) == []
    placer.finished(0, 2.0)
    assert placer.round(2.0) == [(1, 1)]
    placer.set_bounds(1, 0, None)
    assert placer.round(3.0) == [(2, 1)]
    assert placer.job(1) == JobDescriptor(1, "uid:1")


def test_tasks_that_a_minimum_needs_come_first() -> None:
    """E_j tasks are placed before those that were submitted earlier or have a higher priority."""
    placer = scheduler(machine(1, cpus=2))
    for task in range(10, 13):
        submit(placer, task, priority=5)
    job_of(placer, 1, range(3), minimum_running=1)
    assert placer.round(0.0) == [(0, 1), (10, 1)]
    placer.set_bounds(1, 2, None)
    placer.finished(10, 1.0)
    assert placer.round(1.0) == [(1, 1)]
    placer.set_bounds(99, 1, None)
    assert placer.job(99) is None
