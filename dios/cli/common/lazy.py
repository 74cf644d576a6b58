"""A table of commands, each of which is imported when it is used; listing them imports none."""

from __future__ import annotations

import enum
import importlib
import os
import sys
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Final, cast

import typer
import typer.main
from typer._click.exceptions import UsageError
from typer.core import TyperGroup

from dios.cli.common.added_commands import added_commands
from dios.cli.common.application import CommandGroup, line_of
from dios.cli.common.streams import INTERRUPTED

if TYPE_CHECKING:
    from typer._click import Command, Context, HelpFormatter
    from typer._click.shell_completion import CompletionItem


_COMPLETING: Final = ("_DIOS_COMPLETE", "_DIOS_NODE_COMPLETE")
"""The variables that are set if a shell asks this process for completions."""


class _LazyCommands(MutableMapping[str, "Command"]):
    """The commands of a group by name; a command is made when it is first looked up.

    Args:
        own: the places of the group's own commands.
        added: returns the places of further commands. It is called when a name is looked up that the group
            does not have itself, or when all names are needed.
    """

    def __init__(self, own: Mapping[str, str], added: Callable[[], Mapping[str, str]]) -> None:
        self._own = dict(own)
        self._added = added
        self._made: dict[str, Command] = {}

    def __getitem__(self, name: str) -> Command:
        if name not in self._made:
            place = self._own[name] if name in self._own else f"{self._added()[name]}*"
            self._made[name] = _command_at(name, place)
            if any(variable in os.environ for variable in _COMPLETING):
                from dios.cli.common import completion  # noqa: PLC0415 - only if a shell completes

                completion.attach(self._made[name])
        return self._made[name]

    def __setitem__(self, name: str, command: Command) -> None:
        self._own.setdefault(name, "")
        self._made[name] = command

    def __delitem__(self, name: str) -> None:
        del self._own[name]
        self._made.pop(name, None)

    def __iter__(self) -> Iterator[str]:
        return iter({**self._own, **self._added()})

    def __len__(self) -> int:
        return len({**self._own, **self._added()})

    def __contains__(self, name: object) -> bool:
        return name in self._own or name in self._added()


def _command_at(name: str, place: str) -> Command:
    """Import ``module:attribute``, a Typer application, and return its command ``name`` or the whole group.

    A place that ends in ``*`` is a group that is mounted under ``name``.
    """
    module, _, attribute = place.partition(":")
    try:
        app = cast("typer.Typer", getattr(importlib.import_module(module), attribute.rstrip("*")))
    except KeyboardInterrupt:
        # Otherwise Click says "Aborted!", with the status of a failure.
        sys.stderr.write(f"dios {name}: interrupted\n")
        sys.exit(INTERRUPTED)
    group = typer.main.get_group(app)
    return group if attribute.endswith("*") else group.commands[name]


class Section(enum.StrEnum):
    """The headings under which ``dios --help`` lists the commands."""

    FILES = "Files"
    RUN = "Run programs"
    CLUSTER = "Set up nodes and clusters"
    LOOK = "Look at what happens"
    SHARE = "Share with others"
    RESEARCH = "Research"
    ADDED = "Added by other packages"


@dataclass(frozen=True, slots=True)
class CommandRow:
    """A command: its section, its name, its place ``module:attribute``, and its line in the list."""

    section: Section
    name: str
    place: str
    line: str

    def __post_init__(self) -> None:
        """Refuse a row without a place or a line."""
        if not (self.place and self.line):
            raise ValueError(f"the command {self.name!r} has no place or no line")


def section_rows(section: Section, package: str, *rows: tuple[str, str, str]) -> tuple[CommandRow, ...]:
    """Return the commands of a section by name, place below the package, and line."""
    return tuple(CommandRow(section, name, f"{package}.{place}", line) for name, place, line in rows)


class LazyGroup(CommandGroup):
    """A group whose commands are the ``rows`` of a table; if it is ``open``, other packages add more."""

    rows: ClassVar[Sequence[CommandRow]] = ()
    open: ClassVar[bool] = False

    def __init__(self, **settings: object) -> None:
        super().__init__(**settings)  # type: ignore[arg-type] # Typer's own settings, passed on
        self.commands = _LazyCommands({row.name: row.place for row in self.rows}, self._added)

    def _added(self) -> Mapping[str, str]:
        return added_commands() if self.open else {}

    def _listed(self) -> Iterator[tuple[Section, str, str]]:
        """Yield the section, the name and the line of each command."""
        yield from ((row.section, row.name, row.line) for row in self.rows)
        own = {row.name for row in self.rows}
        yield from ((Section.ADDED, name, self._line_of(name)) for name in self._added() if name not in own)

    def _line_of(self, name: str) -> str:
        """Return the line of an added command, or the reason why it cannot be loaded."""
        command = self._load(name)
        return command if isinstance(command, str) else line_of(command)

    def _load(self, name: str) -> Command | str:
        """Return an added command, or the reason why it cannot be loaded."""
        try:
            return self.commands[name]
        except Exception as error:  # noqa: BLE001 - another package's defect must not take away our help
            return f"Cannot be loaded: {type(error).__name__}: {error}"

    def format_commands(self, ctx: Context, formatter: HelpFormatter) -> None:
        """Write the commands in their sections, with one column of names for all."""
        del ctx
        listed = list(self._listed())
        width = max(len(name) for _, name, _ in listed)
        for section in Section:
            records = [
                (name.ljust(width), line) for own_section, name, line in listed if own_section is section
            ]
            if records:
                with formatter.section(section):
                    formatter.write_dl(records)

    def shell_complete(self, ctx: Context, incomplete: str) -> list[CompletionItem]:
        """Return the commands and options that begin with ``incomplete``."""
        from typer._click.shell_completion import CompletionItem  # noqa: PLC0415 - only if a shell completes

        named = ((name, line) for _, name, line in self._listed() if name.startswith(incomplete))
        options = super(TyperGroup, self).shell_complete(ctx, incomplete)
        return [*(CompletionItem(name, help=line) for name, line in named), *options]

    def resolve_command(self, ctx: Context, args: list[str]) -> tuple[str | None, Command | None, list[str]]:
        """Return the command that the arguments begin with; name an added group that has an unknown one."""
        try:
            return super().resolve_command(ctx, args)
        except UsageError as error:
            added = {name: self._load(name) for name in self._added()}
            homes = [
                name
                for name, command in added.items()
                if isinstance(command, TyperGroup) and args[0] in command.commands
            ]
            if homes:
                error.message = f"No such command {args[0]!r}. Did you mean '{homes[0]} {args[0]}'?"
            raise
