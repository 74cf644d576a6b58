from __future__ import annotations

import json

import pytest
import typer
from jsonschema import Draft202012Validator, ValidationError
from typer.testing import CliRunner

from dios.cli import main
from dios.cli.common.json_rows import JSON, schema_of


@pytest.mark.parametrize("command", JSON)
def test_every_described_command_exists_and_has_a_schema(command: str) -> None:
    """The schema is one, refuses other JSON, and `dios schema` prints it."""
    found = typer.main.get_command(main.app)
    for word in command.split():
        found = found.commands[word]  # type: ignore[attr-defined]
    assert any("--json" in parameter.opts for parameter in found.params)
    schema = schema_of(command)
    Draft202012Validator.check_schema(schema)
    for other in ("text", [{"nothing": 1}], {"nothing": 1}):
        with pytest.raises(ValidationError):
            Draft202012Validator(schema).validate(other)
    printed = CliRunner().invoke(main.app, ["schema", *command.split()])
    assert json.loads(printed.stdout) == schema


def test_commands_emit_what_their_schemas_say() -> None:
    """The JSON of a command validates; ``Person.types`` checks those of commands that need a node."""
    done = CliRunner().invoke(main.app, ["config", "--json"])
    Draft202012Validator(schema_of("config")).validate(json.loads(done.stdout))
