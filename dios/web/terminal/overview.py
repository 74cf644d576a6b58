"""The rows of nodes and tasks as text, sorted and filtered. Every cell is without control characters."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final, TypeAlias

from dios.client.ops.cluster import Member
from dios.client.ops.status import Status
from dios.client.plain_text import plain
from dios.web.observation.cluster_view import ClusterView, number
from dios.wire.types import TaskState

NODE_COLUMNS: Final = ("NODE", "STATE", "TASKS", "PROCESSORS SET ASIDE", "MEMORY SET ASIDE")
_GIB: Final = 2**30
_BAR_WIDTH: Final = 10

_Value: TypeAlias = str | float


def _state(task: Status) -> str:
    if not task.ended:
        return "moving" if task.leave_ns else task.state.name.lower()
    return "exited" if task.ok else task.cause.name.lower()


def _secrecy(task: Status) -> str:
    return plain(" ".join(task.secrecy)) or "-"


def _seconds(task: Status, now_ns: int) -> float:
    return max(0, (task.ended_ns or now_ns) - task.started_ns) / 1e9 if task.started_ns else 0.0


TASK_COLUMNS: Final[Mapping[str, Callable[[Status, int], _Value]]] = {
    "TASK": lambda task, _: task.fingerprint,
    "TITLE": lambda task, _: plain(task.label),
    "STATE": lambda task, _: _state(task),
    "NODE": lambda task, _: plain(task.node),
    "USER": lambda task, _: plain(task.principal),
    "SECONDS": _seconds,
    "DONE": lambda task, _: -1.0 if task.progress is None else task.progress,
    "SECRECY": lambda task, _: _secrecy(task),
}
"""The columns of tasks, with the value by which each is sorted."""


def node_cells(view: ClusterView) -> list[tuple[str, ...]]:
    """Return a row of cells for each node."""
    return [_node(member, view) for member in view.nodes]


def _node(member: Member, view: ClusterView) -> tuple[str, ...]:
    row = view.rows_of_nodes.get(member.name, {})
    cpus = memory = "unknown"
    if row:
        cpus = _bar(number(row.get("cpus_set_aside")), number(row.get("cpus")), "")
        memory = _bar(
            number(row.get("memory_set_aside")) / _GIB, number(row.get("memory_bytes")) / _GIB, " GiB"
        )
    return plain(member.name) or "this node", member.condition, str(member.tasks), cpus, memory


def _bar(used: float, most: float, unit: str) -> str:
    share = min(max(used / most, 0.0), 1.0) if most > 0 else 0.0
    return f"[{'|' * round(share * _BAR_WIDTH):<{_BAR_WIDTH}}] {used:.3g} of {most:.3g}{unit}"


def task_cells(task: Status, now_ns: int) -> tuple[str, ...]:
    """Return a task's cells in the order of TASK_COLUMNS."""
    seconds = f"{_seconds(task, now_ns):.1f}" if task.started_ns else "-"
    done = "-" if task.progress is None else f"{task.progress:.0%}"
    return (
        task.fingerprint,
        plain(task.label),
        _state(task),
        plain(task.node),
        plain(task.principal),
        seconds,
        done,
        _secrecy(task),
    )


def chosen_tasks(
    tasks: Sequence[Status],
    now_ns: int,
    column: str,
    *,
    reverse: bool,
    ended: bool,
    word: str = "",
    user: str = "",
) -> list[Status]:
    """Return the tasks to show, sorted by a column; ``word`` must occur in one of their cells.

    With ``user`` they are only those of this principal.

    Ended tasks are only shown with ``ended``. Tasks with equal values are sorted by their start.
    """
    value_of = TASK_COLUMNS[column]
    chosen = [task for task in tasks if (ended or not task.ended) and has_word(task, word, now_ns)]
    chosen = [task for task in chosen if user in {"", task.principal}]
    chosen.sort(key=lambda task: (task.started_ns, task.fingerprint))
    numbers = column in {"SECONDS", "DONE"}
    chosen.sort(
        key=lambda task: value_of(task, now_ns) if numbers else str(value_of(task, now_ns)).lower(),
        reverse=reverse,
    )
    return chosen


def as_tree(tasks: Sequence[Status]) -> list[tuple[Status, str]]:
    """Return each task behind its parent, in the given order, with the lines of a tree to draw before it.

    A task whose parent is not among them is a root, and so are tasks that are their own ancestors.
    """
    known = {task.fingerprint for task in tasks}
    below: dict[str, list[Status]] = {}
    for task in tasks:
        below.setdefault(task.parent if task.parent in known else "", []).append(task)
    lines: list[tuple[Status, str]] = []
    drawn: set[str] = set()
    waiting = [(task, "", "") for task in reversed(below.get("", []))]
    while waiting:
        task, line, indent = waiting.pop()
        if task.fingerprint in drawn:
            continue
        drawn.add(task.fingerprint)
        lines.append((task, line))
        children = below.get(task.fingerprint, [])
        for place, child in enumerate(reversed(children)):
            last = place == 0
            waiting.append((child, indent + ("└─ " if last else "├─ "), indent + ("   " if last else "│  ")))
    return lines + [(task, "") for task in tasks if task.fingerprint not in drawn]


def users_of(tasks: Sequence[Status]) -> list[str]:
    """Return the users of tasks in alphabetical order."""
    return sorted({task.principal for task in tasks})


def has_word(task: Status, word: str, now_ns: int) -> bool:
    """Return True if the word occurs in one of the task's cells; upper and lower case are equal."""
    return not word or any(word.lower() in cell.lower() for cell in task_cells(task, now_ns))


def headline(view: ClusterView) -> str:
    """Return the number of nodes that answer, and of tasks by state."""
    counts = {state: sum(task.state is state for task in view.tasks) for state in TaskState}
    tasks = ", ".join(f"{count} {state.name.lower()}" for state, count in counts.items() if count)
    usable = sum(member.usable for member in view.nodes)
    nodes = f"nodes: {usable} of {len(view.nodes)} answer" if view.nodes else "a node without cluster"
    return f"{nodes}; tasks: {tasks or 'none'}"
