"""A simulated disk with a volatile write cache and a small file system, which fails as its plan says.

Written data is unsynced until its file is synced. A power cut keeps any subset of the unsynced pages and
directory entries, in any order, and may tear each page at sector boundaries. Files and folders are synced
separately, as POSIX allows. Writes to one page stay in order, because they meet in one page of memory, and a
sector goes from the cache to the disk as a whole. Only ``write_through`` can stop inside a sector: it changes
the sector from front to back in words of 8 bytes, and its data is on the disk when it returns.
"""

from __future__ import annotations

import errno
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from random import Random
from typing import Final

from labs.sim.disk.faults import APPLIES, DiskFault, FaultPlan, NoFaults, Operation

_SIZE: Final = -1  # the page that stands for a file's length
_WORD_BYTES: Final = 8
_FULL_OPERATIONS: Final = 5  # a full disk refuses at most this number of operations that need space


class PowerCutError(Exception):
    """The power is off; every operation raises this until ``restart``."""


class File:
    """One file: its pages as readers see them, the pages on the platter, and the unsynced versions."""

    def __init__(self) -> None:
        self.pages: dict[int, bytes] = {}
        self.platter: dict[int, bytes] = {}
        self.unsynced: dict[int, list[bytes]] = {}

    @property
    def size(self) -> int:
        """Return the length in bytes."""
        return int.from_bytes(self.pages.get(_SIZE, b""), "little")

    def put(self, page: int, data: bytes) -> None:
        """Change a page in the cache."""
        self.pages[page] = data
        self.unsynced.setdefault(page, []).append(data)


class Device:
    """The disk of one simulated node, across all starts of the node.

    ``rng`` decides what survives a power cut or a failure. ``kinds`` lists the operations so far, except
    those inside ``at_rest``; ``faults`` counts the operations that failed.
    """

    def __init__(
        self, rng: Random, plan: FaultPlan | None = None, *, page_bytes: int = 4096, sector_bytes: int = 512
    ) -> None:
        self._rng: Final = rng
        self._plan: FaultPlan = plan or NoFaults()
        self.page_bytes: Final = page_bytes
        self.sector_bytes: Final = sector_bytes
        self.kinds: list[Operation] = []
        self.faults: Counter[DiskFault] = Counter()
        self._calm = False
        self.off = False
        self._full_for = 0
        self._cut_in: int | None = None
        self._names: dict[str, File] = {}
        self._entries: dict[str, File] = {}  # as the platter has them
        self._unsynced: dict[str, list[File | None]] = {}

    # -- files --------------------------------------------------------------------------------------
    def create(self, name: str) -> File:
        """Create an empty file; raise FileExistsError if the name is in use."""
        self._begin(Operation.CREATE)
        if name in self._names:
            raise FileExistsError(errno.EEXIST, "file exists")
        file = File()
        self._names[name] = file
        self._unsynced.setdefault(name, []).append(file)
        return file

    def open(self, name: str) -> File:
        """Return the file with this name; raise FileNotFoundError if it does not exist."""
        try:
            return self._names[name]
        except KeyError:
            raise FileNotFoundError(errno.ENOENT, "no such file") from None

    def names(self) -> list[str]:
        """Return the names of all files."""
        return list(self._names)

    def unlink(self, name: str) -> None:
        """Remove a name; a file that is open stays readable."""
        self._begin(Operation.UNLINK)
        if self._names.pop(name, None) is not None:
            self._unsynced.setdefault(name, []).append(None)

    def allocate(self, file: File, size: int) -> None:
        """Set the length of the file and reserve its space."""
        self._begin(Operation.ALLOCATE)
        file.put(_SIZE, size.to_bytes(8, "little"))

    def write(self, file: File, offset: int, data: bytes) -> int:
        """Write to the cache; return the number of bytes written, at least one if there are any."""
        fault = self._begin(
            Operation.WRITE, lambda: self._put(file, offset, self._some(data, self.page_bytes))
        )
        if fault is DiskFault.SHORT:
            data = self._some(data, self.sector_bytes) or data
        self._put(file, offset, data)
        return len(data)

    def write_through(self, file: File, offset: int, data: bytes) -> None:
        """Change part of one sector and sync it; readers see the new bytes even if this fails."""
        page, start = divmod(offset, self.page_bytes)
        before = file.pages.get(page, bytes(self.page_bytes))
        words = len(data) // _WORD_BYTES

        def part() -> None:
            # Nothing, half and everything are drawn more often than the lengths in between.
            done = self._rng.choice((0, words // 2, words, self._rng.randint(0, words))) * _WORD_BYTES
            file.platter[page] = before[:start] + data[:done] + before[start + done :]
            file.unsynced.pop(page, None)
            file.pages[page] = before[:start] + data + before[start + len(data) :]

        self._begin(Operation.WRITE_THROUGH, part)
        file.pages[page] = file.platter[page] = before[:start] + data + before[start + len(data) :]
        file.unsynced.pop(page, None)

    def sync(self, file: File) -> None:
        """Write the unsynced pages of the file to the platter."""
        self._begin(Operation.SYNC, lambda: self._lose(file))
        for page, versions in file.unsynced.items():
            file.platter[page] = versions[-1]
        file.unsynced.clear()

    def sync_folder(self, folder: str) -> None:
        """Write the changed directory entries of the folder to the platter, but not the files' contents."""
        self._begin(Operation.SYNC_FOLDER, lambda: self._lose_entries(folder))
        for name in [name for name in self._unsynced if _folder_of(name) == folder]:
            self._settle_entry(name, self._unsynced.pop(name)[-1])

    def read(self, file: File, offset: int, count: int) -> bytes:
        """Return up to ``count`` bytes of a file, as ``pread`` does."""
        count = max(0, min(count, file.size - offset))
        if self._begin(Operation.READ) is DiskFault.FLIP:
            self._flip(file, offset, count)
        return self.peek(file, offset, count)

    def read_unchecked(self, file: File, offset: int, count: int) -> bytes:
        """Read bytes that no digest covers; their bits are never flipped."""
        self._begin(Operation.READ_UNCHECKED)
        return self.peek(file, offset, count)

    def read_mapped(self, file: File, offset: int, count: int) -> bytes:
        """Read through a memory map; bytes that were never written are zero."""
        if self._begin(Operation.READ_MAPPED) is DiskFault.FLIP:
            self._flip(file, offset, count)
        return self.peek(file, offset, count)

    def peek(self, file: File, offset: int, count: int) -> bytes:
        """Read without counting an operation and without faults."""
        first, start = divmod(offset, self.page_bytes)
        blank = bytes(self.page_bytes)
        pages = range(first, (offset + count - 1) // self.page_bytes + 1) if count else range(0)
        return b"".join(file.pages.get(page, blank) for page in pages)[start : start + count]

    # -- power --------------------------------------------------------------------------------------
    def cut_power(self) -> None:
        """Lose the cache: each unsynced page and entry is kept or lost, and a page may be torn."""
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
        """Turn the power on again."""
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
        """Count nothing and fail nothing inside this context."""
        before, self._calm = self._calm, True
        try:
            yield
        finally:
            self._calm = before

    def heal(self) -> None:
        """Stop all further faults, and free the space."""
        self._plan = NoFaults()
        self._full_for = 0

    def cut_soon(self, operations: int) -> None:
        """Let this number of operations pass, then cut the power during the next one."""
        self._cut_in = operations

    def fill_up(self) -> None:
        """Report a full disk for the next operations that need space."""
        self._full_for = _FULL_OPERATIONS

    def _begin(self, operation: Operation, part: Callable[[], None] = lambda: None) -> DiskFault | None:
        """Count an operation and fail it if planned; ``part`` does what a failing operation leaves behind."""
        if self.off:
            raise PowerCutError
        if self._calm:
            return None
        fault = self._plan.fault(len(self.kinds), operation)
        if self._cut_in is not None:
            fault = fault if self._cut_in else DiskFault.CUT
            self._cut_in -= 1
        self.kinds.append(operation)
        if fault is None:
            self._refuse_when_full(operation)
            return None
        self.faults[fault] += 1
        match fault:
            case DiskFault.FULL:
                self._full_for = self._rng.randint(0, _FULL_OPERATIONS)
                raise OSError(errno.ENOSPC, "no space left on device")
            case DiskFault.FAIL:
                if operation not in {Operation.SYNC, Operation.SYNC_FOLDER}:
                    part()
                raise OSError(errno.EIO, "input/output error")
            case DiskFault.LOSE:
                part()
                raise OSError(errno.EIO, "input/output error")
            case DiskFault.CUT:
                if operation in {Operation.WRITE, Operation.WRITE_THROUGH}:
                    part()
                self.cut_power()
                raise PowerCutError
            case _:
                return fault

    def _refuse_when_full(self, operation: Operation) -> None:
        if self._full_for and operation in APPLIES[DiskFault.FULL]:
            self._full_for -= 1
            raise OSError(errno.ENOSPC, "no space left on device")

    def _lose(self, file: File) -> None:
        """Fail a sync: some pages reach the platter, the others count as clean and never reach it."""
        for page, versions in file.unsynced.items():
            if self._rng.random() < 0.5:
                file.platter[page] = versions[-1]
            elif self._rng.random() < 0.5:
                # The page is also dropped from memory and read again from the platter.
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
        """Return some whole units of the data, but not all of it: a write stops between two units."""
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
