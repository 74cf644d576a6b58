"""Files that this process writes: errors name the file that the user knows, and folders are synced."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator
from pathlib import Path

from dios.errors import DiosError


@contextlib.contextmanager
def naming(path: Path) -> Iterator[None]:
    """Name ``path`` in errors of the operating system about writing it.

    Without this a full disk gives no path at all, and a file that is written under a temporary name gives
    that name. If the directory of ``path`` is missing, the error names the directory.
    """
    try:
        yield
    except DiosError:
        raise
    except OSError as error:
        is_missing = error.errno == errno.ENOENT and not path.parent.is_dir()
        about = path.parent if is_missing else path
        if error.errno is None or not _is_about(error.filename, path):
            raise
        raise OSError(error.errno, error.strerror, str(about)) from error


def make_folder(folder: Path) -> None:
    """Create a folder for its owner alone, with those above it, durably; it may exist."""
    missing = [candidate for candidate in (folder, *folder.parents) if not candidate.is_dir()]
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    for path in missing:
        sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Make the entries of a folder durable: of files that were created, renamed or removed there."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _is_about(filename: object, path: Path) -> bool:
    """Return True if an error names no file, the file, or one in its directory that is to become it."""
    if not isinstance(filename, str | bytes):
        return filename is None
    named = Path(filename if isinstance(filename, str) else filename.decode(errors="surrogateescape"))
    return named == path or (named.parent == path.parent and path.name[:32] in named.name)
