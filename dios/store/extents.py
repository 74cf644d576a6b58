"""Extent files: one immutable file for each version of a large content.

Only a row in the database makes an extent visible; the next start removes files without a row. The functions
raise OSError, which ``lmdb_store`` translates.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Final, TypeAlias

from blake3 import blake3

from dios import limits
from dios.errors import InvalidError
from dios.store.protocol import FilePayload, Payload

_ID_BYTES: Final = 8
_FOLDERS: Final = 256
Copy: TypeAlias = Callable[[int, int, int, int], int]
"""Copies at most ``count`` bytes at ``offset`` from source to target: (source, target, offset, count)."""

Release: TypeAlias = Callable[[int, int], None]
"""Closes the descriptor of a removed file of this size: (descriptor, bytes)."""

_NO_KERNEL_COPY: Final = frozenset({errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP})


def read_exactly(fd: int, size: int) -> bytes:
    """Return the first ``size`` bytes of an open file; InvalidError if it is shorter."""
    data = bytearray(size)
    view = memoryview(data)
    done = 0
    while done < size:
        got = os.preadv(fd, [view[done:]], done)
        if not got:
            raise InvalidError(f"the file to store ends after {done} of {size} bytes")
        done += got
    return bytes(data)


def digest_of_file(fd: int, size: int) -> bytes | None:
    """Return the BLAKE3-256 digest of the first ``size`` bytes; None if the file is shorter.

    The file is read and not mapped: a failing disk or a truncated file then causes an error, and not a
    SIGBUS. The buffer stays in the processor's cache; hashing releases the interpreter lock.
    """
    buffer = bytearray(min(size, limits.STORE_COPY_BYTES))
    hasher = blake3()
    done = 0
    with memoryview(buffer) as view:
        while done < size:
            got = os.preadv(fd, [view[: size - done]], done)
            if not got:
                return None
            with view[:got] as part:
                hasher.update(part)
            done += got
    return hasher.digest()


def make_folders(folder: Path) -> None:
    """Create the folders for extents in ``folder``, and sync it if some are new. Raise ``OSError``."""
    folder.mkdir(mode=0o700, exist_ok=True)
    created = False
    for number in range(_FOLDERS):
        with contextlib.suppress(FileExistsError):
            (folder / f"{number:02x}").mkdir(mode=0o700)
            created = True
    if created:
        sync_folder(folder)


class WrittenExtent:
    """A new extent that is written, but neither synced nor named by a row."""

    def __init__(self, extent: int, fd: int, size: int) -> None:
        self.extent: Final = extent
        self.fd: Final = fd
        self.size: Final = size
        self.digest: bytes = b""


class Extents:
    """The folder of extent files of one store.

    ``release`` closes the descriptor of a removed file with this number of bytes: the file system frees the
    blocks then, which takes long for a large file and may therefore happen in another thread.
    """

    def __init__(self, folder: Path, release: Release = lambda fd, _: os.close(fd)) -> None:
        self._folder: Final = folder
        self._release: Final = release
        # Digests are computed while the disk works, and disks do several syncs at once well. The threads
        # start when they are first needed.
        self._workers: Final = ThreadPoolExecutor(limits.STORE_WORKERS_MAX, thread_name_prefix="dios-store")

    def prepare(self) -> None:
        """Create the folders, so that writing an extent syncs one folder only."""
        make_folders(self._folder)

    def path(self, extent: int) -> Path:
        """Return the path of an extent."""
        return Path(self._place(extent))

    @staticmethod
    def name(extent: int) -> str:
        """Return the path of an extent relative to the folder."""
        name = f"{extent:0{2 * _ID_BYTES}x}"
        return f"{name[:2]}/{name}"

    def write_all(self, payloads: Sequence[Payload]) -> list[WrittenExtent]:
        """Write one extent for each payload and make all of them durable, in order; none on an error.

        The files have their final names from the start: no row names them, so no reader finds them. All are
        in one folder, which is synced once. The digest is computed from the written bytes, so it is right
        even if the source is changed meanwhile.
        """
        # One folder for the whole batch; the extents of many batches spread over all folders.
        folder = os.urandom(1)
        done: list[WrittenExtent] = []
        syncs: list[Future[None]] = []
        digests: list[Future[bytes | None]] = []
        try:
            for payload in payloads:
                new = self._create(folder, payload)
                done.append(new)
                self._fill(new, payload)
                digests.append(self._workers.submit(digest_of_file, new.fd, new.size))
            # Only now, so that the first sync makes the file system's journal carry all files. This thread
            # syncs one file itself: a batch of one file waits for no other thread.
            syncs.extend(self._workers.submit(os.fdatasync, new.fd) for new in done[1:])
            os.fdatasync(done[0].fd)
            for sync in syncs:
                sync.result()
            sync_folder(self._folder / folder.hex())
            for new, digest in zip(done, digests, strict=True):
                new.digest = digest.result() or b""
        except BaseException:
            _close_settled(done, syncs, digests)
            self.remove(new.extent for new in done)
            raise
        _close_settled(done, syncs, digests)
        return done

    def open(self, extent: int) -> int:
        """Return a new read-only descriptor; FileNotFoundError if the extent does not exist."""
        return os.open(self._place(extent), os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)

    def size(self, extent: int) -> int | None:
        """Return the size of an extent's file in bytes, None if there is no file."""
        try:
            return self.path(extent).stat().st_size
        except FileNotFoundError:
            return None

    def remove(self, extents: Iterable[int]) -> None:
        """Remove extents that no row names; open descriptors stay readable.

        An extent that cannot be removed takes space until the next start; this is not an error.
        """
        for extent in extents:
            with contextlib.suppress(OSError):
                self._remove(extent)

    def _remove(self, extent: int) -> None:
        try:
            fd = self.open(extent)
        except OSError:
            # Without a descriptor, the blocks are freed here.
            self.path(extent).unlink(missing_ok=True)
            return
        try:
            self.path(extent).unlink(missing_ok=True)
        finally:
            self._release(fd, os.fstat(fd).st_size)

    def stored(self) -> Iterator[int]:
        """Yield every extent that has a file; files with other names are left alone."""
        for number in range(_FOLDERS):
            try:
                entries = os.scandir(self._folder / f"{number:02x}")
            except FileNotFoundError:
                continue  # an interrupted start created only some folders
            with entries:
                for entry in entries:
                    with contextlib.suppress(ValueError):
                        extent = int(entry.name, 16)
                        if self._place(extent) == entry.path:
                            yield extent

    def close(self) -> None:
        """End the threads that write extents."""
        self._workers.shutdown()

    def _place(self, extent: int) -> str:
        # A string and not a Path: creating a Path takes as long as opening the file.
        return f"{self._folder}/{Extents.name(extent)}"

    def _create(self, folder: bytes, payload: Payload) -> WrittenExtent:
        size = payload.size if isinstance(payload, FilePayload) else len(payload.data)
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
        while True:
            extent = int.from_bytes(folder + os.urandom(_ID_BYTES - 1), "big")
            try:
                return WrittenExtent(extent, os.open(self.path(extent), flags, 0o400), size)
            except FileExistsError:
                continue

    def _fill(self, new: WrittenExtent, payload: Payload) -> None:
        # Allocating all space first finds a full disk early and halves the cost of the copy.
        os.posix_fallocate(new.fd, 0, new.size)
        if isinstance(payload, FilePayload):
            copy_file(payload.fd, new.fd, payload.size)
        else:
            write_exactly(new.fd, payload.data)


def _close_settled(
    done: Sequence[WrittenExtent], syncs: Sequence[Future[None]], digests: Sequence[Future[bytes | None]]
) -> None:
    # A descriptor may only be closed when no thread uses it: its number is re-used at once.
    wait([future for future in syncs if not future.cancel()])
    wait([future for future in digests if not future.cancel()])
    for new in done:
        os.close(new.fd)


def copy_file(source: int, target: int, size: int) -> None:
    """Copy the first ``size`` bytes between open files, inside the kernel where possible.

    Raises InvalidError if the source is shorter.
    """
    done = 0
    for copy in (_copy_file_range, _send_file, _copy_through_memory):
        try:
            while done < size:
                got = copy(source, target, done, size - done)
                if not got:
                    raise InvalidError(f"the file to store ends after {done} of {size} bytes")
                done += got
        except OSError as error:
            if error.errno not in _NO_KERNEL_COPY or copy is _copy_through_memory:
                raise
        else:
            return


def write_exactly(fd: int, data: bytes | memoryview) -> None:
    """Write all of ``data`` at the beginning of an open file."""
    with memoryview(data) as view:
        done = 0
        while done < len(view):
            done += os.pwrite(fd, view[done:], done)


def sync_folder(folder: Path) -> None:
    """Make the entries of a folder durable."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _copy_file_range(source: int, target: int, offset: int, count: int) -> int:
    return os.copy_file_range(source, target, count, offset, offset)


def _send_file(source: int, target: int, offset: int, count: int) -> int:
    os.lseek(target, offset, os.SEEK_SET)
    return os.sendfile(target, source, offset, count)


def _copy_through_memory(source: int, target: int, offset: int, count: int) -> int:
    return os.pwrite(target, os.pread(source, min(count, limits.STORE_COPY_BYTES), offset), offset)
