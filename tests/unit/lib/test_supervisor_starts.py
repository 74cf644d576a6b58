"""The supervisor of services with nodes that refuse to start programs: that says nothing about a program."""

from __future__ import annotations

from dataclasses import replace as replace_dataclass
from itertools import pairwise

import pytest
import trio
from msgspec.structs import replace

from dios import limits
from dios.client.ops.cluster import Member
from dios.errors import NotSupportedError
from dios.lib.supervised import records
from dios.lib.supervised.records import JobArray, JobState
from dios.wire.types import Cause, TaskState
from tests.support.node.supervised_site import REFUSED, SPEC, Site, closed_room, supervise

JOB = records.created({}, "count", SPEC, 1, JobState(3, 5, b"s" * 32, b"g" * 32))
SERVICE = records.created({}, "web", SPEC, 1)
CHECKED = records.created({}, "web", replace(SPEC, check=b"c" * 32), 1)


def test_a_refused_start_is_no_attempt_of_a_kept_job_which_another_node_runs() -> None:
    """The first node refuses; the attempt that runs is the first one, and it counts when it fails."""
    site = Site(JOB, start=lambda host, _: Cause.SPAWN if host == "n1" else None)
    supervise(site, lambda: any(row.state is TaskState.RUNNING for row in site.replicas()))
    assert [row.node for row in site.replicas()] == ["n1", "n2"]
    assert site.record.generation == 1
    site.runs[-1].end(Cause.EXITED, exit_code=3)
    supervise(site, lambda: site.record.generation == 2)


def test_a_kept_job_that_no_node_starts_waits_and_runs_when_one_can() -> None:
    """It has more refusals than attempts; its status has the reason, and no restart is counted."""
    refusals = 10
    site = Site(JOB, start=lambda *_: Cause.SPAWN if len(site.runs) < refusals else None)
    supervise(site, lambda: len(site.runs) == refusals)
    assert REFUSED in str(site.note["reason"])
    assert site.note["restarts"] == 0
    supervise(site, lambda: len(site.runs) > refusals)
    assert site.record.job == JOB.job
    assert site.record.generation == 1
    assert site.replicas()[-1].state is TaskState.RUNNING


def test_a_refused_start_is_no_crash_of_a_replica() -> None:
    """Neither an error of the call nor a task that never started counts; a crash does."""

    def start(host: str, _: str) -> Cause | None:
        if len(site.runs) < 4:
            if host == "n2":
                raise NotSupportedError(REFUSED)
            return Cause.SPAWN
        return Cause.EXITED if len(site.runs) == 4 else None

    site = Site(SERVICE, start=start)
    supervise(site, lambda: any(row.state is TaskState.RUNNING for row in site.replicas()))
    assert site.note["restarts"] == 1


def test_a_health_check_that_could_not_run_costs_no_replica() -> None:
    """However often a node does not start the check, the replica stays, and its health is not known."""
    site = Site(CHECKED, start=lambda _, label: Cause.SPAWN if "check" in label else None)
    supervise(site, lambda: len(site.runs) > 8)
    assert len(site.replicas()) == 1
    assert "its health is not known yet" in str(site.note["reason"])


def test_a_health_check_that_fails_replaces_the_replica() -> None:
    """As before: after some failures in a row."""
    site = Site(CHECKED, start=lambda _, label: Cause.EXCEPTION if "check" in label else None)
    supervise(site, lambda: len(site.replicas()) > 1)
    assert site.replicas()[0].cause is Cause.KILLED


@pytest.mark.parametrize("cause", [Cause.EXITED, Cause.KILLED])
def test_one_of_two_tasks_of_an_attempt_goes_on_and_its_end_counts(cause: Cause) -> None:
    """After a partition the younger one is stopped. The attempt ends with the other one."""
    site = Site(JOB, start=lambda *_: None)
    supervise(site, lambda: len(site.runs) == 1)
    (survivor,) = site.runs
    duplicate = site.add(survivor.row.label, "n2")
    duplicate.row = replace_dataclass(duplicate.row, started_ns=survivor.row.started_ns + 1)
    rounds = iter(range(40))
    supervise(site, lambda: next(rounds) == 20)
    assert [run.row.cause for run in site.runs] == [Cause.NONE, Cause.KILLED]
    assert site.record == JOB
    survivor.end(cause)
    supervise(site, lambda: site.record != JOB)
    has_succeeded = site.record.job is not None and site.record.job.end is not None
    assert has_succeeded == (cause is Cause.EXITED)
    assert site.record.generation == (1 if has_succeeded else 2)


def test_a_job_stays_on_a_draining_node() -> None:
    """A second task of it would do its work twice; a replica of a service leaves."""

    class DrainingSite(Site):
        async def nodes(self) -> list[Member]:
            """The first node drains once it has a task."""
            first, second = await super().nodes()
            return [replace_dataclass(first, draining=bool(self.runs)), second]

    for record, hosts in ((JOB, ["n1"]), (SERVICE, ["n1", "n2"])):
        site = DrainingSite(record, start=lambda *_: None)
        rounds = iter(range(40))
        supervise(site, lambda rounds=rounds: next(rounds) == 20)  # type: ignore[misc]
        assert [row.node for row in site.replicas()] == hosts
        assert site.replicas()[-1].state is TaskState.RUNNING


def test_a_job_that_fails_again_and_again_is_started_later_and_later() -> None:
    """The pause grows over its attempts, each of which is another generation of it."""
    times: list[float] = []

    def start(*_: str) -> Cause:
        times.append(trio.current_time())
        return Cause.EXCEPTION

    failing = records.created({}, "count", SPEC, 1, JobState(6, 5, b"s" * 32, b"g" * 32))
    site = Site(failing, start=start)
    supervise(site, lambda: site.record.job is not None and site.record.job.end is not None)
    pauses = [after - before for before, after in pairwise(times)]
    assert len(pauses) == 5
    assert all(after > 1.5 * before for before, after in pairwise(pauses[1:]))


def test_a_start_that_waits_is_that_of_its_record() -> None:
    """A job that is removed and created again between two rounds has another program under the same name."""
    site = Site(JOB, start=lambda *_: None)
    site.room = closed_room()
    token = records.created({}, "count", SPEC, 1, JOB.job).token

    def recreate() -> bool:
        if site.waiting == [JOB.label(0, 1)]:
            site.change(replace(JOB, version=JOB.version + 1, token=token))
        return site.waiting == [site.record.label(0, 1)] and site.record.token == token

    supervise(site, recreate)


def test_runs_that_wait_leave_the_supervisor_room_for_other_calls() -> None:
    """Each waits in a call of its only session. Services start meanwhile, and later the other runs."""
    array = JobArray(tuple(range(limits.JOB_ARRAY_AT_ONCE_MAX)), limits.JOB_ARRAY_AT_ONCE_MAX)
    state = JobState(3, 5, b"s" * 32, b"g" * 32, array=array)
    arrays = [records.created({}, f"array-{number}", SPEC, 1, state) for number in range(3)]
    site = Site(*arrays, SERVICE, start=lambda *_: None)
    room = site.room = closed_room()
    most = 0

    def has_served() -> bool:
        nonlocal most
        most = max(most, len(site.waiting))
        return bool(site.runs)

    supervise(site, has_served)
    assert most == limits.SERVICE_STARTS_QUEUED_MAX
    room.set()
    supervise(site, lambda: len(site.runs) == 1 + 3 * limits.JOB_ARRAY_AT_ONCE_MAX)


def test_the_task_of_a_removed_job_ends_although_another_job_has_its_name() -> None:
    """Both happen between two rounds. The new job runs without a pause, and its task stays."""
    site = Site(JOB, start=lambda *_: None)
    successor = records.created({}, "count", SPEC, 1, JOB.job)

    def recreate() -> bool:
        if len(site.runs) == 1 and site.record.token == JOB.token:
            site.change(replace(JOB, version=JOB.version + 1, token=successor.token))
        return len(site.runs) == 2 and site.runs[0].row.ended

    supervise(site, recreate)
    assert [run.row.label for run in site.runs] == [JOB.label(0, 1), successor.label(0, 1)]
    assert [run.row.cause for run in site.runs] == [Cause.KILLED, Cause.NONE]
    assert site.note["restarts"] == 0
