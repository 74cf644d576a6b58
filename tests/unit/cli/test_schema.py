from __future__ import annotations

import io
import json
from collections.abc import Iterator
from contextlib import redirect_stdout
from dataclasses import dataclass
from pathlib import Path

import msgspec
import pytest
import typer
from jsonschema import Draft202012Validator, ValidationError
from typer.testing import CliRunner

from dios.cli import main
from dios.cli.common.output import write_json
from dios.cli.nodes import daemon
from dios.cli.schema import outputs, schema_of

WITHOUT_SCHEMA = {
    "schema": "it prints JSON schemas, whose format is that of their specification",
}
"""The commands with --json whose output no schema describes, and why."""


def commands_with_json(command: object, name: str = "") -> Iterator[str]:
    """The names of a command's subcommands, and of itself, that have --json."""
    if any("--json" in parameter.opts for parameter in command.params):  # type: ignore[attr-defined]
        yield name
    commands = getattr(command, "commands", {})
    for word in commands:
        yield from commands_with_json(commands[word], f"{name} {word}".strip())


def test_every_command_with_json_has_a_schema() -> None:
    """The commands of which `dios schema` knows are all that have --json, and no others."""
    commands = set(commands_with_json(typer.main.get_command(main.app)))
    commands |= {f"dios-node {name}" for name in commands_with_json(typer.main.get_command(daemon.app))}
    assert set(outputs()) == commands - set(WITHOUT_SCHEMA)


@pytest.mark.parametrize("command", outputs())
def test_a_schema_describes_its_command(command: str) -> None:
    """The schema is one, refuses other JSON, and `dios schema` prints it."""
    schema = schema_of(command)
    Draft202012Validator.check_schema(schema)
    for other in ("text", [{"nothing": 1}], {"nothing": 1}):
        with pytest.raises(ValidationError):
            Draft202012Validator(schema).validate(other)
    printed = CliRunner().invoke(main.app, ["schema", *command.split()])
    assert json.loads(printed.stdout) == schema


class Part(msgspec.Struct, rename={"name": "part"}):
    """A Struct in a row of a test, with another name in JSON."""

    name: str


@dataclass(frozen=True, slots=True)
class Place:
    """A row of a test."""

    path: Path
    parts: tuple[Part, ...] = ()


def test_dataclasses_are_written_as_their_schemas_say() -> None:
    """Dataclasses and Structs in a row are objects with their fields, and a path is text."""
    with redirect_stdout(io.StringIO()) as written:
        write_json({"place": Place(Path("/data"), (Part("a"),))})
    assert json.loads(written.getvalue()) == {"place": {"path": "/data", "parts": [{"part": "a"}]}}


@pytest.fixture
def member(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory ``n`` of the first node of a new cluster, which does not run."""
    monkeypatch.setenv("DIOS_KEYRING", str(tmp_path / "keyring.toml"))
    outcome = CliRunner().invoke(
        daemon.app, ["init", "--data", str(tmp_path / "n"), "--listen", "127.0.0.1:7400"]
    )
    assert outcome.exit_code == 0, outcome.output
    return tmp_path / "n"


@pytest.mark.parametrize(
    "line",
    [
        "config --json",
        "doctor --json",
        "dios-node init --data other --listen 127.0.0.1:7400 --json",
        "dios-node invite --data n --json",
        "dios-node config --data n --json",
        "dios-node status --data n --json",
        "dios-node stop --data n --json",
        "dios-node restart --data n --json",
    ],
)
def test_commands_print_what_their_schemas_say(
    line: str, member: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The JSON of a command validates; ``Person.types`` checks those of commands that need a node."""
    monkeypatch.chdir(member.parent)
    command, words = line.partition(" --")[0], line.split()
    if command.startswith("dios-node"):
        done = CliRunner().invoke(daemon.app, words[1:])
    else:
        done = CliRunner().invoke(main.app, words)
    Draft202012Validator(schema_of(command)).validate(json.loads(done.stdout))
