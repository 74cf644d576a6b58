"""The process of a private node, which has a temporary directory and ends with the program that started it.

Only a program that starts one loads this module; ``program_node`` says which programs do.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
import weakref
from pathlib import Path
from typing import Final

from dios.errors import UnreachableError
from dios.limits import START_QUIET_MAX
from dios.start_watch import StartWatch

_LOG: Final = "node.log"

_LOG_CHARS: Final = 500
_LOG_WAIT_S: Final = 5.0
_LOG_IS_MEANT: Final = "node's log"
"""A part of the message of a node whose reason is in its log."""

NOT_STARTED: Final = "no node runs, and a private one did not start"

_SHARED: Final = ("numpy",)
"""Modules that the tasks of a private node share if the program has loaded them."""

_POOL_MAX: Final = 16

END_WAIT_S: Final = 10.0
"""A node that takes longer to end is killed."""


class PrivateNode:
    """A node that this process starts for itself, with ``pool_size`` tasks ready to run.

    ``wait_started`` returns once it serves. It ends with ``end``, with this object, or with this process,
    however that ends; then it deletes its directory.
    """

    def __init__(self, pool_size: int) -> None:
        self._ready = self._alive = ready_far = alive = -1
        self._folder: Final = Path(tempfile.mkdtemp(prefix="dios-"))
        self.data: Final = self._folder / "data"
        try:
            self._ready, ready_far = os.pipe()
            # The node ends when the last writing end of this pipe closes.
            alive, self._alive = os.pipe()
            self._process: Final = self._spawn(pool_size, ready_far, alive)
        except BaseException:
            self._close_pipes()
            shutil.rmtree(self._folder, ignore_errors=True)
            raise
        finally:
            _close(ready_far, alive)
        self._owner: Final = os.getpid()
        _nodes.add(self)

    def _spawn(self, pool_size: int, ready: int, alive: int) -> subprocess.Popen[bytes]:
        flags = ["coordinator=off", f"pool_size={min(pool_size, _POOL_MAX)}"]
        shared = ",".join(_shared_modules())
        flags += [f"preload={shared}"] if shared else []
        command = [sys.executable, "-P", "-m", "dios.node.daemon", str(self.data)]
        command += [f"--ready={ready}", f"--until={alive}", f"--temporary={self._folder}", *flags]
        # Its link as the default node goes to its own folder, where no other program looks.
        environment = {**os.environ, "XDG_RUNTIME_DIR": str(self._folder)}
        with (self._folder / _LOG).open("wb") as output:
            return subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=environment,
                pass_fds=(ready, alive),
                start_new_session=True,
            )

    def wait_started(self) -> None:
        """Wait until the node serves.

        Raises UnreachableError with the reason if it cannot start, and if it hangs.
        """
        watch = StartWatch(self._process.pid)
        said = b""
        while watch.wait(self._ready):
            data = os.read(self._ready, 4096)
            said += data
            if said == b"ready\n":
                return
            if not data:
                raise UnreachableError(
                    f"{NOT_STARTED}: {self._reason(said.decode(errors='replace').strip())}"
                )
        raise UnreachableError(f"{NOT_STARTED}: it did nothing for {START_QUIET_MAX} s")

    def _reason(self, why: str) -> str:
        """Return the reason of a failed start; the log is deleted with the node, so its end belongs to it."""
        if why and _LOG_IS_MEANT not in why:
            return why
        with contextlib.suppress(OSError, subprocess.TimeoutExpired):
            self._process.wait(_LOG_WAIT_S)  # the log is complete at the end
            log = (self._folder / _LOG).read_text(errors="replace").strip()
            return f"{why} {log[-_LOG_CHARS:]}".strip()
        return why

    @property
    def pid(self) -> int:
        """The process of the node."""
        return self._process.pid

    def begin_end(self) -> None:
        """Let the node end, without a wait; in a forked process this does nothing."""
        self._close_pipes()

    def end(self) -> None:
        """End the node and wait until its data are deleted; in a forked process this does nothing."""
        self.begin_end()
        if os.getpid() != self._owner:
            return
        try:
            self._process.wait(END_WAIT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        # The node has deleted it, unless it was killed or could not start.
        shutil.rmtree(self._folder, ignore_errors=True)

    def _close_pipes(self) -> None:
        ready, alive, self._ready, self._alive = self._ready, self._alive, -1, -1
        _close(ready, alive)

    def __del__(self) -> None:
        self._close_pipes()


def _close(*descriptors: int) -> None:
    for number in descriptors:
        if number >= 0:
            os.close(number)


def _shared_modules() -> list[str]:
    """Return the modules that tasks shall share: those of ``_SHARED`` that are loaded and installed for all.

    The zygote that loads them ignores PYTHONPATH and the folder of the user.
    """
    # Imported late: a program that finds a node does not need it.
    import site  # noqa: PLC0415 - see above

    folders = {os.path.realpath(folder) for folder in site.getsitepackages()}
    loaded = [(name, getattr(sys.modules.get(name), "__file__", None)) for name in _SHARED]
    return [name for name, file in loaded if file and str(Path(file).resolve().parents[1]) in folders]


_nodes: Final[weakref.WeakSet[PrivateNode]] = weakref.WeakSet()


def _forked() -> None:
    """Close the pipes in a forked process, so that the nodes end with the process that started them."""
    for node in _nodes:
        node.begin_end()


os.register_at_fork(after_in_child=_forked)
