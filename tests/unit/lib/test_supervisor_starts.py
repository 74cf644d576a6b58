"""The supervisor of services with nodes that refuse to start programs: that says nothing about a program."""

from __future__ import annotations

from msgspec.structs import replace

from dios.errors import NotSupportedError
from dios.lib.supervised import records
from dios.lib.supervised.records import JobState
from dios.wire.types import Cause, TaskState
from tests.support.node.supervised_site import REFUSED, SPEC, Site, supervise

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
