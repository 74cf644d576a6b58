"""Namespaces that act as machines: each has its own network, mount table and host name.

They allow measuring network functions without touching the network of this machine. One process holds each
set of namespaces and ends when its standard input is closed. So the namespaces end with the process that
created them, however it ends, and leave no file in /run, no mount and no link.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar, Final

from dios.errors import Code, DiosError

READY_SECONDS: Final = 10.0
_HOLD: Final = "echo held; exec cat"
_CLONE_NEWNET: Final = 0x40000000
_PACKAGES: Final = {"ip": "iproute2", "unshare": "util-linux", "nsenter": "util-linux", "iperf3": "iperf3"}


class NotHereError(DiosError):
    """This machine does not allow an operation; the message has the system's reason."""

    # Not a NotSupportedError, whose advice is to ask a node.
    code: ClassVar[Code] = Code.ENOSYS


def run(command: list[str], *, typed: str = "") -> str:
    """Run a short command and return its output; raise NotHereError with its error message if it fails."""
    try:
        done = subprocess.run(command, input=typed, capture_output=True, text=True, check=False)
    except OSError as error:
        raise not_started(command[0], error) from None
    if done.returncode:
        raise NotHereError(f"{' '.join(command[:8])}: {done.stderr.strip() or done.stdout.strip()}")
    return done.stdout


def not_started(program: str, error: OSError) -> NotHereError:
    """Return the error for a program that could not be started."""
    package = _PACKAGES.get(program)
    advice = f" (on Debian or Ubuntu: apt install {package})" if package else ""
    return NotHereError(f"{program}: {error.strerror} (errno {error.errno}){advice}")


class MachineNamespaces:
    """The namespaces of one machine; they end with ``close``, or with the process that created them."""

    def __init__(self, name: str) -> None:
        self.name: Final = name
        command = ["unshare", "--net", "--mount", "--uts", "--propagation", "private", "sh", "-c", _HOLD]
        try:
            self._holder: Final = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
            )
        except OSError as error:
            raise not_started(command[0], error) from None
        if self._holder.stdout is None or self._holder.stdout.readline() != b"held\n":
            said = self._holder.stderr.read() if self._holder.stderr is not None else b""
            self.close()
            reason = said.decode(errors="replace").strip()
            raise NotHereError(f"cannot create namespaces: {reason}; run this as root")
        try:
            run(self.inside("hostname", name))
            run(self.inside("ip", "link", "set", "lo", "up"))
        except NotHereError:
            self.close()
            raise

    @property
    def pid(self) -> int:
        """The process that holds the namespaces."""
        return self._holder.pid

    @property
    def root(self) -> Path:
        """The machine's file system, seen from outside."""
        return Path(f"/proc/{self.pid}/root")

    def inside(self, *command: str) -> list[str]:
        """Return the command that runs ``command`` in the namespaces, in the same process."""
        enter = ["nsenter", f"--target={self.pid}", "--net", "--mount", "--uts", "--wd=.", "--"]
        return [*enter, *command]

    @contextlib.contextmanager
    def entered(self) -> Iterator[None]:
        """Move this thread into the machine's network; sockets that it opens belong to that network.

        Use it in the main thread only: some of the system's files show the network of that thread.
        """
        before = os.open("/proc/self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        try:
            there = os.open(f"/proc/{self.pid}/ns/net", os.O_RDONLY | os.O_CLOEXEC)
            try:
                _enter(there)
            finally:
                os.close(there)
            try:
                yield
            finally:
                _enter(before)
        finally:
            os.close(before)

    def batch(self, lines: list[str]) -> None:
        """Run lines of ``ip`` in the namespaces."""
        if lines:
            run(self.inside("ip", "-batch", "-"), typed="\n".join(lines) + "\n")

    def mount_memory(self, folder: Path, size: int) -> None:
        """Mount a file system of ``size`` bytes in memory on ``folder``, visible to this machine only."""
        run(self.inside("mount", "-t", "tmpfs", "-o", f"size={size},mode=0700", "tmpfs", str(folder)))

    def close(self) -> None:
        """Release the namespaces; they end as soon as no process is in them."""
        for stream in (self._holder.stdin, self._holder.stdout, self._holder.stderr):
            if stream is not None:
                stream.close()
        self._holder.wait(READY_SECONDS)


def _enter(namespace: int) -> None:
    # os.setns is only in Python 3.12 and later.
    library = ctypes.CDLL(None, use_errno=True)
    if library.setns(namespace, _CLONE_NEWNET):
        reason = os.strerror(ctypes.get_errno())
        raise NotHereError(f"cannot enter a namespace: {reason}; run this as root")


def killed_with_parent(command: list[str]) -> list[str]:
    """Return a command that the kernel kills when the thread that started it ends."""
    return ["setpriv", "--pdeathsig", "KILL", "--", *command]
