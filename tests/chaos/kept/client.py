"""A program of a kept round: it puts, replaces, moves, removes and tiers files, and writes down its answers.

Each program has paths of its own, and all share a few. Before a call it notes the call, and afterwards the
answer: *done*, *failed* (nothing was changed), or *unknown*. The notes are on the disk before it goes on.
"""

from __future__ import annotations

import contextlib
import errno
import faulthandler
import multiprocessing.synchronize
import os
import random
import signal
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from dios.errors import (
    BadReferenceError,
    Busy,
    ClosedError,
    Conflict,
    DiosError,
    StaleError,
    TimeLimitError,
    UnreachableError,
)
from dios.lib.files.group_files import GroupFiles
from dios.lib.files.groups import ReachableGroups
from dios.lib.files.staging import StagedFiles
from dios.lib.files.tier.inward import bring_back
from dios.lib.files.tier.outward import tier_out
from dios.lib.packs.keys import load_recipient
from dios.lib.packs.tier_store import begin_store
from dios.wire.nametext import fingerprint
from tests.chaos.history import Outcome
from tests.chaos.kept.content import ABSENT, content, value_of

OWN_PATHS: Final = 6
SHARED_PATHS: Final = 3
MANY: Final = 4
PAUSE_S: Final = (0.0, 0.06)
_AGAIN_S: Final = 0.1
STACKS: Final = ".stacks"
"""The ending of the file to which a program writes its calls after SIGUSR1, for one that does not end."""


class Note(msgspec.Struct, array_like=True):
    """One line of a program's notes: a call (``outcome`` is empty), the objects of a put, or an answer.

    ``values`` are the values that the call gives to paths, or those that it read. ``moment_ns`` is of the
    clock of the machine that no fault changes.
    """

    call: int
    moment_ns: int
    operation: str
    values: dict[str, int]
    outcome: str = ""
    why: str = ""
    objects: dict[str, int] = {}


@dataclass(frozen=True, slots=True)
class Program:
    """The arguments of one program."""

    number: int
    home: int
    sockets: tuple[str, ...]
    alias: str
    seed: str
    notes: Path
    store: Path | None
    recipient: Path


def put_steps(
    files: GroupFiles, values: Mapping[str, int], named: Callable[[dict[str, int]], None]
) -> Iterator[str]:
    """Put files as ``dios put --replace`` does; yield the name of each step before it is made."""
    staged = StagedFiles(files)
    try:
        yield "store"
        for path, value in values.items():
            staged.add_bytes(path, content(value))
        named({fingerprint(name): values[entry.file] for entry in staged.stored() for name in entry.names})
        yield "hold"
        staged.hold(staged.disks)
    except BaseException:
        staged.suspend()
        raise
    yield "publish"
    staged.publish()


def _place(error: Exception) -> str:
    """Return the last calls that led to an error."""
    return " < ".join(
        f"{Path(frame.filename).name}:{frame.lineno} {frame.name}"
        for frame in reversed(traceback.extract_tb(error.__traceback__)[-6:])
    )


class Client:
    """One program; ``live`` returns when it is stopped."""

    def __init__(self, program: Program, stop: Callable[[], bool]) -> None:
        self._program: Final = program
        self._stop: Final = stop
        self._rng: Final = random.Random(f"{program.seed} {program.number}")  # noqa: S311 - it guards nothing
        self._node = program.home
        self._groups: ReachableGroups | None = None
        self._calls = 0
        self._own: Final[dict[str, int | None]] = {f"p{program.number}/{k}": ABSENT for k in range(OWN_PATHS)}
        """The values of the paths of this program; None if a value is unknown."""
        self._notes: Final = os.open(
            program.notes, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600
        )
        self._shared: Final = [f"shared/{k}" for k in range(SHARED_PATHS)]

    def live(self) -> None:
        """Make calls until stopped."""
        weighted: list[tuple[int, Callable[[], None]]] = [
            (30, self._put),
            (6, self._put_many),
            (10, self._move),
            (12, self._remove),
            (14, self._read),
        ]
        if self._program.store is not None:
            weighted += [(8, self._tier_out), (6, self._tier_in)]
        weights = [weight for weight, _ in weighted]
        while not self._stop():
            self._rng.choices([act for _, act in weighted], weights)[0]()
            time.sleep(self._rng.uniform(*PAUSE_S))

    # -- notes --------------------------------------------------------------------------------------
    def _note(self, note: Note) -> None:
        os.write(self._notes, msgspec.json.encode(note) + b"\n")
        os.fdatasync(self._notes)

    def _files(self) -> GroupFiles:
        if self._groups is None:
            self._groups = ReachableGroups(self._program.sockets[self._node])
        return self._groups.files(self._program.alias)

    def _leave(self) -> None:
        """Go to another node after an error of the present one."""
        self._groups = None
        self._node = (self._node + 1) % len(self._program.sockets)
        time.sleep(_AGAIN_S)

    def _call(
        self, operation: str, values: dict[str, int], steps: Callable[[GroupFiles, Note], Iterator[str]]
    ) -> Outcome:
        """Make a call whose steps up to "publish" change nothing; note it, and its answer."""
        try:
            files = self._files()
        except (DiosError, OSError):
            self._leave()
            return Outcome.FAILED
        self._calls += 1
        begun = Note(self._calls, time.monotonic_ns(), operation, values)
        self._note(begun)
        step, why = "", ""
        outcome = Outcome.DONE
        try:
            for latest in steps(files, begun):
                step = latest
        except FileNotFoundError as error:
            outcome, why = Outcome.FAILED, f"{step}: {error}"
            self._note_absent(begun, error)
        except (UnreachableError, ClosedError, TimeLimitError, OSError) as error:
            outcome = Outcome.FAILED if step in {"store", "hold"} else Outcome.UNKNOWN
            why = f"{step}: {type(error).__name__}: {error}"
            if isinstance(error, ClosedError | OSError):
                self._leave()
        except (Busy, Conflict, StaleError, BadReferenceError) as error:
            outcome = Outcome.FAILED
            why = f"{step}: {type(error).__name__}: {error}"
        except Exception as error:  # noqa: BLE001 - an unexpected error is a finding
            outcome = Outcome.UNKNOWN
            why = f"unexpected {step}: {type(error).__name__}: {error} ({_place(error)})"
        self._note(Note(begun.call, time.monotonic_ns(), operation, begun.values, str(outcome), why))
        return outcome

    def _note_absent(self, begun: Note, error: FileNotFoundError) -> None:
        """Note that a file was not listed, which is a read, whatever the call was made for."""
        if "no such file" in str(error.strerror) and error.filename:
            self._calls += 1
            values = {str(error.filename): ABSENT}
            self._note(Note(self._calls, begun.moment_ns, "read", {}))
            self._note(Note(self._calls, time.monotonic_ns(), "read", values, str(Outcome.DONE)))

    # -- calls --------------------------------------------------------------------------------------
    def _fresh(self) -> int:
        self._calls += 1
        return self._program.number * 1_000_000 + self._calls

    def _put_values(self, operation: str, values: dict[str, int]) -> None:
        def steps(files: GroupFiles, begun: Note) -> Iterator[str]:
            def named(objects: dict[str, int]) -> None:
                self._note(Note(begun.call, time.monotonic_ns(), operation, {}, objects=objects))

            yield from put_steps(files, values, named)

        self._settle(values, self._call(operation, values, steps))

    def _settle(self, values: dict[str, int], outcome: Outcome) -> None:
        if outcome is not Outcome.FAILED:
            for path, value in values.items():
                if path in self._own:
                    self._own[path] = value if outcome is Outcome.DONE else None

    def _any_path(self) -> str:
        return self._rng.choice([*self._own, *self._shared])

    def _put(self) -> None:
        self._put_values("put", {self._any_path(): self._fresh()})

    def _put_many(self) -> None:
        paths = self._rng.sample([*self._own, *self._shared], MANY)
        self._put_values("put", {path: self._fresh() for path in paths})

    def _move(self) -> None:
        known = [path for path, value in self._own.items() if value]
        if not known:
            return
        old = self._rng.choice(known)
        new = self._rng.choice([path for path in self._own if path != old])
        value = self._own[old]
        assert value is not None

        def steps(files: GroupFiles, _: Note) -> Iterator[str]:
            yield "publish"
            files.move({old: new})

        values = {old: ABSENT, new: value}
        self._settle(values, self._call("move", values, steps))

    def _remove(self) -> None:
        path = self._any_path()

        def steps(files: GroupFiles, _: Note) -> Iterator[str]:
            yield "store"
            files.entry(path)
            yield "publish"
            try:
                files.remove([path])
            except KeyError:
                # Another program removed it in between.
                raise FileNotFoundError(errno.ENOENT, "it was removed", path) from None

        values = {path: ABSENT}
        self._settle(values, self._call("remove", values, steps))

    def _read(self) -> None:
        path = self._any_path()
        values: dict[str, int] = {}

        def steps(files: GroupFiles, begun: Note) -> Iterator[str]:
            yield "read"
            begun.values = values
            data = self._read_path(files, path)
            if data is None:
                values[path] = ABSENT
                return
            value = value_of(data)
            if value is None:
                raise ValueError(f"{path} has {len(data)} bytes that were never put: {data[:40]!r}")
            values[path] = value

        self._call("read", {}, steps)

    @staticmethod
    def _read_path(files: GroupFiles, path: str) -> bytes | None:
        try:
            files.entry(path)
        except FileNotFoundError:
            return None
        return bytes(files.view(path))

    def _tier_out(self) -> None:
        path = self._any_path()
        place = self._program.store
        assert place is not None

        def steps(files: GroupFiles, _: Note) -> Iterator[str]:
            yield "store"
            files.entry(path)
            store = begin_store(str(place), load_recipient(self._program.recipient), files.group)
            yield "publish"
            tier_out(files, store, [path])

        self._call("tier out", {}, steps)

    def _tier_in(self) -> None:
        path = self._any_path()

        def steps(files: GroupFiles, _: Note) -> Iterator[str]:
            yield "store"
            files.entry(path)
            yield "publish"
            bring_back(files, path)

        self._call("tier in", {}, steps)


def main(program: Program, stop: multiprocessing.synchronize.Event) -> None:
    """Live as a process of its own."""
    with program.notes.with_suffix(STACKS).open("w") as stacks:
        faulthandler.register(signal.SIGUSR1, file=stacks, all_threads=True)
        with contextlib.suppress(KeyboardInterrupt):
            Client(program, stop.is_set).live()
    os._exit(0)  # a connection that a fault has broken may keep the end of the process waiting
