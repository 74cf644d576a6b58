"""Whether a directory can hold a node's store: writable, synced, mapped, with room, and on a disk.

Not for: opening a store (``dios.store``). It writes one file that never has a name, so that nothing is left
behind, also beside a node that runs.
"""

from __future__ import annotations

import mmap
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from dios import limits

_IN_MEMORY: Final = frozenset({"tmpfs", "ramfs"})
_OVER_A_NETWORK: Final = frozenset({"nfs", "nfs4", "cifs", "smb3", "9p", "fuse.sshfs"})


@dataclass(frozen=True, slots=True)
class Looked:
    """What was found; ``refused`` says which step failed and why, ``advice`` what to change."""

    detail: str
    refused: str = ""
    advice: str = ""


def look(data: Path) -> Looked:
    """Try what a store does, in ``data`` or, where that is not there yet, in what it would be made in."""
    try:
        return _look(data.absolute())
    except OSError as error:
        reason = error.strerror or str(error)
        return Looked(
            "", f"{data}: {reason}", "choose another directory with --data, owned by who runs the node"
        )


def _look(data: Path) -> Looked:
    folder = next(place for place in (data, *data.parents) if place.exists())
    if not folder.is_dir():
        return Looked("", f"{folder} is no directory", "choose another directory with --data")
    _try_writing(folder)
    kind = _file_system(folder)
    space = os.statvfs(folder)
    free = space.f_bavail * space.f_frsize
    where = str(data) if folder == data else f"{data} (to be made in {folder})"
    detail = f"{where}: written and synced, {kind or 'unknown file system'}, {free / limits.GIB:.1f} GiB free"
    if kind in _IN_MEMORY:
        return Looked(
            detail, advice=f"{kind} is memory: what is stored there is gone with the machine's power"
        )
    if kind in _OVER_A_NETWORK:
        return Looked(detail, advice=f"{kind} may break the store's index, which is mapped: use a local disk")
    if free < limits.STORE_MAP_GROWTH_BYTES:
        return Looked(detail, advice="free some space, or choose another directory with --data")
    return Looked(detail)


def _try_writing(folder: Path) -> None:
    """Write, sync and map a file without a name, and sync the folder. Raises ``OSError``."""
    with tempfile.TemporaryFile(dir=folder) as file:
        file.write(bytes(mmap.PAGESIZE))
        file.flush()
        os.fsync(file.fileno())
        with mmap.mmap(file.fileno(), mmap.PAGESIZE) as mapped:
            mapped[0] = 1
            mapped.flush()
    entry = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(entry)
    finally:
        os.close(entry)


def _file_system(folder: Path) -> str:
    """The kind of file system a folder is on; empty where the system does not tell."""
    device = folder.stat().st_dev
    wanted = f"{os.major(device)}:{os.minor(device)}"
    try:
        rows = Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ""
    for row in rows:
        before, _, after = row.partition(" - ")
        if before.split(" ")[2] == wanted:
            return after.split(" ", 1)[0]
    return ""
