"""The notes of all programs of a round, as histories of the paths, and the objects that they stored."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import msgspec

from dios import limits
from tests.chaos.history import Action, Operation, Outcome
from tests.chaos.kept.client import Note

STALE_NS: Final = (limits.CATALOGUE_FRESH_MS + 50) * 1_000_000
"""The time for which a reader on a node with a replica of the list may miss a change of another program."""

_BRINGING_BACK: Final = frozenset({"read", "tier in"})
"""The operations that may store a file's bytes in the cluster again, in an object that no program notes."""


@dataclass(slots=True)
class Notes:
    """The calls and answers that the programs of a round noted."""

    operations: dict[str, list[Operation]] = field(default_factory=dict)
    """The reads and writes of each path that did or may have taken effect."""
    counts: Counter[tuple[str, str]] = field(default_factory=Counter)
    acknowledged: dict[int, str] = field(default_factory=dict)
    """The values whose put was acknowledged, and the paths that they were put to."""
    objects: dict[str, int] = field(default_factory=dict)
    """The values of the objects that the programs know, by fingerprint."""
    unnamed: int = 0
    """The number of files of calls that ended before the program knew its objects."""
    unexpected: list[str] = field(default_factory=list)
    last_ns: int = 0


def read_notes(files: Iterable[Path]) -> Notes:
    """Read the notes of programs. A last line that a kill has cut off is no note."""
    gathered = Notes()
    for file in files:
        calls: dict[int, list[Note]] = {}
        for line in file.read_bytes().splitlines():
            try:
                note = msgspec.json.decode(line, type=Note)
            except (msgspec.DecodeError, json.JSONDecodeError):
                continue
            calls.setdefault(note.call, []).append(note)
        former_ns = 0
        for notes in calls.values():
            _add(gathered, file.stem, notes, former_ns)
            former_ns = notes[-1].moment_ns
    return gathered


def _add(gathered: Notes, program: str, notes: list[Note], former_ns: int) -> None:
    begun = notes[0]
    answer = next((note for note in notes if note.outcome), None)
    outcome = Outcome(answer.outcome) if answer else Outcome.UNKNOWN
    gathered.counts[begun.operation, str(outcome)] += 1
    named = {mark: value for note in notes for mark, value in note.objects.items()}
    gathered.objects |= named
    if begun.operation == "put" and not named:
        gathered.unnamed += len(begun.values)
    elif begun.operation in _BRINGING_BACK and outcome is Outcome.UNKNOWN:
        gathered.unnamed += 1
    if answer is not None:
        gathered.last_ns = max(gathered.last_ns, answer.moment_ns)
        if answer.why.startswith("unexpected"):
            gathered.unexpected.append(f"{begun.operation} by {program}: {answer.why}")
    if outcome is Outcome.FAILED or (begun.operation == "read" and outcome is not Outcome.DONE):
        return
    values = answer.values if answer is not None and begun.operation == "read" else begun.values
    action = Action.READ if begun.operation == "read" else Action.WRITE
    returned = answer.moment_ns if answer is not None and outcome is Outcome.DONE else None
    called = begun.moment_ns
    if action is Action.READ:
        # A reader may not know the latest changes of others, but knows its own.
        called = min(called, max(called - STALE_NS, former_ns))
    for path, value in values.items():
        gathered.operations.setdefault(path, []).append(
            Operation(path, action, value, called, program, returned)
        )
        if begun.operation == "put" and outcome is Outcome.DONE:
            gathered.acknowledged[value] = path
