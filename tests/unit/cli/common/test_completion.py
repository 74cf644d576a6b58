from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import typer
from typer.testing import CliRunner

import dios
from dios.cli import main
from dios.cli.common import completion
from dios.cli.nodes import daemon
from dios.ids import Name

if TYPE_CHECKING:
    from typer._click import Command, Parameter

COMPLETED = {"ALIAS", "NODE", "TASK", "SERVICE", "[FILE=]NAME", "FILE=NAME"}
"""The words of the help for what a node or the keyring knows."""
FREE = {"--name", "--as"}
"""Options for names that do not exist yet."""


def parameters(command: Command, path: str) -> Iterator[tuple[str, Parameter]]:
    """Every parameter of a command, and of the commands below it."""
    for parameter in command.params:
        yield f"{path} {parameter.opts[0]}", parameter
    for name, subcommand in getattr(command, "commands", {}).items():
        yield from parameters(subcommand, f"{path} {name}")


def test_everything_that_a_node_knows_is_completed() -> None:
    """Each option and argument for a group, path, node, task or service has a completer, and no other."""
    missing, count = [], 0
    for app, program in ((main.app, "dios"), (daemon.app, "dios-node")):
        for place, parameter in parameters(typer.main.get_command(app), program):
            metavar = (parameter.metavar or "").strip("[].") or ""
            known = {(parameter.metavar or ""), metavar} & COMPLETED or "--node" in parameter.opts
            if known and not FREE & set(parameter.opts):
                count += 1
                if completion.completer_of(parameter) is None:
                    missing.append(place)
    assert missing == []
    assert count > 80
    commands = dict(parameters(typer.main.get_command(main.app), "dios"))
    for place in ("get name", "rm names", "stat name", "ls path", "du paths", "journal read name"):
        assert completion.completer_of(commands[f"dios {place}"]), place
    for place in ("sandbox run --input", "put files", "sandbox run --template"):
        assert completion.completer_of(commands[f"dios {place}"]) is None, place


def test_groups_are_completed_as_the_shell_asks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The shell's question gives the fitting aliases; without a node nothing is proposed, and no error."""
    monkeypatch.setenv("DIOS_KEYRING", str(tmp_path / "keyring.toml"))
    monkeypatch.setenv("DIOS_NODE", str(tmp_path / "nowhere"))
    keyring = dios.Keyring.load()
    for number, alias in enumerate(("papers", "pictures", "other")):
        keyring.add(alias, Name(bytes([number + 1]) * 32))

    def proposed(words: str) -> list[str]:
        asked = {"_DIOS_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(words.count(" "))}
        return CliRunner().invoke(main.app, prog_name="dios", env=asked).stdout.split()

    assert proposed("dios put --group p") == ["papers", "pictures"]
    assert proposed("dios group rm o") == ["other"]
    assert proposed("dios kill x") == []
