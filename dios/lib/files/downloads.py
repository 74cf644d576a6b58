"""Writing stored files to local ones, with their digests verified; an interrupted large file is continued.

The parts of a large file are collected in a file next to the target, which the next run finds.
"""

from __future__ import annotations

import fcntl
import os
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Final, Protocol

from blake3 import blake3

from dios.client.written_files import naming
from dios.errors import Busy, DamagedError, InvalidError, StaleError, UnreachableError
from dios.lib.catalogue import CatalogueEntry
from dios.lib.files.group_files import GroupFiles
from dios.lib.files.paths import stored_path
from dios.lib.files.sources import CHUNK_BYTES, LocalSource, Moved
from dios.wire.nametext import fingerprint

_PARTIAL_SUFFIX: Final = ".dios-part"
_NAME_CHARACTERS: Final = 100


class Output(Protocol):
    """A file that takes bytes."""

    def write(self, data: memoryview, /) -> object:
        """Write all of the bytes."""


def is_partial(name: str) -> bool:
    """Return True if a local file has the name of a large file that is not complete yet."""
    return name.startswith(".") and name.endswith(_PARTIAL_SUFFIX)


def download(files: GroupFiles, entry: CatalogueEntry, target: Path, moved: Moved = lambda _: None) -> None:
    """Write a stored file to a path, which it takes when it is complete and its digest is right.

    A large file continues after the parts that an interrupted run has left. Raises DamagedError, and Busy if
    another run writes the same file to the same place. A tiered file is brought back first.
    """
    if entry.in_store:
        entry = files.readable(stored_path(entry.file))
    files.read_again(entry, lambda current: _download(files, current, target, moved))


def _download(files: GroupFiles, entry: CatalogueEntry, target: Path, moved: Moved) -> None:
    if not entry.in_parts:
        with replaced_file(target) as file:
            copy_out(files, entry, file, moved)
        return
    with naming(target), _continued_file(target, entry) as fd:
        _copy_parts(files, entry, fd, moved)


def copy_out(files: GroupFiles, entry: CatalogueEntry, file: Output, moved: Moved = lambda _: None) -> None:
    """Write the bytes of a stored file to an open one, from replicas with the digest of the catalogue.

    Raises DamagedError or UnreachableError without one, and writes nothing of that object then. A tiered file
    is brought back first, and one that was brought back once more if it is damaged and its store has it.
    Raises StaleError if it was replaced in between.
    """
    if entry.in_store:
        entry = files.readable(stored_path(entry.file))
    if not entry.in_parts:
        copy_view(files.read_again(entry, files.checked_view), file, moved)
        return
    whole = blake3()
    for part in _sound_parts(files, entry):
        whole.update(part)
        copy_view(part, file, moved)
    _require_whole(entry, whole)


def _sound_parts(files: GroupFiles, entry: CatalogueEntry) -> Iterator[memoryview]:
    """Yield the bytes of a large file in order; after a damaged part the rest comes from the store."""
    given = 0
    try:
        for part in files.parts(entry).checked(0):
            nbytes = part.nbytes
            yield part
            given += nbytes
    except (DamagedError, UnreachableError):
        if not entry.in_store:
            raise
    else:
        return
    fetched = files.fetched_again(entry)
    if fetched.digest != entry.digest:
        raise StaleError(f"{entry.file} was replaced while it was read. Read it again.")
    first, skipped = divmod(given, fetched.part_bytes)
    for part in files.parts(fetched).checked(first):
        yield part[skipped:]
        skipped = 0


def _copy_parts(files: GroupFiles, entry: CatalogueEntry, fd: int, moved: Moved) -> None:
    """Write the parts that a local file does not have yet."""
    parts = files.parts(entry)
    whole, first = blake3(), 0
    there = LocalSource(fd)
    for number, part in enumerate(parts.parts):
        digest, before = blake3(), whole.copy()
        for chunk in there.chunks(number * entry.part_bytes, entry.size_of_part(number)):
            digest.update(chunk)
            whole.update(chunk)
        if digest.digest() != part.digest:
            whole = before
            break
        moved(entry.size_of_part(number))
        first = number + 1
    os.ftruncate(fd, first * entry.part_bytes if first < len(parts.parts) else entry.size)
    os.lseek(fd, 0, os.SEEK_END)
    with os.fdopen(os.dup(fd), "wb", buffering=0) as file:
        for view in parts.checked(first):
            whole.update(view)
            copy_view(view, _WholeWrites(file), moved)
    try:
        _require_whole(entry, whole)
    except DamagedError:
        os.ftruncate(fd, 0)
        raise


class _WholeWrites:
    """An unbuffered file whose ``write`` writes everything."""

    def __init__(self, file: BinaryIO) -> None:
        self._file: Final = file

    def write(self, data: memoryview, /) -> None:
        done = 0
        while done < data.nbytes:
            done += self._file.write(data[done:])


def _require_whole(entry: CatalogueEntry, whole: blake3) -> None:
    if entry.digest and whole.digest() != entry.digest:
        raise DamagedError(
            f"the parts of {entry.file} have their digests, and the whole file has not. Restore it from a "
            "backup (`dios backup restore`), or put it again."
        )


def copy_view(view: memoryview, file: Output, moved: Moved) -> None:
    """Write the bytes of an object a piece at a time."""
    for start in range(0, view.nbytes, CHUNK_BYTES):
        with view[start : start + CHUNK_BYTES] as part:
            file.write(part)
            moved(part.nbytes)


def copy_former(
    files: GroupFiles, entry: CatalogueEntry, file: Output, moved: Moved = lambda _: None
) -> None:
    """Write the bytes of a former file, one of ``GroupFiles.formers``, to an open one.

    Raises StaleError if they were destroyed meanwhile, and DamagedError or UnreachableError if no replica has
    them; see ``SoundReplicas``.
    """
    for piece in _former_pieces(files, entry):
        copy_view(piece, file, moved)


def _former_pieces(files: GroupFiles, entry: CatalogueEntry) -> Iterator[memoryview]:
    if entry.tiered:
        from dios.lib.packs.tier_store import stored_pieces  # noqa: PLC0415 - loads cryptography

        return stored_pieces(files.group, entry)
    return files.parts(entry).checked() if entry.in_parts else iter([files.replicas(entry).checked_view()])


@contextmanager
def replaced_file(path: Path) -> Iterator[BinaryIO]:
    """Open a new file that takes this path when the body ends, and leaves no trace if it fails."""
    with naming(path):
        fd, temporary = tempfile.mkstemp(prefix=f".{path.name[:_NAME_CHARACTERS]}.", dir=path.parent)
        try:
            with os.fdopen(fd, "wb") as file:
                yield file
            _give_path(Path(temporary), path)
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise


def _give_path(temporary: Path, path: Path) -> None:
    umask = os.umask(0)
    os.umask(umask)
    temporary.chmod(0o666 & ~umask)
    temporary.replace(path)


@contextmanager
def _continued_file(path: Path, entry: CatalogueEntry) -> Iterator[int]:
    """Open the file with the parts of an earlier run, or a new one, which takes the path at the end.

    It stays if the body fails, unless it is empty.
    """
    mark = fingerprint(entry.name)[:16]
    temporary = path.with_name(f".{path.name[:_NAME_CHARACTERS]}.{mark}{_PARTIAL_SUFFIX}")
    fd = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid() or status.st_nlink != 1:
            raise InvalidError(f"{temporary} is in the way and was not made by this command. Remove it.")
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Busy(f"another command is writing {path}. Wait for its end.") from None
        try:
            yield fd
            _give_path(temporary, path)
        except BaseException:
            if not os.fstat(fd).st_size:
                temporary.unlink(missing_ok=True)
            raise
    finally:
        os.close(fd)
