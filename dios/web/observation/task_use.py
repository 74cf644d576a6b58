"""Processor time, memory and bytes of tasks, as their nodes describe them on request."""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping, Sequence
from typing import Final, NamedTuple

from dios.client.ops.status import Status
from dios.client.ops.usage import Description
from dios.client.plain_text import plain
from dios.errors import DiosError
from dios.web.observation.session import ClusterSession

READ_MAX: Final = 100
"""Tasks that are described in one turn: each costs the node a call."""
DESCRIBED_MAX: Final = 1_000
"""The newest tasks of a job are described, and no others."""


class TaskUse(NamedTuple):
    """Processor seconds and peak memory, 0 while it runs; sizes of objects given, and of writable ones."""

    cpu_s: float
    peak_bytes: int
    given_bytes: int
    result_bytes: int
    final: bool


class UseSums(NamedTuple):
    """The sums over the known tasks of a stage, their largest memory, and their number."""

    cpu_s: float
    peak_bytes: int
    given_bytes: int
    result_bytes: int
    known: int


def use_of(description: Description) -> TaskUse:
    """Return the use of a description; an object that was handed twice counts once."""
    given = {entry.fingerprint: entry.size for entry in description.inputs}
    results = {entry.fingerprint: entry.size for entry in description.outputs}
    return TaskUse(
        description.cpu_ms / 1000,
        description.memory_bytes,
        sum(given.values()),
        sum(size for mark, size in results.items() if mark not in given),
        description.status.ended,
    )


def sums_of(tasks: Sequence[Status], known: Mapping[str, TaskUse | None]) -> UseSums:
    """Return the sums over the known tasks."""
    uses = [used for task in tasks if (used := known.get(task.fingerprint)) is not None]
    return UseSums(
        sum(use.cpu_s for use in uses),
        max((use.peak_bytes for use in uses), default=0),
        sum(use.given_bytes for use in uses),
        sum(use.result_bytes for use in uses),
        len(uses),
    )


async def read_use(
    session: ClusterSession, tasks: Sequence[Status], known: MutableMapping[str, TaskUse | None]
) -> str:
    """Add the use of at most READ_MAX tasks to ``known``; return a sentence about what is missing, or "".

    The use of an ended task that its node has forgotten is None.
    """
    newest = sorted(tasks, key=lambda task: task.started_ns)[-DESCRIBED_MAX:]
    wanted = [task for task in newest if task.fingerprint not in known or _changes(known[task.fingerprint])]
    wanted.sort(key=lambda task: task.fingerprint in known)
    for task in wanted[:READ_MAX]:
        try:
            known[task.fingerprint] = use_of(await session.describe(task))
        except (DiosError, OSError) as error:
            if task.ended:
                known[task.fingerprint] = None
            else:
                return f"The use of some tasks is unknown: {plain(str(error))}"
    left = len(tasks) - len(newest)
    return f"The use of the {left} oldest tasks is not read." if left else ""


def _changes(used: TaskUse | None) -> bool:
    return used is not None and not used.final
