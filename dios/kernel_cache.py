"""The folders in which compiled kernels are kept, and the record that a folder holds all of them.

Each folder is for one fingerprint of all that machine code depends on, so outdated code is never loaded. The
installation has one: its owner compiles for all users, and they need only read. Every user has another in the
home directory. Loading a kernel is running it, so a folder that another user could write is neither read nor
written. Nothing here loads Numba.
"""

from __future__ import annotations

import functools
import hashlib
import logging
import os
import platform
import shutil
import sys
from collections.abc import Iterator
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import Final, TextIO

from dios.kernel_sources import PACKAGE, kernel_states
from dios.trusted_files import weakness, weakness_within

_log: Final = logging.getLogger(__name__)

_SOURCES: Final = tuple(PACKAGE / name for name in ("fairness", "packer", "sprayer", "firmament"))
_PREFIX: Final = "dios-kernels-"
_MARK: Final = "complete"
_PRIVATE: Final = "functions"
_KEPT: Final = 4
"""The folders that stay in one place: for other versions, or for other machines with the same home."""


def readable_folders() -> list[Path]:
    """Return the folders from which this user may load kernels: the installation's, then the user's own."""
    return [folder for folder in _folders() if _is_obeyed(folder)]


def writable_folder() -> Path | None:
    """Return the folder in which this user's compiled kernels are kept; None if none can be written."""
    for folder in _folders():
        with suppress(OSError):
            if not folder.is_dir():
                folder.parent.mkdir(parents=True, exist_ok=True)
                if weakness(folder.parent):
                    continue
                folder.mkdir(mode=0o755, exist_ok=True)
                _remove_older(folder)
            if os.access(folder, os.W_OK) and _is_obeyed(folder):
                return folder
    return None


def private_folder() -> Path | None:
    """Return the folder for this user's compiled network functions, which no other user can read or write.

    None if none can be written.
    """
    parent = writable_folder()
    if parent is None:
        return None
    folder = parent / _PRIVATE
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        status = folder.stat(follow_symlinks=False)
    except OSError:
        return None
    is_private = status.st_uid == os.geteuid() and not status.st_mode & 0o077
    return folder if is_private and _is_obeyed(folder) else None


def open_lock(path: Path) -> TextIO:
    """Open a file to lock, which no other user can open, because a reader could lock it.

    Raises:
        OSError: this user cannot open it.
    """
    return open(path, "a", encoding="utf-8", opener=lambda name, flags: os.open(name, flags, 0o600))


def is_complete() -> bool:
    """Return True if one of the folders holds all kernels, as a process that loaded them has recorded."""
    return any(_holds_all(folder) for folder in readable_folders())


def mark_complete() -> None:
    """Record that a process of this user has loaded all kernels, without compiling, from its folders.

    Raises:
        OSError: the record cannot be written.
    """
    folder = writable_folder()
    if folder is None:
        return
    # The other folders count, too, because all of them together were enough. The own one may be copied.
    rows = [
        f"{path.stat().st_size} {path.name if place == folder else path}\n"
        for place in readable_folders()
        for path in sorted(place.iterdir())
        if path.suffix in {".nbi", ".nbc"}
    ]
    fresh = folder / f"{_MARK}.{os.getpid()}"
    fresh.write_text("".join(rows), encoding="utf-8")
    fresh.replace(folder / _MARK)


def forget_complete() -> None:
    """Remove this user's record that all kernels are there, because a kernel could not be loaded."""
    folder = writable_folder()
    if folder is not None:
        (folder / _MARK).unlink(missing_ok=True)


@functools.cache
def fingerprint() -> str:
    """Return a digest of all that compiled kernels depend on: sources, versions, and the processor."""
    digest = hashlib.sha256(f"{platform.python_implementation()} {platform.python_version()}\n".encode())
    for package in ("numba", "llvmlite", "numpy"):
        digest.update(f"{package} {metadata.version(package)}\n".encode())
    digest.update(_processor().encode())
    digest.update("\n".join(kernel_states(_SOURCES)).encode())
    return digest.hexdigest()


@functools.cache
def stamp(package: str) -> str:
    """Return a digest of all that the kernels of a top-level package depend on, its own sources included."""
    if package == PACKAGE.name:
        return fingerprint()
    folders = [Path(folder) for folder in getattr(sys.modules.get(package), "__path__", ())]
    states = [state for folder in folders for state in kernel_states([folder], folder)]
    return hashlib.sha256("\n".join([fingerprint(), *states]).encode()).hexdigest()


def _folders() -> Iterator[Path]:
    """Return the folders for the present fingerprint in the order of their use; they may be missing."""
    chosen = os.environ.get("NUMBA_CACHE_DIR")
    places = [Path(chosen)] if chosen else [PACKAGE / "__pycache__"]
    if not chosen:
        with suppress(RuntimeError):  # no home directory
            places.append(Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "numba")
    for place in places:
        yield place.absolute() / f"{_PREFIX}{fingerprint()[:16]}"


def _is_obeyed(folder: Path) -> bool:
    """Return True if the folder is there and no other user can put compiled kernels into it."""
    try:
        reason = weakness(folder) or weakness_within(folder, 1)
    except OSError:
        return False
    if reason:
        _log.warning("compiled kernels are not kept or loaded", extra={"folder": str(folder), "why": reason})
    return not reason


def _holds_all(folder: Path) -> bool:
    """Return True if the folder's record is there, and every file that it lists can be loaded."""
    try:
        rows = (folder / _MARK).read_text(encoding="utf-8").splitlines()
        for row in rows:
            size, _, name = row.partition(" ")
            path = folder / name
            if path.stat().st_size != int(size) or not os.access(path, os.R_OK):
                return False
    except (OSError, ValueError):
        return False
    return bool(rows)


def _remove_older(folder: Path) -> None:
    """Remove all but the latest folders next to one that was created."""
    others = [path for path in folder.parent.glob(f"{_PREFIX}*") if path != folder]
    for old in sorted(others, key=lambda path: path.stat().st_mtime_ns)[: 1 - _KEPT]:
        shutil.rmtree(old, ignore_errors=True)


def _processor() -> str:
    """Return the processor's model and features: compiled code runs on no other kind."""
    with suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        return "\n".join(
            sorted({line for line in lines if line.startswith(("model name", "flags", "Features"))})
        )
    return platform.processor()
