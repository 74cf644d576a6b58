"""What `dios ps` shows of arrays, of kept jobs that wait, and of promised starts."""

from __future__ import annotations

import time

import pytest
from msgspec.structs import replace

from dios.cli.tasks.listing import PromisedRow, _listed, _show, promise_text
from dios.client.ops.status import Status
from dios.lib.supervised.kept_jobs import JobStatus, JobTasks
from dios.lib.supervised.records import Condition, JobArray, JobElement, JobEnd, Predecessor
from dios.wire.types import Cause, TaskState


def task(mark: str, title: str, state: TaskState = TaskState.RUNNING) -> Status:
    """A task on the first node."""
    return Status(mark, title, state, started_ns=time.time_ns(), node="n1", principal="uid:1")


def jobs() -> JobTasks:
    """An array of which one element has failed and one runs, and a job that waits for it."""
    end = JobEnd(Cause.EXITED, 3, 9, "n1")
    array = JobArray((1, 2, 3, 4), 2, (JobElement(1, 1, end),))
    running = {2: task("aa", "sweep.2/1/ab")}
    after = (Predecessor("sweep", Condition.SUCCEEDED, token="ab"),)  # noqa: S106 - no password
    listed = [
        JobStatus("sweep", "part.py", 1, 3, 5, array=array, running=running),
        JobStatus("report", "report.py", 1, 3, 6, after=after),
    ]
    return JobTasks(listed, {"aa": ("sweep", 2)})


def test_an_array_and_a_job_that_waits_have_one_line_each(capsys: pytest.CaptureFixture[str]) -> None:
    """The tasks of the array are not listed; in JSON they are, with their index."""
    tasks = [task("aa", "sweep.2/1/ab"), task("bb", "job.py")]
    _show(tasks, jobs(), {}, everything=False)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 1 + 3
    assert "job.py" in lines[1]
    assert "sweep[1-4%2]" in lines[2]
    assert "1 running, 1 failed, 2 waiting" in lines[2]
    assert "waits for the success of sweep" in lines[3]
    rows = [_listed(listed_task, jobs(), {}) for listed_task in tasks]
    assert [(row.job, row.index) for row in rows] == [("sweep", 2), (None, None)]


def test_a_promised_start_is_shown_with_what_it_depends_on(capsys: pytest.CaptureFixture[str]) -> None:
    """In the line of the task the time until then, and below it the nodes and the tasks."""
    promised = PromisedRow(time.time_ns() + 3_600_000_000_000, ["n1", "n2"], ["ab12"], 2)
    _show([task("aa", "big", TaskState.WAITING)], None, {"aa": promised}, everything=False)
    assert "waiting, starts in " in capsys.readouterr().out
    kept = "room on n1, n2 is kept for it, where it is expected to start"
    assert promise_text(promised) == f"{kept} when ab12, 2 tasks of others there have ended"
    assert promise_text(replace(promised, others=0)).endswith("when ab12 there has ended")
    assert promise_text(replace(promised, after=[], others=0)) == kept
