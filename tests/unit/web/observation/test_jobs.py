"""Stages say what is slow, failed, repeated and unknown; the use of tasks is read in bounded turns."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

from dios.client.ops.status import Status
from dios.client.ops.usage import Description
from dios.errors import NoSuchTaskError
from dios.web.observation.jobs import in_lanes, jobs_of, stages_of
from dios.web.observation.session import ClusterSession
from dios.web.observation.task_use import READ_MAX, TaskUse, read_use, sums_of
from dios.wire.types import Cause, TaskState

S = 1_000_000_000


def _task(mark: str, label: str, start: int, end: int = 0, **more: object) -> Status:
    state = TaskState.ENDED if end else TaskState.RUNNING
    cause = Cause.EXITED if end else Cause.NONE
    fields = {"cause": cause, "parent": "p", "node": "n1", **more}
    return Status(mark, label, state, started_ns=start * S, ended_ns=end * S, **fields)  # type: ignore[arg-type]


def test_a_stage_names_slow_failed_and_repeated_tasks() -> None:
    """The median of the ended tasks judges the running ones; a second task of a number is a repetition."""
    tasks = [
        _task("a", "words map 1", 10, 12),
        _task("b", "words map 2", 10, 11, cause=Cause.KILLED, node="n3"),
        _task("c", "words map 2", 12, node="n2"),
        _task("d", "words map 3", 19, progress=0.5),
        _task("e", "words reduce 0", 10, progress=0.25),
    ]
    maps, reduces = stages_of(tasks, {"e": 7.0}, 20 * S)
    assert "words map: 2 of 4 ended, 1 badly, 1 started again, usually 2.00 s" in maps.text
    assert "running on n1 (1) n2 (1)" in maps.text
    assert "1 without reports of progress" in maps.text
    assert maps.done == (2 + 0.5) / 4
    assert maps.slow == [("c", "slow: words map 2 on n2 for 8.0 s, 4.0 times the usual")]
    assert maps.failed == [("b", "failed: words map 2 on n3, killed")]
    assert reduces.slow == [("e", "slow: words reduce 0 on n1 for 10.0 s, about 7 s left")]
    assert [parent for parent, _ in jobs_of([*tasks, _task("x", "", 30, parent="q")])] == ["q", "p"]


def test_lanes_are_used_again() -> None:
    """A task that begins when another has ended takes the first lane that is free."""
    tasks = [
        _task("a", "", 1, 9),
        _task("b", "", 2, 3),
        _task("c", "", 3, 4),
        _task("d", "", 5),
        _task("e", "", 6),
    ]
    assert [(bar.task.fingerprint, bar.lane) for bar in in_lanes(tasks, 20 * S)] == [
        ("a", 0), ("b", 1), ("c", 1), ("d", 1), ("e", 2)
    ]  # fmt: skip


class _Session:
    """A session that describes tasks, and has forgotten one."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    async def describe(self, task: Status) -> Description:
        """Describe a task with one object that it got and one that it may write."""
        self.asked.append(task.fingerprint)
        if task.label == "forgotten":
            raise NoSuchTaskError("gone")
        given = SimpleNamespace(fingerprint="x", size=100)
        output = SimpleNamespace(fingerprint="y", size=7)
        description = SimpleNamespace(
            cpu_ms=1500, memory_bytes=4, inputs=(given, given), outputs=(given, output), status=task
        )
        return cast("Description", description)


async def test_the_use_is_read_in_turns_and_once_for_ended_tasks() -> None:
    """Each turn reads a bounded number; ended tasks are not read again, and forgotten ones do not count."""
    session = _Session()
    tasks = [_task(f"{number:04}", "", number + 1, number + 2) for number in range(READ_MAX + 5)]
    tasks.append(_task("run", "", 500))
    known: dict[str, TaskUse | None] = {}
    for _ in range(2):
        assert await read_use(cast("ClusterSession", session), tasks, known) == ""
    assert session.asked.count("0000") == 1
    assert session.asked.count("run") >= 1
    sums = sums_of(tasks, known)
    assert (sums.known, sums.cpu_s) == (len(tasks), 1.5 * len(tasks))
    assert (sums.given_bytes, sums.result_bytes) == (100 * len(tasks), 7 * len(tasks))
    lost = [_task("lost", "forgotten", 1, 2), _task("kept", "", 1, 2)]
    known.clear()
    await read_use(cast("ClusterSession", session), lost, known)
    assert sums_of(lost, known).known == 1
