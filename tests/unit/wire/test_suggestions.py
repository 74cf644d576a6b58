from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from dios.cli.main import app
from dios.cli.nodes import daemon
from dios.node.settings import KEYS
from dios.wire.suggestions import near_word, suggestion

SOURCES = Path(__file__).parents[3] / "dios"


@pytest.mark.parametrize(
    ("typed", "meant"), [("pool_sise", "pool_size"), ("Listn", "listen"), ("rak", "rack")]
)
def test_a_word_with_one_mistake_is_suggested(typed: str, meant: str) -> None:
    """A word that is nearly a known one is told with it."""
    assert suggestion(typed, KEYS) == f"did you mean {meant}?"


@pytest.mark.parametrize("typed", ["nosuch", "port", "x", "verbose", ""])
def test_a_word_that_is_nearly_nothing_gets_no_guess(typed: str) -> None:
    """An unlike word is not suggested, however short the list is."""
    assert not near_word(typed, KEYS)
    assert suggestion(typed, ["announce", "name"]) == "known: announce, name"


@pytest.mark.parametrize(
    ("command", "option", "told"),
    [
        ("dios-node start --data x", "--nosuch", "see `dios-node start --help`"),
        ("dios-node start --data x", "--pool-sise", "did you mean --pool-size?"),
        ("dios-node start --data x", "--detatch", "did you mean --detach?"),
        ("dios up", "--nosuch", "see `dios up --help`"),
        ("dios up", "--nods", "did you mean --nodes?"),
        ("dios up", "--detatch", "see `dios up --help`"),
        ("dios-node config --data x", "--listn", "did you mean --listen?"),
    ],
)
def test_only_options_of_the_command_are_suggested(
    command: str, option: str, told: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A mistyped option is told as it is typed, with dashes, and only if this command has it."""
    monkeypatch.chdir(tmp_path)
    program, *words = command.split()
    commands = app if program == "dios" else daemon.app
    ended = CliRunner().invoke(commands, [*words, option])
    assert ended.exit_code == 1
    assert f"there is no option {option}; {told}" in " ".join(ended.output.split())
    assert not list(tmp_path.iterdir())


def test_every_suggestion_is_made_in_one_place() -> None:
    """No module has an own measure of how near a word is."""
    users = [
        str(path.relative_to(SOURCES)) for path in SOURCES.rglob("*.py") if "difflib" in path.read_text()
    ]
    assert users == ["wire/suggestions.py"]
