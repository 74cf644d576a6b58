"""The data of a page about a job, read from a node."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from dios.client.ops.status import Status
from dios.client.ops.usage import Description
from dios.client.plain_text import plain
from dios.client.sync.node import Node
from dios.errors import DiosError
from dios.installation import version
from dios.web.observation.cluster_view import ClusterView, ask, read_view
from dios.web.observation.jobs import job_tasks
from dios.web.observation.session import with_task
from dios.wire.types import TaskState

EXPLAINED_MAX: Final = 20
DESCRIBED_MAX: Final = 1_000
ASKED_MAX: Final = 100


@dataclass(frozen=True, slots=True)
class JobReport:
    """A job at one moment: the first task's fingerprint, and its tasks by their start.

    ``explanations`` are lines for tasks that wait or run; ``cpu_ms`` and ``memory_bytes`` are the processor
    time and the peak memory of ended tasks that the nodes still know; all three by fingerprint.
    """

    mark: str
    tasks: Sequence[Status]
    view: ClusterView
    explanations: Mapping[str, Sequence[str]] = field(default_factory=dict)
    cpu_ms: Mapping[str, int] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)
    made_ns: int = 0
    memory_bytes: Mapping[str, int] = field(default_factory=dict)

    @property
    def label(self) -> str:
        """The label of the first task as harmless text, or its fingerprint."""
        labels = (task.label for task in self.tasks if task.fingerprint == self.mark)
        return plain(next(labels, "")) or self.mark


def collect(node: Node, job: str, progress: Callable[[str], None]) -> JobReport:
    """Read a job from a node; ``job`` is the beginning of a fingerprint, or a label.

    Raises:
        InvalidError: no task fits, or several.
        UnreachableError: the node does not answer.
    """
    view = read_view(node)
    mark, tasks = job_tasks(view.tasks, job)
    waiting = [task for task in tasks if task.state is TaskState.WAITING][:EXPLAINED_MAX]
    running = [task for task in tasks if task.state is TaskState.RUNNING][:EXPLAINED_MAX]
    ended = [task for task in tasks if task.ended][-DESCRIBED_MAX:]
    cpu_ms: dict[str, int] = {}
    memory_bytes: dict[str, int] = {}
    for count, task in enumerate(ended):
        progress(f"{count} of {len(ended)} tasks")
        used = _described(node, task)
        if used is not None:
            cpu_ms[task.fingerprint] = used.cpu_ms
            memory_bytes[task.fingerprint] = used.memory_bytes
    return JobReport(
        mark,
        tasks,
        view,
        {task.fingerprint: _explanation(node, task) for task in [*waiting, *running]},
        cpu_ms,
        {"this command": version(), **_versions(node, view, tasks)},
        time.time_ns(),
        memory_bytes,
    )


def _versions(node: Node, view: ClusterView, tasks: Sequence[Status]) -> dict[str, str]:
    """Return the versions of the asked node, and of the nodes of the tasks as far as they answer."""
    versions = {"the asked node": node.info().version}
    ran = {task.node for task in tasks}
    for member in [candidate for candidate in view.nodes if candidate.name in ran and not candidate.here][
        :ASKED_MAX
    ]:
        try:
            versions[member.name] = node.info(host=member.name).version if member.usable else "unknown"
        except DiosError:
            versions[member.name] = "unknown"
    return versions


def _described(node: Node, task: Status) -> Description | None:
    try:
        return with_task(node, task, node.describe)
    except DiosError:
        return None


def _explanation(node: Node, task: Status) -> list[str]:
    if task.detail:
        return task.detail.splitlines()
    answer = ask(node, {"ask": "explain", "task": task.fingerprint})
    lines = answer.get("lines")
    if isinstance(lines, list):
        return list(map(str, lines))
    return [f"unknown: {answer.get('error', 'the answer is malformed')}"]
