"""Options and arguments of commands: one line for each, alone or in groups that several commands share.

A parameter of a command has its option or argument as its default value. A parameter whose type is a class of
``Options`` stands for all options of the class::

    @app.command("ls")
    def list_files(path: str = argument("[PATH]", "A directory."), *, common: CommonOptions) -> None:
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from types import NoneType
from typing import Final, NamedTuple, TypeVar, get_args, get_origin, get_type_hints

import typer
from typer.models import ArgumentInfo, OptionInfo

T = TypeVar("T")

COMMON: Final = "Options"
"""The section of the options that ``--help`` lists."""
_MISSING: Final = object()


class _Declaration(NamedTuple):
    """An option or argument without its type, from which its default follows unless it is given."""

    names: tuple[str, ...]
    settings: dict[str, object]
    required: bool
    default: object

    def parameter(self, kind: object) -> OptionInfo | ArgumentInfo:
        """Return the parameter of Typer for a value of this type."""
        default = self.default_of(kind)
        parameter: OptionInfo | ArgumentInfo = (
            typer.Option(default, *self.names, **self.settings)  # type: ignore[call-overload] # Typer checks them
            if self.names
            else typer.Argument(default, **self.settings)  # type: ignore[call-overload] # the same
        )
        return parameter

    def default_of(self, kind: object) -> object:
        """Return the value without the option; ``...`` if the option is required."""
        if self.required or self.default is not _MISSING:
            return ... if self.required else self.default
        if NoneType in get_args(kind):
            return None
        empty: Mapping[object, object] = {bool: False, str: "", list: []}
        return empty.get(get_origin(kind) or kind, ...)


def option(
    names: str,
    text: str,
    *,
    default: object = _MISSING,
    required: bool = False,
    section: str | None = None,
    **settings: object,
) -> T:  # type: ignore[type-var] # the type is that of the parameter
    """Return an option.

    Without ``default`` it is False, "", an empty list or None, or required, as its type permits.

    Args:
        names: the names and the word for the value, like ``"--group -g ALIAS"``.
        text: the help.
        default: the value without the option.
        required: True for a text or a list that has no default.
        section: the heading of ``--help-all`` below which it is listed; None for an option of ``--help``.
        settings: further settings of Typer, like ``min``.
    """
    words = names.split()
    # The first name is that in messages.
    declared = tuple(
        sorted((word for word in words if word.startswith("-")), key=lambda word: word[:2] != "--")
    )
    if not declared:
        raise ValueError(f"{names!r} begins with no name of an option")
    metavar = " ".join(words[len(declared) :]) or None
    settings |= {"metavar": metavar, "help": text, "rich_help_panel": section}
    return _Declaration(declared, settings, required, default)  # type: ignore[return-value] # Typer reads it


def argument(metavar: str, text: str, *, default: object = _MISSING, **settings: object) -> T:  # type: ignore[type-var] # see option
    """Return an argument, which is required unless its metavar is in brackets or it has a default."""
    required = default is _MISSING and not metavar.startswith("[")
    settings |= {"metavar": metavar, "help": text}
    return _Declaration((), settings, required, default)  # type: ignore[return-value] # Typer reads it


class Options:
    """A group of options: the base of classes whose attributes are options.

    A class may name the ``section`` of its options.
    """

    def __init_subclass__(cls, section: str | None = None) -> None:
        """Put the options of a class into its section, unless they name one."""
        for name, declaration in list(vars(cls).items()):
            if isinstance(declaration, _Declaration) and not declaration.settings.get("rich_help_panel"):
                settings = {**declaration.settings, "rich_help_panel": section}
                setattr(cls, name, declaration._replace(settings=settings))

    def __init__(self, **values: object) -> None:
        declared = dict(self._declared())
        if unknown := values.keys() - declared.keys():
            raise TypeError(f"{type(self).__name__} has no option {', '.join(sorted(unknown))}")
        defaults = {name: declaration.default_of(kind) for name, (declaration, kind) in declared.items()}
        self.__dict__.update(defaults | values)

    @classmethod
    def _declared(cls) -> Iterator[tuple[str, tuple[_Declaration, object]]]:
        """Yield the declaration and the type of each option."""
        for name, kind in get_type_hints(cls).items():
            declaration = getattr(cls, name, None)
            if isinstance(declaration, _Declaration):
                yield name, (declaration, kind)

    @classmethod
    def parameters(cls) -> Iterator[inspect.Parameter]:
        """Yield the parameters of a command that has these options."""
        for name, (declaration, kind) in cls._declared():
            yield _parameter(name, declaration, kind)

    def given(self) -> dict[str, object]:
        """Return the options that differ from their defaults, by their names on the command line."""
        return {
            next(word for word in declaration.names if word.startswith("--")).partition("/")[0]: getattr(
                self, name
            )
            for name, (declaration, kind) in self._declared()
            if declaration.names and getattr(self, name) != declaration.default_of(kind)
        }


def _parameter(name: str, declaration: _Declaration, kind: object) -> inspect.Parameter:
    default = declaration.parameter(kind)
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=kind)


def typer_callback(command: Callable[..., None]) -> Callable[..., None]:  # type: ignore[explicit-any] # of a command
    """Return a function for Typer that has each option of a command as a parameter."""
    groups: dict[str, type[Options]] = {}
    parameters: list[inspect.Parameter] = []
    hints = get_type_hints(command)
    for name, parameter in inspect.signature(command).parameters.items():
        kind = hints[name]
        if isinstance(kind, type) and issubclass(kind, Options):
            groups[name] = kind
            parameters += kind.parameters()
        elif isinstance(parameter.default, _Declaration):
            parameters.append(_parameter(name, parameter.default, kind))
        else:
            parameters.append(parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY, annotation=kind))

    def call(**values: object) -> None:
        grouped = {
            name: group(**{option.name: values.pop(option.name) for option in group.parameters()})
            for name, group in groups.items()
        }
        command(**values, **grouped)

    call.__name__, call.__doc__ = command.__name__, command.__doc__
    # Typer reads both.
    call.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined] # it may be set
    call.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return call
