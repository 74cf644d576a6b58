"""``dios sched``: the cluster scheduler, Firmament.

Not for: its parts; each sub-command has a module of its own, or stands below. ``dios.firmament`` is loaded
inside the commands alone: it needs the extra ``cluster``, and nobody else waits for it.
"""

from __future__ import annotations

from typing import Final

import typer

from dios.cli import sched_live, sched_simulate

app: Final = typer.Typer(
    no_args_is_help=True, rich_markup_mode=None, help="The cluster scheduler, Firmament."
)
app.command("simulate", epilog=sched_simulate.EXAMPLES)(sched_simulate.simulate)
app.command("status", epilog=sched_live.STATUS)(sched_live.status)
app.command("models", epilog=sched_live.MODELS)(sched_live.models)
app.command("set-model", epilog=sched_live.SET_MODEL)(sched_live.set_model)
app.command("history", epilog=sched_live.HISTORY)(sched_live.history)
app.command("export", epilog=sched_live.EXPORT)(sched_live.export)

explain_app: Final = typer.Typer(rich_markup_mode=None)
explain_app.command("explain", epilog=sched_live.EXPLAIN)(sched_live.explain)
