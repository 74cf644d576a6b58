"""The failures of a command that handles several files: it goes on with the others, and then lists them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Final

import typer

from dios.cli.common.output import FAILED, OF_EVERYTHING, say
from dios.cli.common.rows import Row
from dios.errors import (
    ClosedError,
    DiosError,
    LimitError,
    NoSpaceError,
    OutOfMemoryError,
    ProtocolError,
)

if TYPE_CHECKING:
    from types import TracebackType

SHOWN_MAX: Final = 10
_ENDS: Final = (ClosedError, LimitError, NoSpaceError, OutOfMemoryError, ProtocolError)
"""Errors that every further file would have, too: they end the command."""


class FailedRow(Row):
    """A file, or a group by its alias, that the command could not handle, and why. The exit status is 1."""

    path: str
    failure: str


class _Handling:
    """The context of ``Failures.going_on``."""

    def __init__(self, failures: Failures, paths: Iterable[str]) -> None:
        self._failures: Final = failures
        self._paths: Final = paths

    def __enter__(self) -> None:
        """Begin to handle the file."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        """Note the error of the files."""
        if isinstance(error, DiosError) and not isinstance(error, _ENDS):
            why = error.message
        elif isinstance(error, OSError) and not isinstance(error, (BrokenPipeError, DiosError)):
            if error.errno in OF_EVERYTHING:
                return False
            place = f"{error.filename}: " if error.filename else ""
            why = f"{place}{error.strerror or error}"
        else:
            return False
        for path in self._paths:
            self._failures.note(path, why)
        return True


class Failures:
    """The files, or groups, that a command could not handle, each with the reason.

    ``outcome`` is the word for what happened to them. All are kept for --json; a person gets the first ones
    and the number of the others.
    """

    def __init__(self, outcome: str) -> None:
        self._outcome: Final = outcome
        self._reasons: Final[dict[str, str]] = {}
        self._shown = False

    @property
    def reasons(self) -> Mapping[str, str]:
        """The reasons, by path or alias."""
        return self._reasons

    def note(self, path: str, why: str) -> None:
        """Note a failure."""
        self._reasons[path] = why

    def going_on(self, *paths: str) -> _Handling:
        """Return a context for handling one file, or several together: the error is noted, others follow.

        An error that every further file would have, too, ends the command.
        """
        return _Handling(self, paths)

    def rows(self) -> list[FailedRow]:
        """Return the failures for --json."""
        return [FailedRow(path, why) for path, why in self._reasons.items()]

    def show(self) -> None:
        """List the failures on standard error, once."""
        if not self._shown:
            self._shown = True
            say_first(self._outcome, (f"{path}: {why}" for path, why in self._reasons.items()))

    def end(self) -> None:
        """List the failures, and end the command with status 1 if there are any."""
        self.show()
        if self._reasons:
            raise typer.Exit(FAILED)


def say_first(outcome: str, texts: Iterable[str], count: int | None = None) -> None:
    """Write the first texts on standard error, each after ``outcome``, and the number of the others.

    ``count`` is the number of all, by default of these.
    """
    listed = list(texts)
    for text in listed[:SHOWN_MAX]:
        say(f"{outcome}: {text}")
    more = (len(listed) if count is None else count) - SHOWN_MAX
    if more > 0:
        say(f"{outcome}: {more:,} more")
