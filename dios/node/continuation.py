"""Replaces the program of a running node by the one that is installed now; the process stays the same.

The order. First the new program is tried in a child process: it loads its modules, reads the settings and
the present state, and ends. If that fails, nothing has happened. Then the gate stops all readers, and the
node's own sessions end. When no call, start or write is under way, everything is put into a sealed memory,
and the process executes the new program, which inherits the descriptors that the memory names. If the state
does not come to rest in time, the gate opens again. docs/adr/0072 has the reasons.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import signal
import socket
import stat
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Final

import trio
from msgspec.structs import replace

from dios import limits
from dios.core import snapshot
from dios.core.model.state import State
from dios.errors import DamagedError, DiosError
from dios.host.handover import format as form
from dios.node import restart_status
from dios.node.launch import CONTINUE, TRY, Launch
from dios.node.restart_status import RestartStatus
from dios.node.settings import Settings
from dios.start_watch import ALARM_S, LOOK_S, StartWatch
from dios.transport.memory import memfd

if TYPE_CHECKING:
    from dios.host.audit.log import AuditLog
    from dios.host.process.session_server import SessionServer
    from dios.host.process.zygote_pool import ZygotePool
    from dios.node.assembly import NodeHost
    from dios.node.cluster_port import ClusterPort

_KEPT_SETTINGS: Final = frozenset(
    {
        "administrator",
        "advertise",
        "data",
        "devices",
        "group_limits",
        "labels",
        "leases",
        "limbo_from_nodes",
        "link_rate",
        "listen",
        "mode",
        "name",
        "principal_limits",
        "principals",
        "rack",
        "record",
        "remote_cache_bytes",
        "sandbox_limits",
        "shape",
        "socket",
        "store_rate",
        "task_limits",
        "task_memory_bytes",
        "tasks_max",
        "traces",
        "volatile_bytes_max",
    }
)
"""The settings that the core was made with. A new value of one of them needs a new start."""

_ANSWER_BYTES_MAX: Final = 4096
_LOOK_S: Final = 0.002

_log: Final = logging.getLogger(__name__)


class Predecessor:
    """The state that a predecessor handed over: the parts of the host, and the core's state as bytes."""

    def __init__(self, handover: form.Handover) -> None:
        self.host: Final = handover.host
        self._core: Final = handover.core

    def state(self, entropy: Callable[[int], bytes], rows: object = None) -> State:
        """Return the core's state. Raise DamagedError if this program has other records."""
        try:
            if rows is None:
                return snapshot.decode(self._core, entropy)
            return snapshot.decode(self._core, entropy, source=rows)  # type: ignore[arg-type] # a RowSource
        except snapshot.SnapshotError as error:
            raise DamagedError(
                f"{error}. A node whose tables have changed cannot go on with its tasks: stop it with "
                "`dios-node stop` and start it again."
            ) from error


def receive(number: int, settings: Settings) -> Predecessor:
    """Read the memory ``number``. Raise DamagedError or DiosError if this program cannot continue with it."""
    with open(number, "rb") as file:
        if memfd.seals_of(number) & memfd.SEAL_FOREVER != memfd.SEAL_FOREVER:
            raise DamagedError("cannot continue the node: its state is not in a sealed memory")
        predecessor = Predecessor(form.decode(file.read()))
    present = described(settings)
    changed = sorted(key for key, value in predecessor.host.settings.items() if present.get(key) != value)
    if changed:
        raise DiosError(
            f"the settings {', '.join(changed)} were changed, and need a new start: stop the node with "
            "`dios-node stop` and start it again, or take the changes back."
        )
    return predecessor


def inherit(state: form.HostState) -> None:
    """Close the inherited descriptors on the next exec. Raise DamagedError if one of them is not open."""
    for number in descriptors_of(state):
        try:
            os.set_inheritable(number, False)
        except OSError as error:
            raise DamagedError(f"cannot continue the node: descriptor {number} is missing") from error


def described(settings: Settings) -> dict[str, str]:
    """Return the settings that need a new start, as text."""
    return {
        setting.name: repr(getattr(settings, setting.name))
        for setting in fields(settings)
        if setting.name in _KEPT_SETTINGS
    }


def descriptors_of(state: form.HostState) -> list[int]:
    """Return every descriptor that the state names."""
    numbers = [state.pid_file, state.listener, *state.lingering]
    for memory in state.memories:
        numbers += (memory.fd, memory.writers)
    for page in state.pages:
        numbers += (page.fd, page.reader)
    numbers += (peer_stream.wakeups for peer_stream in state.between)
    for ring in (*state.rings, *state.fetched_rings):
        numbers += (ring.writer, ring.reader, ring.write_socket, ring.read_socket)
    for sock in state.sockets:
        numbers.append(sock.fd)
        numbers += (pump.wakeups for pump in sock.pumps)
        numbers += (connection.fd for connection in sock.accepted)
    for zygote in state.zygotes:
        numbers.append(zygote.control)
        for child in zygote.children:
            numbers += (child.pidfd, child.folder, child.console)
    channels = [task.channel for task in state.tasks]
    channels += (session.channel for session in state.sessions)
    channels += (newcomer.channel for newcomer in state.newcomers)
    for channel in channels:
        numbers.append(channel.fd)
        numbers += (fd for unsent in channel.unsent for fd in unsent.fds)
    if state.port is not None:
        numbers += state.port.sockets
    return [number for number in numbers if number >= 0]


class Continuation:
    """Waits for requests to replace the program, and carries them out."""

    def __init__(
        self,
        settings: Settings,
        launch: Launch,
        host: NodeHost,
        server: SessionServer,
        zygotes: ZygotePool,
        audit: AuditLog,
        port: ClusterPort | None,
        *,
        version: Callable[[], str],
        predecessor: Predecessor | None,
    ) -> None:
        self._settings: Final = settings
        self._launch: Final = launch
        self._host: Final = host
        self._server: Final = server
        self._zygotes: Final = zygotes
        self._audit: Final = audit
        self._port: Final = port
        self._version: Final = version
        self._count: Final = 0 if predecessor is None else predecessor.host.continuations
        self._attempt = 0
        self._pause_began = 0
        self._helpers = trio.CancelScope()
        self._resumed = trio.Event()
        self._note(restart_status.READY)

    def announce(self, state: form.HostState) -> None:
        """Say that this program has continued the node."""
        self._attempt = state.attempt
        paused_ms = max(0, time.clock_gettime_ns(time.CLOCK_BOOTTIME) - state.began_ns) // 1_000_000
        status = self._status(restart_status.CONTINUED)
        restart_status.write(
            self._settings.data,
            RestartStatus(
                status.pid,
                self._attempt,
                status.state,
                f"from version {state.version}" if state.version != status.version else "",
                status.version,
                paused_ms,
                len(state.tasks),
                len(state.sessions),
            ),
        )
        _log.info(
            "the node goes on with a new program",
            extra={
                "from": state.version,
                "tasks": len(state.tasks),
                "sessions": len(state.sessions),
                "paused_ms": paused_ms,
            },
        )

    # -- the node's own sessions ------------------------------------------------------------------------
    async def run_helpers(self, start: Callable[[trio.Nursery], None]) -> None:
        """Run what has sessions inside this process, except while the program is replaced."""
        while True:
            async with trio.open_nursery() as nursery:
                self._helpers = nursery.cancel_scope
                start(nursery)
                nursery.start_soon(trio.sleep_forever)
            await self._resumed.wait()

    # -- requests ---------------------------------------------------------------------------------------
    async def obey(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Replace the program at each signal, until cancelled."""
        with trio.open_signal_receiver(restart_status.SIGNAL) as signals:
            task_status.started()
            async for _ in signals:
                self._attempt += 1
                try:
                    await self._try()
                except (DiosError, OSError, snapshot.SnapshotError) as error:
                    self._refuse(str(error))

    async def _try(self) -> None:
        if why := self._host.obstacle():
            self._refuse(why)
            return
        self._note(restart_status.TRYING)
        if why := await self._rehearsed():
            self._refuse(why)
            return
        self._note(restart_status.STOPPING)
        self._resumed = trio.Event()
        gate = self._host.gate
        try:
            self._helpers.cancel()
            self._zygotes.pause()
            # Before the gate closes, because they end when their readers see that the other end is closed.
            why = await self._settled(self._own_sessions) or await self._stopped()
            if why:
                self._refuse(why)
            else:
                self._replace()
        finally:
            self._pause_began = 0
            gate.open()
            self._host.resume_links()
            self._zygotes.unpause()
            self._resumed.set()

    async def _stopped(self) -> str:
        """Stop all readers, and wait until nothing is under way; return the reason if it does not end."""
        self._pause_began = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
        self._host.gate.close()
        await self._host.pause_links()
        return await self._settled(self._unfinished)

    def _own_sessions(self) -> str:
        is_open = self._host.tasks.has_session_of(os.getpid())
        return "the node's own sessions have not ended" if is_open else ""

    def _unfinished(self) -> str:
        return self._host.unfinished() or ("processes are being started" if self._zygotes.busy else "")

    async def _settled(self, unfinished: Callable[[], str]) -> str:
        """Wait until nothing is ``unfinished``. Return a reason if that does not happen in time or at all."""
        why = ""
        with trio.move_on_after(limits.CONTINUATION_SETTLE_MS_MAX / 1000):
            while why := self._host.obstacle() or unfinished():
                if self._host.obstacle():
                    return why
                await trio.sleep(_LOOK_S)
            return ""
        return why

    def _replace(self) -> None:
        """Execute the new program; return only if the system refuses."""
        host = self._host
        host.journal.settle_all()
        self._audit.flush()
        self._audit.sync()
        handover = self._gathered()
        numbers = [*descriptors_of(handover.host), *self._launch.descriptors]
        memory = memfd.sealed_memory(form.encode(handover), "state of a node")
        self._note(restart_status.REPLACING)
        _log.info("the node replaces its program", extra={"tasks": len(handover.host.tasks)})
        former = signal.signal(restart_status.SIGNAL, signal.SIG_IGN)
        try:
            for number in (*numbers, memory):
                os.set_inheritable(number, True)
            # If the new program hangs, this ends it, and the service manager starts the node again. It sets
            # the next alarm itself while it makes progress.
            signal.alarm(ALARM_S)
            command = [*self._launch.command, f"{CONTINUE}={memory},{self._launch.pid_file}"]
            os.execv(command[0], command)  # noqa: S606 - our own interpreter; no shell is wanted
        finally:
            signal.alarm(0)
            signal.signal(restart_status.SIGNAL, former)
            for number in numbers:
                os.set_inheritable(number, False)
            os.close(memory)

    def _gathered(self) -> form.Handover:
        """Return the whole state at this moment."""
        core = self._host.core
        if core is None:
            raise DiosError("a node that records its steps cannot be continued")
        zygotes = self._zygotes.hand_over()
        steps = self._host.driver.hand_over()
        port = self._port
        base = form.HostState(
            self._version(),
            self._pause_began,
            self._count + 1,
            self._host.clock.offset,
            described(self._settings),
            self._launch.pid_file,
            self._server.listener,
            steps,
            attempt=self._attempt,
            port=None if port is None else form.Port(port.membership.me.epoch, port.listener.filenos()),
        )
        state = self._host.hand_over(base, zygotes)
        if port is not None:
            state = replace(state, lingering=tuple(_connections(descriptors_of(state))))
        return form.Handover(snapshot.encode(core.state), state)

    # -- trying -----------------------------------------------------------------------------------------
    async def _rehearsed(self) -> str:
        """Try the installed program with the present state in a child. Return the reason if it fails."""
        core = self._host.core
        if core is None:
            return "it records its steps"
        base = form.HostState(
            self._version(),
            0,
            self._count + 1,
            self._host.clock.offset,
            described(self._settings),
            self._launch.pid_file,
            self._server.listener,
            self._host.driver.hand_over(),
            port=None if self._port is None else form.Port(self._port.membership.me.epoch, ()),
        )
        memory = memfd.sealed_memory(
            form.encode(form.Handover(snapshot.encode(core.state), base)), "state of a node"
        )
        try:
            done = await _tried([*self._launch.command, f"{TRY}={memory}"], memory)
        finally:
            os.close(memory)
        if done is None:
            return f"the new program hung: it did nothing for {limits.START_QUIET_MAX} s"
        if done.returncode == 0:
            return ""
        lines = (
            (done.stderr or done.stdout)[-_ANSWER_BYTES_MAX:].decode(errors="replace").strip().splitlines()
        )
        said = lines[-1].removeprefix("dios-node: ") if lines else f"it ended with status {done.returncode}"
        return f"the new program cannot continue: {said}"

    # -- reports ----------------------------------------------------------------------------------------
    def _refuse(self, why: str) -> None:
        _log.warning("the node keeps its present program", extra={"why": why})
        self._note(restart_status.REFUSED, why[: limits.TEXT_BYTES_MAX // 4])

    def _note(self, state: str, detail: str = "") -> None:
        restart_status.write(self._settings.data, self._status(state, detail))

    def _status(self, state: str, detail: str = "") -> RestartStatus:
        return RestartStatus(os.getpid(), self._attempt, state, detail, self._version())


async def _kill(process: trio.Process) -> None:
    """End a trial, which touches nothing outside of its process, even if it ignores other signals."""
    process.kill()


async def _tried(command: Sequence[str], memory: int) -> subprocess.CompletedProcess[bytes] | None:
    """Run a command, which inherits the descriptor ``memory``, to its end. Return None if it hangs."""
    done: subprocess.CompletedProcess[bytes] | None = None

    async def run(*, task_status: trio.TaskStatus[trio.Process]) -> None:
        nonlocal done
        done = await trio.run_process(
            command,
            pass_fds=(memory,),
            stdin=b"",
            capture_stdout=True,
            capture_stderr=True,
            check=False,
            deliver_cancel=_kill,
            task_status=task_status,
        )
        nursery.cancel_scope.cancel()

    async with trio.open_nursery() as nursery:
        process = await nursery.start(run)
        watch = StartWatch(process.pid)
        hangs = False
        while not hangs:
            await trio.sleep(LOOK_S)
            hangs = await trio.to_thread.run_sync(watch.hangs)
        nursery.cancel_scope.cancel()
    return done


def _connections(known: Sequence[int]) -> Iterator[int]:
    """Yield the connected TCP sockets of this process that nothing else hands over."""
    others = set(known)
    for name in os.listdir("/proc/self/fd"):  # noqa: PTH208 - no pathlib here
        number = int(name)
        with contextlib.suppress(OSError):
            if number in others or not stat.S_ISSOCK(os.fstat(number).st_mode):
                continue
            # A copy: closing the object closes it alone.
            with socket.socket(fileno=fcntl.fcntl(number, fcntl.F_DUPFD_CLOEXEC, 3)) as probe:
                if probe.family in {socket.AF_INET, socket.AF_INET6} and probe.type == socket.SOCK_STREAM:
                    probe.getpeername()
                    yield number
