"""The processes of a supervisor as the kernel shows them: children, threads, mappings and descriptors."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator
from typing import Final

from dios.host.confinement import linux_calls, private_folder


class ProcessTable:
    """The machine's table of processes, and the own mounts; opened before the supervisor enters the view.

    ``memory_is_counted`` is True if a control group limits the memory of tasks.
    """

    def __init__(self, *, memory_is_counted: bool) -> None:
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
        self._processes: Final = os.open("/proc", flags)
        self._mounts = -1
        self.memory_is_counted: Final = memory_is_counted
        memory = os.memfd_create("device", os.MFD_CLOEXEC)
        self._memory_files: Final = _word(os.fstat(memory).st_dev)
        os.close(memory)

    def note_mounts(self) -> None:
        """Remember the own mount namespace. Raise ``OSError``."""
        self._mounts = os.open("self/ns/mnt", os.O_RDONLY | os.O_CLOEXEC, dir_fd=self._processes)

    def mount_for(self, pidfd: int, folder: int, path: str = private_folder.MOUNT_POINT) -> None:
        """Mount a private folder in the mount namespace of a child. Raise ``OSError``."""
        with self._among_mounts_of(pidfd):
            private_folder.place(folder, path)

    def replace_folder_of(self, pidfd: int) -> None:
        """Take the folder of its origin from a fork, and give it its own instead. Raise ``OSError``."""
        with self._among_mounts_of(pidfd):
            private_folder.replace()

    @contextlib.contextmanager
    def _among_mounts_of(self, pidfd: int) -> Iterator[None]:
        linux_calls.syscall("setns", pidfd, linux_calls.CLONE_NEWNS)
        try:
            yield
        finally:
            linux_calls.syscall("setns", self._mounts, linux_calls.CLONE_NEWNS)

    def children(self) -> list[int]:
        """Return the ids of the own child processes. Raise ``OSError``."""
        return [int(word) for word in self._read(f"{os.getpid()}/task/{os.getpid()}/children").split()]

    @staticmethod
    def is_child(pid: int) -> bool:
        """Return True for a running child of this process."""
        try:
            return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None
        except OSError:
            return False

    def threads(self, pid: int) -> list[str]:
        """Return the names of the threads of a process, except for its first. Raise ``OSError``."""
        others = [name for name in self._list(f"{pid}/task") if name != str(pid)]
        return [self._read(f"{pid}/task/{name}/comm").rstrip("\n") for name in others]

    def user_namespace(self, pid: int) -> int:
        """Return a number that the processes of one user namespace have in common. Raise ``OSError``."""
        return os.stat(f"{pid}/ns/user", dir_fd=self._processes).st_ino

    def working_device(self, pid: int) -> int:
        """Return the device of the working directory of a process. Raise ``OSError``."""
        return os.stat(f"{pid}/cwd", dir_fd=self._processes).st_dev

    def descriptors(self, pid: int) -> set[int]:
        """Return the numbers of the open descriptors of a process. Raise ``OSError``."""
        return {int(name) for name in self._list(f"{pid}/fd")}

    def shared_memory(self, pid: int) -> list[str]:
        """Return the names of the mappings that a process and its forks can write for each other."""
        return [_name(row) for row in self._mappings(pid) if row[1][1] == "w" and row[1][3] == "s"]

    def inherited_mappings(self, pid: int, device: int) -> list[str]:
        """Return the names of mappings through which a process could learn what another one writes.

        These are mappings of files on ``device``, and shared ones, except for files that are open for reading
        alone and that no task can write: files of the view, and of the store. Raise ``OSError``.
        """
        hidden = {_word(device), self._memory_files}
        names = []
        for row in self._mappings(pid):
            is_shared = row[1][3] == "s"
            if row[3] in hidden and (is_shared or row[3] == _word(device)):
                names.append(_name(row))
            elif is_shared:
                mode = os.stat(
                    f"{pid}/map_files/{row[0]}", dir_fd=self._processes, follow_symlinks=False
                ).st_mode
                if row[1][1] == "w" or mode & stat.S_IWUSR:
                    names.append(_name(row))
        return names

    def _mappings(self, pid: int) -> list[list[str]]:
        rows = [line.split(maxsplit=5) for line in self._read(f"{pid}/maps").splitlines()]
        return [row for row in rows if len(row) > 4]

    def _list(self, path: str) -> list[str]:
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
        folder = os.open(path, flags, dir_fd=self._processes)
        try:
            return os.listdir(folder)  # noqa: PTH208 - no pathlib in the zygote
        finally:
            os.close(folder)

    def _read(self, path: str) -> str:
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_CLOEXEC, dir_fd=self._processes), "rb") as file:
            return file.read().decode(errors="backslashreplace")


def _word(device: int) -> str:
    return f"{os.major(device):02x}:{os.minor(device):02x}"


def _name(row: list[str]) -> str:
    return row[5] if len(row) > 5 else "no file"
