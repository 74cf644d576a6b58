"""The reason why a task is not on one machine, from the scheduler's explanation of the task."""

from __future__ import annotations

from dios.client.plain_text import plain, plain_lines
from dios.web.observation.cluster_view import Row, number, rows


def why_not(answer: Row, machine: str) -> str:
    """Return a sentence. ``answer`` is the scheduler's answer to ``explain``, or has an ``error``."""
    if "error" in answer:
        return f"Unknown: {plain(str(answer['error']))}"
    explanation = answer.get("explanation")
    if not isinstance(explanation, dict):
        lines = answer.get("lines")
        return plain_lines("\n".join(map(str, lines))) if isinstance(lines, list) else "Unknown."
    if explanation.get("status") == "runs" and answer.get("node") == machine:
        return f"It runs there: {plain(str(explanation.get('reason')))}"
    for place in rows(explanation, "places"):
        if place.get("name") == machine:
            return _as_place(place)
    excluded = rows(explanation, "excluded")
    for exclusion in excluded:
        names = exclusion.get("names")
        if isinstance(names, list) and machine in names:
            return f"It cannot run there: {plain(str(exclusion.get('reason')))}."
    reasons = "; ".join(f"{number(entry.get('machines')):.0f}: {entry.get('reason')}" for entry in excluded)
    known = f" Numbers of machines that it cannot use, by reason: {plain(reasons)}." if reasons else ""
    return f"The explanation does not name this machine, but at most its four best ones.{known}"


def _as_place(place: Row) -> str:
    gap = int(number(place.get("against_chosen")))
    compared = f"{abs(gap)} {'more' if gap >= 0 else 'less'} than its present path"
    full = str(place.get("full") or "")
    room = f"there is no room on the way: {full}" if full else f"{place.get('free_slots')} slots are free"
    remark = f" ({place.get('remark')})" if place.get("remark") else ""
    return plain(f"It could run there at a cost of {place.get('cost')}, {compared}; {room}{remark}.")
