"""The daemon's connection to one zygote process: starts it, requests children, learns of their ends.

Pools and brands are in ``dios.host.process.zygote_pool``.
"""

from __future__ import annotations

import array
import contextlib
import itertools
import logging
import os
import socket
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import msgspec
import trio

from dios import limits
from dios.errors import DiosError, NotSupportedError, OutOfMemoryError, ProtocolError, WouldBlockError
from dios.host.handover.format import Zygote
from dios.host.process.task_process import ProcessLimits, TaskProcess
from dios.host.process.zygote_messages import (
    CancelFork,
    ChildCreated,
    ChildExited,
    CreateChild,
    CreateFailed,
    CreateTemplate,
    FromZygote,
    LimitsLowered,
    LoadTemplate,
    LowerLimits,
    PinChild,
    SetupFailed,
    TemplateLoaded,
    ToZygote,
    ZygoteModules,
    ZygoteReady,
    ZygoteSetup,
    decode_from_zygote,
    encode,
)
from dios.host.process.zygote_process import StartedProcess, StartedZygote, TakenProcess, start_zygote
from dios.start_watch import LOOK_S, StartWatch

if TYPE_CHECKING:
    from dios.host.confinement.cgroups import ControlGroup

_log: Final = logging.getLogger(__name__)

_INTS: Final = array.array("i")
_numbers: Final = itertools.count(1)


class ZygoteLink:
    """A running zygote. Create it with ``start``; run ``run`` in the caller's nursery."""

    def __init__(self, process: StartedProcess, control: trio.socket.SocketType, setup: ZygoteSetup) -> None:
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
    async def start(
        cls, setup: ZygoteSetup, modules: ZygoteModules, started: StartedZygote | None = None
    ) -> ZygoteLink:
        """Start a zygote, or use one that was started early, and wait until it is set up.

        A busy machine may take its time: only a process that hangs is given up. Raise ``NotSupportedError``
        with the reason that the zygote reports, ``OutOfMemoryError`` if the machine cannot start it, and
        ``WouldBlockError`` if it hung or ended without a message.
        """
        try:
            # Not in a worker thread: the zygote dies with the thread that started it (PR_SET_PDEATHSIG).
            process, ours = started or start_zygote(setup.brand, modules)
        except OSError as error:
            raise OutOfMemoryError(f"cannot start the zygote process: {error.strerror}") from error
        link = cls(process, trio.socket.from_stdlib_socket(ours), setup)
        try:
            message = await link._set_up(setup)
        except (OSError, ProtocolError) as error:
            await link.close()
            raise WouldBlockError(f"the zygote process did not start: {error!r}. Try again.") from error
        except BaseException:
            await link.close()
            raise
        if not isinstance(message, ZygoteReady):
            await link.close()
            if isinstance(message, SetupFailed):
                raise NotSupportedError(f"cannot set up the zygote process: {message.reason}")
            raise WouldBlockError("the zygote process ended, or hung, before it was set up. Try again.")
        link.trees = message.trees
        return link

    async def _set_up(self, setup: ZygoteSetup) -> FromZygote | None:
        """Send the order and return the answer, or None if the process ends or hangs.

        It may load large modules, which takes long on a busy machine.
        """
        await self._send(setup)
        watch = StartWatch(self.pid)
        while not await trio.to_thread.run_sync(watch.hangs):
            with trio.move_on_after(LOOK_S):
                return await self._receive()
        return None

    # -- the successor of this process -----------------------------------------------------------------
    @property
    def busy(self) -> bool:
        """True while a request has no answer."""
        return bool(self._answers)

    def hand_over(self) -> Zygote:
        """Describe the zygote and its children for the successor of this process."""
        children = tuple(child.hand_over() for child in self._children.values())
        return Zygote(self.pid, self._control.fileno(), self._setup.brand, self._setup.templates, children)

    @classmethod
    def taken_over(cls, zygote: Zygote) -> ZygoteLink:
        """Return the connection to a zygote of this process's predecessor."""
        control = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET, fileno=zygote.control)
        setup = ZygoteSetup(zygote.brand, (), templates=zygote.templates)
        link = cls(TakenProcess(zygote.pid), trio.socket.from_stdlib_socket(control), setup)
        link._children |= {child.number: TaskProcess.taken_over(child) for child in zygote.children}
        return link

    @property
    def children(self) -> dict[int, TaskProcess]:
        """The children that have not ended, by their numbers."""
        return self._children

    @property
    def pid(self) -> int:
        """The zygote's process id."""
        return self._process.pid

    @property
    def makes_containers(self) -> bool:
        """True for a zygote whose tasks run in containers."""
        return self._setup.container is not None

    @property
    def has_own_kernel(self) -> bool:
        """True for a zygote whose tasks run in containers with a kernel of their own."""
        return self._setup.container is not None and self._setup.container.kind.own_kernel

    def has(self, child: TaskProcess) -> bool:
        """Return True if this zygote created the child, which has not ended."""
        return self._children.get(child.number) is child

    async def run(self) -> None:
        """Receive messages of the zygote until it ends; then mark all its children as lost.

        An internal error, or a message that is none of the zygote's, ends the zygote.
        """
        try:
            while (message := await self._receive()) is not None:
                self._handle(message)
        except Exception as error:  # noqa: BLE001 - whatever it is, it ends this zygote alone
            _log.error("an internal error ended a zygote and its tasks", exc_info=error)
            self._process.kill()
        finally:
            self.alive = False
            for answer in self._answers.values():
                answer.give("the zygote ended")
            for child in list(self._children.values()):
                child.lost("the node's zygote ended, and every task with it")
                self._report_end(child)
            self._children.clear()

    async def make(
        self,
        bounds: ProcessLimits,
        template: TaskProcess | None = None,
        *,
        forkable: bool = False,
        entrances: tuple[int, ...] = (),
        group: ControlGroup | None = None,
    ) -> TaskProcess:
        """Create a child, or with ``template`` have that fork one, which can be forked if it is ``forkable``.

        The child of a zygote enters its control ``group`` through ``entrances``. Raise ``OutOfMemoryError``
        with the kernel's reason if that fails.
        """
        number = next(_numbers)
        origin = 0 if template is None else template.number
        order = CreateChild(
            number,
            bounds.memory_bytes,
            bounds.cpu_ms,
            bounds.processes,
            origin,
            forkable=forkable,
            groups=len(entrances),
        )
        return await self._created(number, bounds, order, entrances, group)

    async def fork(self, bounds: ProcessLimits, session: TaskProcess) -> TaskProcess:
        """Wait until a session that can be forked has forked itself.

        Raise ``OutOfMemoryError`` with the reason if that fails. A cancellation takes the order back.
        """
        number = next(_numbers)
        order = CreateChild(
            number, bounds.memory_bytes, bounds.cpu_ms, bounds.processes, session.number, is_fork=True
        )
        try:
            return await self._created(number, bounds, order)
        except BaseException:
            with trio.CancelScope(shield=True), contextlib.suppress(OSError):
                await self._send(CancelFork(number))
            raise

    async def make_template(self, bounds: ProcessLimits) -> TaskProcess:
        """Create the process of a template. Its socket and its console lead nowhere."""
        number = next(_numbers)
        return await self._created(number, bounds, CreateTemplate(number, bounds.memory_bytes))

    async def load(self, template: TaskProcess, modules: tuple[str, ...], warm_up: str = "") -> str:
        """Load modules in a template, and call ``warm_up`` (``module:function``) there.

        Return the reason if that fails, else an empty text.
        """
        return await self._ask(template.number, LoadTemplate(template.number, modules, warm_up))

    async def _created(
        self,
        number: int,
        bounds: ProcessLimits,
        make: CreateChild | CreateTemplate,
        entrances: tuple[int, ...] = (),
        group: ControlGroup | None = None,
    ) -> TaskProcess:
        try:
            ours, theirs, console, write_end = _ends_for_child()
        except OSError as error:
            raise OutOfMemoryError(
                f"cannot create the task's process: {error.strerror}", call="run"
            ) from error
        os.set_blocking(console, False)
        child = TaskProcess(number, self._setup.brand, bounds, trio.socket.from_stdlib_socket(ours), console)
        child.group = group
        child.has_own_kernel = self.has_own_kernel
        self._children[number] = child
        given = (theirs.fileno(), write_end, *entrances) if isinstance(make, CreateChild) else ()
        try:
            reason = await self._ask(number, make, given)
        except BaseException:
            child.close()
            raise
        finally:
            theirs.close()
            os.close(write_end)
        if reason:
            self._children.pop(number, None)  # also if the zygote gave no answer
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

    async def pin(self, child: TaskProcess, processors: tuple[int, ...]) -> None:
        """Let a child that has not started its task run on these processors alone. Raise ``DiosError``."""
        reason = await self._ask(child.number, PinChild(child.number, processors))
        if reason:
            names = ", ".join(map(str, processors))
            raise DiosError(f"cannot pin the task to processors {names}: {reason}", call="run")

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
        """Return the next message, or None at the end. Raise ProtocolError if it is none of a zygote's."""
        space = socket.CMSG_SPACE(2 * _INTS.itemsize)
        try:
            data, ancillary, flags, _ = await self._control.recvmsg(
                limits.ZYGOTE_MESSAGE_BYTES_MAX, space, socket.MSG_CMSG_CLOEXEC
            )
        except (OSError, trio.ClosedResourceError):
            return None
        if not data:
            return None
        if flags & socket.MSG_TRUNC:
            raise ProtocolError(f"a message of the zygote is over {limits.ZYGOTE_MESSAGE_BYTES_MAX} bytes")
        try:
            message: FromZygote = decode_from_zygote(data)
        except msgspec.MsgspecError as error:
            raise ProtocolError(f"cannot read a message of the zygote: {error}") from error
        if not isinstance(message, ChildCreated):
            return message
        if not ancillary:
            # The kernel dropped the descriptor. The child is given up, and ends when its socket closes.
            return CreateFailed(message.id, "EMFILE (the node has no free descriptors)")
        # Register the process at once, so that it is closed even if the request is cancelled.
        received = array.array("i")
        received.frombytes(ancillary[0][2][: len(ancillary[0][2]) // _INTS.itemsize * _INTS.itemsize])
        child = self._children.get(message.id)
        if child is None:
            for number in received:
                os.close(number)
        else:
            child.started(message.pid, *received)
        return message

    def _handle(self, message: FromZygote) -> None:
        if isinstance(message, ChildExited):
            child = self._children.get(message.id)
            if child is not None:
                child.ended(message)
                del self._children[message.id]
                self._report_end(child)
        elif isinstance(message, ChildCreated | CreateFailed | LimitsLowered | TemplateLoaded):
            if isinstance(message, CreateFailed):
                # Its request may have been cancelled, so that nobody waits for this answer.
                self._children.pop(message.id, None)
            if isinstance(message, TemplateLoaded) and message.reason and message.id in self._children:
                # Its supervisor ends it. This records that the end is on request.
                self._children[message.id].kill()
            answer = self._answers.get(message.id)
            if answer is not None:
                answer.give("" if isinstance(message, ChildCreated) else message.reason)

    def _report_end(self, child: TaskProcess) -> None:
        """Call ``on_end``; an internal error in it leaves the other children alone."""
        try:
            self.on_end(child)
        except Exception as error:  # noqa: BLE001 - as above
            _log.error("an internal error after the end of a task's process", exc_info=error)


def _ends_for_child() -> tuple[socket.socket, socket.socket, int, int]:
    """Return both ends of a task's socket, and both ends of its console. Raise ``OSError``."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        return (ours, theirs, *os.pipe2(os.O_CLOEXEC))
    except OSError:
        ours.close()
        theirs.close()
        raise


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
