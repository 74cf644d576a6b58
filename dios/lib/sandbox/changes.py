"""Reads the files that a sandbox has changed in its image, on the side of the session.

The kernel keeps them in one folder, apart from the image, so that the work is in proportion to the changes.
"""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import stat
from collections.abc import Callable, Iterator
from typing import Final

from dios.limits import CHANGES_ATTRIBUTE_BYTES_MAX, CHANGES_ATTRIBUTES_MAX, IMAGE_ENTRIES_MAX, MIB
from dios.wire.environments import DIGEST_CHARS, LENGTH
from dios.wire.images import (
    CHANGES,
    FOLDERS_OF_THE_KERNEL,
    FOLDERS_OF_THE_NODE,
    RESERVED,
    ChangeEntry,
    ChangeManifest,
    EntryKind,
    encode_image,
)

_PLACE: Final = f"/{CHANGES}"
_OPAQUE: Final = "user.overlay.opaque"
_ATTRIBUTES: Final = "user."
_ATTRIBUTES_OF_OVERLAYS: Final = "user.overlay."
_LEFT_OUT: Final = frozenset({CHANGES, RESERVED}) | FOLDERS_OF_THE_KERNEL | FOLDERS_OF_THE_NODE
"""Places of mounts, and inputs, which the next sandbox is given anew."""
_MODE_BITS: Final = 0o1777
_FIRST_PROCESS: Final = 1
_STOPPED: Final = frozenset("TtZX")
_ROUNDS_MAX: Final = 100
"""Looks at the processes until all are stopped: a program may start others all the time."""
_PART_BYTES: Final = MIB // 4


def send_changes(send: Callable[[bytes], None], place: str = _PLACE) -> None:
    """Send the changed files while all other processes of the sandbox are stopped.

    ``send`` gets the length of the manifest, this, and then the bytes of the files in the same order. The
    caller writes the digest of the image. Raise OSError for a file that cannot be read, or changes
    nevertheless, and InvalidError over a bound.
    """
    with stopped_processes():
        entries = tuple(_entries(place))
        body = encode_image(ChangeManifest("0" * DIGEST_CHARS, entries))
        send(LENGTH.pack(len(body)))
        for start in range(0, len(body), _PART_BYTES):
            send(body[start : start + _PART_BYTES])
        for entry in entries:
            if entry.size:
                _send_file(f"{place}/{entry.path}", entry, send)


@contextlib.contextmanager
def stopped_processes() -> Iterator[None]:
    """Stop all other processes of the container, except for the first, during the body."""
    stopped: set[int] = set()
    try:
        for _ in range(_ROUNDS_MAX):
            running = _running() - stopped
            if not running:
                break
            for number in running:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(number, signal.SIGSTOP)
            stopped |= running
        yield
    finally:
        for number in stopped:
            with contextlib.suppress(ProcessLookupError):
                os.kill(number, signal.SIGCONT)


def _running() -> set[int]:
    numbers: set[int] = set()
    for name in os.listdir("/proc"):  # noqa: PTH208 - no pathlib in a session
        if not name.isdigit() or int(name) in {_FIRST_PROCESS, os.getpid()}:
            continue
        with contextlib.suppress(OSError), open(f"/proc/{name}/stat", "rb") as file:  # noqa: PTH123 - the same
            state = file.read().rpartition(b") ")[2][:1].decode()
            if state not in _STOPPED:
                numbers.add(int(name))
    return numbers


def _entries(place: str) -> Iterator[ChangeEntry]:
    """Yield the changed files: folders before what is in them, files before hard links to them."""
    first_paths: dict[tuple[int, int], str] = {}
    count = 0
    folders = [""]
    while folders:
        folder = folders.pop()
        with os.scandir(f"{place}/{folder}") as rows:
            below = sorted(rows, key=lambda row: row.name)
        further: list[str] = []
        for row in below:
            path = f"{folder}/{row.name}" if folder else row.name
            if path in _LEFT_OUT:
                continue
            count += 1
            if count > IMAGE_ENTRIES_MAX:
                raise OSError(errno.EFBIG, f"over {IMAGE_ENTRIES_MAX:,} files were changed: remove some")
            entry = _entry(path, row.path, row.stat(follow_symlinks=False), first_paths)
            if entry is not None:
                yield entry
                if stat.S_ISDIR(row.stat(follow_symlinks=False).st_mode):
                    further.append(path)
        folders.extend(reversed(further))


def _entry(
    path: str, place: str, info: os.stat_result, first_paths: dict[tuple[int, int], str]
) -> ChangeEntry | None:
    """Return the description of a file, or None for a pipe or a socket, which no snapshot has."""
    mode, kind = info.st_mode & _MODE_BITS, stat.S_IFMT(info.st_mode)
    time_ns = max(0, info.st_mtime_ns)
    if kind == stat.S_IFCHR and not info.st_rdev:
        return ChangeEntry(path, EntryKind.REMOVED)
    if kind == stat.S_IFLNK:
        target = os.readlink(place)  # noqa: PTH115 - no pathlib in a session
        return ChangeEntry(path, EntryKind.SYMLINK, 0, 0, target, time_ns)
    if kind == stat.S_IFDIR:
        attributes = _attributes(place)
        hides = attributes.pop(_OPAQUE, b"") == b"y"
        folder = EntryKind.REPLACED_FOLDER if hides else EntryKind.FOLDER
        return ChangeEntry(path, folder, mode, 0, "", time_ns, _of_user(attributes))
    if kind != stat.S_IFREG:
        return None
    if info.st_nlink > 1:
        first = first_paths.setdefault((info.st_dev, info.st_ino), path)
        if first != path:
            return ChangeEntry(path, EntryKind.HARD_LINK, 0, 0, first)
    # Marks of other users have no effect in a sandbox.
    mode &= 0o777
    return ChangeEntry(path, EntryKind.FILE, mode, info.st_size, "", time_ns, _of_user(_attributes(place)))


def _attributes(place: str) -> dict[str, bytes]:
    try:
        return {name: os.getxattr(place, name) for name in os.listxattr(place)}
    except OSError:
        return {}  # this file system has none


def _of_user(attributes: dict[str, bytes]) -> tuple[tuple[str, bytes], ...]:
    rows = sorted(
        (name, value)
        for name, value in attributes.items()
        if name.startswith(_ATTRIBUTES)
        and not name.startswith(_ATTRIBUTES_OF_OVERLAYS)
        and len(value) <= CHANGES_ATTRIBUTE_BYTES_MAX
    )
    return tuple(rows[:CHANGES_ATTRIBUTES_MAX])


def _send_file(place: str, entry: ChangeEntry, send: Callable[[bytes], None]) -> None:
    left = entry.size
    with open(place, "rb", buffering=0) as file:  # noqa: PTH123 - no pathlib in a session
        while left:
            part = file.read(min(left, _PART_BYTES))
            if not part:
                raise OSError(errno.EAGAIN, "the file changed while the snapshot was made", entry.path)
            send(part)
            left -= len(part)
