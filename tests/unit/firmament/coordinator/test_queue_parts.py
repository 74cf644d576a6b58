"""A queue that is read in parts."""

from __future__ import annotations

from msgspec.structs import replace

from dios.firmament.coordinator.node_queue import QueueMark, joined
from dios.wire.messages import Asked, Occupant, QueueRows, Submission, Work
from dios.wire.types import TaskState


def task(number: int, state: TaskState = TaskState.RUNNING) -> Occupant:
    """A task of the node."""
    return Occupant(number, f"{number:012x}", "task", "uid:1", state, 1, 0, Work(), 0, 0, completed=False)


def run(number: int) -> Submission:
    """A run that waits on the node."""
    return Submission(number, f"{number:012x}", "run", "uid:1", 0, Work(), "n1")


def queue(version: int, *tasks: Occupant, runs: tuple[Submission, ...] = ()) -> QueueRows:
    """A whole answer about the node's queue."""
    return QueueRows(
        version, 1, "n1", "r1", 2, 2**30, 16, (), draining=False, coordinated=True,
        waiting=runs, tasks=tasks, asked=(), reports=(), partial=True,
    )  # fmt: skip


def test_parts_show_the_tasks_at_the_moment_of_the_last_one() -> None:
    """A task changes, another ends, a run leaves, a further one comes: while the parts are read."""
    first = replace(
        queue(5, task(1), task(2, TaskState.STARTING), task(3), runs=(run(10), run(11))),
        tasks_listed=3,
        reports=((1, b"one"),),
        shares_version=7,
        shares=b"shares",
    )
    ended = task(3, TaskState.ENDED)
    second = replace(
        queue(6, task(4), task(2), ended, runs=(run(12),)),
        whole=False,
        partial=False,
        gone=(3, 10),
        reports=((2, b"two"),),
        asked=(Asked(1, "uid:1", ruler=True, question=b"?"),),
        shares_version=7,
    )
    both = joined(first, second)
    assert (both.whole, both.partial, both.version, both.gone) == (True, False, 6, ())
    assert sorted(both.tasks, key=lambda row: row.id) == [task(1), task(2), ended, task(4)]
    assert both.waiting == (run(11), run(12))
    assert both.reports == ((1, b"one"), (2, b"two"))
    assert (both.asked, both.shares) == (second.asked, b"shares")


def test_an_answer_to_a_mark_may_have_rows_if_it_is_newer_or_goes_on() -> None:
    """The mark behind an answer tells whether a further part is missing."""
    mark = QueueMark.behind(replace(queue(5), tasks_listed=3))
    assert mark == QueueMark(5, 0, 3)
    assert mark.precedes(queue(5))
    assert not QueueMark.behind(queue(5)).precedes(queue(5))
    assert QueueMark.behind(queue(5)).precedes(queue(6))
