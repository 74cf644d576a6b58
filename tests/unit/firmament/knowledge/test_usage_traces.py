"""How a coordinator follows the tasks of admitted jobs, on a real process of this machine."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator

import pytest
from msgspec.structs import replace

from dios.firmament.coordinator.task_tracer import TaskTracer
from dios.firmament.coordinator.usage_queries import learned
from dios.firmament.knowledge.knowledge_base import KnowledgeBase
from dios.firmament.knowledge.usage_profile import UsageChannel
from dios.firmament.knowledge.usage_profiles import ProfiledTask
from dios.firmament.monitor.task_probe import TaskProbe
from dios.lib.reservations import JobMember as Placed
from dios.lib.reservations import label_of
from dios.wire.messages import Asked, Meter, Occupant, QueueRows, Work
from dios.wire.types import TaskState, Traffic

MS = 1_000_000
WALL = 10**18
BEGAN = 7_000 * MS
"""When tasks begin, by the clock of looks."""


def row(task: int = 1, age_ms: int = 0, *, run: int = 5, member: str = "map.0") -> Occupant:
    """A task of an admitted job whose process is this one."""
    return Occupant(
        task, f"{task:012x}", f"words/{member}", "uid:1", TaskState.RUNNING, os.getpid(), age_ms,
        Work(reservation=run, member=member, equivalence=f"words/{member}"), 0, 0, completed=False,
    )  # fmt: skip


def ended(occupant: Occupant, age_ms: int, cpu_ms: int = 0, memory: int = 0) -> Occupant:
    """It once it has ended."""
    return replace(
        occupant,
        state=TaskState.ENDED,
        pid=0,
        age_ms=age_ms,
        cpu_ms=cpu_ms,
        memory_bytes=memory,
        completed=True,
    )


def board(*tasks: Occupant) -> QueueRows:
    """A node's own board; it has so many processors that they bound nothing."""
    return QueueRows(
        1, 1, "n1", "", 1_000, 2**30, 16, (), draining=False, coordinated=True,
        waiting=(), tasks=tasks, asked=(), reports=(), partial=False,
    )  # fmt: skip


class Site:
    """A tracer, and the time that it is told."""

    def __init__(self) -> None:
        self.knowledge = KnowledgeBase("n1", 1)
        self.tracer = TaskTracer(self.knowledge)

    def at(self, ms: int, *tasks: Occupant, meters: tuple[Meter, ...] = ()) -> None:
        """A board and a look, so long after the tasks began."""
        self.tracer.heard(board(*tasks), BEGAN + ms * MS)
        self.tracer.take_in(self.tracer.look(meters, BEGAN + ms * MS, WALL + ms * MS))

    def members(self) -> list[ProfiledTask]:
        """What is known of the job."""
        return self.knowledge.usage_profiles.members("uid:1", "words")


@pytest.fixture
def idle() -> Iterator[int]:
    """A process that does nothing."""
    with subprocess.Popen(["sleep", "600"]) as process:
        yield process.pid
        process.kill()


def worked(ms: int) -> None:
    """So much processor time of this process has passed."""
    end = time.process_time_ns() + ms * MS
    while time.process_time_ns() < end:
        sum(range(1_000))


def wanted_ms() -> int:
    """For how long this process has had a processor, or waited for one."""
    probe = TaskProbe().read(0, (os.getpid(),))
    return (probe.cpu_ns + probe.wait_ns) // MS


def test_a_course_tells_when_processors_were_used() -> None:
    """Work in the second second stands there, and in what it touches, and not in the fourth."""
    site, occupant = Site(), row()
    site.at(0, occupant)
    site.at(1_000, replace(occupant, age_ms=1_000))
    before = wanted_ms()
    worked(200)
    site.at(2_000, occupant)
    wanted = wanted_ms() - before
    for ms in (3_000, 4_000):
        site.at(ms, occupant)
    site.at(4_200, ended(occupant, 4_200, cpu_ms=0))
    (member,) = site.members()
    cpu = member.highest.values[UsageChannel.CPU_MILLI]
    assert len(cpu) == 5
    assert 190 <= cpu[1] <= wanted * 1.5 + 100, (cpu, wanted)
    assert cpu[3] <= cpu[1] / 2, "what the test itself does"
    assert member.highest.values[UsageChannel.MEMORY][3] > 1_000_000
    assert (member.name, member.runs, member.completed, member.length_s) == ("map.0", 1, 1, 4.2)
    assert site.tracer.fresh, "to be stored soon"


def test_what_came_before_the_first_look_is_spread_over_it() -> None:
    """A task that is first seen late took what it has used so far evenly since its start."""
    worked(100)
    site, occupant = Site(), row(age_ms=2_000)
    before = time.process_time_ns() // MS
    site.at(2_000, occupant)
    had, ran = wanted_ms(), time.process_time_ns() // MS
    site.at(2_500, ended(occupant, 2_500, cpu_ms=ran + 150))
    cpu = site.members()[0].highest.values[UsageChannel.CPU_MILLI]
    assert cpu[0] == cpu[1]
    assert abs(cpu[0] * 2 - had) <= 100 + had / 4, (cpu, had)
    # This process itself is looked at, which may have worked on between the two readings.
    # What it waited for a processor counts before, and so is missing at the end.
    assert max(2 * (ran + 150 - had) - 100, 0) <= cpu[2] <= 500 + 2 * (ran - before), (
        "what it had done before its last half second is no part of that"
    )


def test_a_task_that_nobody_saw_run_has_a_course() -> None:
    """Of a short task the board tells how long it ran, and what it used; it is taken in once."""
    site, occupant = Site(), row()
    for ms in (3_000, 4_000):
        site.at(ms, ended(occupant, 2_000, cpu_ms=1_000, memory=5_000_000))
        assert not site.tracer.busy
    (member,) = site.members()
    assert member.highest.values == {UsageChannel.CPU_MILLI: [500, 500], UsageChannel.MEMORY: [5_000_000] * 2}
    assert site.knowledge.sequence == 1
    later = TaskTracer(site.knowledge)
    later.heard(board(ended(occupant, 2_000)), BEGAN)
    assert later.busy
    assert later.look((), BEGAN, WALL) == [], "an earlier coordinator of this node saw it end"


def test_its_start_is_that_of_its_node_s_clock() -> None:
    """A course begins when the task did, whenever it was first heard of, and was seen to have ended."""
    site, occupant = Site(), row(age_ms=400)
    site.at(400, occupant)
    site.at(5_000, ended(occupant, 1_500))
    site.at(9_000, ended(row(2, member="reduce"), 1_000))
    began = {key.member: entries[0].content for key, entries in site.knowledge.usage_profiles.kept.items()}
    assert getattr(began["map.0"], "began_ns", 0) == WALL
    assert getattr(began["reduce"], "began_ns", 0) == WALL + 8_000 * MS
    assert [member.start_s for member in site.members()] == [0, 8]


OTHER = 2
"""A second task of the same user."""


def meter(traffic: Traffic, moved: int, task: int = 0, principal: str = "uid:1") -> Meter:
    """What was moved for a task, or for all else of a user."""
    return Meter(principal, traffic, moved, 0, task)


def test_what_the_node_moved_for_it_is_on_its_meters(idle: int) -> None:
    """Stored, sent and received bytes are those of the task's own account, between two looks."""
    site = Site()
    occupant, other = replace(row(), pid=idle), replace(row(OTHER, member="map.1"), pid=idle)

    def meters(stored: int, sent: int) -> tuple[Meter, ...]:
        others = [
            meter(Traffic.OUT, 10**9),
            meter(Traffic.IN, 10**9 * sent),
            meter(Traffic.STORE, 10**9, OTHER),
        ]
        return (*others, meter(Traffic.STORE, stored, 1), meter(Traffic.OUT, sent, 1))

    site.at(0, occupant, other, meters=meters(0, 0))
    site.at(1_000, occupant, other, meters=meters(3_000_000, 0))
    site.at(2_000, occupant, other, meters=meters(3_000_000, 500))
    # Its account was closed, and opened again.
    site.at(2_500, occupant, other, meters=())
    site.at(3_000, occupant, other, meters=meters(3_000_000, 500))
    site.at(4_000, ended(occupant, 4_000), other, meters=meters(7_000_000, 20))
    values = site.members()[0].highest.values
    assert values[UsageChannel.DISK_WRITE] == [3_000_000, 0, 0, 4_000_000]
    assert values[UsageChannel.SENT] == [0, 500, 0, 20]
    assert values[UsageChannel.RECEIVED] == [0, 0, 0, 0]


def test_of_a_user_s_only_task_all_is_known_that_was_stored_and_received(idle: int) -> None:
    """While no other task is there, what is new on the user's account is its own."""
    site, occupant = Site(), replace(row(), pid=idle)
    elsewhere = replace(row(9), principal="uid:2")

    def meters(stored: int, came: int) -> tuple[Meter, ...]:
        others = [meter(Traffic.OUT, 10**6 * came), meter(Traffic.STORE, 10**8 * came, principal="uid:2")]
        return (*others, meter(Traffic.STORE, 10**9 + stored), meter(Traffic.IN, came))

    site.at(0, occupant, elsewhere, meters=meters(0, 0))
    site.at(1_000, occupant, elsewhere, meters=meters(0, 3_000))
    site.at(2_000, occupant, elsewhere, meters=meters(4_000, 3_000))
    site.at(
        2_500, ended(occupant, 2_500), elsewhere, meters=(*meters(4_000, 3_000), meter(Traffic.IN, 600, 1))
    )
    values = site.members()[0].highest.values
    assert values[UsageChannel.DISK_WRITE] == [0, 4_000, 0]
    assert values[UsageChannel.RECEIVED] == [3_000, 0, 1_200]
    assert values[UsageChannel.SENT] == [0, 0, 0], "it had an account at last"


def test_a_task_that_was_over_before_it_was_seen_to_run(idle: int) -> None:
    """What was on the meters while it was being started is the account of all that came later."""
    site, occupant = Site(), replace(row(), pid=idle)
    starting = replace(occupant, state=TaskState.STARTING, pid=0)
    site.at(0, starting, meters=(meter(Traffic.STORE, 10**9),))
    site.at(1_000, ended(occupant, 400), meters=(meter(Traffic.STORE, 10**9 + 3_000), meter(Traffic.IN, 50)))
    values = site.members()[0].highest.values
    assert values[UsageChannel.DISK_WRITE] == [6_000], "in half a second"
    assert values[UsageChannel.RECEIVED] == [100]
    began = next(iter(site.knowledge.usage_profiles.entries())).content
    assert getattr(began, "began_ns", 0) == WALL


def test_a_task_begins_when_it_runs(idle: int) -> None:
    """What it took to start it is no part of its course."""
    site, occupant = Site(), replace(row(), pid=idle)
    site.at(0, replace(occupant, state=TaskState.STARTING, pid=0))
    site.at(1_500, replace(occupant, age_ms=200))
    site.at(3_000, ended(occupant, 1_200))
    began = next(iter(site.knowledge.usage_profiles.entries())).content
    assert getattr(began, "began_ns", 0) == WALL + 1_300 * MS
    assert site.members()[0].length_s == 1.2


def test_what_may_be_another_task_s_is_not_told(idle: int) -> None:
    """Without an account of its own nothing is known of what a task moved beside another."""
    for crowded in range(3):
        site, occupant = Site(), replace(row(), pid=idle)
        other = replace(row(OTHER), pid=idle, work=Work())
        for at in range(3):
            some = (occupant, other) if at == crowded else (occupant,)
            site.at(at * 1_000, *some, meters=(meter(Traffic.STORE, at * 10**6),))
        site.at(2_100, ended(occupant, 2_100))
        known = set(site.members()[0].highest.values)
        assert known == {UsageChannel.CPU_MILLI, UsageChannel.MEMORY, UsageChannel.DISK_READ}


def test_meters_that_were_not_told_are_no_zeros(idle: int) -> None:
    """Where the node did not answer once, what it moved for the task is not known."""
    site, occupant = Site(), replace(row(), pid=idle)
    site.at(0, occupant)
    site.tracer.take_in(site.tracer.look(None, BEGAN + 1_000 * MS, WALL))
    site.at(1_100, ended(occupant, 1_100))
    assert UsageChannel.DISK_WRITE not in site.members()[0].highest.values


def test_tasks_of_no_admitted_job_are_not_followed() -> None:
    """Neither while they run nor when they have ended."""
    site = Site()
    for occupant in (replace(row(), work=Work(equivalence="words/map.0")), row(run=0), row(member="")):
        site.at(0, occupant)
        assert not site.tracer.busy
        site.at(1_000, ended(occupant, 1_000))
    assert site.members() == []


@pytest.mark.parametrize(
    ("equivalence", "label", "job"),
    [
        ("words/map.0", "x", "words"),
        ("", "words/map.0", "words"),
        ("a/b/map.0", "x", "a/b"),
        ("odd", "x", "odd"),
    ],
)
def test_the_job_s_name_comes_from_the_task_s(equivalence: str, label: str, job: str) -> None:
    """The class, or else the label, less the member's name, is the job's; whatever it is, it is kept."""
    site = Site()
    occupant = replace(row(), label=label, work=replace(row().work, equivalence=equivalence))
    site.at(0, ended(occupant, 10))
    assert site.knowledge.usage_profiles.jobs("uid:1") == [job]


@pytest.mark.parametrize("length", range(50, 75))
@pytest.mark.parametrize("letter", ["j", "ü"])
def test_a_long_job_s_name_is_found_in_what_is_left_of_it(length: int, letter: str) -> None:
    """However long a name is, all tasks of a job are of one job, which is found by its whole name."""
    job = letter * (length // len(letter.encode()))
    members = ["m", "mapper.1", "mapper.10"]
    site = Site()
    for number, member in enumerate(members):
        label = label_of(
            job, Placed(member, "n1", service=False, start_s=0, end_s=None, cpus=1, memory_bytes=1)
        )
        occupant = replace(row(number, member=member), label=label)
        site.at(0, ended(replace(occupant, work=replace(occupant.work, equivalence=label)), 10))
    (known,) = site.knowledge.usage_profiles.jobs("uid:1")
    reply = learned(site.knowledge, Asked(1, "uid:1", ruler=False, question=b""), {"job": job})
    assert reply["job"] == job
    assert job.startswith(known)
    rows = reply["members"]
    assert isinstance(rows, list)
    assert [entry["member"] for entry in rows] == members


def test_what_makes_no_sense_harms_nobody_else(capsys: pytest.CaptureFixture[str]) -> None:
    """A task whose job would have no name is told of once, and the others are taken in."""
    site = Site()
    nameless = replace(row(), principal="")
    site.at(0, ended(nameless, 10), ended(replace(nameless, id=2), 10), ended(row(3), 10))
    assert len(site.members()) == 1
    assert capsys.readouterr().err.count("principal is ''") == 1
