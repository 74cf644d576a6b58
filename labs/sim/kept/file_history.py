"""The truth about the files of a run: every change of a path, its outcome, and the contents that are left."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from dios.lib.catalogue import CatalogueEntry


class Outcome(Enum):
    """The outcome of a change, as its program knows it."""

    OPEN = "open"
    """It is not known, and the change may become visible at any time."""
    DONE = "done"
    REFUSED = "refused"
    """Nothing was changed."""


@dataclass(slots=True, eq=False)
class Change:
    """A change of paths that becomes visible at once; a path with None is removed.

    ``entries`` are those that its program got with the acknowledgement, by path. ``excused`` are the paths
    whose content was lost with all disks that had it.
    """

    contents: Mapping[str, bytes | None]
    begun: float
    ended: float = float("inf")
    outcome: Outcome = Outcome.OPEN
    disks: int = 0
    entries: dict[str, CatalogueEntry] = field(default_factory=dict)
    excused: set[str] = field(default_factory=set)
    taken: dict[str, list[int]] = field(default_factory=dict)
    """The disks that faults took from each path's bytes, and from its list entry, since these were safe."""

    def acknowledge(self, now: float, entries: Iterable[CatalogueEntry] = ()) -> None:
        """Note that the program has the acknowledgement."""
        self.outcome, self.ended = Outcome.DONE, now
        self.entries = {entry.file: entry for entry in entries}

    def refuse(self) -> None:
        """Note that the program knows that nothing was changed."""
        self.outcome = Outcome.REFUSED


class FileHistory:
    """The changes of all paths."""

    def __init__(self) -> None:
        self.changes: Final[list[Change]] = []
        self._of_path: Final[dict[str, list[Change]]] = {}

    def begin(self, contents: Mapping[str, bytes | None], now: float) -> Change:
        """Return a new change, whose outcome is open."""
        change = Change(contents, now)
        self.changes.append(change)
        for path in contents:
            self._of_path.setdefault(path, []).append(change)
        return change

    @property
    def paths(self) -> Sequence[str]:
        """The paths that were ever changed."""
        return list(self._of_path)

    def of(self, path: str) -> Sequence[Change]:
        """Return the changes of a path."""
        return self._of_path.get(path, ())

    def candidates(self, path: str, begun: float, ended: float) -> Iterator[Change | None]:
        """Yield the changes whose content a read between two times may find; None is the first absence.

        A change is found by no read that began after a later change was acknowledged which itself began
        after this one was.
        """
        changes = [change for change in self.of(path) if change.outcome is not Outcome.REFUSED]
        over = [change for change in changes if change.outcome is Outcome.DONE and change.ended <= begun]
        last = max((change.begun for change in over), default=float("-inf"))
        if not over:
            yield None
        yield from (change for change in changes if change.begun <= ended and change.ended >= last)

    def allowed(self, path: str, begun: float, ended: float) -> set[bytes | None]:
        """Return the contents that a read between two times may find; None is no file."""
        candidates = self.candidates(path, begun, ended)
        return {None if change is None else change.contents[path] for change in candidates}

    def is_excused(self, path: str, now: float) -> bool:
        """Return True if a content that the path should have was lost with all its disks."""
        return any(
            change is not None and path in change.excused for change in self.candidates(path, now, now)
        )

    def present(self, now: float) -> Iterator[tuple[str, Change]]:
        """Yield the contents, acknowledged or not, that nothing may have replaced yet."""
        for path in self._of_path:
            for change in self.candidates(path, now, now):
                if change is not None and change.contents[path] is not None and path not in change.excused:
                    yield path, change
