"""The reader of the 2011 Google cluster trace, on a small sample in its format."""

from __future__ import annotations

import gzip
import math
import shutil
from pathlib import Path

import pytest

from dios.errors import InvalidError
from dios.firmament.descriptors import Kind, Resources
from dios.wire.types import Affinity
from labs.simulate.scheduling.queues import QueueScheduler
from labs.simulate.scheduling.run import SimulationConfig, simulate
from labs.simulate.workloads.events import (
    Happening,
    JobSubmission,
    MachineDown,
    MachineUp,
    SimulatedTask,
    UsageSample,
    Withdrawal,
)
from labs.simulate.workloads.machines import MACHINE_TYPES, inner_tree
from labs.simulate.workloads.trace import TraceChoice, TraceWorkload
from labs.simulate.workloads.trace_rows import TraceError

SAMPLE = Path(__file__).parents[3] / "data" / "google-trace"
PART = "part-00000-of-00001.csv"
GIB = 2.0**30


def read(
    directory: Path = SAMPLE, seconds: float = 3600, *, scale: float = 1.0, machines: int | None = None
) -> list[Happening]:
    """All events of a trace's hours."""
    return list(TraceWorkload(TraceChoice(directory, seconds, scale=scale, machines=machines)).events())


def tasks_of(events: list[Happening], job: int) -> list[tuple[float, SimulatedTask]]:
    """When the tasks of a job come, and the tasks."""
    return [
        (event.time, task)
        for event in events
        if isinstance(event, JobSubmission) and event.job.job == job
        for task in event.tasks
    ]


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    """A copy of the sample to spoil."""
    return Path(shutil.copytree(SAMPLE, tmp_path / "trace"))


def test_machines_come_and_go() -> None:
    """Adds, removes and a return of a machine become events at the window's time in seconds."""
    events = read()
    ups = [(event.time, event.machine.machine) for event in events if isinstance(event, MachineUp)]
    downs = [(event.time, event.machine) for event in events if isinstance(event, MachineDown)]
    assert ups == [(0, 5), (0, 6), (0, 7), (0, 10), (0, 13), (0, 26), (300, 29), (420, 26)]
    assert downs == [(180, 26)]


def test_capacities_are_scaled_to_a_machine() -> None:
    """Capacity 1 is 24 CPUs and 64 GiB, every machine has 24 slots, and what is missing is not known."""
    machines = {
        event.machine.machine: event.machine for event in read(seconds=60) if isinstance(event, MachineUp)
    }
    assert machines[10].capacity[:2] == (24.0, 64 * GIB)
    assert machines[5].capacity[0] == 12.0
    assert machines[26].capacity[:2] == (0.0, 0.0)
    assert {machine.slots for machine in machines.values()} == {24}


def test_a_task_runs_as_long_as_in_the_trace() -> None:
    """A task that was there before the window comes at time 0 and ends when it ended there."""
    (at, task), _ = tasks_of(read(), 100)
    assert (at, task.work, task.completes) == (0.0, 300.0, True)
    assert task.descriptor.demand.cpus == 0.75
    assert task.descriptor.demand.memory == pytest.approx(0.01587 * 64 * GIB)


def test_an_evicted_task_stays_one_task() -> None:
    """Whom to stop is the simulated scheduler's affair: an eviction there leaves one task."""
    tasks = tasks_of(read(), 100)
    assert [(at, task.work) for at, task in tasks] == [(0.0, 300.0), (0.0, 300.0)]


def test_a_failed_task_that_comes_again_is_another() -> None:
    """A failure ends a task; its next submission is a task of its own."""
    tasks = tasks_of(read(), 300)
    assert [(at, task.work, task.completes) for at, task in tasks] == [
        (60.0, 60.0, False),
        (121.0, 60.0, True),
    ]


def test_a_task_killed_while_it_waited_is_withdrawn() -> None:
    """Its work is not known; somebody takes it back at the time of the trace."""
    events = read()
    ((at, task),) = tasks_of(events, 400)
    assert (at, task.work) == (200.0, math.inf)
    assert [event for event in events if isinstance(event, Withdrawal)] == [
        Withdrawal(260.0, task.descriptor.task)
    ]


def test_a_task_whose_end_is_not_there_runs_on() -> None:
    """An end after the window, or after the hours that are read, is no end."""
    assert [task.work for _, task in tasks_of(read(), 200)] == [math.inf, math.inf]
    assert [task.work for _, task in tasks_of(read(seconds=200), 100)] == [math.inf, math.inf]


def test_a_lost_task_that_never_returns_ran_until_then() -> None:
    """Without a submission it comes when it is first heard of; lost for good it did not complete."""
    assert [(at, task.work, task.completes) for at, task in tasks_of(read(), 600)] == [(50.0, 100.0, False)]


def test_a_task_never_ends_before_it_began(copied: Path) -> None:
    """Rows of a task that go back in time change nothing, and are counted."""
    times = (("700000000", 0), ("800000000", 1), ("750000000", 4), ("690000000", 5))
    rows = (f"{time},,9,0,,{event},u,0,0,0.1,0.1,0,0\n" for time, event in times)
    (copied / "task_events" / PART).write_text("".join(rows))
    workload = TraceWorkload(TraceChoice(copied, 3600))
    events = list(workload.events())
    assert [(at, task.work) for at, task in tasks_of(events, 9)] == [(100.0, math.inf)]
    assert not [event for event in events if isinstance(event, Withdrawal)]
    passed = {reason: count for reason, count in workload.passed_over.items() if reason.startswith("task")}
    assert passed == {"task FINISH that goes back in time": 1, "task KILL that goes back in time": 1}


def test_a_machine_never_comes_twice(copied: Path) -> None:
    """Rows of a machine that go back in time are taken in order: it is there from its first addition on."""
    rows = ("0,6,0,p,1,1", "700000000,5,0,p,1,1", "650000000,5,1,p,1,1", "680000000,5,0,p,1,1")
    (copied / "machine_events" / PART).write_text("\n".join(rows) + "\n")
    machines = [event for event in read(copied) if isinstance(event, MachineUp | MachineDown)]
    assert [(event.time, type(event)) for event in machines] == [(0.0, MachineUp), (80.0, MachineUp)]


def test_what_a_job_says_holds_for_its_tasks() -> None:
    """Production priority is a service; the restriction to different machines is the job's affinity."""
    jobs = {event.job.job: event.job for event in read() if isinstance(event, JobSubmission)}
    assert (jobs[200].kind, jobs[200].affinity, jobs[200].principal) == (
        Kind.SERVICE,
        Affinity.SPREAD_NODES,
        "user-b",
    )
    assert (jobs[100].kind, jobs[100].affinity) == (Kind.BATCH, Affinity.NONE)


def test_missing_requests_ask_for_nothing() -> None:
    """A request that the trace does not have is 0, not an error."""
    ((_, task),) = tasks_of(read(), 700)
    assert task.descriptor.demand == Resources()


def test_batch_tasks_get_inputs_when_asked_for() -> None:
    """Each batch task reads a file of its own from the first machines; services read none (§8.4)."""
    events = list(TraceWorkload(TraceChoice(SAMPLE, 3600, blocks=True, seed=3)).events())
    assert events == list(TraceWorkload(TraceChoice(SAMPLE, 3600, blocks=True, seed=3)).events())
    holders = {
        machine
        for job in (100, 300, 500)
        for _, task in tasks_of(events, job)
        for block in task.descriptor.blocks
        for machine in block.machines
    }
    assert holders <= {5, 6, 7, 10, 13, 26}
    assert len(holders) >= 3
    assert not any(task.descriptor.blocks for _, task in tasks_of(events, 200))
    assert not any(task.descriptor.blocks for _, task in tasks_of(read(), 100))


def test_machines_get_the_tree_of_type_c_when_asked_for() -> None:
    """The trace does not say what is inside of machines; §8.4 makes it two sockets and 24 threads."""
    events = list(TraceWorkload(TraceChoice(SAMPLE, 60, topology=True)).events())
    trees = [event.machine.inner for event in events if isinstance(event, MachineUp)]
    assert all(tree == inner_tree(MACHINE_TYPES["C"]) for tree in trees)
    assert len(trees[0]) == 2


def test_events_come_in_order_of_time() -> None:
    """Machines, tasks and measurements are merged by time."""
    times = [event.time for event in read()]
    assert times == sorted(times)


def test_measurements_follow_their_task() -> None:
    """A measurement comes at its end, for the task that had the number then."""
    events = read()
    (_, failed), (_, again) = tasks_of(events, 300)
    used = {
        event.task: (event.time, event.usage.cpus)
        for event in events
        if isinstance(event, UsageSample) and event.task in {failed.descriptor.task, again.descriptor.task}
    }
    # At 121 s, when the first measurement ends, the next task of that number has just come.
    assert set(used) == {again.descriptor.task}
    assert used[again.descriptor.task][0] == 182.0
    assert used[again.descriptor.task][1] == pytest.approx(0.025 * 24)


def test_the_hours_bound_what_is_read() -> None:
    """What happens after the hours asked for is not there."""
    assert not tasks_of(read(seconds=3600), 800)
    assert len(tasks_of(read(seconds=2.1 * 3600), 800)) == 1


def test_parts_after_the_hours_are_not_opened(copied: Path) -> None:
    """Parts follow each other in time: behind one that is too late none is read."""
    late = (copied / "task_events" / PART).read_text().splitlines()[-2]
    (copied / "task_events" / "part-00001-of-00003.csv").write_text(late + "\n")
    (copied / "task_events" / "part-00002-of-00003.csv").write_text("garbage\n")
    assert read(copied) == read()
    with pytest.raises(TraceError, match=r"part-00002-of-00003\.csv line 1"):
        read(copied, seconds=10_000)


def test_gzipped_parts_read_the_same(copied: Path) -> None:
    """The published files are gzipped."""
    for part in copied.glob("*/*.csv"):
        part.with_suffix(".csv.gz").write_bytes(gzip.compress(part.read_bytes()))
        part.unlink()
    assert read(copied) == read()


def test_a_part_of_the_trace_is_the_same_part_each_time() -> None:
    """--machines takes so many of the first machines, and with them the same share of jobs."""
    events = read(machines=3)
    assert (
        len({event.machine.machine for event in events if isinstance(event, MachineUp) and not event.time})
        == 3
    )
    assert events == read(machines=3)
    assert read(scale=1.0) == read()


@pytest.mark.parametrize("scale", [0.0, 1.5, -1.0])
def test_a_scale_that_is_no_share_is_refused(scale: float) -> None:
    """A scale is over 0 and at most 1."""
    with pytest.raises(InvalidError, match="scale"):
        TraceChoice(SAMPLE, 60, scale=scale)


@pytest.mark.parametrize("seconds", [0.0, -1.0, math.inf, math.nan])
def test_a_window_that_never_ends_is_refused(seconds: float) -> None:
    """The window has some seconds, and an end."""
    with pytest.raises(InvalidError, match="seconds"):
        TraceChoice(SAMPLE, seconds)


def test_more_machines_than_there_are_is_refused() -> None:
    """The message says how many there are."""
    with pytest.raises(TraceError, match="give --machines 6 or fewer"):
        read(machines=7)


def test_a_folder_without_a_trace_says_what_is_wanted(tmp_path: Path) -> None:
    """The message names the folder and what should be in it."""
    with pytest.raises(TraceError, match=r"machine_events.*2011 Google cluster trace"):
        read(tmp_path)


@pytest.mark.parametrize(
    ("table", "line", "bad", "told"),
    [
        ("machine_events", 2, "0,6,0,platform-b,0.5", "line 2: 5 columns instead of 6; 'memory' is missing"),
        ("machine_events", 1, "0,5,9,p,0.5,0.5", "line 1, field 'event type': '9' is not in 0 .. 2"),
        ("machine_events", 3, "0,7,0,p,1.5,0.5", "line 3, field 'CPUs': '1.5' is not in 0 .. 1"),
        ("machine_events", 3, "-5,7,0,p,0.5,0.5", "line 3, field 'time': '-5' is not in 0"),
        (
            "task_events",
            4,
            "0,,1,0,,x,u,0,0,0.1,0.1,0,0",
            "line 4, field 'event type': 'x' is not an integer",
        ),
        (
            "task_events",
            4,
            "0,,,0,,0,u,0,0,0.1,0.1,0,0",
            "line 4, field 'job ID': '' is empty; it must be an integer",
        ),
        (
            "task_events",
            4,
            "0,,1,0,,0,u,0,99,0.1,0.1,0,0",
            "line 4, field 'priority': '99' is not in 0 .. 11",
        ),
        (
            "task_events",
            4,
            "0,,1,0,,0,u,0,0,nan,0.1,0,0",
            "line 4, field 'CPU request': 'nan' is not in 0 .. 1",
        ),
        (
            "task_events",
            4,
            "0,,1,0,,0,u,0,0,0.1,much,0,0",
            "line 4, field 'memory request': 'much' is not a number",
        ),
        (
            "task_events",
            4,
            "0,,1,0,,0,u,0,0,0.1,0.1,0,maybe",
            "field 'different machines restriction': 'maybe'",
        ),
        ("task_events", 5, "0,,1,0", "line 5: 4 columns instead of 13; 'machine ID'"),
        ("task_usage", 1, "0,1,1,0,5,fast" + ",0" * 14, "line 1, field 'CPU rate': 'fast' is not a number"),
    ],
)
def test_a_bad_line_is_named_with_its_field(copied: Path, table: str, line: int, bad: str, told: str) -> None:
    """An error says the file, the line, the field and the value."""
    part = copied / table / PART
    lines = part.read_text().splitlines()
    lines[line - 1] = bad
    part.write_text("\n".join(lines) + "\n")
    with pytest.raises(TraceError) as caught:
        read(copied)
    assert f"{table}/{PART} " in str(caught.value)
    assert told in str(caught.value)


def test_a_damaged_file_is_an_error_of_the_trace(copied: Path) -> None:
    """A file that ends in the middle says so, with the last good line."""
    part = copied / "task_events" / PART
    packed = gzip.compress(part.read_bytes() * 50)
    part.with_suffix(".csv.gz").write_bytes(packed[: len(packed) // 2])
    part.unlink()
    with pytest.raises(TraceError, match=r"csv.gz after line \d+: the file is damaged"):
        read(copied)


def test_bytes_that_are_no_text_are_an_error_of_the_trace(copied: Path) -> None:
    """Binary data in a table is named with its place."""
    (copied / "machine_events" / PART).write_bytes(b"0,5,0,\xff\xfe,0.5,0.5\n")
    with pytest.raises(TraceError, match="after line 0: the file is not CSV text"):
        read(copied)


def test_the_sample_runs_to_the_same_ends() -> None:
    """Simulated on a queue, what ended in the trace ends, and nothing is lost."""
    outcome = simulate(
        SimulationConfig(
            TraceWorkload(TraceChoice(SAMPLE, 1800)), QueueScheduler(1), 1800, round_interval=5, checked=True
        )
    )
    assert outcome.submitted == 13
    assert len(outcome.ended) + len(outcome.unfinished) == 13
    assert sum(record.completed for record in outcome.ended) == 7
    assert sum(record.withdrawn for record in outcome.ended) == 1
    assert {record.job for record in outcome.unfinished} == {200}
