"""The result of a soak as Markdown, JSON and a figure.

The figure needs matplotlib, which is installed only in the environment of the benchmarks.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Final

import msgspec

from labs.benchmarks.soak.verdict import Point, SeriesFinding, SeriesRule, Soak

POINTS_KEPT: Final = 200
"""The number of samples that are stored in the JSON, in addition to the quiet points."""

PICTURES: Final = (
    ("daemon own memory", "daemon PSS"),
    ("zygote own memory", "zygote PSS"),
    ("daemon shared memory",),
    ("daemon descriptors", "memfds", "sockets"),
    ("daemon threads",),
    ("processors at work",),
    ("daemon mappings",),
    ("processes", "node: tasks"),
    ("cgroup folders",),
    ("node: objects", "node: names", "node: references"),
    ("node: sessions", "node: waiting"),
    ("extent files",),
    ("extent bytes", "held durable bytes"),
    ("database bytes",),
    ("audit bytes",),
    ("operations",),
)
_MEGABYTES: Final = ("memory", "PSS", "bytes")


def save(soak: Soak, folder: Path) -> str:
    """Write soak.md, soak.json and soak.png; return the reason if there is no figure, or ""."""
    folder.mkdir(parents=True, exist_ok=True)
    why = picture(soak, folder / "soak.png")
    (folder / "soak.md").write_text(markdown(soak, with_picture=not why))
    (folder / "soak.json").write_bytes(msgspec.json.encode(_reduced(soak)) + b"\n")
    return why


def _reduced(soak: Soak) -> Soak:
    every = max(1, math.ceil(len(soak.points) / POINTS_KEPT))
    kept = [
        Point(round(p.at_s, 1), p.quiet, {name: round(value, 4) for name, value in p.values.items()})
        for number, p in enumerate(soak.points)
        if p.quiet or not number % every
    ]
    return msgspec.structs.replace(soak, points=kept)


# -- text -------------------------------------------------------------------------------------------
def verdict(soak: Soak) -> str:
    """Return the result in one sentence."""
    growing = [finding.series.name for finding in soak.findings if finding.grows]
    faults = [f"{len(growing)} series grow ({', '.join(growing)})"] if growing else []
    faults += [f"{len(soak.troubles)} problems"] if soak.troubles else []
    cut = "" if soak.complete else " The run was ended early."
    unjudged = any(f.grows is None for f in soak.findings)
    few = " Too few quiet points to judge slopes." if unjudged else ""
    if faults:
        return f"Failed: {' and '.join(faults)}.{cut}{few}"
    return f"Passed: nothing grew, nothing was wrong, nothing was left behind.{cut}{few}"


def markdown(soak: Soak, *, with_picture: bool) -> str:
    """Return the page."""
    lines = [
        "# A node under mixed load",
        "",
        f"`make soak`, {soak.date}, {soak.seconds / 60:.1f} minutes. **{verdict(soak)}**",
        "",
    ]
    lines += ["![every series over time](soak.png)", ""] if with_picture else []
    lines += ["## Machine and load", "", "| property | value |", "|---|---|"]
    shown = {**soak.machine, **{k: v for k, v in soak.versions.items() if v != "not installed"}}
    lines += [f"| {name} | {value} |" for name, value in shown.items()]
    lines += [f"| {name} | {value:g} |" for name, value in soak.load.items()]
    lines += ["", "## Series", "", _EXPLAINED, ""]
    lines += ["| series | first | last | slope per minute | allowed | verdict |", "|---|---|---|---|---|---|"]
    lines += [_row(finding) for finding in soak.findings]
    for title, counts in (
        ("Operations of the clients", soak.operations),
        ("Kills of clients and tasks", soak.disturbances),
        ("Ends of tasks and sessions, from the audit log", soak.endings),
        ("The node's log", soak.log),
    ):
        lines += ["", f"## {title}", "", "| event | count |", "|---|---|"]
        lines += [f"| {name} | {count:,} |" for name, count in counts.items()]
    lines += ["", "## Problems", ""]
    lines += [f"- {text}" for text in soak.troubles[:50]] or ["None."]
    return "\n".join(lines) + "\n"


_EXPLAINED: Final = (
    "At the quiet points every client has deleted its objects and disconnected, and every task has ended."
    " First and last are the quiet points after the warm-up (the first half, at least 150 s); the slope is"
    " the median of the slopes between all pairs of them. Allowed is 3 % of the size over that time, or a"
    " small minimum for each series. Shared memory files are those in /dev/shm, of the whole machine."
)


def _row(finding: SeriesFinding) -> str:
    series = finding.series
    unit = f" {series.unit}" if series.unit else ""
    exact = series.rule is SeriesRule.EXACT
    judged = exact or finding.allowed_per_minute > 0
    allowed = "0" if exact else f"{finding.allowed_per_minute:.3g}{unit}" if judged else ""
    text = f"**{finding.text}**" if finding.grows else finding.text
    return (
        f"| {series.name} | {_number(finding.first)}{unit} | {_number(finding.last)}{unit} "
        f"| {finding.slope_per_minute:+.3g}{unit} | {allowed} | {text} |"
    )


def _number(value: float) -> str:
    return f"{value:,.0f}" if value == int(value) or abs(value) >= 1000 else f"{value:.2f}"


# -- picture ----------------------------------------------------------------------------------------
def picture(soak: Soak, path: Path) -> str:
    """Draw all series over time; return "" or the reason why nothing was drawn."""
    try:
        import matplotlib as mpl

        mpl.use("Agg")
        from matplotlib import pyplot as plt
    except ImportError:
        return "no figure: matplotlib is not installed here (`make soak` installs it)"
    columns = 4
    rows = math.ceil(len(PICTURES) / columns)
    figure, axes = plt.subplots(rows, columns, figsize=(4.4 * columns, 2.8 * rows), sharex=True)
    quiet = [point for point in soak.points if point.quiet]
    for place, (axis, names) in enumerate(zip(axes.flat, PICTURES, strict=False)):
        for number, name in enumerate(names):
            at = [(point.at_s / 60, point.values[name]) for point in soak.points if name in point.values]
            rest = [(point.at_s / 60, point.values[name]) for point in quiet if name in point.values]
            color = f"C{number}"
            axis.plot(*_columns(at), color=color, linewidth=0.7, alpha=0.7, label=name.removeprefix("node: "))
            axis.plot(*_columns(rest), "o", color=color, markersize=3)
        axis.set_ylim(bottom=0)
        axis.set_ylabel(_unit(names[0]), fontsize=8)
        axis.tick_params(labelsize=8)
        axis.grid(visible=True, linewidth=0.3)
        # The legend is above the axes because the quiet points are at the bottom.
        axis.legend(fontsize=8, loc="lower left", bbox_to_anchor=(0, 1), ncols=3, frameon=False, borderpad=0)
        if place >= len(PICTURES) - columns:
            axis.set_xlabel("minutes", fontsize=8)
    figure.suptitle(f"{verdict(soak)}  Dots: quiet points.", fontsize=11)
    figure.tight_layout()
    figure.savefig(path, dpi=80)
    plt.close(figure)
    return ""


def _unit(name: str) -> str:
    if name.startswith("processors"):
        return "percent"
    return "MB" if name.endswith(_MEGABYTES) else "number"


def _columns(pairs: list[tuple[float, float]]) -> tuple[list[float], list[float]]:
    return [a for a, _ in pairs], [b for _, b in pairs]
