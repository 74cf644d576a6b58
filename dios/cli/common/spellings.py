"""Old spellings of commands and options: they work for one more release, and no help shows them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple


class OldOption(NamedTuple):
    """An option of a command (its words without the program), and its name before."""

    command: str
    old: str
    new: str


OLD_OPTIONS: Final = (
    OldOption("run", "--mem", "--reserve-memory"),
    OldOption("service create", "--mem", "--reserve-memory"),
)


def old_options(command: str) -> Iterator[OldOption]:
    """Return the options of a command that had another name before."""
    return (row for row in OLD_OPTIONS if row.command == command)
