"""The data of one moment: nodes, tasks, shares, and the scheduler's last round.

Everything that tasks and other users chose arrives here as text, and leaves without control characters.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, TypeAlias

from dios.client.ops.cluster import Member
from dios.client.ops.status import Status
from dios.client.plain_text import plain
from dios.client.sync.node import Node
from dios.errors import DiosError
from dios.wire.types import Cause, NodeStatus, TaskState

TASKS_MAX: Final = 20_000

Row: TypeAlias = Mapping[str, object]

_log: Final = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ClusterView:
    """The cluster at one moment, as one user sees it.

    ``problems`` are sentences about what could not be read; it is ``incomplete`` if a node did not answer.
    ``status`` and ``shares`` are answers of the
    scheduler, empty if none answers.
    """

    taken_s: float = 0.0
    nodes: Sequence[Member] = ()
    tasks: Sequence[Status] = ()
    status: Row = field(default_factory=dict)
    shares: Row = field(default_factory=dict)
    problems: Sequence[str] = ()
    incomplete: bool = False

    @property
    def rows_of_nodes(self) -> Mapping[str, Row]:
        """Return the scheduler's rows of nodes by name."""
        return {str(row.get("node")): row for row in rows(self.status, "nodes")}

    @property
    def seconds_left(self) -> Mapping[str, float]:
        """Return the seconds that are left of slow tasks by fingerprint, as the scheduler predicts."""
        return {
            str(row.get("task")): number(row.get("seconds_left")) for row in rows(self.status, "worth_copies")
        }


def rows(answer: Row, key: str) -> list[Row]:
    """Return the rows that an answer has under a key; none if the answer is malformed."""
    value = answer.get(key)
    return [row for row in value if isinstance(row, dict)] if isinstance(value, list) else []


def number(value: object) -> float:
    """Return a number of an answer; 0 for anything else."""
    return float(value) if isinstance(value, int | float) else 0.0


def ask(node: Node, question: Row) -> Row:
    """Return the answer of the scheduler, or the reason under ``error`` if there is none."""
    try:
        answer: object = json.loads(node.ask_scheduler(json.dumps(question).encode()))
    except (DiosError, ValueError) as error:
        return {"error": error.message if isinstance(error, DiosError) else "the answer is malformed"}
    if not isinstance(answer, dict):
        return {"error": "the answer is malformed"}
    return answer if answer.get("ok") else {"error": str(answer.get("error", "the answer is malformed"))}


def read_view(node: Node) -> ClusterView:
    """Return the cluster at this moment.

    Raises:
        UnreachableError: the node does not answer.
    """
    problems: list[str] = []
    nodes = node.nodes()
    tasks = node.tasks()
    if tasks.incomplete:
        silent = ", ".join(plain(member.name) for member in nodes if not member.usable) or "a node"
        problems.append(f"{silent} did not answer: only tasks that were seen there before can be shown")
    if len(tasks) > TASKS_MAX:
        problems.append(f"only the newest {TASKS_MAX} of {len(tasks)} tasks are shown")
    status = ask(node, {"ask": "status"})
    shares: Row = {}
    if "error" in status:
        problems.append(
            f"no scheduler answers, so that reservations and shares are unknown: {status['error']}"
        )
    else:
        shares = ask(node, {"ask": "shares"})
    newest = sorted(tasks, key=lambda task: task.started_ns)[-TASKS_MAX:]
    return ClusterView(
        time.time(), nodes, newest, status, shares, tuple(map(plain, problems)), tasks.incomplete
    )


def with_unseen(view: ClusterView, before: ClusterView) -> ClusterView:
    """Return the view with the tasks of ``before`` whose nodes do not answer any more.

    A task of a dead node counts as lost with it; that of a node that may only be slow stays as it was seen.
    """
    silent = {member.name: member for member in view.nodes if not member.usable}
    if not silent:
        return view
    seen = {task.fingerprint for task in view.tasks}
    unseen = [
        _as_last_seen(task, silent[task.node], before.taken_s)
        for task in before.tasks
        if task.node in silent and task.fingerprint not in seen
    ]
    kept = sorted([*unseen, *view.tasks], key=lambda task: task.started_ns)[-TASKS_MAX:]
    return replace(view, tasks=kept) if unseen else view


def _as_last_seen(task: Status, node: Member, seen_s: float) -> Status:
    if task.ended or node.status not in {NodeStatus.DEAD, NodeStatus.LEFT}:
        return task
    words = f"{plain(node.name)} is dead: the task ended with it, as far as the others know"
    end_ns = max(task.started_ns, int(seen_s * 1e9))
    return replace(task, state=TaskState.ENDED, cause=Cause.NODE_LOST, ended_ns=end_ns, detail=words)


def living(tasks: Sequence[Status]) -> Iterator[Status]:
    """Yield the tasks that have not ended."""
    return (task for task in tasks if not task.ended)
