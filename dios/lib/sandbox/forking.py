"""Forks the process of a session, and enters the task of the fork.

``dios.host.process.session_fork`` makes the system calls; the supervisor decides about them.
"""

from __future__ import annotations

import contextlib
import errno
import gc
import io
import os
import resource
import signal
from collections.abc import Collection
from typing import Final

from dios.client.sync.node import Node
from dios.client.task_main import enter_as_fork, leave_origin
from dios.host.process import session_fork

THREADS: Final = "it has threads"
"""The reason of a fork that the supervisor refuses for them; the end of the fork's task has their names."""

_DESCRIPTORS_AT_START_MAX: Final = 256
_NAMES_MAX: Final = 5
_LIKE_NOBODY: Final = frozenset({errno.EPERM, errno.ENOSYS, errno.EINVAL})


class NotForkableError(Exception):
    """The session cannot be forked now; the text is the reason."""


def descriptors() -> set[int]:
    """Return the open descriptors of a session that has run no code yet, so that it has few."""
    most = min(_DESCRIPTORS_AT_START_MAX, resource.getrlimit(resource.RLIMIT_NOFILE)[0])
    return set(session_fork.open_descriptors((), most))


def name_listener() -> None:
    """Let the supervisor know the calling thread as the one that waits for interrupts."""
    with contextlib.suppress(OSError):
        session_fork.name_thread(session_fork.INTERRUPTS_THREAD)


def interrupt(thread: int) -> None:
    """Send SIGINT to a thread, or to this process if that is not permitted: see ``policy``."""
    try:
        signal.pthread_kill(thread, signal.SIGINT)
    except PermissionError:
        os.kill(0, signal.SIGINT)


def fork(node: Node, own: Collection[int]) -> bool:
    """Fork, and return True in the fork, which has left its origin then, and False in the origin.

    ``own`` are the descriptors of the session itself. Raise NotForkableError.
    """
    _require_closed(own)
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


def _require_closed(own: Collection[int]) -> None:
    """Raise NotForkableError if code of the session has open descriptors: they would be shared."""
    if not _others(own):
        return
    gc.collect()
    found = _others(own)
    if not found:
        return
    kinds = {number: session_fork.kind_of(number) for number in found}
    for each in gc.get_objects():
        with contextlib.suppress(Exception):
            if type(each) is io.FileIO and not each.closed and each.fileno() in kinds:
                kinds[each.fileno()] = f"file {each.name!r}"
    names = ", ".join(list(kinds.values())[:_NAMES_MAX])
    raise NotForkableError(
        f"it has open descriptors ({names}), which it would share with a fork: close them, and delete what "
        "was read from an input without a copy"
    )


def _others(own: Collection[int]) -> list[int]:
    return session_fork.open_descriptors(own, resource.getrlimit(resource.RLIMIT_NOFILE)[0])
