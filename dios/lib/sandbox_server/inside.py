"""Runs in the session of a sandbox for the server: commands side by side, and questions about files.

The server sets ``answer`` as a variable of the session, and calls it. Code that nobody has read could change
what it returns, so ``held`` checks all of it.
"""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from dios.lib.sandbox.session import opened_file

PART_BYTES: Final = 64 * 1024
"""The most of one stream of a command that one answer has."""
FILE_PART_BYTES: Final = 4 * 1024 * 1024
ENTRIES_MAX: Final = 10_000
JSON_CHARS_MAX: Final = 256 * 1024

_SHELL: Final = "/bin/bash"
_OTHER_SHELL: Final = "/bin/sh"
_DEFAULT_PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

_commands: Final[dict[int, subprocess.Popen[bytes]]] = {}


def answer(operation: str, *arguments: object) -> object:
    """Do one of ``OPERATIONS``, and return its plain value. Raise OSError and ValueError."""
    return OPERATIONS[operation](*arguments)


# -- commands -----------------------------------------------------------------------------------------
def _start(arguments: Sequence[str], variables: Mapping[str, str], folder: str, has_input: object) -> int:
    program, *rest = arguments
    if program == _SHELL and not Path(_SHELL).exists():
        program = _OTHER_SHELL  # an image may have the smaller shell alone
    process = subprocess.Popen(
        [program, *rest],
        stdin=subprocess.PIPE if has_input else subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=folder or None,
        env={"PATH": _DEFAULT_PATH, **os.environ, **variables},
        process_group=0,
        bufsize=0,
    )
    for stream in (process.stdin, process.stdout, process.stderr):
        if stream is not None:
            os.set_blocking(stream.fileno(), False)
    _commands[process.pid] = process
    return process.pid


def _poll(pids: Sequence[int]) -> dict[int, tuple[bytes, bytes, int | None]]:
    """Return new output of commands and their exit status; one that ended without more is forgotten."""
    news = {}
    for pid in pids:
        process = _commands.get(pid)
        if process is None:
            continue
        # First the status: what is read afterwards is all that the command itself has written.
        status = process.poll()
        out, err = (_read(stream.fileno()) if stream else b"" for stream in (process.stdout, process.stderr))
        if status is not None and (len(out) == PART_BYTES or len(err) == PART_BYTES):
            status = None  # there may be more
        if status is not None:
            for stream in (process.stdin, process.stdout, process.stderr):
                if stream is not None:
                    stream.close()
            del _commands[pid]
        news[pid] = out, err, status
    return news


def _read(descriptor: int) -> bytes:
    data = bytearray()
    try:
        while len(data) < PART_BYTES:
            part = os.read(descriptor, PART_BYTES - len(data))
            if not part:
                break
            data += part
    except BlockingIOError:
        pass
    return bytes(data)


def _write(pid: int, data: bytes) -> int:
    """Write to the input of a command, and return the number of bytes for which there was room."""
    stream = _process(pid).stdin
    if stream is None or stream.closed:
        raise ValueError("the command has no open standard input: start it with stdin")
    try:
        return os.write(stream.fileno(), data)
    except BlockingIOError:
        return 0
    except BrokenPipeError:
        return len(data)  # it reads no more


def _close_input(pid: int) -> None:
    stream = _process(pid).stdin
    if stream is not None:
        stream.close()


def _signal(pid: int, number: int) -> None:
    os.killpg(_process(pid).pid, signal.Signals(number))


def _process(pid: int) -> subprocess.Popen[bytes]:
    if pid not in _commands:
        raise ProcessLookupError(f"no command {pid} runs")
    return _commands[pid]


# -- files --------------------------------------------------------------------------------------------
def _entry(path: str) -> dict[str, object]:
    place = os.path.abspath(path)  # noqa: PTH100 - links are kept
    info = os.lstat(place)
    kind = "file" if stat.S_ISREG(info.st_mode) else "folder" if stat.S_ISDIR(info.st_mode) else "other"
    return {
        "name": os.path.basename(place) or "/",  # noqa: PTH119 - a text, no file
        "path": place,
        "kind": "link" if stat.S_ISLNK(info.st_mode) else kind,
        "size": info.st_size,
        "mode": stat.S_IMODE(info.st_mode),
        "modified_ns": max(0, info.st_mtime_ns),
        "target": os.readlink(place) if stat.S_ISLNK(info.st_mode) else "",  # noqa: PTH115 - the same
    }


def _list(path: str, depth: int) -> list[dict[str, object]]:
    top = os.path.abspath(path)  # noqa: PTH100 - links are kept
    rows: list[dict[str, object]] = []
    folders = [(top, 1)]
    while folders:
        folder, level = folders.pop()
        for name in sorted(os.listdir(folder)):  # noqa: PTH208 - names
            if len(rows) >= ENTRIES_MAX:
                raise ValueError(f"there are more than {ENTRIES_MAX} files: list a part of them")
            row = _entry(f"{folder.rstrip('/')}/{name}")
            rows.append(row)
            if row["kind"] == "folder" and level < depth:
                folders.append((str(row["path"]), level + 1))
    return rows


def _read_part(path: str, begin: int) -> bytes:
    with open(path, "rb", opener=opened_file) as file:
        file.seek(begin)
        return file.read(FILE_PART_BYTES)


def _make_folder(path: str) -> dict[str, object]:
    Path(path).mkdir(parents=True)
    return _entry(path)


def _make_parents(path: str) -> None:
    Path(path).absolute().parent.mkdir(parents=True, exist_ok=True)


def _move(source: str, target: str) -> dict[str, object]:
    _make_parents(target)
    os.rename(source, target)  # noqa: PTH104 - texts
    return _entry(target)


# -- the session --------------------------------------------------------------------------------------
def _set_variables(variables: Mapping[str, str | None]) -> dict[str, str | None]:
    """Set variables of the environment, without those that are None; return their former values."""
    former = {name: os.environ.get(name) for name in variables}
    for name, value in variables.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
    return former


def _enter_folder(path: str) -> str:
    if path:
        os.chdir(path)
    return os.getcwd()  # noqa: PTH109 - a text


def _last_value_json() -> str:
    """Return the last value of a cell as JSON if it is a list or a dictionary, otherwise an empty text."""
    value = sys.modules["__main__"].__dict__.get("_")
    if type(value) not in {list, dict}:
        return ""
    try:
        text = json.dumps(value, allow_nan=False)
    except (TypeError, ValueError, RecursionError):
        return ""
    return text if len(text) <= JSON_CHARS_MAX else ""


OPERATIONS: Final[Mapping[str, Callable[..., object]]] = {  # type: ignore[explicit-any] # of any arguments
    "start": _start,
    "poll": _poll,
    "write": _write,
    "close_input": _close_input,
    "signal": _signal,
    "entry": _entry,
    "list": _list,
    "read_part": _read_part,
    "make_folder": _make_folder,
    "make_parents": _make_parents,
    "move": _move,
    "set_variables": _set_variables,
    "enter_folder": _enter_folder,
    "last_value_json": _last_value_json,
}
"""What the server asks for, by name."""
