"""Small files that are written completely or not at all, even if the power fails.

They are for data that a node writes a few times in its life: an identity, a counter, a list.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from dios.errors import ExistsError
from dios.trusted_files import require_trusted

_UNFINISHED = ".unfinished-"


def write(path: Path, data: bytes) -> None:
    """Replace the file at ``path`` by ``data``, readable by its owner alone."""
    fd, name = tempfile.mkstemp(prefix=f"{path.name}{_UNFINISHED}", dir=path.parent)
    try:
        with open(fd, "wb") as file:  # noqa: PTH123 - of a descriptor, not of a path
            file.write(data)
            file.flush()
            os.fsync(fd)
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
    _sync(path.parent)


def install(folder: Path, files: Mapping[str, bytes]) -> None:
    """Create ``folder`` with these files, all at once; ExistsError if it exists.

    The remains of an interrupted call are removed.
    """
    folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    require_trusted(folder.parent, "the folder for secrets")
    with locked(folder.parent):
        for left in folder.parent.glob(f"{folder.name}{_UNFINISHED}*"):
            shutil.rmtree(left)
        if folder.exists():
            raise ExistsError(f"{folder} exists already. Choose another data directory.")
        unfinished = Path(tempfile.mkdtemp(prefix=f"{folder.name}{_UNFINISHED}", dir=folder.parent))
        try:
            for name, data in files.items():
                write(unfinished / name, data)
            unfinished.rename(folder)
        except BaseException:
            shutil.rmtree(unfinished, ignore_errors=True)
            raise
        _sync(folder.parent)


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Lock ``folder`` against other callers of this function; wait for them."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


def _sync(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
