"""Namespaces of the lab: a network, a mount table and a host name for each machine that it plays.

Not for: what stands in them (``lab_network``, ``lab_rig``). Each set of namespaces is held by one process
that ends when its standard input does. So they end with the lab, however that ends, and nothing is
left in /run, no mount and no link.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Final

READY_SECONDS: Final = 10.0
_HOLD: Final = "echo held; exec cat"


class NotHereError(Exception):
    """This machine does not let the lab do something; the message has the system's reason."""


def run(command: list[str], *, typed: str = "") -> str:
    """What a short command prints; NotHereError with its own words when it fails."""
    try:
        done = subprocess.run(command, input=typed, capture_output=True, text=True, check=False)
    except OSError as error:
        raise NotHereError(f"{command[0]}: {error.strerror} (errno {error.errno})") from None
    if done.returncode:
        raise NotHereError(f"{' '.join(command[:8])}: {done.stderr.strip() or done.stdout.strip()}")
    return done.stdout


class Space:
    """Namespaces of one machine. Made at once; gone with ``close``, or with the process that made them."""

    def __init__(self, name: str) -> None:
        self.name: Final = name
        command = ["unshare", "--net", "--mount", "--uts", "--propagation", "private", "sh", "-c", _HOLD]
        try:
            self._holder: Final = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
            )
        except OSError as error:
            raise NotHereError(f"unshare: {error.strerror} (errno {error.errno})") from None
        assert self._holder.stdout is not None
        assert self._holder.stderr is not None
        if self._holder.stdout.readline() != b"held\n":
            reason = self._holder.stderr.read().decode(errors="replace").strip()
            self.close()
            raise NotHereError(f"no namespaces can be made: {reason}")
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
        """The machine's files, as it sees them, from outside."""
        return Path(f"/proc/{self.pid}/root")

    def inside(self, *command: str) -> list[str]:
        """The command that runs ``command`` in the namespaces, in the same process."""
        enter = ["nsenter", f"--target={self.pid}", "--net", "--mount", "--uts", "--wd=.", "--"]
        return [*enter, *command]

    def batch(self, lines: list[str]) -> None:
        """Run lines of ``ip`` in the namespaces."""
        if lines:
            run(self.inside("ip", "-batch", "-"), typed="\n".join(lines) + "\n")

    def mount_memory(self, folder: Path, size: int) -> None:
        """A file system of ``size`` bytes in memory on ``folder``, seen by this machine only."""
        run(self.inside("mount", "-t", "tmpfs", "-o", f"size={size},mode=0700", "tmpfs", str(folder)))

    def close(self) -> None:
        """Let the namespaces go; they end as soon as no process is in them."""
        for stream in (self._holder.stdin, self._holder.stdout, self._holder.stderr):
            if stream is not None:
                stream.close()
        self._holder.wait(READY_SECONDS)


def mortal(command: list[str]) -> list[str]:
    """The same command, but the kernel kills it when the thread that started it ends."""
    return ["setpriv", "--pdeathsig", "KILL", "--", *command]


def clean_environment(home: Path) -> dict[str, str]:
    """What a machine's processes find in their environment: nothing of whoever runs the lab."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("DIOS_", "XDG_"))}
    return {
        **kept,
        "HOME": str(home),
        "XDG_RUNTIME_DIR": str(home),
        # The lab is about nodes and the ways between them; a scheduler beside each takes their time.
        "DIOS_COORDINATOR": "off",
        "PATH": f"{Path(sys.executable).parent}:{os.environ.get('PATH', '/usr/sbin:/usr/bin:/sbin:/bin')}",
    }
