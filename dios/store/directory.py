"""The directory of a store: made durably, and used by one process at a time.

Not for: what is in it (``lmdb_store``, ``extents``).
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from dios.errors import DiosError
from dios.store.extents import sync_folder

_PID_BYTES_MAX = 32


def make_directory(path: Path) -> None:
    """Make a directory that only its owner may enter, so that it is still there after a power cut."""
    missing = [path, *path.parents]
    missing = missing[: next(i for i, folder in enumerate(missing) if folder.exists())]
    for folder in reversed(missing):
        folder.mkdir(mode=0o700, exist_ok=True)
        sync_folder(folder.parent)


def lock_directory(path: Path) -> int:
    """Take the directory for this process and return the descriptor that holds it until it is closed.

    A process forked afterwards must close the descriptor, or it holds the directory too. Raises
    DiosError, naming the process, when another one has it.
    """
    fd = os.open(path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.ftruncate(fd, 0)
        os.pwrite(fd, b"%d\n" % os.getpid(), 0)
    except BlockingIOError:
        holder = os.pread(fd, _PID_BYTES_MAX, 0).decode("ascii", "replace").strip()
        os.close(fd)
        who = f"process {holder}" if holder.isdigit() else "another process"
        raise DiosError(f"{path} is in use by {who}; stop it, or choose another directory") from None
    except BaseException:
        os.close(fd)
        raise
    return fd
