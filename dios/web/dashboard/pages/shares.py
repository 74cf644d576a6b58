"""The page of shares: share, past use, credit and predicted turn of users, and admitted jobs over time."""

from __future__ import annotations

from typing import Final

from nicegui import ui

from dios.client.plain_text import plain
from dios.web.dashboard import charts
from dios.web.dashboard.layout import fill, follow, heading, note, poll, table
from dios.web.observation.cluster_view import ClusterView, Row, number, rows
from dios.web.observation.figures import SHARE_FIGURES
from dios.web.observation.packing import MEMORY, PROCESSORS, TRAFFIC, UNITS, UsedOverTime, demands
from dios.web.observation.session import ClusterSession

_COLUMNS: Final = (*SHARE_FIGURES, "turn")
_MEMBERS: Final = ("job", "user", "member", "node", "runs", "processors now", "GiB now", "ends")
_EDGES: Final = ("job", "from", "to", "guaranteed MB/s now", "used MB/s")
_CURVES: Final = ("share", "commitment", "credit")
_PACKING_S: Final = 3.0
_ALL: Final = "all nodes"
_GIB: Final = 2**30
_MB: Final = 1e6


def show(session: ClusterSession, _: str = "") -> None:
    """Make the content."""
    _shares(session)
    _packing(session)


def _shares(session: ClusterSession) -> None:
    rule = ui.label()
    share_table = table(_COLUMNS, (), label="shares")
    ui.label(
        "The turn is the place in the order of users with waiting tasks; the time is that until the user is "
        "the next one, if no task starts or ends meanwhile. The ends of tasks are unknown, and shorten it."
    ).classes("text-caption")
    pictures = {}
    for curve in _CURVES:
        heading(f"{curve.capitalize()} over time")
        pictures[curve] = (
            ui.echart(charts.lines({}, curve))
            .classes("w-full h-56")
            .props(f'role="img" aria-label="{curve} over time"')
        )

    def update(view: ClusterView) -> None:
        principals = rows(view.shares, "principals")
        rule.text = "The shares are unknown, because no scheduler answers."
        if principals:
            memory = number(view.shares.get("memory_s"))
            name = plain(str(view.shares.get("fairness")))
            others = int(number(view.shares.get("sharing"))) - len(principals)
            rule.text = (
                f"Order of users while not all have room: {name}; the past counts for {memory:.0f} s. "
                "The curves begin when a page of this server was opened first, because the cluster keeps no "
                "past."
            )
            rule.text += (
                f" {others} more users share; only the nodes' own user sees them." if others > 0 else ""
            )
        fill(
            share_table,
            _COLUMNS,
            [(*(figure(row) for figure in SHARE_FIGURES.values()), turn_text(row)) for row in principals],
        )
        past = session.watcher.shares
        for quantity, picture in pictures.items():
            curves = {
                plain(who): [(sample.at_s, getattr(sample, quantity)) for sample in samples]
                for who, samples in past.items()
            }
            picture.options.update(charts.lines(curves, quantity))
            picture.update()

    follow(session, update)


def turn_text(row: Row) -> str:
    """Return a user's predicted turn in words."""
    place, seconds = row.get("turn"), row.get("next_in_s")
    if not number(row.get("waiting")):
        return "nothing waits"
    if not isinstance(place, int):
        return "unknown"
    if place == 1:
        return "next"
    when = (
        f"next in {number(seconds):.0f} s" if isinstance(seconds, int | float) else "not before a task ends"
    )
    return f"place {place}, {when}"


# -- admitted jobs over time --------------------------------------------------------------------------
def _packing(session: ClusterSession) -> None:
    heading("Admitted jobs over time")
    nothing = ui.label()
    seen = note("")
    with ui.column().classes("w-full items-stretch") as body:
        with ui.row().classes("items-center"):
            toggle = ui.toggle([PROCESSORS, MEMORY, TRAFFIC], value=PROCESSORS).props("no-caps")
            node = ui.select([_ALL], value=_ALL, label="Node").classes("w-40")
        picture = (
            ui.echart(charts.areas(demands({}, PROCESSORS), (), "", 0.0))
            .classes("w-full h-72")
            .props('role="img" aria-label="demands over time"')
        )
        ui.label(
            "Areas are what is promised to jobs, the line is what all tasks use, as nodes measure it while "
            "this page is open. The use of single members is unknown."
        ).classes("text-caption")
        members = table(_MEMBERS, (), label="members of jobs")
        edges = table(_EDGES, (), label="edges between nodes")
    used = UsedOverTime()
    answer: Row = {}

    def draw() -> None:
        place = "" if node.value == _ALL else str(node.value)
        kind = str(toggle.value)
        demanded = demands(answer, kind, place)
        picture.options.update(
            charts.areas(demanded, used.line(kind, place), UNITS[kind], number(answer.get("now_s")))
        )
        picture.update()

    async def update() -> None:
        nonlocal answer
        answer = await session.ask({"ask": "pack", "do": "timeline"})
        jobs = rows(answer, "jobs")
        body.set_visibility(bool(jobs))
        nothing.set_visibility(not jobs)
        nothing.text = "No job with demands over time is admitted: dios run JOB.toml submits one."
        if "error" in answer:
            nothing.text = f"Unknown: {plain(str(answer['error']))}"
        limits = [] if answer.get("ruler") or "error" in answer else ["Jobs of other users are not shown."]
        seen.text = " ".join([*limits, *(["Later changes are left out."] if answer.get("cut") else [])])
        if not jobs:
            return
        used.add(answer, session.watcher.view.rows_of_nodes)
        names = [_ALL, *(str(row.get("node")) for row in rows(answer, "nodes"))]
        if names != node.options:
            node.set_options(names, value=node.value if node.value in names else _ALL)
        now = number(answer.get("now_s"))
        fill(members, _MEMBERS, [row for job in jobs for row in _members(job, now)])
        fill(edges, _EDGES, [row for job in jobs for row in _edges(job, now)])
        draw()

    toggle.on_value_change(draw)
    node.on_value_change(draw)
    poll(update, _PACKING_S)


def _members(job: Row, now: float) -> list[tuple[object, ...]]:
    ends = job.get("ends_s")
    left = f"in {max(0.0, number(ends) - now):.0f} s" if isinstance(ends, int | float) else "with its tasks"
    return [
        (
            plain(str(job.get("job"))),
            plain(str(job.get("principal"))),
            plain(str(member.get("member"))),
            plain(str(member.get("node"))),
            "yes" if member.get("running") else "no",
            f"{_now(member, 1, now):g}",
            f"{_now(member, 2, now) / _GIB:.3g}",
            left,
        )
        for member in rows(job, "members")
    ]


def _edges(job: Row, now: float) -> list[tuple[object, ...]]:
    return [
        (
            plain(str(job.get("job"))),
            f"{plain(str(edge.get('from')))} on {plain(str(edge.get('source_node')))}",
            f"{plain(str(edge.get('to')))} on {plain(str(edge.get('target_node')))}",
            f"{_now(edge, 1, now) / _MB:.3g}",
            f"{number(edge.get('moving_bytes_s')) / _MB:.3g}",
        )
        for edge in rows(job, "edges")
        if edge.get("source_node") != edge.get("target_node")
    ]


def _now(row: Row, column: int, now: float) -> float:
    """Return the amount at this moment of a row with steps."""
    amount = 0.0
    steps = row.get("steps")
    for step in steps if isinstance(steps, list) else ():
        if isinstance(step, list) and len(step) > column and number(step[0]) <= now:
            amount = number(step[column])
    return amount
