"""The entry point of the tests of forked sessions: attempts of ``hostile_entry``, and forks that cheat."""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
import shutil
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import hostile_entry
from hostile_entry import outcome, raw

from dios.host.confinement import policy, private_folder
from dios.host.process import session_fork

TAIL = private_folder.TEMPORARY.removeprefix(private_folder.MOUNT_POINT)


def main() -> int:
    """Serve attempts until the other end closes; ``fork_session`` and a way to cheat forks this process."""
    channel = socket.socket(fileno=3)
    while True:
        data = channel.recv(4096)
        if not data:
            return 0
        name, _, argument = data.decode().partition(" ")
        if name != "fork_session":
            channel.send(outcome(name, argument).encode())
            continue
        with (CHEATS.get(argument) or contextlib.nullcontext)() as prepared:
            try:
                number = session_fork.fork()
            except OSError as error:
                channel.send(f"refused:{error.errno}".encode())
                continue
            if number:
                channel.send(b"did:fork")
                continue
            channel.close()
            become(argument, prepared)
            channel = socket.socket(fileno=3)


def become(cheat: str, prepared: int | None) -> None:
    """Become a task like an honest fork does, except for one thing."""
    if cheat == "none":
        session_fork.become_task()
        return
    if cheat == "silence":
        time.sleep(3600)
    low = os.open(private_folder.MOUNT_POINT, os.O_RDONLY | os.O_DIRECTORY)
    folder = fcntl.fcntl(low, fcntl.F_DUPFD, 100)
    for number in range(3000):
        if number not in {folder, prepared}:
            with contextlib.suppress(OSError):
                os.close(number)
    if cheat == "report once":
        raw("setsid")
        time.sleep(3600)
    raw("setsid")
    Path(private_folder.NEXT + TAIL).mkdir()
    if cheat != "folder":
        os.chdir(private_folder.NEXT + TAIL)
    if cheat != "directory":
        os.close(folder)
    if cheat == "thread":
        threading.Thread(target=time.sleep, args=(3600,)).start()
    raw("setsid")


@contextlib.contextmanager
def _descriptor() -> Iterator[int]:
    read_end, write_end = os.pipe()
    yield write_end
    os.close(read_end)
    os.close(write_end)


@contextlib.contextmanager
def _mapped(flags: int) -> Iterator[None]:
    with Path("shared").open("w+b") as file:
        file.write(bytes(4096))
        file.flush()
        memory = mmap.mmap(file.fileno(), 4096, flags)
    yield
    memory.close()


@contextlib.contextmanager
def _threads() -> Iterator[None]:
    end = threading.Event()
    thread = threading.Thread(target=end.wait)
    thread.start()
    yield
    end.set()
    thread.join()


CHEATS: dict[str, Callable[[], contextlib.AbstractContextManager[int | None]]] = {
    "descriptor": _descriptor,
    "memory": lambda: _mapped(mmap.MAP_SHARED),
    "private memory": lambda: _mapped(mmap.MAP_PRIVATE),
    "threads of the session": _threads,
}


def _report(_: str) -> object:
    return raw("setsid")


def _interrupt_group(_: str) -> object:
    """Interrupt the own process group, in which there is nobody else."""
    seen: list[int] = []
    before = signal.signal(signal.SIGUSR1, lambda number, _: seen.append(number))
    os.kill(0, signal.SIGUSR1)
    signal.signal(signal.SIGUSR1, before)
    return len(seen)


def _namespaces_of_forks(flags: str) -> object:
    """Make a process as a fork is made, and with more."""
    return raw("clone", policy.FORK_WORD | int(flags), 0, 0, 0, 0)


def _ask_in_a_thread(_: str) -> object:
    """Ask for a process in another thread than the first, which would be the fork's only one."""
    answers: list[str] = []
    asking = threading.Thread(
        target=lambda: answers.append(outcome("clone_as_forks", "")),
    )
    asking.start()
    asking.join()
    return answers[0]


def _clone_as_forks(_: str) -> object:
    return raw("clone", policy.FORK_WORD, 0, 0, 0, 0)


def _make_folder(kind: str) -> object:
    """Make something in the private folder that is hard to copy."""
    Path("made").mkdir()
    os.chdir("made")
    if kind == "deep":
        for _ in range(1_500):
            Path("d").mkdir()
            os.chdir("d")
    elif kind == "wide":
        for number in range(900):
            Path(f"{number}\n\x1b[31m").touch()
    elif kind == "sparse":
        with Path("file").open("wb") as file:
            file.truncate(90 << 20)
    elif kind == "closed":
        Path("file").touch()
        Path("file").chmod(0)
    elif kind == "removed":
        Path("../made").rmdir()
    return kind


def _remove_folder(_: str) -> object:
    """Remove it without a recursion."""
    with contextlib.suppress(OSError):  # it may stand in a removed folder
        while Path.cwd().name == "d":
            os.chdir("..")
            Path("d").rmdir()
    os.chdir(private_folder.TEMPORARY)
    shutil.rmtree("made", ignore_errors=True)
    return "removed"


for _attempt in (
    *(_report, _interrupt_group, _namespaces_of_forks, _ask_in_a_thread, _clone_as_forks),
    *(_make_folder, _remove_folder),
):
    setattr(hostile_entry, _attempt.__name__, _attempt)
