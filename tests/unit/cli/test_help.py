from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import typer
import typer.main
from typer.testing import CliRunner

import dios
from dios.cli import main
from dios.cli.common.application import CommonHelp
from dios.cli.common.lazy import CommandRow, Section
from dios.cli.nodes import daemon
from dios.node.settings import KEYS

if TYPE_CHECKING:
    from typer._click import Command

LINES_OF_HELP_MAX = 48


def commands_below(
    command: Command, words: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], Command]]:
    """Every command and group of a program, with the words that call it."""
    yield words, command
    for name, below in getattr(command, "commands", {}).items():
        yield from commands_below(below, (*words, name))


EVERY_COMMAND = [
    pytest.param(app, words, id=" ".join((program, *words)))
    for app, program in ((main.app, "dios"), (daemon.app, "dios-node"))
    for words, _ in commands_below(typer.main.get_command(app))
]
OWN_COMMANDS = [
    pytest.param(app, " ".join(words), id=" ".join((program, *words)))
    for app, program in ((main.app, "dios"), (daemon.app, "dios-node"))
    for words, command in commands_below(typer.main.get_command(app))
    if words and words[0] != "lab" and not getattr(command, "commands", {})
]


def help_of(app: typer.Typer, command: str, form: str = "--help") -> str:
    """What ``--help`` or ``--help-all`` prints."""
    result = CliRunner().invoke(app, [*command.split(), form])
    assert result.exit_code == 0, result.output
    return result.output


@pytest.mark.parametrize(("app", "command"), OWN_COMMANDS)
def test_every_command_teaches(app: typer.Typer, command: str) -> None:
    """The help of each command shows an example on a line of its own."""
    examples = help_of(app, command).partition("Examples:")[2]
    program = "dios-node" if app is daemon.app else "dios"
    assert re.search(rf"^ +(.*\| )?{program} ({command}\b|put)", examples, re.MULTILINE)


def test_the_first_page_shows_a_first_round() -> None:
    """`dios --help` shows how to begin."""
    assert "dios-node start" in help_of(main.app, "")


@pytest.mark.parametrize(("app", "words"), EVERY_COMMAND)
def test_every_list_of_commands_is_whole(app: typer.Typer, words: tuple[str, ...]) -> None:
    """On 80 columns no help cuts the line of a command."""
    text = help_of(app, " ".join(words))
    listed = text.partition("Commands:")[2].partition("Examples:")[0]
    assert "..." not in listed
    assert max(map(len, listed.splitlines()), default=0) <= 80


def test_every_command_has_one_line_in_a_section() -> None:
    """`dios --help` shows each command once, below the heading of its section, on one line of 80 columns."""
    lines = help_of(main.app, "").splitlines()
    rows = main.Commands.rows
    assert len({row.name for row in rows}) == len(rows)
    section = ""
    shown = {}
    for line in lines:
        if line and not line.startswith(" "):
            section = line.rstrip(":")
        name, _, text = line.strip().partition(" ")
        shown[section, name, text.strip()] = line
    for row in rows:
        assert len(shown[row.section, row.name, row.line]) <= 80


def test_a_row_without_a_cell_is_refused() -> None:
    """A command cannot be added to the table without its section and its line."""
    with pytest.raises(TypeError, match="line"):
        CommandRow(Section.RUN, "new", "dios.cli.tasks.run:app")  # type: ignore[call-arg] # the claim
    with pytest.raises(ValueError, match="'new' has no place or no line"):
        CommandRow(Section.RUN, "new", "dios.cli.tasks.run:app", "")


@pytest.mark.parametrize(("app", "words"), EVERY_COMMAND)
def test_a_short_help_says_where_the_rest_is(app: typer.Typer, words: tuple[str, ...]) -> None:
    """`--help` is short, and its last line says if there is more, which `--help-all` shows with the rest."""
    command = typer.main.get_command(app)
    for word in words:
        command = command.commands[word]  # type: ignore[attr-defined] # a group
    assert isinstance(command, CommonHelp)
    text = help_of(app, " ".join(words))
    assert words == () or len(text.splitlines()) <= LINES_OF_HELP_MAX
    if command.has_more:
        assert re.search(r"`[\w -]+ --help-all` shows [\w ]+\.$", text.rstrip())
        text = help_of(app, " ".join(words), "--help-all")
    assert [
        option
        for param in command.params
        if param.param_type_name == "option" and not getattr(param, "hidden", False)
        for option in param.opts
        if not re.search(rf"^ +(-\w, )?{option}\b|^ +{option},", text, re.MULTILINE)
    ] == []


def test_the_start_page_lists_every_setting() -> None:
    """`dios-node start --help-all` has each setting as an option."""
    text = help_of(daemon.app, "start", "--help-all")
    assert [key for key in KEYS if f"--{key.replace('_', '-')}" not in text] == []


OPTIONS_OF_SANDBOXES = {
    "node": "--node",
    "template": "--template",
    "packages": "--packages",
    "wheels": "--wheels",
    "image": "--image",
    "snapshot": "--snapshot",
    "isolation": "--isolation",
    "inputs": "--input",
    "memory": "--memory",
    "cpu_seconds": "--cpu-seconds",
    "timeout": "--timeout",
    "bounds": "--bound",
    "network": "--network",
    "network_ca": "--network-ca",
    "network_headers": "--network-header",
    "forkable": "--forkable",
}
"""The arguments of ``dios.Sandbox``, and the options for them."""


@pytest.mark.parametrize(
    ("command", "different"),
    [
        # A file that is run in a fork makes the session one that can be forked.
        ("sandbox run", {"forkable": "--then"}),
        ("sandbox shell", {}),
        ("mcp", {}),
        # Jupyter has no way to fork a notebook.
        ("kernel install", {"forkable": None}),
    ],
)
def test_every_argument_of_a_sandbox_is_an_option(command: str, different: dict[str, str | None]) -> None:
    """The commands that open sandboxes have an option for each argument of the class."""
    arguments = set(inspect.signature(dios.Sandbox).parameters)
    assert arguments == set(OPTIONS_OF_SANDBOXES)
    text = help_of(main.app, command, "--help-all")
    expected = (OPTIONS_OF_SANDBOXES | different).values()
    missing = [
        option
        for option in expected
        if option and not re.search(rf"^ +(-\w, )?{option}\b", text, re.MULTILINE)
    ]
    assert missing == []


def test_a_kernel_keeps_every_argument_of_its_sandbox() -> None:
    """Those that an option of its installation gives."""
    pytest.importorskip("jupyter_client", reason="the extra jupyter is missing")
    from dios.bridges.jupyter_specs import KernelOptions

    assert set(KernelOptions.__struct_fields__) == set(OPTIONS_OF_SANDBOXES) - {"forkable"}


@pytest.mark.parametrize(("app", "command"), OWN_COMMANDS)
def test_the_page_lists_every_command(app: typer.Typer, command: str) -> None:
    """docs/command-line.md names each command, or its group."""
    page = (Path(__file__).resolve().parents[3] / "docs" / "command-line.md").read_text()
    program = "dios-node" if app is daemon.app else "dios"
    assert command in page or f"`{program} {command.split(maxsplit=1)[0]}" in page


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--pool-sise", "4"], "did you mean --pool-size?"),
        (["--pool-size"], "needs a value"),
        (["--pool-size=many"], "a whole number"),
        (["stray"], "is not an option"),
    ],
)
def test_a_bad_option_of_start_is_told_before_anything_is_made(
    arguments: list[str], says: str, tmp_path: Path
) -> None:
    """A misspelled or bad setting ends `dios-node start` with a sentence, and no data directory."""
    data = tmp_path / "data"
    result = CliRunner().invoke(daemon.app, ["start", "--data", str(data), "--detach", *arguments])
    assert result.exit_code == 1
    assert says in " ".join(result.output.split())
    assert not data.exists()


def test_no_node_is_told_with_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a node a command ends with 1 and says how to start one; status ends with 3."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.delenv("DIOS_NODE", raising=False)
    result = CliRunner().invoke(main.app, ["ls"])
    assert result.exit_code == 1
    assert "dios-node start --data" in " ".join(result.output.split())
    assert CliRunner().invoke(daemon.app, ["status"]).exit_code == 3
    assert CliRunner().invoke(daemon.app, ["stop"]).exit_code == 0


def test_the_version_is_the_packages() -> None:
    """`dios --version` prints a version."""
    assert re.fullmatch(r"dios \d+\.\d+\.\d+\n", CliRunner().invoke(main.app, ["--version"]).output)
