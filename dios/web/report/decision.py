"""The page that shows one decision of the scheduler (``dios explain --picture``), from its answer."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final

from dios.web.observation.cluster_view import Row, number, rows
from dios.web.report.html_page import pairs, preformatted, table, text, whole_page

_WIDTH: Final = 1_000
_BOX: Final = 34
_BARS: Final = 360
_ROW: Final = 26


def decision_page(answer: Row, made_ns: int, secrecy: Sequence[str] = ()) -> str:
    """Return the page. ``answer`` is the answer to ``explain``; malformed parts of it are left out.

    ``secrecy`` are the tags of what the task has read.
    """
    label = str(answer.get("label") or answer.get("task"))
    given = answer.get("explanation")
    explanation: Row = given if isinstance(given, dict) else {}
    lines = answer.get("lines")
    parts = [
        pairs(_facts(answer, explanation, made_ns, secrecy)),
        _path(answer, explanation),
        _machines(explanation),
        _changes(explanation),
        "<h2>In words</h2>",
        preformatted(map(str, lines)) if isinstance(lines, list) else "",
    ]
    verb = explanation.get("status") or answer.get("phase")
    return whole_page(f"Task {label}: {verb}", parts)


def _facts(answer: Row, explanation: Row, made_ns: int, secrecy: Sequence[str]) -> dict[str, object]:
    created = datetime.fromtimestamp(made_ns / 1e9, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    facts: dict[str, object] = {
        "task": answer.get("task"),
        "state": answer.get("phase"),
        "node": answer.get("node") or "none yet",
        "reason": explanation.get("reason", ""),
        "cost model": answer.get("model", ""),
        "round": explanation.get("round", ""),
        "has read": ", ".join(secrecy),
        "this page": f"made {created}",
    }
    return {name: value for name, value in facts.items() if value != ""}


# -- the path ---------------------------------------------------------------------------------------
def _path(answer: Row, explanation: Row) -> str:
    steps = rows(explanation, "path")
    if not steps:
        return ""
    own = f"task {explanation.get('task')}"
    names = [str(steps[0].get("source")), *(str(step.get("target")) for step in steps)]
    shown = [f"task {answer.get('task')}" if name == own else name for name in names]
    costs = [int(number(step.get("cost"))) for step in steps]
    box = (_WIDTH - len(costs) * 110) / len(shown)
    height = _BOX + 30
    parts = [f'<svg viewBox="0 0 {_WIDTH} {height}" role="img" aria-label="{text(_told(shown, costs))}">']
    for place, name in enumerate(shown):
        left = place * (box + 110)
        fitting = max(6, int(box / 7.5))
        parts.append(
            f'<rect class="vertex" x="{left + 1:.0f}" y="8" width="{box - 2:.0f}" height="{_BOX}" rx="6"/>'
            f'<text class="wide" x="{left + box / 2:.0f}" y="{_BOX / 2 + 12:.0f}" text-anchor="middle">'
            f"{text(_short(name, fitting))}<title>{text(name)}</title></text>"
        )
        if place < len(costs):
            start, end, middle = left + box, left + box + 110, _BOX / 2 + 8
            parts.append(
                f'<line class="way" x1="{start:.0f}" x2="{end:.0f}" y1="{middle:.0f}" y2="{middle:.0f}"/>'
                f'<path d="M{end - 7:.0f} {middle - 4:.0f} L{end:.0f} {middle:.0f} L{end - 7:.0f} '
                f'{middle + 4:.0f} Z" fill="currentColor"/>'
                f'<text x="{(start + end) / 2:.0f}" y="{middle - 6:.0f}" text-anchor="middle">'
                f"{costs[place]}</text>"
            )
    parts.append("</svg>")
    total = int(number(explanation.get("cost")))
    return "\n".join(
        [
            "<h2>The path of its unit of flow, with the cost of each arc</h2>",
            "".join(parts),
            f"<p>{total} in all. The scheduler minimises the sum of the costs of all tasks.</p>",
        ]
    )


def _told(names: Sequence[str], costs: Sequence[int]) -> str:
    steps = [f"to {name} at cost {cost}" for name, cost in zip(names[1:], costs, strict=True)]
    return f"from {names[0]} {', '.join(steps)}"


def _short(name: str, most: int) -> str:
    return name if len(name) <= most else f"{name[: most - 1]}…"


# -- machines ---------------------------------------------------------------------------------------
def _machines(explanation: Row) -> str:
    parts = []
    places = rows(explanation, "places")
    if places:
        against = [
            (
                str(place.get("name")),
                int(number(place.get("cost"))),
                int(number(place.get("against_chosen"))),
                place,
            )
            for place in places
        ]
        parts.append("<h2>Other machines that it could use</h2>")
        most = max(1, *(abs(difference) for _, _, difference, _ in against))
        parts.append(
            _bars(
                "difference of cost to the present path, by machine",
                [(name, abs(gap) / most, f"{gap:+d}", "possible") for name, _, gap, _ in against],
            )
        )
        cells = [
            (
                name,
                cost,
                f"{gap:+d}",
                place.get("full") or f"{place.get('free_slots')} slots free",
                place.get("remark", ""),
            )
            for name, cost, gap, place in against
        ]
        parts.append(table(("machine", "cost", "compared with its path", "room", "remark"), cells))
    excluded = rows(explanation, "excluded")
    total = int(number(explanation.get("total_machines")))
    if excluded:
        parts.append(f"<h2>Machines that it cannot use, of {total}</h2>")
        counted = [(str(group.get("reason")), number(group.get("machines"))) for group in excluded]
        parts.append(
            _bars(
                "number of machines by reason",
                [(reason, count / max(total, 1), f"{count:.0f}", "excluded") for reason, count in counted],
            )
        )
        named = [(group.get("machines"), group.get("reason"), _names(group)) for group in excluded]
        parts.append(table(("machines", "reason", "names"), named))
    return "\n".join(parts)


def _names(group: Row) -> str:
    names = group.get("names")
    shown = list(map(str, names)) if isinstance(names, list) else []
    more = int(number(group.get("machines"))) - len(shown)
    return ", ".join(shown) + (f" and {more} more" if shown and more > 0 else "")


def _bars(label: str, bars: Sequence[tuple[str, float, str, str]]) -> str:
    """Return a bar for each (name, share of the whole width, value, class of the style)."""
    parts = [f'<svg viewBox="0 0 {_WIDTH} {len(bars) * _ROW}" role="img" aria-label="{text(label)}">']
    for place, (name, share, value, kind) in enumerate(bars):
        top = place * _ROW
        width = max(2.0, min(1.0, share) * _BARS)
        left = _WIDTH - _BARS - 120
        parts.append(
            f'<text class="wide" x="0" y="{top + 17}">{text(_short(name, 70))}'
            f"<title>{text(name)}</title></text>"
            f'<rect class="{kind}" x="{left}" y="{top + 4}" width="{width:.0f}" height="{_ROW - 8}"/>'
            f'<text class="wide" x="{left + width + 8:.0f}" y="{top + 17}">{text(value)}</text>'
        )
    return "".join([*parts, "</svg>"])


def _changes(explanation: Row) -> str:
    binding = str(explanation.get("binding") or "")
    items = [f"bottleneck: {binding}"] if binding else []
    for part in ("counterfactuals", "enough"):
        items += [str(row.get("text")) for row in rows(explanation, part)]
    items += [str(explanation["unsolved"])] if explanation.get("unsolved") else []
    if not items:
        return ""
    listed = "".join(f"<li>{text(entry)}</li>" for entry in items)
    return f"<h2>What limits it, and what would change the decision</h2><ul>{listed}</ul>"
