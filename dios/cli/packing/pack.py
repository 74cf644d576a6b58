"""``dios pack``: jobs that say what they need and when, and where they would fit.

Not for: its parts; each sub-command has a module of its own. ``dios.packer`` is loaded inside the commands
alone: it needs the extra ``cluster``, and nobody else waits for it.
"""

from __future__ import annotations

from typing import Final

import typer

from dios.cli.packing import learn, live, simulate

app: Final = typer.Typer(
    help="Jobs that say what they need and when, and where they would fit.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


@app.callback()
def family() -> None:
    """Jobs that say what they need and when, and where they would fit."""


app.command("check", epilog=live.CHECK)(live.check)
app.command("ls", epilog=live.LS)(live.ls)
app.command("release", epilog=live.RELEASE)(live.release)
app.command("learn", epilog=learn.EXAMPLES)(learn.learn)
app.command("simulate", epilog=simulate.EXAMPLES)(simulate.simulate)
