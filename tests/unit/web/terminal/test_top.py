"""``dios top``: keys act on the marked task, a kill is confirmed, and text of others is shown as text."""

from __future__ import annotations

import sys
from collections.abc import Callable

import anyio
import pytest

from dios.cli.tasks import top
from dios.client.ops.status import Status
from dios.client.sync.node import Task
from dios.web.observation.cluster_view import ClusterView
from dios.web.terminal.overview import as_tree, chosen_tasks, task_cells
from dios.wire.types import Cause, TaskState

pytest.importorskip("textual", reason="textual is not installed: make setup")

from textual.widgets import DataTable, Input, Static

from dios.web.terminal.application import TopApplication

S = 1_000_000_000
EVIL = "[red]x[/] [@click=app.quit]y[/]\x1b[2J\u202e"
SHOWN = "[red]x[/] [@click=app.quit]y[/]\\x1b[2J\\u202e"
TASKS = (
    Status("aa", EVIL, TaskState.RUNNING, started_ns=3 * S, node="n2", progress=0.5),
    Status("bb", "count", TaskState.RUNNING, started_ns=1 * S, node="n1", secrecy=("payroll",)),
    Status("cc", "old", TaskState.ENDED, started_ns=1 * S, ended_ns=2 * S, cause=Cause.KILLED),
)


def test_tasks_are_sorted_by_values_and_filtered_by_any_cell() -> None:
    """Durations are compared as numbers; ended tasks are shown on request."""

    def marks(column: str, *, reverse: bool = False, ended: bool = False, word: str = "") -> list[str]:
        chosen = chosen_tasks(TASKS, 20 * S, column, reverse=reverse, ended=ended, word=word)
        return [task.fingerprint for task in chosen]

    assert marks("SECONDS") == ["aa", "bb"]
    assert marks("NODE") == ["bb", "aa"]
    assert marks("SECONDS", reverse=True, ended=True) == ["bb", "aa", "cc"]
    assert marks("TASK", ended=True, word="KILL") == ["cc"]
    assert marks("SECRECY", ended=True, word="pay") == ["bb"]
    assert task_cells(TASKS[0], 20 * S)[1] == SHOWN


def test_a_tree_has_each_task_once_behind_its_parent() -> None:
    """Lines show the parents; a missing parent is a root, and a circle of parents loses no task."""

    def drawn(*pairs: str) -> list[str]:
        tasks = [Status(pair[0], "", TaskState.RUNNING, parent=pair[1:]) for pair in pairs]
        return [line + task.fingerprint for task, line in as_tree(tasks)]

    assert drawn("a", "cb", "ba", "da", "ex") == ["a", "├─ b", "│  └─ c", "└─ d", "e"]
    assert drawn("ab", "ba", "cc", "d") == ["d", "a", "b", "c"]


def test_a_terminal_that_cannot_draw_gets_a_table(monkeypatch: pytest.MonkeyPatch) -> None:
    """With TERM=dumb, or none, no screen is drawn, and with that of ssh it is."""
    for stream in (sys.stdin, sys.stdout):
        monkeypatch.setattr(stream, "isatty", lambda: True)
    for term, can in (("dumb", False), ("", False), ("xterm-256color", True)):
        monkeypatch.setenv("TERM", term)
        assert top._can_draw() is can


def test_the_other_keys_of_htop() -> None:
    """Help, a tree, sorting by time, users, tags, and a display that is held."""
    acted: list[str] = []
    tasks = (
        Status("aa", "whole", TaskState.RUNNING, started_ns=3 * S, principal="uid:1"),
        Status("bb", "part", TaskState.RUNNING, started_ns=1 * S, principal="uid:2", parent="aa"),
        Status("cc", "other", TaskState.RUNNING, started_ns=2 * S, principal="uid:2"),
    )
    view = ClusterView(1.0, (), tasks)

    async def act(task: Status, action: Callable[[Task], object]) -> None:
        acted.append(f"{action.__name__} {task.fingerprint}")

    async def use() -> None:
        nonlocal view
        application = TopApplication(lambda: view, act, column="TITLE")
        async with application.run_test(size=(120, 30)) as pilot:
            table = application.query_one("#tasks", DataTable)

            def column(place: int) -> list[str]:
                return [str(table.get_row_at(row)[place]) for row in range(table.row_count)]

            assert column(0) == ["cc", "bb", "aa"]
            await pilot.press("f1")
            assert "tree of parents" in str(application.screen.query_one(Static).render())
            await pilot.press("escape", "t")
            assert column(1) == ["other", "whole", "└─ part"]
            await pilot.press("f5", "T")
            assert column(0) == ["aa", "cc", "bb"]
            await pilot.press("home", "space", "space", "p")
            await pilot.pause()
            assert sorted(acted) == ["pause aa", "pause cc"]
            await pilot.press("U", "u", "down", "enter")
            assert column(0) == ["aa"]
            await pilot.press("u", "enter", "Z")
            assert len(column(0)) == 3
            held, view = view, ClusterView(2.0, (), ())
            application._follow()
            assert len(column(0)) == len(held.tasks)
            await pilot.press("Z")
            application._follow()
            assert not column(0)
            await pilot.press("f10")

    anyio.run(use, backend="asyncio")


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
