"""``dios schema``: the JSON schemas of what commands of ``dios`` and ``dios-node`` print with ``--json``."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import PurePath
from typing import TYPE_CHECKING, Final

import msgspec
import typer.main

from dios.cli.common.added_commands import added_commands
from dios.cli.common.application import CommandApplication, Output
from dios.cli.common.extras import needing_extra
from dios.cli.common.options import argument
from dios.cli.common.output import write_json, write_line
from dios.cli.common.results import OutputOptions
from dios.cli.common.spellings import OLD_COMMANDS
from dios.cli.main import Commands
from dios.cli.main import app as dios_app
from dios.cli.nodes.daemon import app as node_app
from dios.errors import InvalidError

if TYPE_CHECKING:
    from typer._click import Command

app: Final = CommandApplication()


@app.command(
    examples="dios schema\ndios schema ls\ndios schema dios-node status\ndios schema group share > share.json"
)
def schema(
    command: list[str] | None = argument("[COMMAND]...", "A command; default: list them."),
    *,
    output: OutputOptions,
) -> None:
    """Print the JSON schema of what a command prints with --json, or list these commands."""
    name, known = " ".join(command or ()), outputs()
    if name not in known:
        name = " ".join(OLD_COMMANDS.get(word, word) for word in command or ())
    if name:
        if name not in known:
            raise InvalidError(f"no command {name!r} prints JSON. `dios schema` lists those that do.")
        with needing_extra("cluster", "schemas of the scheduler and of network functions"):
            write_json(schema_of(name))
    elif output.as_json:
        write_json(list(known))
    else:
        for known_command in known:
            write_line(known_command)


def outputs() -> Mapping[str, Output]:
    """Return the output of each command that prints JSON, of ``dios`` without its name.

    A module that adds commands may have such a table ``JSON``. One that cannot be imported adds nothing: its
    command reports the reason.
    """
    program = typer.main.get_group(dios_app)
    known: dict[str, Output] = {}
    for row in Commands.rows:
        known |= _outputs_below(program.commands[row.name], row.name)
    known |= _outputs_below(typer.main.get_group(node_app), "dios-node")
    for place in added_commands().values():
        with suppress(ImportError):
            known |= getattr(importlib.import_module(place.partition(":")[0]), "JSON", {})
    return known


def _outputs_below(command: Command, name: str) -> Iterator[tuple[str, Output]]:
    output = getattr(command, "output", None)
    if isinstance(output, Output):
        yield name, output
    for word, below in getattr(command, "commands", {}).items():
        yield from _outputs_below(below, f"{name} {word}")


def schema_of(command: str) -> dict[str, object]:
    """Return the JSON schema of what a command prints with ``--json``. Raises KeyError without one."""
    rows, many, note = outputs()[command]
    types = [_type_at(row) if isinstance(row, str) else row for row in rows]
    schemas, components = msgspec.json.schema_components(
        types, schema_hook=_schema_of_other, ref_template="#/$defs/{name}"
    )
    single: dict[str, object] = schemas[0] if len(schemas) == 1 else {"anyOf": list(schemas)}
    several: dict[str, object] = {"type": "array", "items": single}
    either: dict[str, object] = {"anyOf": [single, several]}
    shape = either if many is None else several if many else single
    typed = command if command.startswith("dios-node ") else f"dios {command}"
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": f"{typed} --json"}
    whole = {**head, **({"description": note} if note else {}), **shape, "$defs": components}
    # Defaults of dataclasses may be tuples, which JSON has not.
    schema: dict[str, object] = msgspec.json.decode(msgspec.json.encode(whole))
    return schema


def _type_at(place: str) -> object:
    module, _, name = place.partition(":")
    return getattr(importlib.import_module(module), name)


def _schema_of_other(kind: type) -> dict[str, object]:
    """Return the schema of a type that msgspec does not know, which ``write_json`` writes as text."""
    if issubclass(kind, PurePath):
        return {"type": "string"}
    raise NotImplementedError(kind)
