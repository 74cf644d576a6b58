"""Old names of commands and options have the effect of the new ones."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import typer
import typer.main
from typer.testing import CliRunner

from dios.cli import main
from dios.cli.common.spellings import OLD_COLUMNS, OLD_COMMANDS, OLD_OPTIONS, OldOption
from dios.cli.nodes import daemon
from dios.web.terminal.overview import TASK_COLUMNS

if TYPE_CHECKING:
    from typer._click import Command, Context

ROOT = Path(__file__).resolve().parents[4]
WRITTEN = [
    ROOT / "README.md",
    *(path for path in (ROOT / "docs").glob("*.md")),
    *(path for path in (ROOT / "examples").rglob("*") if path.suffix in (".py", ".sh", ".md")),
    *(path for path in (ROOT / "cluster").rglob("*") if path.is_file()),
    *(path for path in (ROOT / "dios").rglob("*.py") if path.name != "spellings.py"),
]
PROGRAMS = [typer.main.get_command(main.app), typer.main.get_command(daemon.app)]


def command_of(words: list[str]) -> tuple[Command, Context]:
    """The command that these words call, in the program that has it, and the context of its group."""
    for program in PROGRAMS:
        command: Command | None = program
        context = program.context_class(program, info_name="program")
        for number, word in enumerate(words):
            command = command.get_command(context, word)  # type: ignore[union-attr] # a group
            if command is None:
                break
            if number < len(words) - 1:
                context = command.context_class(command, info_name=word, parent=context)
        if command is not None:
            return command, context
    raise AssertionError(f"there is no command {words}")


def settings(row: OldOption, option: str) -> dict[str, object]:
    """The values of all options of a command, if ``option`` is given."""
    *_, last = words = row.command.split()
    command, group = command_of(words)
    parameter = next(param for param in command.params if row.new in param.opts)
    value = [] if getattr(parameter, "is_flag", False) else ["7"]
    with command.make_context(last, [option, *value], parent=group, resilient_parsing=True) as context:
        return context.params


@pytest.mark.parametrize("row", OLD_OPTIONS, ids=" ".join)
def test_an_old_option_is_the_new_one(row: OldOption) -> None:
    """The old name of an option sets the same value as the new one, and a value other than without it."""
    command, group = command_of(row.command.split())
    with command.make_context("", [], parent=group, resilient_parsing=True) as context:
        default = context.params
    assert settings(row, row.old) == settings(row, row.new) != default


@pytest.mark.parametrize("row", OLD_OPTIONS, ids=" ".join)
def test_an_old_option_is_shown_nowhere(row: OldOption) -> None:
    """No help shows an old name."""
    command, _ = command_of(row.command.split())
    app = daemon.app if command in PROGRAMS[1].commands.values() else main.app  # type: ignore[attr-defined] # a group
    shown = CliRunner().invoke(app, [*row.command.split(), "--help-all"]).output
    assert row.new in shown
    assert f"{row.old} " not in shown


@pytest.mark.parametrize(("old", "new"), OLD_COMMANDS.items())
def test_an_old_command_is_the_new_one(old: str, new: str) -> None:
    """The old name of a command, which no help shows, calls the new one in the program that has it."""
    (program,) = (candidate for candidate in PROGRAMS if new in candidate.commands)  # type: ignore[attr-defined] # a group
    context = program.context_class(program, info_name="program")
    assert program.get_command(context, old) is program.get_command(context, new)  # type: ignore[attr-defined]
    assert old not in program.list_commands(context)  # type: ignore[attr-defined]


def test_an_old_command_has_its_schema() -> None:
    """`dios schema` knows a command that prints JSON under its old name, too."""
    schemas = [CliRunner().invoke(main.app, ["schema", name, "create"]) for name in ("log", "journal")]
    assert [result.exit_code for result in schemas] == [0, 0]
    assert schemas[0].output == schemas[1].output


def test_no_document_and_no_message_has_an_old_name() -> None:
    """Documents, examples and our own code use the new names."""
    patterns = [
        re.compile(rf"\bdios(?:-node)? {row.command} [^\n`|]*(?<![\w-]){row.old}(?![\w-])")
        for row in OLD_OPTIONS
    ] + [re.compile(r"\bdios log\b(?! entry)"), re.compile(r"\bdios-node token\b")]
    stale = [
        f"{path.relative_to(ROOT)}: {match[0]}"
        for path in WRITTEN
        for pattern in patterns
        for match in pattern.finditer(path.read_text(errors="replace"))
        if path.name != "glossary.md"
    ]
    assert stale == []


def test_an_old_column_is_the_new_one() -> None:
    """A table is sorted by the old name of a column as by the new one, and shows the new one."""
    assert {new.upper() for new in OLD_COLUMNS.values()} <= set(TASK_COLUMNS)
    assert not {old.upper() for old in OLD_COLUMNS} & set(TASK_COLUMNS)
