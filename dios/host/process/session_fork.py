"""The part of a fork that runs in the session itself: forking, and giving up everything of the origin.

Nothing here is trusted. ``dios.host.process.session_families`` permits the fork, and looks at it before it
gets a socket of its own.
"""

from __future__ import annotations

import os
import signal
import stat
from collections.abc import Collection, Iterator
from typing import Final

from dios.host.confinement import linux_calls, policy, private_folder

INTERRUPTS_THREAD: Final = "dios-interrupts"
"""The thread of a session that waits for interrupts; a fork starts its own."""

HARMLESS_THREADS: Final = (INTERRUPTS_THREAD, "jemalloc_bg_thd", "polars-ooc-clea")
"""Threads that a session may have when it is forked: each waits without a lock, and a fork does without it.

jemalloc's gives memory back later. That of Polars removes files of other processes."""

_SET_NAME: Final = 15
_FIRST_OWN: Final = 3
_COPY_BYTES: Final = 1 << 20


def begin_interrupts_thread() -> None:
    """Make the calling thread the one that waits for interrupts: with its name, and without signals.

    It must sleep while the session is forked: a thread that a signal wakes asks the first thread for the
    interpreter's lock, and a fork would wait for ever for a thread that it does not have. Raise ``OSError``.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    name_thread(INTERRUPTS_THREAD)


def name_thread(name: str) -> None:
    """Give the calling thread a name that the kernel shows. Raise ``OSError``."""
    text = linux_calls.hold(name.encode() + b"\0")
    linux_calls.prctl(_SET_NAME, linux_calls.address_of(text))


def open_descriptors(known: Collection[int], highest: int) -> list[int]:
    """Return the open descriptors up to ``highest``, except for the first three and those in ``known``."""
    return [number for number in linux_calls.open_descriptors(_FIRST_OWN, highest) if number not in known]


def kind_of(descriptor: int) -> str:
    """Return a word for what a descriptor is."""
    mode = os.fstat(descriptor).st_mode
    for is_kind, word in (
        (stat.S_ISREG, "file"),
        (stat.S_ISDIR, "directory"),
        (stat.S_ISSOCK, "socket"),
        (stat.S_ISFIFO, "pipe"),
        (stat.S_ISCHR, "device"),
    ):
        if is_kind(mode):
            return word
    return "event"


def fork() -> int:
    """Fork the calling session. Return 0 in the fork, and another number in the session.

    In the fork, close everything that its origin has open, and then call ``become_task``. Signals wait
    meanwhile: the kernel would give up the call for each, such as for those of a fast timer. Raise
    ``OSError``: with ECANCELED, EAGAIN or EBUSY if the supervisor refuses.
    """
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    try:
        return linux_calls.clone_sibling(policy.CLONE_OF_FORKS, linux_calls.tid_address())
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def become_task() -> None:
    """Make a task of the calling fork: with a copy of the private folder, and descriptors of its own.

    Raise ``OSError``.
    """
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
    folder = os.open(private_folder.MOUNT_POINT, flags)
    linux_calls.close_range(0, folder - 1)
    linux_calls.close_range(folder + 1, 0xFFFF_FFFF)
    # The first report: the supervisor mounts an empty folder.
    os.setsid()
    _copy(folder, private_folder.NEXT)
    os.chdir(private_folder.NEXT + private_folder.TEMPORARY.removeprefix(private_folder.MOUNT_POINT))
    os.close(folder)
    # The second report: now nothing of the origin is left. When it returns, the folder is where that of the
    # origin was, and the descriptors are here.
    os.setsid()


def _copy(folder: int, target: str) -> None:
    """Copy files and directories, with their modes and times, and holes in files as holes."""
    with os.scandir(folder) as entries:
        files = [(entry.name, entry.stat(follow_symlinks=False)) for entry in entries]
    for name, info in files:
        path = f"{target}/{name}"
        if stat.S_ISDIR(info.st_mode):
            os.mkdir(path, 0o700)  # noqa: PTH102 - as short as the calls around it
            inner = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=folder)
            try:
                _copy(inner, path)
            finally:
                os.close(inner)
        elif stat.S_ISREG(info.st_mode):
            _copy_file(folder, name, path, info.st_size)
        else:
            continue
        os.chmod(path, stat.S_IMODE(info.st_mode) & 0o777)  # noqa: PTH101 - the same
        os.utime(path, ns=(info.st_atime_ns, info.st_mtime_ns))


def _copy_file(folder: int, name: str, path: str, size: int) -> None:
    source = os.open(name, os.O_RDONLY | os.O_CLOEXEC, dir_fd=folder)
    try:
        target = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            os.ftruncate(target, size)
            for start, end in _data(source, size):
                os.lseek(source, start, os.SEEK_SET)
                os.lseek(target, start, os.SEEK_SET)
                left = end - start
                while left > 0 and (part := os.read(source, min(_COPY_BYTES, left))):
                    left -= _written(target, part)
        finally:
            os.close(target)
    finally:
        os.close(source)


def _written(target: int, part: bytes) -> int:
    done = 0
    while done < len(part):
        done += os.write(target, part[done:])
    return done


def _data(source: int, size: int) -> Iterator[tuple[int, int]]:
    """Yield the ranges of a file that are no holes."""
    at = 0
    while at < size:
        try:
            start = os.lseek(source, at, os.SEEK_DATA)
        except OSError:
            return  # only a hole is left
        at = os.lseek(source, start, os.SEEK_HOLE)
        yield start, at
