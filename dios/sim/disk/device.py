"""A disk with a volatile write cache and a small file system on it, which fails where its plan says.

Not for: real files, or speed. What is written is unsynced until its file is synced; a power cut keeps any
subset of the unsynced pages and directory entries, in any order, and may tear each page at its sectors.
Files and folders are synced apart, as POSIX allows. One page's writes stay in their order, for they meet in
one page of memory, and a sector that the cache gives to the disk gets there whole. Only ``write_through``
may stop inside a sector: it changes one from front to back in words of 8 bytes, and is on the disk when it
returns.
"""

from __future__ import annotations

import errno
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from random import Random
from typing import Final

from dios.sim.disk.faults import APPLIES, Fault, NoFaults, Operation, Plan

_SIZE: Final = -1  # the page that stands for a file's length
_WORD_BYTES: Final = 8
_FULL_OPERATIONS: Final = 5  # how long a full disk stays full, in operations that take space


class PowerCutError(Exception):
    """The power went; every operation raises it until ``restart``."""


class File:
    """One file: what readers see, what the platter holds, and what is on its way there."""

    def __init__(self) -> None:
        self.pages: dict[int, bytes] = {}
        self.platter: dict[int, bytes] = {}
        self.unsynced: dict[int, list[bytes]] = {}

    @property
    def size(self) -> int:
        """Length in bytes."""
        return int.from_bytes(self.pages.get(_SIZE, b""), "little")

    def put(self, page: int, data: bytes) -> None:
        """Change a page in the cache."""
        self.pages[page] = data
        self.unsynced.setdefault(page, []).append(data)


class Device:
    """The disk of one simulated node, over all its lives.

    ``rng`` decides what a power cut and a failure keep. ``kinds`` lists the operations that were asked of it
    but ``at_rest``, ``faults`` counts those that failed.
    """

    def __init__(
        self, rng: Random, plan: Plan | None = None, *, page_bytes: int = 4096, sector_bytes: int = 512
    ) -> None:
        self._rng: Final = rng
        self._plan: Plan = plan or NoFaults()
        self.page_bytes: Final = page_bytes
        self.sector_bytes: Final = sector_bytes
        self.kinds: list[Operation] = []
        self.faults: Counter[Fault] = Counter()
        self._calm = False
        self.off = False
        self._full_for = 0
        self._cut_in: int | None = None
        self._names: dict[str, File] = {}
        self._entries: dict[str, File] = {}  # as the platter has them
        self._unsynced: dict[str, list[File | None]] = {}

    # -- files --------------------------------------------------------------------------------------
    def create(self, name: str) -> File:
        """A new empty file; FileExistsError when there is one."""
        self._begin(Operation.CREATE)
        if name in self._names:
            raise FileExistsError(errno.EEXIST, "file exists")
        made = File()
        self._names[name] = made
        self._unsynced.setdefault(name, []).append(made)
        return made

    def open(self, name: str) -> File:
        """The file of that name; FileNotFoundError when there is none. Never fails otherwise."""
        try:
            return self._names[name]
        except KeyError:
            raise FileNotFoundError(errno.ENOENT, "no such file") from None

    def names(self) -> list[str]:
        """Every file's name."""
        return list(self._names)

    def unlink(self, name: str) -> None:
        """Remove a name; who has the file open keeps it."""
        self._begin(Operation.UNLINK)
        if self._names.pop(name, None) is not None:
            self._unsynced.setdefault(name, []).append(None)

    def allocate(self, file: File, size: int) -> None:
        """Give the file its length and the room for it."""
        self._begin(Operation.ALLOCATE)
        file.put(_SIZE, size.to_bytes(8, "little"))

    def write(self, file: File, offset: int, data: bytes) -> int:
        """Write to the cache; returns how many bytes were taken, never none of some."""
        fault = self._begin(
            Operation.WRITE, lambda: self._put(file, offset, self._some(data, self.page_bytes))
        )
        if fault is Fault.SHORT:
            data = self._some(data, self.sector_bytes) or data
        self._put(file, offset, data)
        return len(data)

    def write_through(self, file: File, offset: int, data: bytes) -> None:
        """Change a part of one sector and sync it; readers see the new bytes even when it fails."""
        page, start = divmod(offset, self.page_bytes)
        before = file.pages.get(page, bytes(self.page_bytes))
        words = len(data) // _WORD_BYTES

        def part() -> None:
            # Whole, half and not at all are as likely as everything between.
            done = self._rng.choice((0, words // 2, words, self._rng.randint(0, words))) * _WORD_BYTES
            file.platter[page] = before[:start] + data[:done] + before[start + done :]
            file.unsynced.pop(page, None)
            file.pages[page] = before[:start] + data + before[start + len(data) :]

        self._begin(Operation.WRITE_THROUGH, part)
        file.pages[page] = file.platter[page] = before[:start] + data + before[start + len(data) :]
        file.unsynced.pop(page, None)

    def sync(self, file: File) -> None:
        """Bring the file's unsynced pages to the platter."""
        self._begin(Operation.SYNC, lambda: self._lose(file))
        for page, versions in file.unsynced.items():
            file.platter[page] = versions[-1]
        file.unsynced.clear()

    def sync_folder(self, folder: str) -> None:
        """Bring the folder's changed entries to the platter; what the files hold is another matter."""
        self._begin(Operation.SYNC_FOLDER, lambda: self._lose_entries(folder))
        for name in [name for name in self._unsynced if _folder_of(name) == folder]:
            self._settle_entry(name, self._unsynced.pop(name)[-1])

    def read(self, file: File, offset: int, count: int) -> bytes:
        """Up to ``count`` bytes of a file with a length, as ``pread`` gives them."""
        count = max(0, min(count, file.size - offset))
        if self._begin(Operation.READ) is Fault.FLIP:
            self._flip(file, offset, count)
        return self.peek(file, offset, count)

    def read_unchecked(self, file: File, offset: int, count: int) -> bytes:
        """The same for bytes that no digest covers, of which no bit flips."""
        self._begin(Operation.READ_UNCHECKED)
        return self.peek(file, offset, count)

    def read_mapped(self, file: File, offset: int, count: int) -> bytes:
        """Bytes seen through a memory map; zeros where nothing was written."""
        if self._begin(Operation.READ_MAPPED) is Fault.FLIP:
            self._flip(file, offset, count)
        return self.peek(file, offset, count)

    def peek(self, file: File, offset: int, count: int) -> bytes:
        """The same without being an operation."""
        first, start = divmod(offset, self.page_bytes)
        blank = bytes(self.page_bytes)
        pages = range(first, (offset + count - 1) // self.page_bytes + 1) if count else range(0)
        return b"".join(file.pages.get(page, blank) for page in pages)[start : start + count]

    # -- power --------------------------------------------------------------------------------------
    def cut_power(self) -> None:
        """Lose the cache: each unsynced page and entry is kept or not, and a page may be torn."""
        chance = self._rng.choice((0.0, 0.1, 0.5, 0.9, 1.0))
        everything = {id(file): file for file in [*self._names.values(), *self._entries.values()]}
        for changed in self._unsynced.values():
            everything.update({id(file): file for file in changed if file is not None})
        for file in everything.values():
            for page, versions in file.unsynced.items():
                if self._rng.random() < chance:
                    file.platter[page] = self._torn(file.platter.get(page), page, versions)
            file.unsynced.clear()
            file.pages = dict(file.platter)
        for name, entries in self._unsynced.items():
            if self._rng.random() < chance:
                self._settle_entry(name, self._rng.choice(entries))
        self._unsynced.clear()
        self._names = dict(self._entries)
        self._full_for = 0
        self.off = True

    def restart(self) -> None:
        """The power is back."""
        if not self.off:
            self.cut_power()
        self._cut_in = None
        self.off = False

    def _torn(self, old: bytes | None, page: int, versions: list[bytes]) -> bytes:
        new = self._rng.choice(versions)
        if page == _SIZE or self._rng.random() < 0.5:
            return new
        old = old or bytes(self.page_bytes)
        step = self.sector_bytes
        return b"".join(
            (new if self._rng.random() < 0.5 else old)[at : at + step] for at in range(0, len(new), step)
        )

    # -- faults -------------------------------------------------------------------------------------
    @contextmanager
    def at_rest(self) -> Iterator[None]:
        """Inside, nothing fails and nothing is counted."""
        before, self._calm = self._calm, True
        try:
            yield
        finally:
            self._calm = before

    def heal(self) -> None:
        """From now on the plan no longer counts, and there is space."""
        self._plan = NoFaults()
        self._full_for = 0

    def cut_soon(self, operations: int) -> None:
        """Let so many operations pass, then cut the power in the next one."""
        self._cut_in = operations

    def fill_up(self) -> None:
        """Be full for the next operations that take space."""
        self._full_for = _FULL_OPERATIONS

    def _begin(self, operation: Operation, part: Callable[[], None] = lambda: None) -> Fault | None:
        """Count an operation and let it fail; ``part`` does what a failing one leaves behind."""
        if self.off:
            raise PowerCutError
        if self._calm:
            return None
        fault = self._plan.fault(len(self.kinds), operation)
        if self._cut_in is not None:
            fault = fault if self._cut_in else Fault.CUT
            self._cut_in -= 1
        self.kinds.append(operation)
        if fault is None:
            self._refuse_when_full(operation)
            return None
        self.faults[fault] += 1
        match fault:
            case Fault.FULL:
                self._full_for = self._rng.randint(0, _FULL_OPERATIONS)
                raise OSError(errno.ENOSPC, "no space left on device")
            case Fault.FAIL:
                if operation not in {Operation.SYNC, Operation.SYNC_FOLDER}:
                    part()
                raise OSError(errno.EIO, "input/output error")
            case Fault.LOSE:
                part()
                raise OSError(errno.EIO, "input/output error")
            case Fault.CUT:
                if operation in {Operation.WRITE, Operation.WRITE_THROUGH}:
                    part()
                self.cut_power()
                raise PowerCutError
            case _:
                return fault

    def _refuse_when_full(self, operation: Operation) -> None:
        if self._full_for and operation in APPLIES[Fault.FULL]:
            self._full_for -= 1
            raise OSError(errno.ENOSPC, "no space left on device")

    def _lose(self, file: File) -> None:
        """A failed sync: some pages got there, the others count as clean and never will."""
        for page, versions in file.unsynced.items():
            if self._rng.random() < 0.5:
                file.platter[page] = versions[-1]
            elif self._rng.random() < 0.5:
                # Dropped from memory too, and read again from the platter.
                file.pages.pop(page, None)
                if page in file.platter:
                    file.pages[page] = file.platter[page]
        file.unsynced.clear()

    def _lose_entries(self, folder: str) -> None:
        for name in [name for name in self._unsynced if _folder_of(name) == folder]:
            entries = self._unsynced.pop(name)
            if self._rng.random() < 0.5:
                self._settle_entry(name, entries[-1])

    def _flip(self, file: File, offset: int, count: int) -> None:
        if not count:
            return
        page, at = divmod(offset + self._rng.randrange(count), self.page_bytes)
        changed = bytearray(file.pages.get(page, bytes(self.page_bytes)))
        changed[at] ^= 1 << self._rng.randrange(8)
        file.pages[page] = file.platter[page] = bytes(changed)

    # -- inside -------------------------------------------------------------------------------------
    def _some(self, data: bytes, unit: int) -> bytes:
        """Some whole units of the data, not all of it: a write stops between two of them."""
        return data[: self._rng.randint(0, max(0, len(data) - 1) // unit) * unit]

    def _put(self, file: File, offset: int, data: bytes) -> None:
        blank = bytes(self.page_bytes)
        done = 0
        while done < len(data):
            page, at = divmod(offset + done, self.page_bytes)
            part = data[done : done + self.page_bytes - at]
            old = file.pages.get(page, blank)
            file.put(page, old[:at] + part + old[at + len(part) :])
            done += len(part)

    def _settle_entry(self, name: str, file: File | None) -> None:
        if file is None:
            self._entries.pop(name, None)
        else:
            self._entries[name] = file


def _folder_of(name: str) -> str:
    return name.rpartition("/")[0]
