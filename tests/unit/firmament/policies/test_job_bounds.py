"""Bounds on the running tasks of jobs, E_j and F_j, where principals take turns and resources are short."""

from __future__ import annotations

from dios.firmament.descriptors import JobDescriptor, Resources, TaskDescriptor
from dios.firmament.rounds.results import Change
from tests.support.firmament.fair_queue import Site


def submit(site: Site, job: JobDescriptor, tasks: range, *, restartable: bool = False) -> None:
    """Add tasks of one processor each to a job."""
    made = [TaskDescriptor(each, Resources(1.0), restartable=restartable) for each in tasks]
    site.scheduler.submit(job, made, 0.0)


def test_a_job_at_its_maximum_takes_no_turns_from_others() -> None:
    """F_j tasks of the job run; the tasks behind them get the rest of the room, whose ever they are."""
    site = Site(4)
    submit(site, JobDescriptor(1, "ann", maximum_running=1), range(10))
    submit(site, JobDescriptor(2, "ann"), range(10, 12))
    submit(site, JobDescriptor(3, "bob"), range(20, 30))
    assert site.round(0.0) == [0, 10, 20, 21]
    assert site.scheduler.explain(1).reason == "its job runs as many tasks as it may at once: 1 of 1"
    site.scheduler.finished(0, 1.0)
    assert site.round(1.0) == [1]


def test_a_minimum_goes_before_tasks_that_waited_longer() -> None:
    """E_j tasks are first among those of their principal, whose turn it has to be."""
    site = Site(2)
    submit(site, JobDescriptor(1, "ann"), range(1))
    submit(site, JobDescriptor(2, "bob"), range(1, 2))
    assert site.round(0.0) == [0, 1]
    submit(site, JobDescriptor(3, "ann"), range(10, 13))
    submit(site, JobDescriptor(4, "bob"), range(20, 23))
    submit(site, JobDescriptor(5, "ann", minimum_running=1), range(30, 33))
    assert site.round(1.0) == []
    site.scheduler.finished(0, 2.0)
    assert site.round(2.0) == [30]
    site.scheduler.finished(30, 3.0)
    assert site.round(3.0) == [31]


def test_a_minimum_makes_room_for_no_more_than_it_needs() -> None:
    """Where processors are short, restartable tasks stop until E_j tasks run, and no further ones."""
    site = Site(2, 2)
    submit(site, JobDescriptor(1, "ann"), range(4), restartable=True)
    assert len(site.round(0.0)) == 4
    submit(site, JobDescriptor(2, "ann", minimum_running=1), range(10, 14))
    deltas = [delta for now in (1.0, 2.0, 3.0) for delta in site.scheduler.round(now).deltas]
    assert [delta.change for delta in deltas if delta.task < 10] == [Change.PREEMPT]
    assert [delta.task for delta in deltas if delta.change is Change.PLACE] == [10]


def test_a_minimum_stops_no_task_that_is_not_restartable() -> None:
    """Tasks that may not be stopped run on, and the round reports that E_j was missed."""
    site = Site(2, 2, slots=2)
    submit(site, JobDescriptor(1, "ann"), range(4))
    assert len(site.round(0.0)) == 4
    submit(site, JobDescriptor(2, "ann", minimum_running=1), range(10, 12))
    found = site.scheduler.round(1.0)
    assert found.deltas == []
    assert [fault.where for fault in found.faults] == ["job 2"]
