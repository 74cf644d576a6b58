"""Command groups that import a command's module only when the command is used or listed."""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterator, Mapping, MutableMapping
from typing import TYPE_CHECKING, ClassVar, Final, cast

import typer
import typer.main
from typer.core import TyperGroup

if TYPE_CHECKING:
    from typer._click import Command


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
    app = cast("typer.Typer", getattr(importlib.import_module(module), attribute.rstrip("*")))
    group = typer.main.get_group(app)
    return group if attribute.endswith("*") else group.commands[name]


class LazyGroup(TyperGroup):
    """A group whose commands are listed in ``places`` as ``module:attribute`` of a Typer application."""

    places: ClassVar[Mapping[str, str]] = {}

    def __init__(self, **settings: object) -> None:
        super().__init__(**settings)  # type: ignore[arg-type] # Typer's own settings, passed on
        self.commands = _LazyCommands(self.places)
