"""The frame of all pages: navigation, the age of the data, problems, and updates while the page is open."""

from __future__ import annotations

import html
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from nicegui import ui

from dios.client.plain_text import plain
from dios.errors import DiosError
from dios.web.observation.cluster_view import ClusterView
from dios.web.observation.session import ClusterSession
from dios.web.observation.watcher import pause_after

PAGES: Final = (
    ("/", "Cluster"),
    ("/tasks", "Tasks"),
    ("/objects", "Objects"),
    ("/capabilities", "Capabilities"),
    ("/scheduling", "Scheduling"),
    ("/shares", "Shares"),
    ("/jobs", "Jobs"),
    ("/functions", "Network functions"),
)
_STYLE: Final = """
.nicegui-link { color: #0d5bb5; }
.q-badge { color: #fff; }
/* It has no name for screen readers. */
.q-loading-bar { display: none; }
/* A change between light and dark is complete at once. */
.q-item { transition: none; }
.dios-note { color: #8a5200; }
.body--dark .nicegui-link { color: #90caf9; }
.body--dark .dios-note { color: #ffb74d; }
.body--dark .q-page { --q-primary: #90caf9; --q-negative: #ff8a80; }
/* Charts are drawn for a light page; their colours keep their hues. */
.body--dark .nicegui-echart { filter: invert(0.92) hue-rotate(180deg); }
:focus-visible { outline: 2px solid #ff8f00; outline-offset: 2px; }
@media (max-width: 599px) { .nicegui-content { padding: 0.5rem; } }
"""
_SCRIPT: Final = """
document.documentElement.lang = "en";
// Zoom and pan a chart with buttons: part is the share of the shown time that becomes visible, by moves it.
function diosZoom(id, part, by) {
  const chart = getElement(id).chart, {start, end} = chart.getOption().dataZoom[0];
  const size = Math.min(100, Math.max(0.05, (end - start) * part));
  const middle = (start + end) / 2 + by * (end - start);
  const from = Math.min(100 - size, Math.max(0, part > 100 ? 0 : middle - size / 2));
  chart.dispatchAction({type: "dataZoom", dataZoomIndex: 0, start: from, end: from + size});
}
// A table that is wider than the page is scrolled with the keyboard, too.
new MutationObserver(() => document.querySelectorAll(".q-table__middle:not([tabindex])").forEach(
  one => { one.tabIndex = 0; }
)).observe(document.documentElement, {childList: true, subtree: true});
"""
UPDATE_S: Final = 0.5
_STALE_S: Final = 20
SECRECY, GROUP_SECRECY = "secrecy", "secrecy of its group"
"""Columns of secrecy labels. A table shows them only if one of its rows has a label."""
_AGE_S: Final = 2.0


@contextmanager
def page(session: ClusterSession, title: str) -> Iterator[None]:
    """Make the frame of a page, and its content inside of the block."""
    ui.page_title(f"{title} - DIOS")
    ui.dark_mode(value=None)
    ui.colors(primary="#1565c0", positive="#2e7d32", negative="#c62828", warning="#8a5200")
    ui.add_head_html(f"<script>{_SCRIPT}</script>")
    ui.add_css(_STYLE)
    with (
        ui.header().classes("items-center q-py-xs"),
        ui.element("nav").props('aria-label="pages"'),
        ui.row().classes("items-center gap-1"),
    ):
        ui.label("DIOS").classes("text-bold q-mr-sm")
        for path, name in PAGES:
            link = ui.link(name, path).classes("text-white no-underline q-px-sm q-py-xs rounded-borders")
            if name == title:
                link.classes("bg-black/25").props('aria-current="page"')
    with ui.element("div").classes("w-full"):
        heading(title, 1)
        _show_age(session)
        follow(session, _show_problems)
        yield


def heading(text: str, level: int = 2) -> None:
    """Make a heading; level 1 is the page's title."""
    style = "text-h5" if level == 1 else "text-subtitle1 text-weight-medium q-mt-md"
    ui.html(html.escape(text), sanitize=False, tag=f"h{level}").classes(style)


def follow(session: ClusterSession, show: Callable[[ClusterView], None]) -> None:
    """Show the newest view in a part of the page, again after each change, while the page is open."""
    watcher = session.watcher
    client = ui.context.client
    shown = -1

    @ui.refreshable
    def part() -> None:
        show(watcher.view)

    part()

    def update() -> None:
        nonlocal shown
        if watcher.version != shown:
            shown = watcher.version
            part.refresh()

    ui.timer(UPDATE_S, update)
    if not getattr(client, "dios_counted", False):
        client.dios_counted = True  # type: ignore[attr-defined] # a mark of this module
        watcher.add_viewer()
        client.on_delete(watcher.remove_viewer)


def poll(update: Callable[[], Awaitable[None]], seconds: float) -> None:
    """Call ``update`` while the page is open: at once, and again after ``seconds``, or after a pause that is
    longer the longer an update takes.
    """
    due = 0.0

    async def turn() -> None:
        nonlocal due
        began = time.monotonic()
        if began >= due:
            await update()
            now = time.monotonic()
            due = now + pause_after(now - began, seconds)

    ui.timer(UPDATE_S, turn)


def _show_age(session: ClusterSession) -> None:
    """Say how old the data are while the node does not answer, or answers slowly."""
    age = note("")

    def update() -> None:
        taken = session.watcher.view.taken_s
        seconds = time.time() - taken if taken else 0.0
        age.text = f"These data are {seconds:.0f} s old." if seconds > _STALE_S else ""
        age.set_visibility(bool(age.text))

    ui.timer(_AGE_S, update)


def _show_problems(view: ClusterView) -> None:
    for problem in view.problems:
        note(problem)


def table(columns: Sequence[str], rows: Sequence[Sequence[object]], *, label: str) -> ui.table:
    """Make a table that can be sorted and searched; every cell is text.

    The columns SECRECY and GROUP_SECRECY are hidden while all their cells are empty.
    """
    shown = ui.table(
        columns=[
            {"name": name, "label": name, "field": name, "sortable": True, "align": "left"}
            for name in columns
        ],
        rows=[],
        row_key="id",
        pagination={"rowsPerPage": 25},
    )
    fill(shown, columns, rows)
    return shown.classes("w-full").props(f'dense flat bordered aria-label="{label}"')


def fill(shown: ui.table, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Replace the rows of a table."""
    shown.rows[:] = [{"id": place, **dict(zip(columns, row, strict=True))} for place, row in enumerate(rows)]
    hide_unused(shown)
    shown.update()


def hide_unused(shown: ui.table) -> None:
    """Hide the columns of secrecy labels if no row of a table has one, and show them otherwise."""
    for column in shown.columns:
        if column["name"] in {SECRECY, GROUP_SECRECY}:
            used = any(row[column["name"]] for row in shown.rows)
            column["classes"] = column["headerClasses"] = "" if used else "hidden"


def link_column(shown: ui.table, column: str, prefix: str) -> None:
    """Make the cells of a column links to ``prefix`` with the cell's text; empty cells stay empty."""
    shown.add_slot(
        f"body-cell-{column}",
        '<q-td :props="props"><a v-if="props.value" class="nicegui-link" '
        f""":href="'{prefix}' + encodeURIComponent(props.value)">{{{{ props.value }}}}</a></q-td>""",
    )


def button_column(shown: ui.table, column: str, action: Callable[[int], Awaitable[None]]) -> None:
    """Make the cells of a column buttons with the cell's text, which call ``action`` with the row's id."""
    shown.add_slot(
        f"body-cell-{column}",
        '<q-td :props="props"><q-btn v-if="props.value" flat dense no-caps :label="props.value" '
        f"""@click="() => $parent.$emit('{column}', props.row.id)" /></q-td>""",
    )
    shown.on(column, lambda event: action(int(event.args)))


def note(text: str) -> ui.label:
    """Make a line about something that is missing, out of date or amiss."""
    return ui.label(text).classes("dios-note").props('role="status"')


async def attempt(action: Callable[[], object], done: str = "done") -> None:
    """Wait for an action of a user, and show its error, or ``done`` with the number that it returned."""
    try:
        result = action()
        if isinstance(result, Awaitable):
            result = await result
    except (DiosError, OSError) as error:
        ui.notify(plain(str(error)), type="negative", multi_line=True)
    else:
        is_number = isinstance(result, int) and not isinstance(result, bool)
        ui.notify(f"{done}: {result}" if is_number else done, type="positive")


async def confirmed(question: str) -> bool:
    """Ask the user, and return True if the answer is yes."""
    with ui.dialog() as dialog, ui.card():
        ui.label(question)
        with ui.row():
            ui.button("Yes", on_click=lambda: dialog.submit(True)).props("color=negative")
            ui.button("No", on_click=lambda: dialog.submit(False))
    return bool(await dialog)
