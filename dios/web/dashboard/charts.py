"""Options of ECharts for the pages. Tooltips are drawn as text, so that no name is read as HTML."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from dios.client.ops.status import Status
from dios.client.plain_text import plain
from dios.web.observation.jobs import in_lanes
from dios.wire.types import TaskState

Options = dict[str, object]

_TEXT_TOOLTIP: Final[Mapping[str, object]] = {"renderMode": "richText", "confine": True}
_COLOURS: Final = {
    TaskState.STARTING: "#8e9aaf",
    TaskState.RUNNING: "#1976d2",
    TaskState.PAUSED: "#b26a00",
    TaskState.WAITING: "#9e9e9e",
    TaskState.ENDED: "#2e7d32",
}
_FAILED: Final = "#c62828"
SANKEY_TASKS_MAX: Final = 40
GRAPH_LABELS_MAX: Final = 8
"""A graph with more edges shows the text of an edge only under the pointer."""


def colour_of(task: Status) -> str:
    """Return the colour of a task's bar: by its state, or red if it ended badly."""
    return _FAILED if task.ended and not task.ok else _COLOURS[task.state]


def timeline(tasks: Sequence[Status], now_ns: int) -> Options:
    """Return a bar for each started task, in lanes for each node; the x axis is time."""
    rows: list[str] = []
    bars: list[dict[str, object]] = []
    for node, lane, task, end in in_lanes(tasks, now_ns):
        row = f"{node} {lane + 1}"
        if row not in rows:
            rows.append(row)
        word = task.cause.name.lower() if task.ended else task.state.name.lower()
        bars.append(
            {
                "name": f"{plain(task.label) or task.fingerprint}: {word}",
                "value": [row, task.started_ns // 1_000_000, max(end // 1_000_000, 1), task.fingerprint],
                "itemStyle": {"color": colour_of(task)},
            }
        )
    rows.sort(key=lambda row: (row.rpartition(" ")[0], int(row.rpartition(" ")[2])))
    return {
        "animation": False,
        "aria": {"enabled": True},
        "tooltip": {**_TEXT_TOOLTIP},
        "grid": {"left": 90, "right": 20, "top": 10, "bottom": 70},
        "dataZoom": [{"type": "slider"}, {"type": "inside"}],
        "xAxis": {"type": "time", "axisLabel": {"hideOverlap": True}},
        "yAxis": {"type": "category", "data": rows, "inverse": True},
        "series": [
            {
                "type": "custom",
                "encode": {"x": [1, 2], "y": 0},
                "data": bars,
                ":renderItem": """(params, api) => {
                    const start = api.coord([api.value(1), api.value(0)]);
                    const end = api.coord([api.value(2), api.value(0)]);
                    const height = Math.max(api.size([0, 1])[1] * 0.7, 2);
                    return {type: 'rect', style: api.style(), shape: {
                        x: start[0], y: start[1] - height / 2,
                        width: Math.max(end[0] - start[0], 2), height: height}};
                }""",
            }
        ],
    }


def treemap(groups: Mapping[str, Iterable[tuple[str, int]]]) -> Options:
    """Return a treemap of the sizes of files by group."""
    data = [
        {"name": group, "children": [{"name": path, "value": max(size, 1)} for path, size in files]}
        for group, files in groups.items()
    ]
    return {
        "aria": {"enabled": True},
        "tooltip": {**_TEXT_TOOLTIP},
        "series": [{"type": "treemap", "data": data, "leafDepth": 2, "upperLabel": {"show": True}}],
    }


def graph(nodes: Sequence[tuple[str, str]], edges: Sequence[tuple[str, str, str]]) -> Options:
    """Return a graph of (name, category) and labelled edges."""
    categories = list(dict.fromkeys(category for _, category in nodes))
    return {
        "aria": {"enabled": True},
        "tooltip": {**_TEXT_TOOLTIP},
        "legend": [{"data": categories}],
        "series": [
            {
                "type": "graph",
                "layout": "force",
                "roam": True,
                "edgeSymbol": ["none", "arrow"],
                "label": {"show": True, "position": "right"},
                "force": {"repulsion": 120, "edgeLength": 90},
                "categories": [{"name": category} for category in categories],
                "data": [
                    {"id": name, "name": name, "category": categories.index(category), "symbolSize": 14}
                    for name, category in nodes
                ],
                "edges": [
                    {
                        "source": source,
                        "target": target,
                        "name": text,
                        "label": {"show": len(edges) <= GRAPH_LABELS_MAX, "formatter": text, "fontSize": 10},
                        "lineStyle": {"curveness": 0.15},
                    }
                    for source, target, text in edges
                ],
            }
        ],
    }


def sankey(links: Sequence[Sequence[object]]) -> Options:
    """Return the used arcs of a flow network; tasks beyond SANKEY_TASKS_MAX are one vertex."""
    tasks = [str(link[0]) for link in links if str(link[0]).startswith("task ")]
    kept = set(list(dict.fromkeys(tasks))[:SANKEY_TASKS_MAX])
    merged: dict[tuple[str, str], list[int]] = {}
    for link in links:
        source, target, units, cost = str(link[0]), str(link[1]), _whole(link[2]), _whole(link[3])
        if source.startswith("task ") and source not in kept:
            source = "further tasks"
        sums = merged.setdefault((plain(source), plain(target)), [0, 0])
        sums[0] += units
        sums[1] += units * cost
    names = list(dict.fromkeys(name for pair in merged for name in pair))
    return {
        "aria": {"enabled": True},
        "tooltip": {**_TEXT_TOOLTIP},
        "series": [
            {
                "type": "sankey",
                "emphasis": {"focus": "adjacency"},
                "data": [{"name": name} for name in names],
                "links": [
                    {
                        "source": source,
                        "target": target,
                        "value": units,
                        "name": f"{source} to {target}: {units} units, cost {cost}",
                    }
                    for (source, target), (units, cost) in merged.items()
                ],
            }
        ],
    }


def _whole(value: object) -> int:
    return value if isinstance(value, int) else 0


def lines(series: Mapping[str, Sequence[tuple[float, float]]], unit: str) -> Options:
    """Return lines over time; the times are seconds since 1970."""
    return {
        "animation": False,
        "aria": {"enabled": True},
        "tooltip": {**_TEXT_TOOLTIP, "trigger": "axis"},
        "legend": {"data": list(series), "top": 0, "type": "scroll"},
        "grid": {"left": 60, "right": 20, "top": 50, "bottom": 30},
        "xAxis": {"type": "time", "axisLabel": {"hideOverlap": True}},
        "yAxis": {"type": "value", "name": unit},
        "series": [
            {
                "type": "line",
                "name": name,
                "showSymbol": False,
                "step": "end",
                "data": [[round(at * 1000), value] for at, value in points],
            }
            for name, points in series.items()
        ],
    }
