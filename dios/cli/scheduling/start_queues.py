"""Explanations of runs that wait for no scheduler: in a node's start queue, and kept jobs for other runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Final

from msgspec.structs import asdict

from dios.cli.common.context import CommandContext
from dios.cli.common.rows import Row
from dios.client.ops.status import Status
from dios.errors import DiosError, InvalidError
from dios.wire.types import TaskState

_QUEUE: Final = " in the start queue"
_MATCHES_SHOWN: Final = 8


class QueuedRow(Row):
    """A run that waits, but for no scheduler, and why. A kept job that waits for others is no task yet."""

    task: str
    label: str
    node: str
    phase: str
    lines: list[str]
    explanation: None


def explanation(tasks: Sequence[Status], word: str) -> Mapping[str, object] | None:
    """Return the row of the run that ``word`` names, or None if it waits in no start queue.

    ``tasks`` are all tasks of the user, and ``word`` is a fingerprint, its beginning, or a label.

    Raises:
        InvalidError: several runs that wait in start queues match.
    """
    waiting = [task for task in tasks if task.state is TaskState.WAITING and _QUEUE in task.detail]
    matches = [task for task in waiting if word in {task.fingerprint, task.label}]
    matches = matches or [task for task in waiting if word and task.fingerprint.startswith(word)]
    if not matches:
        return None
    if len(matches) > 1:
        some = ", ".join(task.fingerprint for task in matches[:_MATCHES_SHOWN])
        raise InvalidError(
            f"{len(matches)} runs that wait are called {word!r}. Name one by its fingerprint: {some}"
        )
    (task,) = matches
    place, _, reason = task.detail.partition(_QUEUE)
    location = f"node {task.node}" if task.node else "this node"
    lines = [f"{task.label or task.fingerprint} waits until {location} has room for it: {place}{_QUEUE}"]
    first = next(
        (queued for queued in waiting if queued.node == task.node and f"{_QUEUE}: " in queued.detail), None
    )
    if first is not None and first is not task:
        reason = first.detail.partition(_QUEUE)[2]
        lines.append(f"your runs start in their order there; the first of them is {first.fingerprint}")
    if reason:
        lines.append(f"the first of them waits because {reason[2:]}" if first is not task else reason[2:])
    return asdict(QueuedRow(task.fingerprint, task.label, task.node, "waiting", lines, None))


def explanation_of_job(place: CommandContext, word: str) -> Mapping[str, object] | None:
    """Return the row of the kept job of this name; None if no such job waits for other runs."""
    # Imported late, because most words name tasks.
    from dios.lib.supervised.kept_jobs import KeptJobs  # noqa: PLC0415 - see above
    from dios.lib.supervised.predecessors import waiting_text  # noqa: PLC0415 - see above

    with suppress(DiosError):
        job = KeptJobs(place.node).status(word)
        if job.after and job.end is None:
            lines = [f"{job.name} waits for {waiting_text(job.after)}"]
            return asdict(QueuedRow("", job.name, "", "waiting", lines, None))
    return None
