"""Tests that a directory can hold a node's store: it is writable, can be synced and mapped, and has space.

The test writes one file without a name, so that nothing is left behind, even while a node runs there.
"""

from __future__ import annotations

import mmap
import os
import tempfile
from pathlib import Path
from typing import Final

from dios import limits
from dios.client.locate import PID_FILE_NAME
from dios.host.audit.log import segments
from dios.node import daemon
from dios.node.doctor.finding import DoctorFinding, DoctorTest

_IN_MEMORY: Final = frozenset({"tmpfs", "ramfs"})
_OVER_A_NETWORK: Final = frozenset({"nfs", "nfs4", "cifs", "smb3", "9p", "fuse.sshfs"})


_TEST: Final = DoctorTest("store", "objects that were acknowledged as durable are on disk")


def examine_store(data: Path) -> DoctorFinding:
    """Try the operations of a store in ``data``, or in its nearest existing parent directory."""
    try:
        return _look(data.absolute())
    except OSError as error:
        reason = error.strerror or str(error)
        return _TEST.missing(
            f"{data}: {reason}", "choose another directory with --data that the node's user owns"
        )


def _look(data: Path) -> DoctorFinding:
    folder = next(place for place in (data, *data.parents) if place.exists())
    if not folder.is_dir():
        return _TEST.missing(f"{folder} is not a directory", "choose another directory with --data")
    _try_writing(folder)
    kind = _file_system(folder)
    space = os.statvfs(folder)
    free = space.f_bavail * space.f_frsize
    shown = str(data) if folder == data else f"{data} (to be created in {folder})"
    detail = f"{shown}: written and synced, {kind or 'unknown file system'}, {free / limits.GIB:.1f} GiB free"
    audit = sum(segment.stat().st_size for segment in segments(data / "audit"))
    if audit:
        detail += f", audit log {audit / limits.MIB:.1f} MiB"
    recovery = daemon.find_recovery(data / PID_FILE_NAME)
    if recovery is not None:
        detail += f", a node is recovering: index of {recovery.done:,} of {recovery.every:,} stored objects"
    if kind in _IN_MEMORY:
        return _TEST.result(
            detail, f"{kind} is in memory: stored data are lost when the machine is switched off"
        )
    if kind in _OVER_A_NETWORK:
        return _TEST.result(detail, f"{kind} may damage the store's index, which is mapped: use a local disk")
    if free < limits.STORE_MAP_GROWTH_BYTES:
        return _TEST.result(detail, "free some space, or choose another directory with --data")
    return _TEST.result(detail)


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
    """Return the kind of file system of a folder; empty if the system does not report it."""
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
