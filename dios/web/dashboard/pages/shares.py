"""The page of shares: the share, past use and credit of each user, and admitted jobs over time."""

from __future__ import annotations

from functools import partial
from typing import Final

from nicegui import ui

from dios.client.plain_text import plain
from dios.web.dashboard import charts
from dios.web.dashboard.layout import follow, heading, table
from dios.web.observation.cluster_view import ClusterView, number, rows
from dios.web.observation.session import ClusterSession

_COLUMNS: Final = ("user", "weight", "entitled", "holds", "of", "commitment", "credit", "running", "waiting")


async def show(session: ClusterSession) -> None:
    """Make the content."""
    follow(session, partial(_shares, session))
    heading("Admitted jobs")
    jobs = rows(await session.ask({"ask": "pack", "do": "list"}), "jobs")
    if not jobs:
        ui.label("No job with demands over time is admitted: dios pack run admits one.")
        return
    columns = tuple(dict.fromkeys(key for job in jobs for key in job))
    table(columns, [[plain(str(job.get(key, ""))) for key in columns] for job in jobs], label="admitted jobs")


def _shares(session: ClusterSession, view: ClusterView) -> None:
    found = rows(view.shares, "principals")
    if not found:
        ui.label("The shares are unknown, because no scheduler answers.")
        return
    rule = plain(str(view.shares.get("fairness")))
    ui.label(
        f"Order of users while not all have room: {rule}. The past begins when this page was opened first."
    )
    table(
        _COLUMNS,
        [
            (
                plain(str(row.get("principal"))),
                row.get("weight"),
                f"{number(row.get('entitlement')):.1%}",
                f"{number(row.get('share')):.1%}",
                plain(str(row.get("resource"))),
                f"{number(row.get('commitment')):.4g}",
                f"{number(row.get('credit')):.4g}",
                row.get("running"),
                row.get("waiting"),
            )
            for row in found
        ],
        label="shares",
    )
    past = session.watcher.shares
    ui.echart(
        charts.lines(
            {plain(who): [(one.at_s, one.share) for one in each] for who, each in past.items()}, "share"
        )
    ).classes("w-full h-64")
    ui.echart(
        charts.lines(
            {plain(who): [(one.at_s, one.credit) for one in each] for who, each in past.items()}, "credit"
        )
    ).classes("w-full h-64")
