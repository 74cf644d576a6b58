"""A coordinator's own eyes, on real processes of this machine."""

from __future__ import annotations

import os
import time

import msgspec

from dios import limits
from dios.firmament.coordinator.observer import MeasurementReport, Observer
from dios.firmament.knowledge.knowledge_base import KnowledgeBase
from dios.firmament.knowledge.samples import Metric
from dios.wire.messages import Occupant, QueueRows, Work
from dios.wire.types import TaskState


def row(task: int, *, ended: bool = False, label: str = "job.py") -> Occupant:
    """A task whose process is this one."""
    state = TaskState.ENDED if ended else TaskState.RUNNING
    return Occupant(
        task,
        f"{task:012x}",
        label,
        "uid:0",
        state,
        os.getpid(),
        1500,
        Work(),
        700,
        9_000_000,
        completed=ended,
    )


def board(*tasks: Occupant) -> QueueRows:
    """A node's own board."""
    return QueueRows(
        1, 1, "n1", "", 2, 2**30, 16, (), draining=False, coordinated=True,
        waiting=(), tasks=tasks, asked=(), reports=(), partial=False,
    )  # fmt: skip


def looked_twice(observer: Observer) -> None:
    """Two looks, and some work between them."""
    observer.look(board(row(1), row(2, label="other.py")))
    began = time.process_time()
    while time.process_time() < began + 0.02:
        sum(range(1000))
    observer.look(board(row(1), row(2, label="other.py")))


def test_what_a_task_uses_is_in_its_profile() -> None:
    """Two looks at a task that works make a sample of its class: processor time and memory."""
    observer = Observer(KnowledgeBase("n1", 1))
    try:
        looked_twice(observer)
    finally:
        observer.close()
    profile = observer.knowledge.profile("job.py")
    assert profile is not None
    assert (profile.mean(Metric.CPU_NS) or 0) > 10_000_000
    assert (profile.mean(Metric.RESIDENT) or 0) > 1_000_000
    assert observer.machine_type
    assert not observer.problem


def test_an_end_is_counted_once() -> None:
    """The end of a task makes one report, however often the board shows it, and over a new start as well."""
    knowledge = KnowledgeBase("n1", 1)
    for _ in range(2):
        observer = Observer(knowledge)
        for _ in range(2):
            observer.look(board(row(1, ended=True)))
        observer.close()
    profile = knowledge.profile("job.py")
    assert profile is not None
    assert profile.mean(Metric.RUNTIME_NS) == 1_500_000_000
    assert knowledge.report(1) is not None
    assert knowledge.sequence == 1


def test_reports_carry_everything_once() -> None:
    """What was seen goes up in parts that each fit a call; together they are all, and nothing comes twice."""
    observer = Observer(KnowledgeBase("n1", 1))
    for task in range(1, 301):
        observer.look(board(row(task, ended=True, label=f"class{task}" + "x" * 60)))
    observer.close()
    above = KnowledgeBase("n2", 1)
    parts = []
    while (told := observer.report("n1")) is not None:
        assert len(told) <= limits.INLINE_BYTES_MAX
        parts.append(msgspec.msgpack.decode(told, type=MeasurementReport))
    assert len(parts) > 1
    assert {part.node for part in parts} == {"n1"}
    assert sum(above.merge(part.batch).new for part in parts) == 300
    assert all(above.report(task) is not None for task in range(1, 301))
