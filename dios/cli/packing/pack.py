"""``dios pack``: jobs with demands over time.

Each subcommand has a module of its own. ``dios.packer`` needs the extra ``cluster`` and is loaded only inside
the commands.
"""

from __future__ import annotations

from typing import Final

from dios.cli.common.application import CommandApplication
from dios.cli.packing import learn, live

app: Final = CommandApplication(
    help="Jobs with demands over time: check, run and learn them.",
    no_args_is_help=True,
)


@app.callback()
def family() -> None:
    """Jobs with demands over time: check, run and learn them."""


app.command("check", epilog=live.CHECK)(live.check)
app.command("ls", epilog=live.LS)(live.ls)
app.command("release", epilog=live.RELEASE)(live.release)
app.command("learn", epilog=learn.EXAMPLES)(learn.learn)
