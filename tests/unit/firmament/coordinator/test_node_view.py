"""All tasks of a node, from the changes of its queue."""

from __future__ import annotations

from msgspec.structs import replace

from dios.firmament.coordinator.node_queue import NodeView
from dios.wire.messages import Occupant, QueueRows, Work
from dios.wire.types import TaskState


def task(number: int, state: TaskState = TaskState.RUNNING, *, job: int = 0) -> Occupant:
    """A task, of a job over time if ``job`` is given."""
    work = Work(reservation=job, member="member" if job else "")
    return Occupant(number, f"{number:012x}", "task", "uid:1", state, 1, 0, work, 0, 0, completed=False)


def queue(*tasks: Occupant, whole: bool = False, gone: tuple[int, ...] = ()) -> QueueRows:
    """An answer about the node's queue."""
    return QueueRows(
        1, 1, "n1", "r1", 2, 2**30, 16, (), draining=False, coordinated=True,
        waiting=(), tasks=tasks, asked=(), reports=(), partial=False, whole=whole, gone=gone,
    )  # fmt: skip


def test_the_view_is_what_a_whole_answer_would_say() -> None:
    """Tasks come, change and end; a whole answer replaces everything."""
    view = NodeView()
    view.update(queue(task(1), task(2), whole=True))
    ended = replace(task(1), state=TaskState.ENDED)
    view.update(queue(task(3), ended, gone=(1,)))
    assert view.rows(queue()).tasks == (task(2), task(3), ended)
    assert view.rows(queue()).whole
    view.update(queue(task(4), whole=True))
    assert view.rows(queue()).tasks == (task(4),)


def test_a_view_is_used_often_only_for_admitted_jobs() -> None:
    """Not without changes, not again in the same moment, except for a task of a job over time."""
    view = NodeView()
    assert not view.begin_use(1.0)
    view.update(queue(task(1), whole=True))
    assert view.begin_use(1.0)
    view.update(queue(task(2)))
    assert not view.begin_use(1.01)
    assert view.begin_use(2.0)
    view.update(queue(task(3, job=7)))
    assert view.begin_use(2.01)
