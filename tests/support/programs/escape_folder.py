"""Hostile programs of the escape suite that abuse their private folder; ``attempt_of`` returns each attempt.

Not for: anything but ``escape.Cage``, which runs them and knows what must come of each.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import socket
from collections.abc import Callable
from pathlib import Path

from escape_tools import raw
from msgspec import _core

FOLDER = Path(os.environ["TMPDIR"])
LIBRARY = Path(os.__file__)
AT_FDCWD = -100
BLOCK = bytes(1 << 20)
PROGRAM = b"#!/bin/sh\necho escaped\n"


def _written(content: bytes = PROGRAM) -> Path:
    path = FOLDER / "written"
    path.write_bytes(content)
    path.chmod(0o755)
    return path


# -- programs and libraries that it wrote -------------------------------------------------------------
def _try_run_written_program() -> object:
    path = _written()
    return os.execv(path, [str(path)])  # noqa: S606 - the attempt


def _try_map_written_code() -> object:
    with _written().open("r+b") as file:
        return mmap.mmap(file.fileno(), 0, mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_EXEC)


def _try_unprotect_written_code() -> object:
    with _written(bytes(mmap.PAGESIZE)).open("r+b") as file:
        pages = mmap.mmap(file.fileno(), 0, mmap.MAP_SHARED)
    start = ctypes.addressof(ctypes.c_char.from_buffer(pages))
    return raw("mprotect", start, mmap.PAGESIZE, mmap.PROT_READ | mmap.PROT_EXEC)


# -- meeting places, and ways around the view ----------------------------------------------------------
def _try_make_socket() -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(FOLDER / "socket"))


# -- taking more than its share -----------------------------------------------------------------------
def _try_fill() -> object:
    with (FOLDER / "large").open("wb") as file:
        for _ in range(1 << 20):
            file.write(BLOCK)
    return "endless"


def _try_fill_with_many() -> object:
    for number in range(1 << 20):
        (FOLDER / f"{number:04}").write_bytes(BLOCK)
    return "endless"


def _try_fill_with_empty_files() -> object:
    for number in range(1 << 20):
        os.close(os.open(FOLDER / (f"{number:08}" + "x" * 240), os.O_CREAT | os.O_WRONLY))
    return "endless"


def _try_fill_with_directories() -> object:
    for number in range(1 << 20):
        (FOLDER / f"{number}").mkdir()
    return "endless"


def _try_sparse_file() -> object:
    with (FOLDER / "sparse").open("wb") as file:
        file.truncate(1 << 40)
    return "endless"


def _try_removed_files_that_are_open() -> object:
    kept = []
    for number in range(1 << 10):
        path = FOLDER / f"{number}"
        kept.append(path.open("wb", buffering=0))
        path.unlink()
        if kept[-1].write(BLOCK) < len(BLOCK):
            raise OSError(errno.ENOSPC, "no room is left")
    return "endless"


SHORT_ATTEMPTS: dict[str, Callable[[], object]] = {
    # programs and libraries that it wrote
    "set_special_bits": lambda: _written().chmod(0o4755),
    "load_written_library": lambda: ctypes.CDLL(str(_written(Path(_core.__file__).read_bytes()))),
    # meeting places, and ways around the view
    "make_pipe_file": lambda: os.mkfifo(FOLDER / "pipe"),
    "make_device": lambda: os.mknod(FOLDER / "memory", 0o20666, os.makedev(1, 1)),
    "hard_link": lambda: (FOLDER / "link").hardlink_to(_written()),
    "symlink": lambda: (FOLDER / "link").symlink_to("/"),
    "replace_the_link": Path("/var/tmp").unlink,
    "attribute": lambda: os.setxattr(_written(), "user.hidden", b"1"),
    "nameless_file": lambda: os.open(FOLDER, os.O_TMPFILE | os.O_RDWR, 0o600),
    "rename_into_library": lambda: _written().rename(LIBRARY.parent / "planted.py"),
    "rename_library_here": lambda: LIBRARY.rename(FOLDER / "os.py"),
    "write_beside": lambda: (FOLDER.resolve().parents[1] / "planted").write_bytes(b""),
    "climb_out": (FOLDER / "../../../../etc/passwd").read_bytes,
    "watch": lambda: raw("inotify_init1", 0),
}
"""The attempts that are one expression; each other one is a function ``_try_NAME``."""
