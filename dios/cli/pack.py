"""``dios pack``: jobs that say what they need and when, and where they would fit.

Not for: its parts; each sub-command has a module of its own. ``dios.packer`` is loaded inside the commands
alone: it needs the extra ``cluster``, and nobody else waits for it.
"""

from __future__ import annotations

from typing import Final

import typer

from dios.cli import pack_learn, pack_live, pack_simulate

app: Final = typer.Typer(
    help="Jobs that say what they need and when, and where they would fit.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


@app.callback()
def family() -> None:
    """Jobs that say what they need and when, and where they would fit."""


app.command("check", epilog=pack_live.CHECK)(pack_live.check)
app.command("ls", epilog=pack_live.LS)(pack_live.ls)
app.command("release", epilog=pack_live.RELEASE)(pack_live.release)
app.command("learn", epilog=pack_learn.EXAMPLES)(pack_learn.learn)
app.command("simulate", epilog=pack_simulate.EXAMPLES)(pack_simulate.simulate)
