"""``dios sched``: the cluster scheduler, Firmament.

Not for: its parts; each sub-command has a module of its own, or stands below. ``dios.firmament`` is loaded
inside the commands alone: it needs the extra ``cluster``, and nobody else waits for it.
"""

from __future__ import annotations

from typing import Final

import typer

from dios.cli import sched_simulate

app: Final = typer.Typer(
    no_args_is_help=True, rich_markup_mode=None, help="The cluster scheduler, Firmament."
)
app.command("simulate", epilog=sched_simulate.EXAMPLES)(sched_simulate.simulate)
