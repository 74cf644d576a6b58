"""``dios schema``: the JSON schemas of what commands of ``dios`` and ``dios-node`` print with ``--json``."""

from __future__ import annotations

from typing import Annotated, Final

import typer

from dios.cli.common.application import CommandApplication
from dios.cli.common.extras import needing_extra
from dios.cli.common.json_rows import outputs, schema_of
from dios.cli.common.output import JsonOption, reporting, write_json, write_line
from dios.cli.common.spellings import OLD_COMMANDS
from dios.errors import InvalidError

app: Final = CommandApplication()


@app.command(
    epilog="\b\nExamples:\n  dios schema\n  dios schema ls\n  dios schema dios-node status\n"
    "  dios schema group share > share.json"
)
def schema(
    command: Annotated[
        list[str] | None, typer.Argument(metavar="[COMMAND]...", help="A command; default: list them.")
    ] = None,
    *,
    as_json: JsonOption = False,
) -> None:
    """Print the JSON schema of what a command prints with --json, or list these commands."""
    with reporting("dios schema", as_json=as_json):
        name, known = " ".join(command or ()), outputs()
        if name not in known:
            name = " ".join(OLD_COMMANDS.get(word, word) for word in command or ())
        if name:
            if name not in known:
                raise InvalidError(f"no command {name!r} prints JSON. `dios schema` lists those that do.")
            with needing_extra("cluster", "schemas of the scheduler and of network functions"):
                write_json(schema_of(name))
        elif as_json:
            write_json(list(known))
        else:
            for known_command in known:
                write_line(known_command)
