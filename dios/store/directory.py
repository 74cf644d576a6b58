"""The data directory of a store: created durably, owned by its user, used by one process at a time."""

from __future__ import annotations

import contextlib
import os
import stat
from pathlib import Path
from typing import NoReturn

from dios.errors import DiosError
from dios.store import locking
from dios.store.extents import sync_folder
from dios.trusted_files import require_trusted, untrusted, user_text, weakness_within

_PID_BYTES_MAX = 32
_LEVELS = 2
_WHAT = "the data directory"


def make_directory(path: Path) -> None:
    """Create a directory that only its owner may enter, and sync its parent."""
    missing = [path, *path.parents]
    missing = missing[: next(i for i, folder in enumerate(missing) if folder.exists())]
    for folder in reversed(missing):
        folder.mkdir(mode=0o700, exist_ok=True)
        sync_folder(folder.parent)


def require_own_directory(path: Path) -> None:
    """Raise UntrustedError if another user could change a data directory or what a node obeys in it.

    A program that uses the directory would obey that user: settings, keys, tables and the database are in it.
    Contents are not examined, because each has its digest in the database.
    """
    require_trusted(path, _WHAT)
    if reason := weakness_within(path, _LEVELS):
        raise untrusted(path, _WHAT, reason)


def lock_directory(path: Path, *, for_reading: bool = False) -> int:
    """Lock the directory for this process; return the descriptor that holds the lock until it is closed.

    A process forked later must close the descriptor, or it holds the lock too. ``for_reading`` works on a
    read-only directory, too. Raises DiosError with the id of the process if another process has the lock.
    """
    try:
        fd = os.open(path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError:
        if not for_reading:
            raise
        fd = _open_for_reading(path)
    try:
        if not locking.lock_file(fd):
            _refuse(path, fd)
        # The process id is only for error messages: a full disk must not prevent reading the store.
        with contextlib.suppress(OSError):
            os.ftruncate(fd, 0)
            os.pwrite(fd, b"%d\n" % os.getpid(), 0)
    except BaseException:
        os.close(fd)
        raise
    return fd


def _refuse(path: Path, fd: int) -> NoReturn:
    holder = os.pread(fd, _PID_BYTES_MAX, 0).decode("ascii", "replace").strip()
    who = f"process {holder}" if holder.isdigit() else "another process"
    raise DiosError(f"{path} is in use by {who}. Stop it, or choose another directory.")


def _open_for_reading(path: Path) -> int:
    try:
        return os.open(path / "lock", os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        # The directory was never used by a node, for example a copy on a read-only medium.
        return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)


def cannot_write(path: Path, reason: str) -> str:
    """Return the reason why ``path`` is not writable, its owner, and the remedy, for an error message."""
    place = next((folder for folder in (path, *path.parents) if folder.exists()), path)
    try:
        info = place.stat()
        whose = f"{place} belongs to {user_text(info.st_uid)}, mode {stat.S_IMODE(info.st_mode):04o}"
    except OSError as error:
        whose = f"{place} cannot be read ({error.strerror})"
    return (
        f"cannot write in {path}: {reason}; {whose}, this process is {user_text(os.geteuid())}. "
        f"Mount it for writing, or give it to that user. Then try `dios doctor --data {path}`."
    )
