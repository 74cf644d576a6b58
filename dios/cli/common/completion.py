"""The shell's completion of groups, paths, nodes, tasks and services.

``attach`` gives each parameter the function that completes it, which follows from its option or its metavar.
The functions ask the node that the command line names. They return nothing if it does not answer, because an
error would disturb the line that is being typed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Final, TypeAlias

from dios.cli.common.context import CommandContext, opened
from dios.client.grants import accepted_grants
from dios.client.keyring import Keyring
from dios.client.locate import local_cluster
from dios.client.plain_text import plain
from dios.errors import DiosError

if TYPE_CHECKING:
    from typer._click import Command, Context, Parameter

COMPLETED_MAX: Final = 1_000
"""The proposals that a shell gets."""

Completer: TypeAlias = Callable[["Context", "Parameter", str], list[str]]


def completer_of(parameter: Parameter) -> Completer | None:
    """Return the function that completes a parameter, or None if it is nothing that a node knows."""
    metavar = parameter.metavar or ""
    if parameter.param_type_name == "option":
        by_option = next((_BY_OPTION[option] for option in parameter.opts if option in _BY_OPTION), None)
        return by_option or _OPTIONS.get(metavar)
    return _ARGUMENTS.get(metavar.strip("[]."))


def attach(command: Command) -> None:
    """Give the parameters of a command, or of all commands of a group, their completers."""
    for parameter in command.params:
        completer = completer_of(parameter)
        if completer is not None:
            parameter._custom_shell_complete = completer  # noqa: SLF001 - it has no setter
    for subcommand in getattr(command, "commands", {}).values():
        attach(subcommand)


def _asking(find: Callable[[CommandContext, str], Iterable[str]]) -> Completer:
    """Return a completer that asks the node which the command line names."""

    def complete(context: Context, parameter: Parameter, incomplete: str) -> list[str]:
        del parameter
        try:
            with opened(context.params.get("node")) as place:
                return _fitting(find(place, incomplete), incomplete)
        except (DiosError, OSError):
            return []

    return complete


def _fitting(candidates: Iterable[str], incomplete: str) -> list[str]:
    """Return what begins with the typed text, and neither controls a terminal nor splits into words."""
    fitting: dict[str, None] = {}
    for text in candidates:
        if text.startswith(incomplete) and plain(text) == text and not set(text) & set(" \t\n'\""):
            fitting[text] = None
            if len(fitting) >= COMPLETED_MAX:
                break
    return list(fitting)


def _groups(context: Context, parameter: Parameter, incomplete: str) -> list[str]:
    del context, parameter
    try:
        return _fitting([*Keyring.load().groups, *accepted_grants()], incomplete)
    except (DiosError, OSError):
        return []


def _paths(place: CommandContext, incomplete: str) -> Iterator[str]:
    """Yield groups, or what is in the directory of the group that is typed already."""
    alias, slash, inner = incomplete.partition("/")
    if not slash:
        yield from (f"{group}/" for group in (*place.keyring.groups, *place.grants))
        return
    if place.split(alias) is None:
        return
    tree = place.files(alias).tree()
    directory = inner.rpartition("/")[0]
    if tree.is_directory(directory):
        for path in tree.children(directory):
            yield f"{alias}/{path}/" if tree.is_directory(path) else f"{alias}/{path}"


def _inputs(place: CommandContext, incomplete: str) -> Iterator[str]:
    """Yield paths, each behind the name of a file that is typed already."""
    label, equals, path = incomplete.rpartition("=")
    return (f"{label}{equals}{candidate}" for candidate in _paths(place, path))


def _nodes(place: CommandContext, incomplete: str) -> Iterator[str]:
    del incomplete
    return (member.name for member in place.node.nodes())


def _local_nodes(context: Context, parameter: Parameter, incomplete: str) -> list[str]:
    """Return the names of the nodes that `dios up` made; other nodes are given by a path."""
    del context, parameter
    try:
        return _fitting(
            sorted(folder.name for folder in local_cluster().iterdir() if folder.is_dir()), incomplete
        )
    except (DiosError, OSError):
        return []


def _tasks(place: CommandContext, incomplete: str) -> Iterator[str]:
    del incomplete
    for task in place.node.tasks():
        if task.label:
            yield task.label
        yield task.fingerprint


def _titles(place: CommandContext, incomplete: str) -> Iterator[str]:
    del incomplete
    return (task.label for task in place.node.tasks() if task.label and not task.ended)


def _services(place: CommandContext, incomplete: str) -> Iterator[str]:
    from dios.lib.supervised.services import Services  # noqa: PLC0415 - only for this completion

    del incomplete
    return (status.name for status in Services(place.node).statuses())


def _stores(context: Context, parameter: Parameter, incomplete: str) -> list[str]:
    del context, parameter
    try:
        known = Keyring.load().objects
    except (DiosError, OSError):
        return []
    return _fitting([key.removeprefix("store/") for key in known if key.startswith("store/")], incomplete)


_ARGUMENTS: Final[Mapping[str, Completer]] = {
    "ALIAS": _groups,
    "NAME": _asking(_paths),
    "PATH": _asking(_paths),
    "NODE": _asking(_nodes),
    "TASK": _asking(_tasks),
    "SERVICE": _asking(_services),
    "GROUP/STORE": _stores,
}
"""The completers of arguments, by the word that stands for them in the help."""

_OPTIONS: Final[Mapping[str, Completer]] = {
    "ALIAS": _groups,
    "NODE": _asking(_nodes),
    "[FILE=]NAME": _asking(_inputs),
    "FILE=NAME": _asking(_inputs),
    "TITLE": _asking(_titles),
    "TASK": _asking(_tasks),
}
"""The completers of options, by the word that stands for their value in the help."""

_BY_OPTION: Final[Mapping[str, Completer]] = {"--node": _local_nodes, "--near": _asking(_paths)}
"""The completers of options for which the word does not suffice."""
