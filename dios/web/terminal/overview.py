"""The rows of nodes and tasks as text, sorted and filtered. Every cell is without control characters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from dios.client.ops.cluster import Member
from dios.client.ops.status import Status
from dios.client.plain_text import plain
from dios.web.observation.cluster_view import ClusterView
from dios.web.observation.figures import TASK_FIGURES, Amount, amounts_of, texts_of
from dios.wire.types import TaskState

NODE_COLUMNS: Final = ("NODE", "STATE", "TASKS", "PROCESSORS SET ASIDE", "MEMORY SET ASIDE")
_BAR_WIDTH: Final = 10

TASK_COLUMNS: Final = ("TASK", "TITLE", "STATE", "NODE", "USER", "SECONDS", "DONE", "SECRECY")


def node_cells(view: ClusterView) -> list[tuple[str, ...]]:
    """Return a row of cells for each node."""
    return [_node(member, view) for member in view.nodes]


def _node(member: Member, view: ClusterView) -> tuple[str, ...]:
    row = view.rows_of_nodes.get(member.name, {})
    bars = [_bar(amount) for amount in amounts_of(row, "set aside")] or ["unknown"] * 2
    return plain(member.name) or "this node", member.condition, str(member.tasks), *bars


def _bar(amount: Amount) -> str:
    share = min(max(amount.used / amount.most, 0.0), 1.0) if amount.most > 0 else 0.0
    return f"[{'|' * round(share * _BAR_WIDTH):<{_BAR_WIDTH}}] {amount}"


def task_cells(task: Status, now_ns: int) -> tuple[str, ...]:
    """Return a task's cells in the order of TASK_COLUMNS."""
    task_cell, title, *others = texts_of(task, map(str.lower, TASK_COLUMNS), now_ns)
    return (task_cell, title, *(text or "-" for text in others))


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
    figure = TASK_FIGURES[column.lower()]
    chosen = [task for task in tasks if (ended or not task.ended) and has_word(task, word, now_ns)]
    chosen = [task for task in chosen if user in {"", task.principal}]
    chosen.sort(key=lambda task: (task.started_ns, task.fingerprint))
    chosen.sort(
        key=lambda task: value.lower() if isinstance(value := figure.value(task, now_ns), str) else value,
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
