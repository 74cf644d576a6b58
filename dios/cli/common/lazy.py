"""A table of commands, each of which is imported when it is used; listing them imports none."""

from __future__ import annotations

import enum
import importlib
import os
import sys
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Final, cast

import typer
import typer.main
from typer.core import TyperGroup

from dios.cli.common.application import CommandGroup
from dios.cli.common.streams import INTERRUPTED

if TYPE_CHECKING:
    from typer._click import Command, Context, HelpFormatter
    from typer._click.shell_completion import CompletionItem


_COMPLETING: Final = ("_DIOS_COMPLETE", "_DIOS_NODE_COMPLETE")
"""The variables that are set if a shell asks this process for completions."""


class _LazyCommands(MutableMapping[str, "Command"]):
    """The commands of a group by name; a command is made when it is first looked up."""

    def __init__(self, places: Mapping[str, str]) -> None:
        self._places = dict(places)
        self._made: dict[str, Command] = {}

    def __getitem__(self, name: str) -> Command:
        if name not in self._made:
            self._made[name] = _command_at(name, self._places[name])
            if any(variable in os.environ for variable in _COMPLETING):
                from dios.cli.common import completion  # noqa: PLC0415 - only if a shell completes

                completion.attach(self._made[name])
        return self._made[name]

    def __setitem__(self, name: str, command: Command) -> None:
        self._places.setdefault(name, "")
        self._made[name] = command

    def __delitem__(self, name: str) -> None:
        del self._places[name]
        self._made.pop(name, None)

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)

    def __contains__(self, name: object) -> bool:
        return name in self._places


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


class LazyGroup(CommandGroup):
    """A group whose commands are the ``rows`` of a table."""

    rows: ClassVar[Sequence[CommandRow]] = ()

    def __init__(self, **settings: object) -> None:
        super().__init__(**settings)  # type: ignore[arg-type] # Typer's own settings, passed on
        self.commands = _LazyCommands({row.name: row.place for row in self.rows})

    def format_commands(self, ctx: Context, formatter: HelpFormatter) -> None:
        """Write the commands in their sections, with one column of names for all."""
        del ctx
        width = max(len(row.name) for row in self.rows)
        for section in Section:
            records = [(row.name.ljust(width), row.line) for row in self.rows if row.section is section]
            if records:
                with formatter.section(section):
                    formatter.write_dl(records)

    def shell_complete(self, ctx: Context, incomplete: str) -> list[CompletionItem]:
        """Return the commands and options that begin with ``incomplete``."""
        from typer._click.shell_completion import CompletionItem  # noqa: PLC0415 - only if a shell completes

        rows = (row for row in self.rows if row.name.startswith(incomplete))
        options = super(TyperGroup, self).shell_complete(ctx, incomplete)
        return [*(CompletionItem(row.name, help=row.line) for row in rows), *options]
