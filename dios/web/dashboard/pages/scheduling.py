"""The page of the scheduler: its rounds, and the flow network as a Sankey diagram."""

from __future__ import annotations

from collections import deque
from typing import Final

from nicegui import ui

from dios.client.plain_text import plain
from dios.web.dashboard import charts
from dios.web.dashboard.layout import table
from dios.web.observation.cluster_view import Row, number, rows
from dios.web.observation.session import ClusterSession

_NETWORK_S: Final = 3.0
_KEPT: Final = 100


def show(session: ClusterSession) -> None:
    """Make the content; networks are read while the page is open, and the slider shows earlier ones."""
    facts = ui.label()
    ui.label(
        "Flow from tasks through aggregates to machines, as a round would send it now. Only the nodes' own "
        "user and root can see it."
    )
    why = ui.label().classes("text-warning")
    picture = ui.echart(charts.sankey(())).classes("w-full h-96")
    past: deque[tuple[int, list[object]]] = deque(maxlen=_KEPT)
    slider = ui.slider(min=0, max=0, value=0).props('label aria-label="round"')
    history = table(("round", "algorithm", "waiting", "running", "arcs", "ms", "changes"), (), label="rounds")

    def draw() -> None:
        if past:
            number_of_round, links = past[min(int(slider.value or 0), len(past) - 1)]
            facts.text = f"round {number_of_round}"
            picture.options["series"] = charts.sankey(links)["series"]  # type: ignore[arg-type]
            picture.update()

    async def update() -> None:
        found = await session.ask({"ask": "export", "as": "links"})
        why.text = plain(str(found.get("error", "")))
        rounds = rows(await session.ask({"ask": "history"}), "rounds")
        latest = bool(past) is False or int(slider.value or 0) >= len(past) - 1
        links = found.get("links")
        if isinstance(links, list):
            past.append((int(number(rounds[-1].get("number"))) if rounds else 0, links))
            slider.props(f"max={len(past) - 1}")
            if latest:
                slider.value = len(past) - 1
                draw()
        history.rows[:] = [
            {
                "id": place,
                **dict(
                    zip(
                        ("round", "algorithm", "waiting", "running", "arcs", "ms", "changes"),
                        row,
                        strict=True,
                    )
                ),
            }
            for place, row in enumerate(map(_row, reversed(rounds)))
        ]
        history.update()

    slider.on_value_change(draw)
    ui.timer(_NETWORK_S, update)
    ui.timer(0.1, update, once=True)


def _row(one: Row) -> tuple[object, ...]:
    kinds = one.get("kinds")
    return (
        one.get("number"),
        plain(str(one.get("algorithm"))),
        one.get("waiting"),
        one.get("running"),
        one.get("arcs"),
        round(number(one.get("total_s")) * 1000, 2),
        ", ".join(f"{name} {count}" for name, count in kinds.items()) if isinstance(kinds, dict) else "",
    )
