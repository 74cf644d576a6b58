"""Forks the process of a session, and enters the task of the fork.

``dios.host.process.session_fork`` makes the system calls; the supervisor decides about them.
"""

from __future__ import annotations

import contextlib
import errno
import gc
import io
import mmap
import os
import resource
import signal
from collections.abc import Collection, Iterator, Mapping
from typing import TYPE_CHECKING, Final, NamedTuple, cast

from dios.client.blob_file import BlobFile
from dios.client.sync.node import Node
from dios.client.task_main import enter_as_fork, leave_origin
from dios.host.process import session_fork

if TYPE_CHECKING:
    from dios.client.sync.connection import Connection

THREADS: Final = "it has threads"
"""The reason of a fork that the supervisor refuses for them; the end of the fork's task has their names."""

_DESCRIPTORS_AT_START_MAX: Final = 256
_NAMES_MAX: Final = 5
_BASES_MAX: Final = 8
"""The number of objects from a view of memory to the memory, such as slices of slices of an array."""
_LIKE_NOBODY: Final = frozenset({errno.EPERM, errno.ENOSYS, errno.EINVAL})


class OpenFile(NamedTuple):
    """A descriptor and the file behind it: numbers are used again."""

    descriptor: int
    device: int
    inode: int


class NotForkableError(Exception):
    """The session cannot be forked now; the text is the reason."""


def descriptors() -> set[OpenFile]:
    """Return what is open in a session that has run no code yet, so that it is little."""
    most = min(_DESCRIPTORS_AT_START_MAX, resource.getrlimit(resource.RLIMIT_NOFILE)[0])
    return set(_opened(most))


def begin_interrupts_thread() -> None:
    """Let the supervisor know the calling thread as the one that waits for interrupts; it gets no signals."""
    with contextlib.suppress(OSError):
        session_fork.begin_interrupts_thread()


def interrupt(thread: int) -> None:
    """Send SIGINT to a thread, or to this process if that is not permitted: see ``policy``."""
    try:
        signal.pthread_kill(thread, signal.SIGINT)
    except PermissionError:
        os.kill(0, signal.SIGINT)


def fork(node: Node, own: Collection[OpenFile], variables: Mapping[str, object]) -> bool:
    """Fork, and return True in the fork, which has left its origin then, and False in the origin.

    ``own`` is what the session itself has open, ``variables`` are those of its code. Raise NotForkableError.
    """
    _require_closed(node, own, variables)
    try:
        is_fork = session_fork.fork() == 0
    except OSError as error:
        known = {
            errno.EBUSY: THREADS,
            errno.EAGAIN: "no order for a fork came, or its limit of processes is reached",
            errno.ECANCELED: "the fork was cancelled",
            errno.ENOMEM: "no memory is left",
            **dict.fromkeys(_LIKE_NOBODY, "it was not started with forkable=True"),
        }
        raise NotForkableError(known.get(error.errno or 0, str(error))) from None
    if is_fork:
        try:
            leave_origin(node)
            session_fork.become_task()
        except BaseException as error:  # noqa: BLE001 - the stack and the streams are those of the origin
            _exit_with(error)
    return is_fork


def enter() -> Node:
    """Return the node of the fork, in whose task this process is now."""
    return enter_as_fork()


def _exit_with(error: BaseException) -> None:
    os._exit(error.errno or 1 if isinstance(error, OSError) else 1)


def _require_closed(node: Node, own: Collection[OpenFile], variables: Mapping[str, object]) -> None:
    """Raise NotForkableError if code of the session has open descriptors: they would be shared."""
    # The client keeps inputs mapped that were read, for further reads; these are calls again.
    page = cast("Connection", node.link).page
    if page is not None:
        page.drop_kept()
    if not _others(own):
        return
    gc.collect()
    numbers = _others(own)
    if not numbers:
        return
    kinds = {number: session_fork.kind_of(number) for number in numbers}
    for candidate in gc.get_objects():
        with contextlib.suppress(Exception):
            if type(candidate) is io.FileIO and not candidate.closed and candidate.fileno() in kinds:
                kinds[candidate.fileno()] = f"file {candidate.name!r}"
    names = ", ".join(list(kinds.values())[:_NAMES_MAX])
    raise NotForkableError(
        f"it has open descriptors ({names}), which it would share with a fork: close them"
        + _advice([name for name, value in list(variables.items()) if _is_mapped(value)])
    )


def _advice(views: list[str]) -> str:
    """Return how to release mapped inputs, of which these variables are views."""
    if not views:
        return ", and delete what was read from an input without a copy"
    names = ", ".join(views[:_NAMES_MAX])
    last = "; _ is the value of the last expression" if "_" in views else ""
    return f", and delete the variables that use an input without a copy ({names}){last}"


def _is_mapped(value: object) -> bool:
    """Return True for an open file of an input, and for views and arrays over mapped memory."""
    for _ in range(_BASES_MAX):
        if isinstance(value, mmap.mmap):
            return True
        try:
            if isinstance(value, BlobFile):
                value = value.getbuffer()
            elif isinstance(value, memoryview):
                value = value.obj
            else:
                value = vars(type(value))["base"].__get__(value)
        except Exception:  # noqa: BLE001 - whatever the code of the session made
            return False
    return False


def _others(own: Collection[OpenFile]) -> list[int]:
    highest = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return [file.descriptor for file in _opened(highest) if file not in own]


def _opened(highest: int) -> Iterator[OpenFile]:
    for number in session_fork.open_descriptors((), highest):
        with contextlib.suppress(OSError):
            status = os.fstat(number)
            yield OpenFile(number, status.st_dev, status.st_ino)
