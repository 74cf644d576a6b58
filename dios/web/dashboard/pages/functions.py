"""The page of network functions: packets, drops and waiting times by function, core and cause."""

from __future__ import annotations

import asyncio
import time
from typing import Final

from nicegui import ui

from dios.web.dashboard import charts
from dios.web.dashboard.layout import fill, heading, note, poll, table
from dios.web.observation.functions import FunctionHistory, FunctionSample, read_functions
from dios.web.observation.session import ClusterSession

_COLUMNS: Final = (
    "core", "packets", "in a second", "mean wait", "sent", "dropped", "waiting", "most waiting", "flows",
)  # fmt: skip
_SECOND: Final = 1.0


class _Part:
    """The part of the page about one function."""

    def __init__(self, name: str) -> None:
        self._name: Final = name
        with ui.column().classes("w-full items-stretch") as self.column:
            heading(name)
            self._about: Final = ui.label()
            self._chart: Final = (
                ui.echart(charts.lines({}, "packets/s"))
                .classes("w-full h-56")
                .props('role="img" aria-label="packets in a second by core"')
            )
            self._cores: Final = table(_COLUMNS, (), label="cores")
            self._drops: Final = table(("cause of drops", "packets"), (), label="drops by cause")

    def show(self, sample: FunctionSample, history: FunctionHistory) -> None:
        """Show the newest sample."""
        self._about.text = (
            f"{sample.function or 'a function'} by {sample.engine or 'an unknown engine'}, steering "
            f"{sample.steer or 'unknown'}, for {sample.at_s:.0f} s; Jain's index of the cores is "
            f"{sample.jain:.3f} (1: equal work)"
        )
        lines = history.lines(self._name, time.time() - sample.at_s)
        self._chart.options.update(charts.lines(lines, "packets/s"))
        self._chart.update()
        rows = []
        for number, core in sorted(sample.cores.items()):
            rate = history.rate(self._name, number)
            rows.append(
                (
                    number,
                    core.packets,
                    "" if rate.packets_s is None else f"{rate.packets_s:,.0f}",
                    "" if rate.wait_s is None else f"{rate.wait_s * 1e6:,.0f} µs",
                    core.sent,
                    core.dropped,
                    core.queue,
                    core.deepest,
                    core.flows,
                )
            )
        fill(self._cores, _COLUMNS, rows)
        fill(self._drops, ("cause of drops", "packets"), sorted(sample.dropped.items()))


def show(_session: ClusterSession, _: str = "") -> None:
    """Make the content: the functions of this machine that run as the same user."""
    ui.label("Network functions on this machine that run as the user of this page.")
    ui.label(
        "The mean wait of a packet for its core follows from the waiting packets and the rate while this "
        "page is open (Little's law). Functions do not time single packets, so that percentiles and the time "
        "on the wire are unknown."
    ).classes("text-caption")
    nothing = ui.label("None runs: dios nf run starts one.")
    others = note("")
    body = ui.column().classes("w-full items-stretch")
    parts: dict[str, _Part] = {}
    history = FunctionHistory()

    async def update() -> None:
        samples, silent = await asyncio.to_thread(read_functions)
        history.add(samples)
        nothing.set_visibility(not samples and not silent)
        others.text = f"{silent} more do not answer, or belong to other users." if silent else ""
        for name in parts.keys() - samples.keys():
            body.remove(parts.pop(name).column)
        for name, sample in samples.items():
            if name not in parts:
                with body:
                    parts[name] = _Part(name)
            parts[name].show(sample, history)

    poll(update, _SECOND)
