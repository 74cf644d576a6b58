"""The disk of a node after a power cut: everything that was synced, and any part of the rest.

The shim (``shim.c``) records, while a process runs, how each write and each change of a folder that is not
synced yet can be reverted. After the process was killed, ``cut_power`` reverts a random part of them:

* the pages of files, each for itself, and the growth of a file;
* the latest creations, renamings and removals of files, in their order, as a file system with a journal does.
  A creation is safe when its folder was synced; that the file itself was synced is not enough.

A page of 4 KiB is written as a whole or not at all. Stores into mapped memory are not recorded.
"""

from __future__ import annotations

import contextlib
import enum
import os
import random
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple

PAGE: Final = 4096
JOURNAL: Final = "journal"
_RECORD: Final = struct.Struct("<IIIIqqqqq")


class Change(enum.IntEnum):
    """The kinds of records, as in ``shim.c``."""

    WRITE = 1
    SYNC = 2
    SYNC_FOLDER = 3
    CREATE = 4
    RENAME = 5
    REMOVE = 6
    WROTE_SYNCED = 7


class Record(NamedTuple):
    """One record of the journal; ``at`` is its position."""

    at: int
    kind: Change
    first: str
    second: str
    data: bytes
    inode: int
    offset: int
    length: int
    size: int
    upto: int


class Lost(NamedTuple):
    """The numbers of pages and changes that a power cut reverted."""

    pages: int
    changes: int
    unsynced: int
    """The number of pages and changes that could have been reverted."""


@dataclass(slots=True)
class _Unsynced:
    """A file with pages that were not synced: their former bytes, and the former size of the file."""

    path: str
    size: int
    pages: dict[int, bytes] = field(default_factory=dict)
    since: dict[int, int] = field(default_factory=dict)


def read_journal(folder: Path) -> Iterator[Record]:
    """Yield the records of a journal; a last one that was cut off is left out."""
    try:
        data = (folder / JOURNAL).read_bytes()
    except FileNotFoundError:
        return
    at = 0
    while at + _RECORD.size <= len(data):
        kind, first, second, size, *numbers = _RECORD.unpack_from(data, at)
        begin = at + _RECORD.size
        end = begin + first + second + size
        if end > len(data):
            return
        texts = data[begin : begin + first + second]
        yield Record(
            at,
            Change(kind),
            texts[:first].decode(),
            texts[first:].decode(),
            data[end - size : end],
            *numbers,
        )
        at = end


def clear(folder: Path) -> None:
    """Forget a journal. The process that writes it must have ended, or have stopped to record."""
    folder.mkdir(exist_ok=True)
    for entry in folder.iterdir():
        entry.unlink()


def cut_power(folder: Path, rng: random.Random) -> Lost:
    """Revert a random part of what the journal in ``folder`` says was not synced, and clear it."""
    files, changes, safe = _unsynced(read_journal(folder))
    share = rng.choice((1.0, 1.0, 0.5))
    pages = sum(_revert_file(file, rng, share) for file in files.values())
    kept = _cut_position(changes, safe, rng)
    for change in reversed(changes[kept:]):
        _revert_change(change)
    clear(folder)
    total = sum(len(file.pages) for file in files.values()) + len(changes) - safe
    return Lost(pages, len(changes) - kept, total)


def _unsynced(records: Iterator[Record]) -> tuple[dict[int, _Unsynced], list[Record], int]:
    """Return the files with unsynced pages, the changes of folders, and how many of these are safe."""
    files: dict[int, _Unsynced] = {}
    changes: list[Record] = []
    safe = 0
    for record in records:
        match record.kind:
            case Change.WRITE:
                _note_write(files, record)
            case Change.SYNC if record.inode in files:
                file = files[record.inode]
                for page in [page for page, at in file.since.items() if at < record.upto]:
                    del file.pages[page], file.since[page]
                if not file.pages:
                    del files[record.inode]
            case Change.WROTE_SYNCED if record.inode in files:
                file = files[record.inode]
                for page in range(record.offset // PAGE, -(-(record.offset + record.length) // PAGE)):
                    file.pages.pop(page, None)
                    file.since.pop(page, None)
                if not file.pages:
                    del files[record.inode]
            case Change.SYNC_FOLDER:
                before = [
                    number
                    for number, change in enumerate(changes)
                    if change.at < record.upto
                    and record.first in {str(Path(path).parent) for path in (change.first, change.second)}
                ]
                safe = max([safe, *(number + 1 for number in before)])
            case Change.CREATE | Change.RENAME | Change.REMOVE:
                changes.append(record)
                if record.kind is Change.RENAME:
                    for file in files.values():
                        if file.path == record.first:
                            file.path = record.second
            case _:
                pass
    return files, changes, safe


def _note_write(files: dict[int, _Unsynced], record: Record) -> None:
    file = files.setdefault(record.inode, _Unsynced(record.first, record.size))
    for start in range(0, record.length, PAGE):
        page = (record.offset + start) // PAGE
        if page not in file.pages:
            file.pages[page] = record.data[start : start + PAGE]
            file.since[page] = record.at


def _revert_file(file: _Unsynced, rng: random.Random, share: float) -> int:
    """Write the former bytes of some pages of a file; return their number."""
    gone = [page for page in sorted(file.pages) if rng.random() < share]
    try:
        mode = Path(file.path).stat().st_mode
        Path(file.path).chmod(0o600)
        fd = os.open(file.path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        return 0
    try:
        size = os.fstat(fd).st_size
        for page in gone:
            former = file.pages[page].ljust(PAGE, b"\0")[: max(0, size - page * PAGE)]
            os.pwrite(fd, former, page * PAGE)
        if gone and size > file.size and rng.random() < share:
            os.ftruncate(fd, file.size)
    finally:
        os.close(fd)
        Path(file.path).chmod(mode & 0o7777)
    return len(gone)


def _cut_position(changes: list[Record], safe: int, rng: random.Random) -> int:
    """Return how many changes of folders survive; a removal by a renaming is one step with it."""
    kept = rng.randint(safe, len(changes))
    if kept and changes[kept - 1].kind is Change.REMOVE and changes[kept - 1].offset:
        kept -= 1
    return kept


def _revert_change(change: Record) -> None:
    with contextlib.suppress(OSError):
        match change.kind:
            case Change.CREATE:
                if Path(change.first).lstat().st_ino == change.inode:
                    Path(change.first).unlink()
            case Change.RENAME:
                Path(change.second).rename(change.first)
            case _:
                os.link(change.second, change.first)
