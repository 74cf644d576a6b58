"""The screen of ``dios top`` and its keys, which are those of htop where they mean the same.

All text of others is given to Textual as ``Text``, so that it is never read as markup.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Sequence
from typing import ClassVar, Final, TypeAlias

from rich.text import Text
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.widgets import DataTable, Footer, Input, OptionList, Static

from dios.client.ops.status import Status
from dios.client.plain_text import plain
from dios.client.sync.node import Task
from dios.errors import DiosError
from dios.web.observation.cluster_view import ClusterView
from dios.web.terminal.overview import (
    NODE_COLUMNS,
    TASK_COLUMNS,
    as_tree,
    chosen_tasks,
    has_word,
    headline,
    node_cells,
    task_cells,
    users_of,
)

Act: TypeAlias = Callable[[Status, Callable[[Task], object]], Awaitable[object]]
"""Run a function with the handle of a task, in a thread."""

UPDATE_S: Final = 0.5
_ROWS_MAX: Final = 1_000
_STALE_S: Final = 10
_ALL_USERS: Final = "all users"

HELP: Final = """\
F1 ? h    this help             F9 k   kill the tagged tasks or the marked one
F3 /      search                p r    pause, resume
F4 \\     filter                Space  tag a task; U: no tags
F5 t      tree of parents       u      only the tasks of a user
F6 >      choose the column     a      ended tasks, too
T N       sort by time, task    Z      stop and continue the display
I         invert the order      F10 q  quit"""
"""The keys, which are those of htop where they mean the same."""


class _Question(ModalScreen[bool]):
    """A question that Enter or y answers with yes."""

    CSS = """
    _Question { align: center middle; }
    Static { width: auto; max-width: 80%; padding: 1 2; border: solid $error; background: $surface; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        ("y,enter", "answer(True)", "yes"),
        ("n,escape", "answer(False)", "no"),
    ]

    def __init__(self, question: str) -> None:
        super().__init__()
        self._question: Final = question

    def compose(self) -> ComposeResult:
        yield Static(Text(f"{self._question}\n\ny or Enter: yes    n or Esc: no"))

    def action_answer(self, answer: bool) -> None:  # noqa: FBT001 - Textual calls it so
        self.dismiss(answer)


class _Help(ModalScreen[None]):
    """The keys, until one is pressed."""

    CSS = """
    _Help { align: center middle; }
    Static { width: auto; max-width: 100%; padding: 1 2; border: solid $primary; background: $surface; }
    """

    def compose(self) -> ComposeResult:
        yield Static(Text(HELP))

    def on_key(self) -> None:
        self.dismiss()


class _Choice(ModalScreen[str]):
    """A list of words; an empty result means none."""

    CSS = """
    _Choice { align: center middle; }
    OptionList { width: 30; height: auto; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [("escape", "leave", "back")]

    def __init__(self, words: Sequence[str]) -> None:
        super().__init__()
        self._words: Final = words

    def compose(self) -> ComposeResult:
        yield OptionList(*[Text(plain(word)) for word in self._words])

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        self.dismiss(self._words[event.option_index])

    def action_leave(self) -> None:
        self.dismiss("")


class _TaskTable(DataTable[Text]):
    """The table of tasks; Home and End mark the first and the last one, as in htop."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("home", "scroll_top", show=False),
        Binding("end", "scroll_bottom", show=False),
    ]


class TopApplication(App[None]):
    """A live overview. ``newest`` returns the newest view, and ``act`` runs an action on a task."""

    TITLE = "DIOS"
    ENABLE_COMMAND_PALETTE = False
    CSS = """
    #nodes { height: auto; max-height: 40%; }
    #tasks { height: 1fr; }
    #problems { color: $warning; height: auto; }
    #word { display: none; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        ("f1,question_mark,h", "help", "help"),
        ("f3,slash", "look('search')", "search"),
        ("f4,backslash", "look('filter')", "filter"),
        ("f5,t", "tree", "tree"),
        ("f6,greater_than_sign", "sort", "sort"),
        Binding("T", "sort_by('SECONDS')", show=False),
        Binding("N", "sort_by('TASK')", show=False),
        Binding("I", "invert", "invert", show=False),
        Binding("u", "user", "user", show=False),
        Binding("space", "tag", "tag", show=False),
        Binding("U", "untag", "no tags", show=False),
        Binding("Z", "hold", "hold", show=False),
        ("a", "ended", "ended too"),
        ("p", "pause", "pause"),
        ("r", "resume", "resume"),
        ("f9,k", "kill", "kill"),
        Binding("escape", "leave_input", show=False),
        ("f10,q", "quit", "quit"),
    ]

    def __init__(
        self, newest: Callable[[], ClusterView], act: Act, *, column: str = "SECONDS", ended: bool = False
    ) -> None:
        super().__init__()
        self._newest: Final = newest
        self._act: Final = act
        self._shown_view: ClusterView | None = None
        self._sort_column = column
        self._inverted = False
        self._with_ended = ended
        self._filter_word = ""
        self._user = ""
        self._tree = False
        self._held = False
        self._tagged: set[str] = set()
        self._looking = "search"
        self._shown: list[Status] = []

    def compose(self) -> ComposeResult:
        """Yield the parts of the screen from top to bottom."""
        with Vertical():
            yield Static(id="head")
            yield Static(id="problems")
            yield DataTable(id="nodes", show_cursor=False)
            yield _TaskTable(id="tasks", cursor_type="row", zebra_stripes=True)
            yield Input(id="word")
        yield Footer()

    def on_mount(self) -> None:
        """Begin to follow the cluster."""
        self._node_table.add_columns(*NODE_COLUMNS)
        self._task_table.add_columns(*TASK_COLUMNS)
        self._node_table.can_focus = False
        self._task_table.focus()
        self._follow()
        self.set_interval(UPDATE_S, self._follow)

    @property
    def _node_table(self) -> DataTable[Text]:
        table: DataTable[Text] = self.query_one("#nodes", DataTable)
        return table

    @property
    def _task_table(self) -> DataTable[Text]:
        table: DataTable[Text] = self.query_one("#tasks", DataTable)
        return table

    def _follow(self) -> None:
        view = self._newest()
        if view is not self._shown_view and not self._held:
            self._shown_view = view
            self._show_view()

    def _show_view(self) -> None:
        view = self._shown_view or ClusterView()
        now = time.time_ns()
        chosen = chosen_tasks(
            view.tasks,
            now,
            self._sort_column,
            reverse=self._inverted,
            ended=self._with_ended,
            word=self._filter_word,
            user=self._user,
        )
        marked = self._marked()
        drawn = as_tree(chosen) if self._tree else [(task, "") for task in chosen]
        self._tagged &= {task.fingerprint for task in chosen}
        self._shown = [task for task, _ in drawn[:_ROWS_MAX]]
        words = f"{headline(view)}; by {self._sort_column.lower()}{', inverted' if self._inverted else ''}"
        if len(chosen) > _ROWS_MAX:
            words += f"; the first {_ROWS_MAX} of {len(chosen)}"
        words += "; a tree" if self._tree else ""
        words += f"; of {plain(self._user)}" if self._user else ""
        words += f"; {len(self._tagged)} tagged" if self._tagged else ""
        words += "; held, Z goes on" if self._held else ""
        self._head("head", words + (f"; filter: {plain(self._filter_word)}" if self._filter_word else ""))
        age = time.time() - view.taken_s if view.taken_s else 0.0
        old = [f"These data are {age:.0f} s old."] if age > _STALE_S else []
        self._head("problems", "\n".join([*map(plain, view.problems), *old]))
        self._node_table.display = bool(view.nodes)
        self._node_table.clear()
        for cells in node_cells(view):
            self._node_table.add_row(*map(Text, cells))
        self._task_table.clear()
        for task, line in drawn[:_ROWS_MAX]:
            first, label, *others = task_cells(task, now)
            style = "bold reverse" if task.fingerprint in self._tagged else ""
            self._task_table.add_row(*[Text(cell, style) for cell in (first, line + label, *others)])
        if marked is not None:
            self._mark(next((row for row, task in enumerate(self._shown) if _same(task, marked)), 0))

    def _head(self, place: str, words: str) -> None:
        shown = self.query_one(f"#{place}", Static)
        shown.update(Text(words))
        shown.display = bool(words)

    def _marked(self) -> Status | None:
        row = self._task_table.cursor_row
        return self._shown[row] if 0 <= row < len(self._shown) else None

    def _mark(self, row: int) -> None:
        self._task_table.move_cursor(row=row)

    def action_look(self, kind: str) -> None:
        """Open the line for a word, or search for the next task with it."""
        word = self.query_one("#word", Input)
        if word.has_focus and self._looking == kind == "search":
            self._search(word.value, past=1)
            return
        self._looking = kind
        word.value = self._filter_word if kind == "filter" else ""
        word.placeholder = f"{kind}: a part of any column; Enter: keep, Esc: end"
        word.display = True
        word.focus()

    def action_leave_input(self) -> None:
        """Close the line for a word, and end the filter."""
        if self._looking == "filter" and self._filter_word:
            self._filter_word = ""
            self._show_view()
        self._close_input()

    def _close_input(self) -> None:
        self.query_one("#word", Input).display = False
        self._task_table.focus()

    def on_input_changed(self, event: Input.Changed) -> None:
        """Search or filter at each letter."""
        if self._looking == "filter":
            self._filter_word = event.value
            self._show_view()
        else:
            self._search(event.value, past=0)

    def on_input_submitted(self) -> None:
        """Return to the tasks; the filter stays."""
        self._close_input()

    def _search(self, word: str, past: int) -> None:
        now, count = time.time_ns(), len(self._shown)
        for step in range(count if word else 0):
            row = (self._task_table.cursor_row + past + step) % count
            if has_word(self._shown[row], word, now):
                self._mark(row)
                return

    def action_sort(self) -> None:
        """Choose the column by which tasks are sorted."""
        self.push_screen(_Choice(tuple(TASK_COLUMNS)), self.action_sort_by)

    def action_sort_by(self, column: str | None) -> None:
        """Sort the tasks by a column."""
        if column:
            self._sort_column = column
            self._show_view()

    def action_help(self) -> None:
        """Show the keys."""
        self.push_screen(_Help())

    def action_tree(self) -> None:
        """Show each task behind its parent, or all tasks in the order of the column again."""
        self._tree = not self._tree
        self._show_view()

    def action_user(self) -> None:
        """Choose the user whose tasks are shown."""
        users = users_of((self._shown_view or ClusterView()).tasks)

        def show(user: str | None) -> None:
            if user:
                self._user = "" if user == _ALL_USERS else user
                self._show_view()

        self.push_screen(_Choice((_ALL_USERS, *filter(None, users))), show)

    def action_tag(self) -> None:
        """Tag the marked task, or remove its tag, and mark the next one."""
        task = self._marked()
        if task is not None:
            self._tagged ^= {task.fingerprint}
            self._show_view()
            self._mark(min(self._task_table.cursor_row + 1, len(self._shown) - 1))

    def action_untag(self) -> None:
        """Remove all tags."""
        self._tagged.clear()
        self._show_view()

    def action_hold(self) -> None:
        """Show no newer data, or go on with them."""
        self._held = not self._held
        self._show_view()

    def action_invert(self) -> None:
        """Invert the order."""
        self._inverted = not self._inverted
        self._show_view()

    def action_ended(self) -> None:
        """Show ended tasks, or hide them again."""
        self._with_ended = not self._with_ended
        self._show_view()

    def action_pause(self) -> None:
        """Pause the tagged tasks, or the marked one."""
        self._begin_action("paused", Task.pause, self._chosen())

    def action_resume(self) -> None:
        """Resume the tagged tasks, or the marked one."""
        self._begin_action("resumed", Task.resume, self._chosen())

    def action_kill(self) -> None:
        """Kill the tagged tasks, or the marked one, after a question."""
        tasks = self._chosen()
        if not tasks:
            return

        def answered(yes: bool | None) -> None:  # noqa: FBT001 - Textual calls it so
            if yes:
                self._begin_action("killed", Task.kill, tasks)

        subject = _title(tasks[0]) if len(tasks) == 1 else f"{len(tasks)} tagged tasks"
        self.push_screen(_Question(f"Kill {subject}?"), answered)

    def _chosen(self) -> list[Status]:
        """Return the tagged tasks, or without tags the marked one."""
        tagged = [task for task in self._shown if task.fingerprint in self._tagged]
        marked = self._marked()
        return tagged or ([] if marked is None else [marked])

    def _begin_action(self, done: str, action: Callable[[Task], object], tasks: Sequence[Status]) -> None:
        for task in tasks:
            self.run_worker(self._run_action(done, action, task))

    async def _run_action(self, done: str, action: Callable[[Task], object], task: Status) -> None:
        try:
            await self._act(task, action)
        except (DiosError, OSError) as error:
            self.notify(plain(f"{_title(task)}: {error}"), severity="error", markup=False)
        else:
            self.notify(f"{done}: {_title(task)}", markup=False)


def _title(task: Status) -> str:
    return f"{plain(task.label) or 'without label'} ({task.fingerprint})"


def _same(task: Status, other: Status) -> bool:
    return task.fingerprint == other.fingerprint
