"""One request to one host through the system's ssh: the program ``on_host`` runs there and answers.

The system's ssh obeys its user's configuration: aliases, keys, agents, jump hosts. A host is not trusted:
every answer is bounded before it is used.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import IO, Final, NamedTuple

import msgspec

from dios.client.plain_text import plain
from dios.errors import DiosError
from dios.node.bringup import on_host
from dios.node.bringup.answers import Message

COMMAND: Final = ("ssh",)
OPTIONS: Final = ("-T", "-o", "BatchMode=yes", "-o", "ConnectTimeout=15", "-o", "ServerAliveInterval=15")
LINE_BYTES_MAX: Final = 65_536
NOISE_LINES_MAX: Final = 1_000
"""Lines that a login script may print before the program greets."""

_ERROR_BYTES_MAX: Final = 4_096
_PIECE_BYTES: Final = 262_144
_NO_PYTHON: Final = 78
_FAILED: Final = 255
"""The exit status of ssh if it could not connect."""

# The inner text has no single quote and no exclamation mark: any login shell passes it on unchanged.
BOOTSTRAP: Final = (
    "exec /bin/sh -c 'for p in /usr/bin/python3 python3 python3.14 python3.13 python3.12 python3.11; do "
    'if "$p" -c "import sys; sys.exit(sys.version_info < (3, 11))" 2>/dev/null; then '
    'exec "$p" -I -c "import sys; exec(sys.stdin.buffer.read(int(sys.stdin.buffer.readline())))"; fi; done; '
    f"exit {_NO_PYTHON}'"
)


class HostError(DiosError):
    """A host cannot be reached, or a step failed there; the message names the host and the reason."""


class Upload(NamedTuple):
    """A wheel to upload."""

    name: str
    data: bytes


class Ssh:
    """Conversations with hosts, several at a time from different threads."""

    def __init__(self, command: Sequence[str] = COMMAND) -> None:
        self._command: Final = list(command)
        self._processes: Final[set[subprocess.Popen[bytes]]] = set()
        self._lock: Final = threading.Lock()
        self._cancelled = False

    def cancel(self) -> None:
        """End all conversations; the hosts end the steps that are under way."""
        with self._lock:
            self._cancelled = True
            for process in self._processes:
                process.terminate()

    def ask(
        self,
        target: str,
        request: Mapping[str, object],
        *,
        uploads: Iterable[Upload] = (),
        report: Callable[[str], None] = lambda _: None,
    ) -> Message:
        """Send a request to a host, and return its checked answer. Raise HostError.

        ``report`` is called with the steps that the host names, and with the share of the upload.
        """
        files = list(uploads)
        with tempfile.TemporaryFile() as errors:
            process = self._start(target, errors)
            try:
                # If the host ends early, its answer says why.
                with contextlib.suppress(BrokenPipeError):
                    self._send(process, request, files, report)
                done = self._answer(process, target, report)
                assert process.stdin is not None  # noqa: S101 - for mypy: it is a pipe
                with contextlib.suppress(BrokenPipeError):
                    process.stdin.close()
                status = process.wait()
            finally:
                process.kill()
                process.wait()
                with self._lock:
                    self._processes.discard(process)
                with contextlib.suppress(BrokenPipeError):
                    process.__exit__(None, None, None)
            if done is None:
                raise HostError(_explained(target, status, errors))
        return done

    def _start(self, target: str, errors: IO[bytes]) -> subprocess.Popen[bytes]:
        command = [*self._command, *OPTIONS, "--", target, BOOTSTRAP]
        with self._lock:
            if self._cancelled:
                raise HostError(f"{target} was not asked: the command was interrupted")
            try:
                # In a session of its own: Ctrl-C reaches this program, which then ends it in order.
                process = subprocess.Popen(
                    command,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=errors,
                    start_new_session=True,
                )
            except OSError as error:
                raise HostError(
                    f"cannot start {self._command[0]}: {error.strerror or error}. Install an ssh client, or "
                    "name one with --ssh."
                ) from None
            self._processes.add(process)
        return process

    @staticmethod
    def _send(
        process: subprocess.Popen[bytes],
        request: Mapping[str, object],
        files: list[Upload],
        report: Callable[[str], None],
    ) -> None:
        assert process.stdin is not None  # noqa: S101 - for mypy: it is a pipe
        program = Path(on_host.__file__).read_bytes()
        process.stdin.write(b"%d\n%s" % (len(program), program))
        header = {**request, "files": [(file.name, len(file.data)) for file in files]}
        process.stdin.write(json.dumps(header).encode() + b"\n")
        total, sent = sum(len(file.data) for file in files), 0
        for upload in files:
            for begin in range(0, len(upload.data), _PIECE_BYTES):
                sent += process.stdin.write(upload.data[begin : begin + _PIECE_BYTES])
                report(f"upload {sent * 100 // total} %")
        process.stdin.flush()

    @staticmethod
    def _answer(
        process: subprocess.Popen[bytes], target: str, report: Callable[[str], None]
    ) -> Message | None:
        """Return the answer, or None if the host sent none. Raise HostError with the host's reason."""
        assert process.stdout is not None  # noqa: S101 - for mypy: it is a pipe
        for _ in range(NOISE_LINES_MAX):
            line = process.stdout.readline(LINE_BYTES_MAX)
            if not line:
                return None
            if line.strip() == on_host.GREETING.encode():
                break
        else:
            raise HostError(
                f"{target}: its login scripts print too much. Let them be quiet without a terminal."
            )
        while line := process.stdout.readline(LINE_BYTES_MAX):
            try:
                message = msgspec.json.decode(line, type=Message)
            except msgspec.DecodeError as error:
                raise HostError(f"{target} sent an answer that is not valid: {error}") from None
            if message.failed:
                raise HostError(f"{target}: {message.failed}")
            if not message.progress:
                return message
            report(plain(message.progress))
        return None


def _explained(target: str, status: int, errors: IO[bytes]) -> str:
    errors.seek(0, 2)
    errors.seek(max(0, errors.tell() - _ERROR_BYTES_MAX))
    lines = errors.read(_ERROR_BYTES_MAX).decode(errors="replace").strip().splitlines()
    why = plain(lines[-1].strip()) if lines else "no reason was given"
    if status == _NO_PYTHON:
        return (
            f"{target} has no Python 3.11 or newer on its PATH. Install it there "
            "(Debian 12, Ubuntu 24.04: apt install python3-venv), then run the command again."
        )
    if status == _FAILED:
        return (
            f"cannot reach {target} by ssh: {why}. `ssh {target} true` must succeed without a question: use "
            "ssh-copy-id and ssh-agent, and connect once to accept the host's key."
        )
    return f"{target}: the connection ended with status {status}: {why}. Run the command again."
