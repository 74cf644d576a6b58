"""The progress of tasks: it is in their rows, and a call that reports it wakes nobody."""

from __future__ import annotations

import pytest

from dios.core.model.records import Task
from dios.errors import Code
from dios.limits import PROGRESS_WHOLE
from dios.wire import messages
from tests.support.core.cluster import Citizen, Cluster


class Place:
    """One node, a user who runs a task there, and the coordinator that reads its queue."""

    def __init__(self) -> None:
        self.cluster = Cluster(("r1",))
        self.node = self.cluster.nodes[0]
        self.user = self.cluster.session(self.node)
        program = self.user.create(data=b"pass").reference.ref
        self.user.send(messages.Run(program, host="n1"))
        (self.job,) = self.cluster.start_spawned()
        self.coordinator = self.cluster.session(self.node)

    def report(self, progress: int, job: Citizen | None = None) -> None:
        """Report a progress of the task."""
        assert (job or self.job).call(messages.ReportProgress(progress)) == messages.Done()

    def read(self, since: int = 0) -> messages.QueueRows:
        """The rows that changed after a version."""
        return self.coordinator.ask(messages.QueueRows, messages.ReadQueue(since=since, changes=True))

    def change(self) -> None:
        """Change the queue for a reason that has nothing to do with the task."""
        self.coordinator.ask(messages.Done, messages.Report(b"measurements"))


@pytest.fixture
def place() -> Place:
    """One node."""
    return Place()


def test_a_row_has_the_progress_that_was_reported_last(place: Place) -> None:
    """Before the first report it is unknown, which is another thing than 0."""
    record = place.node.core.state.tasks[place.job.task]
    assert isinstance(record, Task)
    assert record.row().progress is None
    for progress in (0, 250, PROGRESS_WHOLE, 10):
        place.report(progress)
        (row,) = place.user.ask(messages.Tasks, messages.ListTasks()).tasks
        assert row.progress == progress


def test_a_report_wakes_no_reader_and_is_in_its_next_answer(place: Place) -> None:
    """A thousand reports are one row of the answer that another change brings."""
    version = place.read().version
    seq = place.coordinator.send(messages.ReadQueue(since=version, wait_ms=60_000, changes=True))
    for progress in range(PROGRESS_WHOLE):
        place.report(progress)
    assert place.coordinator.answer(seq) is None
    assert place.node.core.state.queue.version == version
    place.change()
    answer = place.coordinator.answer(seq)
    assert isinstance(answer, messages.QueueRows)
    assert [row.progress for row in answer.tasks] == [PROGRESS_WHOLE - 1]


def test_a_progress_that_was_read_is_not_sent_again(place: Place) -> None:
    """Other changes bring the row only after another report."""
    place.report(100)
    place.change()
    version = place.read().version
    place.change()
    assert place.read(version).tasks == ()
    place.report(200)
    place.change()
    assert [row.progress for row in place.read(version).tasks] == [200]


def test_an_ended_task_keeps_its_progress(place: Place) -> None:
    """Its last row shows how far it came."""
    place.report(400)
    place.node.end(place.job.task)
    (row,) = place.read().tasks
    assert (row.id, row.progress) == (place.job.task, 400)


def test_a_session_has_no_progress(place: Place) -> None:
    """Only tasks report it."""
    assert place.user.refused(messages.ReportProgress(1)) == Code.EINVAL
