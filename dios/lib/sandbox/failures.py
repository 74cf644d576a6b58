"""Describes exceptions in a session: the type, the message, and a traceback with the lines of the cells."""

from __future__ import annotations

import errno
import os
import traceback
from collections.abc import Iterator
from types import TracebackType
from typing import Final

from dios.client.task_files import IN_IMAGE, INPUTS
from dios.lib.sandbox.bounds import MESSAGE_CHARS_MAX, TRACEBACK_CHARS_MAX, TYPE_CHARS_MAX
from dios.lib.sandbox.errors import NotGrantedError
from dios.lib.sandbox.protocol import FailureRecord

CELL: Final = "<cell "
"""The file names of cells begin with this, their number follows."""

REFUSED: Final = "DIOS-Refused"
"""The header of an HTTP answer that the sandbox gives in place of a server."""

_CHAIN_MAX: Final = 10
_REFUSED: Final = frozenset({errno.EPERM, errno.EACCES, errno.EROFS, errno.ENOSYS})
_LIMITS: Final = {errno.EMFILE: "descriptors", errno.ENOSPC: "folder", errno.ENOMEM: "memory"}
_NO_THREAD: Final = "can't start new thread"
_HERE: Final = ("/dios/lib/sandbox/", "/dios/transport/")
_PROCESS_FILES: Final = ("/subprocess.py", "/multiprocessing/popen_fork.py", "/multiprocessing/util.py")
_NETWORK_FILE: Final = "/socket.py"

_name_of: Final = type.__dict__["__qualname__"].__get__
"""Reads the name of a class past properties of its metaclass."""


def described(error: BaseException) -> FailureRecord:
    """Return an exception as a record. It calls code of the exception, which may raise anything."""
    kind = clean(str(_name_of(type(error))), TYPE_CHARS_MAX)
    refused = _refusal(error)
    trim(error)
    text = clean("".join(traceback.format_exception(error)), TRACEBACK_CHARS_MAX)
    return FailureRecord(kind, clean(str(error), MESSAGE_CHARS_MAX), text, refused)


def undescribed(error: BaseException) -> FailureRecord:
    """Return a record of an exception whose own code failed while it was described."""
    kind = clean(str(_name_of(type(error))), TYPE_CHARS_MAX)
    message = "(the exception cannot be shown: its own code raised)"
    return FailureRecord(kind, message, f"{kind}: {message}\n")


def trim(error: BaseException) -> None:
    """Drop the frames of the sandbox itself above the first and below the last frame of the code.

    An exception that no cell raised, such as one for a name that does not exist, has no frames.
    """
    first = error.__traceback__
    while first is not None and _is_ours(first):
        first = first.tb_next
    is_of_a_cell, last, trace = False, first, first
    while trace is not None:
        if not _is_ours(trace):
            last = trace
        is_of_a_cell |= trace.tb_frame.f_code.co_filename.startswith(CELL)
        trace = trace.tb_next
    if last is not None:
        last.tb_next = None
    error.__traceback__ = first if is_of_a_cell else None


def _is_ours(trace: TracebackType) -> bool:
    file = trace.tb_frame.f_code.co_filename
    return any(place in file for place in _HERE)


def clean(text: str, chars_max: int) -> str:
    """Return text that can be encoded, cut in the middle if it is too long."""
    text = text.encode(errors="backslashreplace").decode() if not text.isascii() else text
    if len(text) <= chars_max:
        return text
    notice = f"\n… ({len(text):,} characters, the middle is cut) …\n"
    if chars_max < 2 * len(notice):
        return text[:chars_max]
    half = (chars_max - len(notice)) // 2
    return text[:half] + notice + text[-half:]


def _refusal(error: BaseException) -> str:
    """Return the key of what the sandbox refused; empty if it refused nothing, as far as one can see."""
    for cause in _chain(error):
        refusal = _refusal_of(cause)
        if refusal:
            return refusal
    return ""


def _chain(error: BaseException) -> Iterator[BaseException]:
    """Yield an exception and those that it was raised for, the first of all last."""
    for _ in range(_CHAIN_MAX):
        yield error
        further = error.__cause__ or error.__context__ or getattr(error, "reason", None)
        if not isinstance(further, BaseException):
            return
        error = further


def _answered_refusal(error: OSError) -> bool:
    """Return True for an error of urllib about an answer of the sandbox in place of the server's."""
    get = getattr(getattr(error, "headers", None), "get", None)
    return callable(get) and get(REFUSED) == "refused"


def _refusal_of(error: BaseException) -> str:
    if isinstance(error, MemoryError):
        return "memory"
    if isinstance(error, ModuleNotFoundError):
        return "module"
    if isinstance(error, RuntimeError) and _NO_THREAD in str(error):
        return "threads"
    if not isinstance(error, OSError):
        return ""
    if error.errno in _LIMITS:
        return _LIMITS[error.errno]
    if isinstance(error, NotGrantedError) or _answered_refusal(error):
        return "origin"
    if IN_IMAGE:
        return ""  # an image has programs and files of its own, and its errors are ordinary ones
    files = [frame.f_code.co_filename for frame, _ in traceback.walk_tb(error.__traceback__)]
    if any(file.endswith(_NETWORK_FILE) for file in files):
        return "network"
    if any(file.endswith(_PROCESS_FILES) for file in files):
        return "process"
    if isinstance(error, FileNotFoundError):
        # Polars names the file in the text alone.
        return "input" if INPUTS in str(error) else "file"
    if error.errno == errno.EACCES and error.filename is not None and os.path.isdir(error.filename):  # noqa: PTH112 - it may be bytes
        return "file"  # directories on the way to the packages are there, and cannot be listed
    if error.errno in _REFUSED:
        return "write" if error.filename is not None else "call"
    return ""
