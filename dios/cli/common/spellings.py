"""Old spellings of commands and options: they work for one more release, and no help shows them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple


class OldOption(NamedTuple):
    """An option of a command (its words without the program), and its name before."""

    command: str
    old: str
    new: str


OLD_OPTIONS: Final = (
    OldOption("run", "--mem", "--reserve-memory"),
    OldOption("run", "--host", "--on"),
    OldOption("run", "--local", "--here"),
    OldOption("run", "--label", "--title"),
    OldOption("run", "--job", "--series"),
    OldOption("run", "--job-minimum", "--series-minimum"),
    OldOption("run", "--job-maximum", "--series-maximum"),
    OldOption("run", "--service", "--long-running"),
    OldOption("kill", "--label", "--title"),
    OldOption("replicate", "--to", "--on"),
    OldOption("store create", "--hosts", "--on"),
    OldOption("ui", "--host", "--address"),
    OldOption("start", "--token", "--invitation"),
    OldOption("start", "--token-file", "--invitation-file"),
    OldOption("service create", "--mem", "--reserve-memory"),
)

OLD_COMMANDS: Final[Mapping[str, str]] = {"log": "journal", "token": "invite"}
"""Commands of either program by the name that they had before; a command that has the name goes before."""

OLD_COLUMNS: Final[Mapping[str, str]] = {"label": "title"}
"""Columns of tables by the name that they had before."""


def old_options(command: str) -> Iterator[OldOption]:
    """Return the options of a command that had another name before."""
    return (row for row in OLD_OPTIONS if row.command == command)
