"""The daemon's connection to one zygote process: starts it, requests children, learns of their ends.

Pools and brands are in ``dios.host.process.zygote_pool``.
"""

from __future__ import annotations

import array
import itertools
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from typing import Final

import trio

from dios import limits
from dios.errors import DiosError, NotSupportedError, OutOfMemoryError
from dios.host.process.task_process import ProcessLimits, TaskProcess
from dios.host.process.zygote_messages import (
    ChildCreated,
    ChildExited,
    CreateChild,
    CreateFailed,
    FromZygote,
    LimitsLowered,
    LowerLimits,
    SetupFailed,
    ToZygote,
    ZygoteReady,
    ZygoteSetup,
    decode_from_zygote,
    encode,
)
from dios.wire.types import Brand

_ENVIRONMENT: Final = {"PATH": "/usr/local/bin:/usr/bin:/bin", "LANG": "C.UTF-8"}

_INTS: Final = array.array("i")
_numbers: Final = itertools.count(1)


class ZygoteLink:
    """A running zygote. Create it with ``start``; run ``run`` in the caller's nursery."""

    def __init__(
        self, process: subprocess.Popen[bytes], control: trio.socket.SocketType, setup: ZygoteSetup
    ) -> None:
        self._process = process
        self._control = control
        self._setup = setup
        self._sending = trio.Lock()
        self._children: dict[int, TaskProcess] = {}
        self._answers: dict[int, _PendingAnswer] = {}
        self.trees: tuple[str, ...] = ()
        self.alive = True
        self.on_end: Callable[[TaskProcess], None] = lambda _child: None

    @classmethod
    async def start(cls, setup: ZygoteSetup) -> ZygoteLink:
        """Start a zygote and wait until it is set up. Raise ``NotSupportedError`` with its reason."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            # Not in a worker thread: the zygote dies with the thread that started it (PR_SET_PDEATHSIG).
            process = subprocess.Popen(  # noqa: ASYNC220 - the reason stands above; it takes about a millisecond
                [sys.executable, "-I", "-m", "dios.host.process.zygote_main", str(theirs.fileno())],
                pass_fds=(theirs.fileno(),),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                env=_environment(setup.brand),
                cwd="/",
                start_new_session=True,
            )
        link = cls(process, trio.socket.from_stdlib_socket(ours), setup)
        try:
            with trio.fail_after(limits.ZYGOTE_START_MS_MAX / 1000):
                await link._send(setup)
                message = await link._receive()
        except (trio.TooSlowError, OSError) as error:
            await link.close()
            raise NotSupportedError(f"the zygote process did not start: {error!r}") from error
        except BaseException:
            await link.close()
            raise
        if not isinstance(message, ZygoteReady):
            await link.close()
            reason = message.reason if isinstance(message, SetupFailed) else "it ended without a message"
            raise NotSupportedError(f"cannot set up the zygote process: {reason}")
        link.trees = message.trees
        return link

    @property
    def pid(self) -> int:
        """The zygote's process id."""
        return self._process.pid

    async def run(self) -> None:
        """Receive messages of the zygote until it ends; then mark all its children as lost."""
        try:
            while (message := await self._receive()) is not None:
                self._handle(message)
        finally:
            self.alive = False
            for answer in self._answers.values():
                answer.give("the zygote ended")
            for child in list(self._children.values()):
                child.lost("the node's zygote ended, and every task with it")
                self.on_end(child)
            self._children.clear()

    async def make(self, bounds: ProcessLimits) -> TaskProcess:
        """Create a child. Raise ``OutOfMemoryError`` with the kernel's reason if that fails."""
        number = next(_numbers)
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        console, write_end = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(console, False)
        child = TaskProcess(number, self._setup.brand, bounds, trio.socket.from_stdlib_socket(ours), console)
        make = CreateChild(number, bounds.memory_bytes, bounds.cpu_ms, bounds.processes)
        self._children[number] = child
        try:
            reason = await self._ask(number, make, (theirs.fileno(), write_end))
        except BaseException:
            child.close()
            raise
        finally:
            theirs.close()
            os.close(write_end)
        if reason:
            self._children.pop(number, None)
            child.close()
            raise OutOfMemoryError(f"cannot create the task's process: {reason}", call="run")
        return child

    async def tighten(self, child: TaskProcess, bounds: ProcessLimits) -> None:
        """Lower the limits of a child that has not started its task. Raise ``DiosError`` if that fails."""
        message = LowerLimits(child.number, bounds.memory_bytes, bounds.cpu_ms, bounds.processes)
        reason = await self._ask(child.number, message)
        if reason:
            raise DiosError(f"cannot set the task's limits: {reason}", call="run")
        child.bounds = bounds

    async def close(self) -> None:
        """End the zygote with its children, and reap it."""
        with trio.CancelScope(shield=True):
            self._control.close()
            with trio.move_on_after(limits.ZYGOTE_STOP_MS_MAX / 1000) as scope:
                await trio.to_thread.run_sync(self._process.wait, abandon_on_cancel=True)
            if scope.cancelled_caught:
                self._process.kill()
                await trio.to_thread.run_sync(self._process.wait)

    async def _ask(self, number: int, message: ToZygote, descriptors: tuple[int, ...] = ()) -> str:
        """Send a message about child ``number`` and return the error in the answer, empty for success."""
        if not self.alive:
            return "the zygote ended"
        answer = self._answers[number] = _PendingAnswer()
        try:
            await self._send(message, descriptors)
            return await answer.wait()
        except OSError as error:
            return f"the zygote process is gone ({error.strerror})"
        finally:
            del self._answers[number]

    async def _send(self, message: ToZygote, descriptors: tuple[int, ...] = ()) -> None:
        rights = array.array("i", descriptors)
        ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)] if descriptors else []
        async with self._sending:
            await self._control.sendmsg([encode(message)], ancillary)

    async def _receive(self) -> FromZygote | None:
        space = socket.CMSG_SPACE(_INTS.itemsize)
        try:
            data, ancillary, _, _ = await self._control.recvmsg(
                limits.ZYGOTE_MESSAGE_BYTES_MAX, space, socket.MSG_CMSG_CLOEXEC
            )
        except (OSError, trio.ClosedResourceError):
            return None
        if not data:
            return None
        message: FromZygote = decode_from_zygote(data)
        if isinstance(message, ChildCreated):
            # Register the process at once, so that it is closed even if the request is cancelled.
            pidfd = int.from_bytes(ancillary[0][2][: _INTS.itemsize], sys.byteorder)
            child = self._children.get(message.id)
            if child is None:
                os.close(pidfd)
            else:
                child.started(message.pid, pidfd)
        return message

    def _handle(self, message: FromZygote) -> None:
        if isinstance(message, ChildExited):
            child = self._children.pop(message.id, None)
            if child is not None:
                child.ended(message)
                self.on_end(child)
        elif isinstance(message, ChildCreated | CreateFailed | LimitsLowered) and message.id in self._answers:
            self._answers[message.id].give("" if isinstance(message, ChildCreated) else message.reason)


def _environment(brand: Brand) -> dict[str, str]:
    """Return the environment of a task. Only limbo tasks get the daemon's home directory."""
    home = os.environ.get("HOME")
    return _ENVIRONMENT if brand is Brand.PURE or home is None else {**_ENVIRONMENT, "HOME": home}


class _PendingAnswer:
    """An answer that a request waits for."""

    def __init__(self) -> None:
        self._event = trio.Event()
        self._reason = ""

    def give(self, reason: str) -> None:
        if not self._event.is_set():
            self._reason = reason
            self._event.set()

    async def wait(self) -> str:
        await self._event.wait()
        return self._reason
