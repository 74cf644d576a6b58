"""The page of the scheduler: rounds, the flow network as a Sankey diagram, and reasons against machines."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from nicegui import ui

from dios.client.ops.status import Status
from dios.client.plain_text import plain
from dios.web.dashboard import charts
from dios.web.dashboard.layout import fill, follow, note, poll, table
from dios.web.observation.cluster_view import ClusterView, Row, living, number, rows
from dios.web.observation.explanations import why_not
from dios.web.observation.session import ClusterSession
from dios.wire.types import TaskState

_NETWORK_S: Final = 3.0
_ANSWER_S: Final = 10.0
_KEPT: Final = 100
_LINK_FIELDS: Final = 3
_CHOICES: Final = 200
_ROUNDS: Final = ("round", "algorithm", "waiting", "running", "arcs", "ms", "changes")


def show(session: ClusterSession, _: str = "") -> None:
    """Make the content; networks are read while the page is open, and the slider shows earlier ones."""
    facts = ui.label()
    ui.label(
        "Flow from tasks through aggregates to machines, as a round would send it now. The slider goes back "
        "to the rounds since this page was opened. Only the nodes' own user and root can see the flow."
    )
    why = note("")
    ask_why_not = _why_not(session)
    picture = (
        ui.echart(charts.sankey(()), on_point_click=lambda event: ask_why_not(str(event.name)))
        .classes("w-full h-96")
        .props('role="img" aria-label="flow network"')
    )
    past: deque[tuple[int, list[object]]] = deque(maxlen=_KEPT)
    slider = ui.slider(min=0, max=0, value=0).props('label aria-label="round"')
    history = table(_ROUNDS, (), label="rounds")

    def draw() -> None:
        if past:
            number_of_round, links = past[min(int(slider.value or 0), len(past) - 1)]
            tasks = session.watcher.view.tasks
            facts.text = f"round {number_of_round}{_left_out(links, tasks)}"
            labels = {task.fingerprint: task.label for task in tasks if task.label}
            picture.options["series"] = charts.sankey(_labelled(links, labels))["series"]
            picture.update()

    async def update() -> None:
        answer = await session.ask({"ask": "export", "as": "links"})
        why.text = plain(str(answer.get("error", "")))
        rounds = rows(await session.ask({"ask": "history"}), "rounds")
        latest = bool(past) is False or int(slider.value or 0) >= len(past) - 1
        links = answer.get("links")
        if isinstance(links, list):
            past.append((int(number(rounds[-1].get("number"))) if rounds else 0, links))
            slider.props(f"max={len(past) - 1}")
            if latest:
                slider.value = len(past) - 1
                draw()
        fill(history, _ROUNDS, list(map(_row, reversed(rounds))))

    slider.on_value_change(draw)
    poll(update, _NETWORK_S)


def _why_not(session: ClusterSession) -> Callable[[str], None]:
    """Make the question why a task is not on a machine; return a function that asks it for a machine."""
    with ui.row().classes("w-full items-center"):
        task = ui.select({}, label="Why is this task not …").classes("w-72 max-w-full")
        machine = ui.select({}, label="… on this machine? (Or click it.)").classes("w-72 max-w-full")
    reason = ui.label().classes("whitespace-pre-wrap").props('aria-live="polite"')

    def choices(view: ClusterView) -> None:
        waiting = [status for status in view.tasks if status.state is TaskState.WAITING]
        others = [status for status in living(view.tasks) if status.state is not TaskState.WAITING]
        first = next((status.fingerprint for status in waiting), None)
        _offer(
            task,
            {
                status.fingerprint: f"{plain(status.label)} {status.fingerprint}"
                for status in [*waiting, *others]
            },
            first,
        )
        machines = {member.name: plain(member.name) for member in view.nodes}
        _offer(machine, machines, next(iter(machines), None))

    async def answer() -> None:
        if task.value and machine.value:
            explanation = await session.ask({"ask": "explain", "task": task.value})
            reason.text = why_not(explanation, str(machine.value))

    def ask_for(name: str) -> None:
        if name in machine.options:
            machine.value = name

    follow(session, choices)
    poll(answer, _ANSWER_S)
    task.on_value_change(answer)
    machine.on_value_change(answer)
    return ask_for


def _offer(chosen: ui.select, options: dict[str, str], first: str | None) -> None:
    """Offer these options, if they are others than before; keep the chosen one, or choose ``first``."""
    offered = dict(list(options.items())[:_CHOICES])
    if offered != chosen.options:
        chosen.set_options(offered, value=chosen.value if chosen.value in offered else first)


def _left_out(links: Sequence[object], tasks: Sequence[Status]) -> str:
    """Say how many waiting tasks of the user are not in the network."""
    there = {str(link[0]).removeprefix("task ") for link in links if isinstance(link, list) and link}
    count = sum(task.state is TaskState.WAITING and task.fingerprint not in there for task in tasks)
    if not count:
        return ""
    return f"; {count} waiting {'task is' if count == 1 else 'tasks are'} not in it; the reason is below"


def _labelled(links: Sequence[object], labels: Mapping[str, str]) -> list[Sequence[object]]:
    """Return the links with labels of tasks next to their fingerprints; malformed links are left out."""

    def named(vertex: object) -> str:
        mark = str(vertex).removeprefix("task ")
        return f"task {labels[mark]} {mark[:6]}" if mark in labels else str(vertex)

    return [
        [named(link[0]), named(link[1]), *link[2:]]
        for link in links
        if isinstance(link, list) and len(link) > _LINK_FIELDS
    ]


def _row(row: Row) -> tuple[object, ...]:
    kinds = row.get("kinds")
    return (
        row.get("number"),
        plain(str(row.get("algorithm"))),
        row.get("waiting"),
        row.get("running"),
        row.get("arcs"),
        round(number(row.get("total_s")) * 1000, 2),
        ", ".join(f"{name} {count}" for name, count in kinds.items()) if isinstance(kinds, dict) else "",
    )
