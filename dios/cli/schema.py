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
from dios.cli.main import app as app_of_dios
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
    if command:
        renamed = " ".join(OLD_COMMANDS.get(word, word) for word in command)
        name = next((name for name in (" ".join(command), renamed) if _output_of(name)), None)
        if name is None:
            typed = " ".join(command)
            raise InvalidError(f"no command {typed!r} prints JSON. `dios schema` lists those that do.")
        with needing_extra("cluster", "schemas of the scheduler and of network functions"):
            write_json(schema_of(name))
    elif output.as_json:
        write_json(list(outputs()))
    else:
        for known_command in outputs():
            write_line(known_command)


def outputs() -> Mapping[str, Output]:
    """Return the output of each command that prints JSON, of ``dios`` without its name."""
    program = typer.main.get_group(app_of_dios)
    known: dict[str, Output] = {}
    for row in Commands.rows:
        known |= _outputs_below(program.commands[row.name], row.name)
    known |= _outputs_below(_program_of_nodes(), "dios-node")
    for name in added_commands():
        known |= _added_outputs(name)
    return known


def _output_of(name: str) -> Output | None:
    """Return the output of a command. No other command is imported."""
    words = name.split()
    command: Command | None = typer.main.get_group(app_of_dios)
    if words[0] == "dios-node":
        command, words = _program_of_nodes(), words[1:]
    for word in words:
        command = getattr(command, "commands", {}).get(word)
    output = getattr(command, "output", None)
    return output if isinstance(output, Output) else _added_outputs(words[0] if words else "").get(name)


def _program_of_nodes() -> Command:
    from dios.cli.nodes.daemon import app as app_of_nodes  # noqa: PLC0415 - it loads the settings of nodes

    return typer.main.get_group(app_of_nodes)


def _added_outputs(name: str) -> Mapping[str, Output]:
    """Return the table ``JSON`` of the module that adds a command; a module that has none adds nothing."""
    place = added_commands().get(name)
    # The command itself reports why its module cannot be imported.
    with suppress(ImportError):
        return getattr(importlib.import_module(place.partition(":")[0]), "JSON", {}) if place else {}
    return {}


def _outputs_below(command: Command, name: str) -> Iterator[tuple[str, Output]]:
    output = getattr(command, "output", None)
    if isinstance(output, Output):
        yield name, output
    for word, below in getattr(command, "commands", {}).items():
        yield from _outputs_below(below, f"{name} {word}")


def schema_of(command: str) -> dict[str, object]:
    """Return the JSON schema of what a command prints with ``--json``. Raises KeyError without one."""
    output = _output_of(command)
    if output is None:
        raise KeyError(command)
    rows, many, note = output
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
