"""``dios top``: keys act on the marked task, a kill is confirmed, and text of others is shown as text."""

from __future__ import annotations

from collections.abc import Callable

import anyio
import pytest

from dios.client.ops.status import Status
from dios.client.sync.node import Task
from dios.web.observation.cluster_view import ClusterView
from dios.web.terminal.overview import chosen_tasks, task_cells
from dios.wire.types import Cause, TaskState

pytest.importorskip("textual", reason="textual is not installed: make setup")

from textual.widgets import DataTable, Input, Static

from dios.web.terminal.application import TopApplication

S = 1_000_000_000
EVIL = "[red]x[/] [@click=app.quit]y[/]\x1b[2J\u202e"
SHOWN = "[red]x[/] [@click=app.quit]y[/]\\x1b[2J\\u202e"
TASKS = (
    Status("aa", EVIL, TaskState.RUNNING, started_ns=3 * S, node="n2", progress=0.5),
    Status("bb", "count", TaskState.RUNNING, started_ns=1 * S, node="n1"),
    Status("cc", "old", TaskState.ENDED, started_ns=1 * S, ended_ns=2 * S, cause=Cause.KILLED),
)


def test_tasks_are_sorted_by_values_and_filtered_by_any_cell() -> None:
    """Durations are compared as numbers; ended tasks are shown on request."""

    def marks(column: str, *, reverse: bool = False, ended: bool = False, word: str = "") -> list[str]:
        found = chosen_tasks(TASKS, 20 * S, column, reverse=reverse, ended=ended, word=word)
        return [task.fingerprint for task in found]

    assert marks("SECONDS") == ["aa", "bb"]
    assert marks("NODE") == ["bb", "aa"]
    assert marks("SECONDS", reverse=True, ended=True) == ["bb", "aa", "cc"]
    assert marks("TASK", ended=True, word="KILL") == ["cc"]
    assert task_cells(TASKS[0], 20 * S)[1] == SHOWN


def test_keys_search_sort_and_kill_after_a_question() -> None:
    """Escape at the question kills nothing, Enter kills the task that was marked."""
    acted: list[str] = []

    async def act(task: Status, action: Callable[[Task], object]) -> None:
        acted.append(f"{action.__name__} {task.fingerprint}")

    async def use() -> None:
        application = TopApplication(lambda: view, act, column="NODE")
        async with application.run_test(size=(120, 30)) as pilot:
            table = application.query_one("#tasks", DataTable)
            assert [str(table.get_row_at(row)[0]) for row in range(table.row_count)] == ["bb", "aa"]
            assert SHOWN in str(table.get_row_at(1)[1])
            assert "[blink]" in str(application.query_one("#problems", Static).render())
            await pilot.press("slash", "c", "l", "i", "c", "k", "enter", "k")
            await pilot.press("escape", "p")
            assert acted == ["pause aa"]
            await pilot.press("f3", "b", "b", "enter", "f9")
            await pilot.press("enter")
            assert acted == ["pause aa", "kill bb"]
            await pilot.press("f6", "enter")
            assert str(table.get_row_at(0)[0]) == "aa"
            await pilot.press("a", "f4", "o", "l", "d")
            assert application.query_one("#word", Input).value == "old"
            assert table.row_count == 1
            await pilot.press("escape", "q")
        assert not application.is_running

    view = ClusterView(1.0, (), TASKS, problems=("[blink]n3[/] did not answer",))
    anyio.run(use, backend="asyncio")
