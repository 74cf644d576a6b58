"""Private places of the demo: everything that arrives there was sent by the evil job.

They are evidence from outside, independent of what the job reports.
"""

from __future__ import annotations

import json
import os
import secrets
import select
import socket
import subprocess
import sys
from contextlib import ExitStack, suppress
from pathlib import Path
from types import TracebackType
from typing import Final, Self

SECONDS_MAX: Final = 60
RECEIVED_BYTES: Final = 4096
JOB: Final = Path(__file__).with_name("evil_words.py")


class Traps:
    """A secret file, a place to write to, and a listener for each way out of a machine."""

    def __init__(self, folder: Path, secret: bytes) -> None:
        # Everyone has access, so that only the sandbox keeps a task away.
        folder.chmod(0o755)
        self.drop: Final = folder / "dropped"
        self.secret_file: Final = folder / "mail-archive.txt"
        self.secret_file.write_bytes(secret)
        self.secret_file.chmod(0o644)
        self._stack: Final = ExitStack()
        self._listeners: Final[dict[str, socket.socket]] = {}
        abstract = f"dios-evil-{secrets.token_hex(8)}"
        unix = folder / "listener"
        self._listen("tcp", socket.AF_INET, ("127.0.0.1", 0))
        with suppress(OSError):  # a machine may have no IPv6
            self._listen("tcp6", socket.AF_INET6, ("::1", 0))
        self._listen("udp", socket.AF_INET, ("127.0.0.1", 0), socket.SOCK_DGRAM)
        self._listen("unix", socket.AF_UNIX, str(unix))
        self._listen("abstract", socket.AF_UNIX, "\0" + abstract)
        unix.chmod(0o666)
        self.loot: Final[dict[str, str | int]] = {
            "mail_file": str(self.secret_file),
            "drop": str(self.drop),
            "unix": str(unix),
            "abstract": abstract,
            "pid": os.getpid(),
            **{name: self._port(name) for name in ("tcp", "tcp6", "udp")},
        }
        """Return the addresses and paths, for the job."""

    def _listen(
        self, name: str, family: int, address: tuple[str, int] | str, kind: int = socket.SOCK_STREAM
    ) -> None:
        listener = self._stack.enter_context(socket.socket(family, kind))
        listener.bind(address)
        if kind == socket.SOCK_STREAM:
            listener.listen()
        self._listeners[name] = listener

    def _port(self, name: str) -> int:
        listener = self._listeners.get(name)
        return int(listener.getsockname()[1]) if listener is not None else 0

    def caught(self) -> list[str]:
        """Return what arrived since the last call, one word for each, and forget it."""
        trapped: list[str] = []
        while True:
            ready, _, _ = select.select(list(self._listeners.values()), [], [], 0)
            if not ready:
                break
            for name, listener in self._listeners.items():
                if listener in ready:
                    trapped.append(name)
                    self._take(listener)
        if self.drop.exists():
            trapped.append("file")
            self.drop.unlink()
        return trapped

    @staticmethod
    def _take(listener: socket.socket) -> None:
        if listener.type == socket.SOCK_DGRAM:
            listener.recv(RECEIVED_BYTES)
        else:
            listener.accept()[0].close()

    def tried_by_an_ordinary_program(self, names: list[str], store: Path) -> dict[str, str]:
        """Let an ordinary process make the attempts ``names``; return the verdict on each."""
        done = subprocess.run(
            [sys.executable, str(JOB), *names],
            input=json.dumps({**self.loot, "store": str(store)}),
            capture_output=True,
            text=True,
            timeout=SECONDS_MAX,
            check=True,
        )
        verdicts: dict[str, list[str]] = json.loads(done.stdout)
        return {name: verdict for name, (verdict, _) in verdicts.items()}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()
