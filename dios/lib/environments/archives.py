"""The archives of environments that a user's programs keep, so that a package is not installed again.

Each has a name of the request for which it was built and of its own digest. Those that were used least
recently are removed beyond ENVIRONMENT_CACHE_BYTES.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from dios.errors import InvalidError
from dios.limits import ENVIRONMENT_BYTES_MAX, ENVIRONMENT_CACHE_BYTES, MIB
from dios.wire.environments import (
    DIGEST_CHARS,
    ArchivedFile,
    ArchiveDigest,
    Manifest,
    Package,
    encode_head,
    name_for,
)

_SUFFIX: Final = ".archive"
_BUILDING: Final = "building-"
_LOCK: Final = "lock"
_CHUNK: Final = 1 * MIB


class EnvironmentArchive(NamedTuple):
    """An archive in a file. ``name`` takes the place of a template."""

    name: str
    path: Path


def folder_of_archives() -> Path:
    """Return the user's folder of archives. Raise InvalidError for one that cannot be made, or is others'."""
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    folder = Path(base, "dios", "environments")
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise InvalidError(
            f"cannot keep environments in {folder}: {error.strerror}. Set XDG_CACHE_HOME to a folder of yours"
        ) from error
    info = folder.stat()
    if info.st_uid != os.geteuid() or info.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise InvalidError(
            f"cannot keep environments in {folder}: other users can write there. Remove their right, or set "
            "XDG_CACHE_HOME"
        )
    return folder


def kept(request: str) -> EnvironmentArchive | None:
    """Return the archive that was built for a request, or None."""
    for path in folder_of_archives().glob(f"{request}-*{_SUFFIX}"):
        digest = path.name.removesuffix(_SUFFIX).rpartition("-")[2]
        if len(digest) == DIGEST_CHARS:
            with contextlib.suppress(OSError):
                os.utime(path)
                return EnvironmentArchive(name_for(digest), path)
    return None


def kept_with_digest(digest: str) -> EnvironmentArchive | None:
    """Return the archive with this digest, whatever it was built for, or None."""
    for path in folder_of_archives().glob(f"*-{digest}{_SUFFIX}"):
        with contextlib.suppress(OSError):
            os.utime(path)
            return EnvironmentArchive(name_for(digest), path)
    return None


@contextlib.contextmanager
def building_folder() -> Iterator[Path]:
    """Yield a new folder, which is removed at the end; those of killed programs are removed before."""
    parent = folder_of_archives()
    for place in parent.glob(f"{_BUILDING}*"):
        _remove_unlocked(place)
    folder = Path(tempfile.mkdtemp(prefix=_BUILDING, dir=parent))
    try:
        with (folder / _LOCK).open("wb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _remove_unlocked(place: Path) -> None:
    # A folder without a lock has just been made, or its program was killed then: it is empty.
    with contextlib.suppress(OSError), (place / _LOCK).open("rb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(place, ignore_errors=True)


def pack(packages: Path, distributions: Sequence[Package], python: str, request: str) -> EnvironmentArchive:
    """Write the archive of installed packages, and return it. Raise InvalidError over a bound, OSError."""
    files = sorted(_regular_files(packages))
    manifest = Manifest(python, tuple(distributions), tuple(ArchivedFile(name, size) for name, size in files))
    digest = ArchiveDigest()
    target = packages.parent / "archive"
    with target.open("wb") as archive:
        head = encode_head(manifest)
        digest.add(head)
        archive.write(head)
        for name, size in files:
            with (packages / name).open("rb") as file:
                for start in range(0, size, _CHUNK):
                    data = file.read(min(_CHUNK, size - start))
                    digest.add(data)
                    archive.write(data)
    return keep(target, digest.text, request)


def keep(target: Path, digest: str, request: str) -> EnvironmentArchive:
    """Keep a finished archive for a request, in the place of an earlier one, and return it. Raise OSError."""
    parent = folder_of_archives()
    path = parent / f"{request}-{digest}{_SUFFIX}"
    target.rename(path)
    for other in parent.glob(f"{request}-*{_SUFFIX}"):
        if other != path:
            other.unlink(missing_ok=True)
    _remove_oldest(parent, path)
    return EnvironmentArchive(name_for(digest), path)


def _regular_files(top: Path) -> Iterator[tuple[str, int]]:
    total = 0
    for folder, _, names in os.walk(top):
        for name in names:
            path = Path(folder, name)
            info = path.lstat()
            if not stat.S_ISREG(info.st_mode):
                continue
            total += info.st_size
            if total > ENVIRONMENT_BYTES_MAX:
                raise InvalidError(
                    f"the packages have over {ENVIRONMENT_BYTES_MAX // MIB} MiB: use fewer, or smaller ones"
                )
            yield str(path.relative_to(top)), info.st_size


def _remove_oldest(parent: Path, kept_path: Path) -> None:
    archives = sorted(parent.glob(f"*{_SUFFIX}"), key=lambda path: path.stat().st_mtime_ns)
    total = sum(path.stat().st_size for path in archives)
    for path in archives:
        if total <= ENVIRONMENT_CACHE_BYTES or path == kept_path:
            continue
        total -= path.stat().st_size
        path.unlink(missing_ok=True)
