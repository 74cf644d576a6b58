"""Runs commands in forks of a process that has loaded them, which is ten times faster than to start Python.

``run_command`` starts that process with the first command; this file is also its program. A fork has the
standard streams, the folder, the environment and the arguments of a process of its own, and runs the module
of the command as ``__main__``.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import importlib
import json
import os
import pkgutil
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

_REQUEST_BYTES_MAX: Final = 1 << 20
_BEFORE_PYTHON: Final = ("PYTHON", "LD_")
"""Variables that act while Python starts, so that commands with other values need another server."""


def run_command(
    module: str,
    arguments: Sequence[str],
    folder: Path,
    environment: Mapping[str, str],
    typed: str,
    seconds: float,
) -> subprocess.CompletedProcess[str]:
    """Run the module of a command to its end; return its status and all that it wrote.

    Raises:
        subprocess.TimeoutExpired: it did not end within ``seconds``; it was killed.
    """
    early = tuple(sorted(pair for pair in environment.items() if pair[0].startswith(_BEFORE_PYTHON)))
    line = [sys.executable, "-m", module, *arguments]
    with contextlib.ExitStack() as stack:
        streams = [stack.enter_context(tempfile.TemporaryFile()) for _ in range(3)]
        streams[0].write(typed.encode())
        streams[0].seek(0)
        connection = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET))
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _REQUEST_BYTES_MAX)
        connection.connect(_server(early))
        request = {"module": module, "arguments": arguments, "folder": str(folder), "env": dict(environment)}
        socket.send_fds(connection, [json.dumps(request).encode()], [file.fileno() for file in streams])
        process = int(connection.recv(100))
        connection.settimeout(seconds)
        try:
            status = int(connection.recv(100))
        except TimeoutError as error:
            os.kill(process, signal.SIGKILL)
            raise subprocess.TimeoutExpired(line, seconds) from error
        outputs = []
        for file in streams[1:]:
            file.seek(0)
            outputs.append(file.read().decode().replace("\r\n", "\n"))
    return subprocess.CompletedProcess(line, status, *outputs)


@functools.cache
def _server(early: tuple[tuple[str, str], ...]) -> str:
    """Return the address of a server whose Python started with these variables, in the abstract namespace."""
    address = f"\0dios-test-commands-{os.getpid()}-{len(_servers)}"
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.bind(address)
    listener.listen(16)
    with listener:
        process = subprocess.Popen(
            [sys.executable, __file__, str(listener.fileno())],
            pass_fds=[listener.fileno()],
            stdin=subprocess.PIPE,
            env={"PATH": os.environ["PATH"], "COLUMNS": "120", **dict(early)},
        )
    _servers.append(process)
    atexit.register(process.kill)
    return address


_servers: Final[list[subprocess.Popen[bytes]]] = []


# -- the server ---------------------------------------------------------------------------------------------
def _serve(listener: socket.socket) -> None:
    """Fork for each connection, until the worker of the tests ends."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while sys.stdin not in select.select([sys.stdin, listener], [], [])[0]:
        connection, _ = listener.accept()
        if os.fork() == 0:
            listener.close()
            _attend(connection)
        connection.close()


def _attend(connection: socket.socket) -> None:
    """Run one command in a child, and report its process and its status."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    data, streams, _, _ = socket.recv_fds(connection, _REQUEST_BYTES_MAX, 3)
    process = os.fork()
    if process == 0:
        connection.close()
        _become(json.loads(data), streams)
    for number in streams:
        os.close(number)
    connection.send(str(process).encode())
    _, status = os.waitpid(process, 0)
    with contextlib.suppress(OSError):
        connection.send(str(os.waitstatus_to_exitcode(status)).encode())
    os._exit(0)


def _become(request: dict[str, object], streams: Sequence[int]) -> None:
    """Be the process of the command."""
    module, arguments, folder, environment = request.values()
    assert isinstance(module, str)
    assert isinstance(folder, str)
    assert isinstance(arguments, list)
    assert isinstance(environment, dict)
    for target, number in enumerate(streams):
        os.dup2(number, target)
        os.close(number)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    sys.path[0] = folder
    sys.argv = [module, *arguments]
    status = 1
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
        status = 0
    except SystemExit as ended:
        if isinstance(ended.code, str):
            sys.stderr.write(f"{ended.code}\n")
        else:
            status = ended.code or 0
    except BaseException:  # noqa: BLE001 - the interpreter shows any error, and ends
        traceback.print_exc()
    with contextlib.suppress(BaseException):
        threading._shutdown()  # type: ignore[attr-defined] # as Python does at its end
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(status)


def _load() -> None:
    """Load all commands, except for the modules that run as ``__main__``."""
    package = importlib.import_module("dios.cli")
    for module in pkgutil.walk_packages(package.__path__, "dios.cli."):
        importlib.import_module(module.name)
    for name in ("dios.cli.main", "dios.cli.nodes.daemon"):
        del sys.modules[name]


if __name__ == "__main__":
    _load()
    _serve(socket.socket(fileno=int(sys.argv[1])))
