"""The directory of a store: made durably, and used by one process at a time.

Not for: what is in it (``lmdb_store``, ``extents``).
"""

from __future__ import annotations

import contextlib
import os
import pwd
import stat
from pathlib import Path
from typing import NoReturn

from dios.errors import DiosError
from dios.store import locking
from dios.store.extents import sync_folder

_PID_BYTES_MAX = 32


def make_directory(path: Path) -> None:
    """Make a directory that only its owner may enter, so that it is still there after a power cut."""
    missing = [path, *path.parents]
    missing = missing[: next(i for i, folder in enumerate(missing) if folder.exists())]
    for folder in reversed(missing):
        folder.mkdir(mode=0o700, exist_ok=True)
        sync_folder(folder.parent)


def lock_directory(path: Path, *, for_reading: bool = False) -> int:
    """Take the directory for this process and return the descriptor that holds it until it is closed.

    A process forked afterwards must close the descriptor, or it holds the directory too. ``for_reading``
    takes also a directory in which nothing can be written. Raises DiosError, naming the process, when
    another one has it.
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
        # Who holds it is told for people only: a full disk must not keep a store from being read.
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
    raise DiosError(f"{path} is in use by {who}; stop it, or choose another directory")


def _open_for_reading(path: Path) -> int:
    try:
        return os.open(path / "lock", os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        # Never used by a node, like a copy on a read-only medium.
        return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)


def cannot_write(path: Path, reason: str) -> str:
    """Why nothing can be written in ``path``, whose it is, and what to do: for an error's message."""
    place = next((folder for folder in (path, *path.parents) if folder.exists()), path)
    try:
        info = place.stat()
        whose = f"{place} belongs to {_user(info.st_uid)}, mode {stat.S_IMODE(info.st_mode):04o}"
    except OSError as error:
        whose = f"{place} cannot be looked at ({error.strerror})"
    return (
        f"nothing can be written in {path}: {reason}; {whose}, this process is {_user(os.geteuid())}. "
        f"Mount it for writing, or give it to that user; `dios doctor --data {path}` then tries it"
    )


def _user(uid: int) -> str:
    try:
        return f"user {pwd.getpwuid(uid).pw_name} ({uid})"
    except KeyError:
        return f"user {uid}"
