"""The data of one moment: nodes, tasks, shares, and the scheduler's last round.

Everything that tasks and other users chose arrives here as text, and leaves without control characters.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from dios.client.ops.cluster import Member
from dios.client.ops.status import Status
from dios.client.plain_text import plain
from dios.client.sync.node import Node
from dios.errors import DiosError

TASKS_MAX: Final = 20_000

Row: TypeAlias = Mapping[str, object]

_log: Final = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ClusterView:
    """The cluster at one moment, as one user sees it.

    ``problems`` are sentences about what could not be read. ``status`` and ``shares`` are answers of the
    scheduler, empty if none answers.
    """

    taken_s: float = 0.0
    nodes: Sequence[Member] = ()
    tasks: Sequence[Status] = ()
    status: Row = field(default_factory=dict)
    shares: Row = field(default_factory=dict)
    problems: Sequence[str] = ()

    @property
    def rows_of_nodes(self) -> Mapping[str, Row]:
        """Return the scheduler's rows of nodes by name."""
        return {str(row.get("node")): row for row in rows(self.status, "nodes")}


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
        silent = ", ".join(plain(one.name) for one in nodes if not one.usable) or "a node"
        problems.append(f"{silent} did not answer: tasks there are not shown")
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
    return ClusterView(time.time(), nodes, newest, status, shares, tuple(map(plain, problems)))


def living(tasks: Sequence[Status]) -> Iterator[Status]:
    """Yield the tasks that have not ended."""
    return (task for task in tasks if not task.ended)
