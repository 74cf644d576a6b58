"""The page of network functions: packets and drops by function, core and cause."""

from __future__ import annotations

import asyncio
from typing import Final

from nicegui import ui

from dios.client.plain_text import plain
from dios.web.dashboard.layout import table
from dios.web.metrics.readings import of_functions

_COLUMNS: Final = ("function", "core or cause", "what", "packets")
_WORDS: Final = {
    "dios_nf_packets_total": "handled",
    "dios_nf_dropped_packets_total": "dropped",
    "dios_nf_queued_packets": "waiting",
}


def show() -> None:
    """Make the content: the functions of this machine that run as the same user."""
    ui.label("Network functions on this machine that run as the user of this page.")
    nothing = ui.label("None runs: dios nf run starts one.")
    found = table(_COLUMNS, (), label="network functions")

    async def update() -> None:
        readings = await asyncio.to_thread(lambda: list(of_functions()))
        nothing.set_visibility(not readings)
        found.rows[:] = [
            {
                "id": number,
                "function": plain(one.labels.get("function", "")),
                "core or cause": plain(one.labels.get("core") or one.labels.get("cause", "")),
                "what": _WORDS[one.metric],
                "packets": int(one.value),
            }
            for number, one in enumerate(readings)
        ]
        found.update()

    ui.timer(1.0, update)
