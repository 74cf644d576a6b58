"""Options of ECharts for the pages. Tooltips are drawn as text, so that no name is read as HTML."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from dios.client.ops.status import Status
from dios.client.plain_text import plain
from dios.web.observation.jobs import in_lanes
from dios.web.observation.packing import Demands
from dios.wire.types import TaskState

Options = dict[str, object]

_NS_PER_MS: Final = 1_000_000
_TEXT_TOOLTIP: Final[Mapping[str, object]] = {"renderMode": "richText", "confine": True}
_COMMON: Final[Options] = {"aria": {"enabled": True}, "tooltip": _TEXT_TOOLTIP}
_OVER_TIME: Final[Options] = {**_COMMON, "animation": False, "tooltip": {**_TEXT_TOOLTIP, "trigger": "axis"}}
_COLOURS: Final = {
    TaskState.STARTING: "#8e9aaf",
    TaskState.RUNNING: "#1976d2",
    TaskState.PAUSED: "#b26a00",
    TaskState.WAITING: "#9e9e9e",
    TaskState.ENDED: "#2e7d32",
}
_FAILED: Final = "#c62828"
_PALETTE: Final = [*_COLOURS.values(), _FAILED]
LEGEND: Final[Mapping[str, str]] = {
    **{state.name.lower(): colour for state, colour in _COLOURS.items() if state is not TaskState.ENDED},
    "ended well": _COLOURS[TaskState.ENDED],
    "ended badly": _FAILED,
}
"""The colours of bars, by what they mean."""
SANKEY_TASKS_MAX: Final = 40
GRAPH_LABELS_MAX: Final = 8
"""A graph with more edges shows the text of an edge only under the pointer."""


def colour_of(task: Status) -> str:
    """Return the colour of a task's bar: by its state, or red if it ended badly."""
    return _FAILED if task.ended and not task.ok else _COLOURS[task.state]


def timeline(tasks: Sequence[Status], now_ns: int) -> Options:
    """Return a bar for each started task, in lanes for each node; the x axis is time.

    A bar is [row, start, end or 0, colour, text, fingerprint], with times in milliseconds. Bars without an
    end reach to ``window.diosNow`` in the browser, so that time goes on without sending them again.
    """
    bars = list(in_lanes(tasks, now_ns))
    rows = sorted({(bar.node, bar.lane) for bar in bars})
    place = {row: number for number, row in enumerate(rows)}
    data: list[list[object]] = []
    for node, lane, task, _ in bars:
        word = task.cause.name.lower() if task.ended else task.state.name.lower()
        data.append(
            [
                place[node, lane],
                task.started_ns // _NS_PER_MS,
                task.ended_ns // _NS_PER_MS,
                _PALETTE.index(colour_of(task)),
                f"{plain(task.label) or task.fingerprint}: {word}",
                task.fingerprint,
            ]
        )
    return {
        "animation": False,
        "aria": {"enabled": True},
        "tooltip": {**_TEXT_TOOLTIP, ":formatter": "found => found.value[4]"},
        "grid": {"left": 70, "right": 40, "top": 10, "bottom": 70},
        "dataZoom": [
            {"type": "slider", "filterMode": "none"},
            {"type": "inside", "filterMode": "none", "zoomOnMouseWheel": "ctrl", "moveOnMouseWheel": False},
            {"type": "slider", "yAxisIndex": 0, "filterMode": "none", "showDetail": False, "width": 18},
        ],
        "xAxis": {"type": "time", "axisLabel": {"hideOverlap": True}, "max": now_ns // _NS_PER_MS},
        "yAxis": {
            "type": "category",
            "data": [f"{node} {lane + 1}" for node, lane in rows],
            "inverse": True,
            "axisTick": {"show": False},
            "axisLabel": {"width": 60, "overflow": "truncate"},
        },
        "series": [
            {
                "type": "custom",
                "encode": {"x": 1, "y": 0},
                "data": data,
                ":renderItem": f"""(params, api) => {{
                    const now = Math.max(window.diosNow || 0, {now_ns // _NS_PER_MS});
                    const start = api.coord([api.value(1), api.value(0)]);
                    const end = api.coord([api.value(2) || now, api.value(0)]);
                    const area = params.coordSys;
                    const left = Math.max(start[0], area.x);
                    const right = Math.min(Math.max(end[0], start[0] + 2), area.x + area.width);
                    const height = Math.max(api.size([0, 1])[1] * 0.7, 1);
                    if (right <= left || start[1] < area.y || start[1] > area.y + area.height) return;
                    return {{type: 'rect', style: {{fill: {json.dumps(_PALETTE)}[api.value(3)]}}, shape: {{
                        x: left, y: start[1] - height / 2, width: right - left, height: height}}}};
                }}""",
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
        **_COMMON,
        "series": [{"type": "treemap", "data": data, "leafDepth": 2, "upperLabel": {"show": True}}],
    }


def graph(nodes: Sequence[tuple[str, str]], edges: Sequence[tuple[str, str, str]]) -> Options:
    """Return a graph of (name, category) and labelled edges."""
    categories = list(dict.fromkeys(category for _, category in nodes))
    return {
        **_COMMON,
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
        **_COMMON,
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
        **_OVER_TIME,
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


def areas(demands: Demands, used: Sequence[tuple[float, float]], unit: str, now_s: float) -> Options:
    """Return stacked amounts of jobs over time, with the capacity, the present, and the measured use."""
    marks: list[dict[str, object]] = [{"xAxis": round(now_s * 1000), "label": {"formatter": "now"}}]
    if demands.capacity:
        marks.append(
            {"yAxis": demands.capacity, "label": {"formatter": "capacity", "position": "insideEndTop"}}
        )
    series: list[dict[str, object]] = [
        {
            "type": "line",
            "name": name,
            "stack": "promised",
            "step": "end",
            "areaStyle": {},
            "showSymbol": False,
            "data": [
                [round(at * 1000), round(amount, 6)]
                for at, amount in zip(demands.times, amounts, strict=True)
            ],
        }
        for name, amounts in demands.by_job.items()
    ]
    series.append(
        {
            "type": "line",
            "name": "used by all tasks",
            "showSymbol": False,
            "lineStyle": {"color": "#222", "width": 2},
            "itemStyle": {"color": "#222"},
            "data": [[round(at * 1000), round(amount, 6)] for at, amount in used],
            "markLine": {"symbol": "none", "silent": True, "data": marks},
        }
    )
    return {
        **_OVER_TIME,
        "legend": {"data": [entry["name"] for entry in series], "top": 0, "type": "scroll"},
        "grid": {"left": 60, "right": 20, "top": 50, "bottom": 75},
        "dataZoom": [{"type": "slider", "filterMode": "none"}],
        "xAxis": {"type": "time", "axisLabel": {"hideOverlap": True}},
        "yAxis": {"type": "value", "name": unit, "max": _above(demands)},
        "series": series,
    }


def _above(demands: Demands) -> float | None:
    """Return the end of the y axis if the capacity has to be in the picture."""
    most = max((sum(amounts) for amounts in zip(*demands.by_job.values(), strict=True)), default=0.0)
    return round(max(most, demands.capacity) * 1.1, 3) if demands.capacity else None
