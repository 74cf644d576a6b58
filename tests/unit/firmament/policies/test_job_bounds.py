"""Bounds on the running tasks of jobs, E_j and F_j, where principals take turns and resources are short."""

from __future__ import annotations

from dios.firmament.descriptors import JobDescriptor, Resources, TaskDescriptor
from dios.firmament.rounds.results import Change
from dios.limits import BACKLOG_SPARE_TASKS
from tests.support.firmament.fair_queue import Site


def submit(site: Site, job: JobDescriptor, tasks: range, *, restartable: bool = False) -> None:
    """Add tasks of one processor each to a job."""
    descriptors = [TaskDescriptor(task, Resources(1.0), restartable=restartable) for task in tasks]
    site.scheduler.submit(job, descriptors, 0.0)


def test_a_job_at_its_maximum_takes_no_turns_from_others() -> None:
    """F_j tasks of the job run; the tasks behind them get the rest of the room, whose ever they are."""
    site = Site(4)
    submit(site, JobDescriptor(1, "ann", maximum_running=1), range(10))
    submit(site, JobDescriptor(2, "ann"), range(10, 12))
    submit(site, JobDescriptor(3, "bob"), range(20, 30))
    assert site.round(0.0) == [0, 10, 20, 21]
    assert site.scheduler.explain(1).reason == "its series runs as many tasks as it may at once: 1 of 1"
    site.scheduler.finished(0, 1.0)
    assert site.round(1.0) == [1]


def test_a_long_queue_of_a_job_at_its_maximum_keeps_no_other_out() -> None:
    """Of a queue that is longer than the tables only tasks that may start are in them."""
    site = Site(4)
    submit(site, JobDescriptor(1, "ann", maximum_running=2), range(5 * BACKLOG_SPARE_TASKS))
    other = range(10_000, 10_000 + BACKLOG_SPARE_TASKS)
    submit(site, JobDescriptor(2, "ann"), other)
    assert site.round(0.0) == [0, 1, 10_000, 10_001]
    waits = 5 * BACKLOG_SPARE_TASKS - 1
    assert "as many tasks as it may at once: 2 of 2" in site.scheduler.explain(waits).reason
    site.scheduler.finished(0, 1.0)
    assert site.round(1.0) == [2]


def test_another_maximum_holds_for_tasks_in_the_tables_and_outside() -> None:
    """A larger F_j lets more tasks of the job start, a smaller one none until enough have ended."""
    site = Site(8)
    submit(site, JobDescriptor(1, "ann"), range(2))
    assert site.round(0.0) == [0, 1]
    site.scheduler.set_bounds(1, 0, 2)
    job = site.scheduler.job(1)
    assert job is not None
    submit(site, job, range(2, 5 * BACKLOG_SPARE_TASKS))
    assert site.round(1.0) == []
    site.scheduler.set_bounds(1, 0, 4)
    assert site.round(2.0) == [2, 3]
    site.scheduler.set_bounds(1, 0, 1)
    for task in range(3):
        site.scheduler.finished(task, 3.0)
        assert site.round(3.0) == []
    site.scheduler.set_bounds(1, 0, None)
    assert len(site.round(4.0)) == 7


def test_a_minimum_that_comes_later_lets_waiting_tasks_go_first() -> None:
    """E_j also counts for tasks that waited outside the tables before."""
    site = Site(2)
    submit(site, JobDescriptor(1, "ann"), range(2))
    assert len(site.round(0.0)) == 2
    submit(site, JobDescriptor(2, "ann"), range(100, 100 + 2 * BACKLOG_SPARE_TASKS))
    submit(site, JobDescriptor(3, "ann"), range(1000, 1002))
    site.scheduler.set_bounds(3, 1, None)
    site.scheduler.finished(0, 1.0)
    assert site.round(1.0)[0] in {1000, 1001}
    site.scheduler.finished(1, 2.0)
    assert len(site.round(2.0)) == 1


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
    outcome = site.scheduler.round(1.0)
    assert outcome.deltas == []
    assert [fault.source for fault in outcome.faults] == ["job 2"]
