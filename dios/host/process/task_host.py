"""Starts tasks, serves the calls of tasks and sessions, and reports their ends to the core.

Processes are created by ``dios.host.process.zygote_pool``; calls are executed by ``dios.host.loop.driver``.
"""

from __future__ import annotations

import contextlib
import logging
import os
import resource
import socket
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Final, NamedTuple, Protocol

import trio

from dios import limits
from dios.core.effects import NO_SHARE, Spawn, TaskShare
from dios.core.events import ConsoleArrived, Disconnected, LogLeft, SessionOpened, TaskEnded, TaskStarted
from dios.errors import DiosError, InvariantError, OutOfMemoryError, ProtocolError
from dios.host.audit.charges import AuditCharges
from dios.host.bandwidth.rates import Rates
from dios.host.content.consoles import Consoles, TaskConsole
from dios.host.content.contents import Contents
from dios.host.content.memories import translate_os_error
from dios.host.content.public_pages import PublicPages
from dios.host.content.stored_bytes import StoredBytes
from dios.host.environments.store import EnvironmentStore, key_for, source_of
from dios.host.handover import format as form
from dios.host.handover.gate import Gate
from dios.host.loop.clock import Clock
from dios.host.loop.driver import Driver
from dios.host.loop.fair_queue import FairQueue, TaskPrincipals
from dios.host.loop.node_log import correlate
from dios.host.loop.outbox import Outbox
from dios.host.loop.persister import Persister
from dios.host.process.call_turns import CallTurns
from dios.host.process.held_shares import HeldShares
from dios.host.process.last_exception import exception_line
from dios.host.process.lineages import OWN, lineage_of
from dios.host.process.task_process import Exit, TaskProcess
from dios.host.process.zygote_link import ZygoteLink
from dios.ids import Name, ObjectId, Principal, TaskId
from dios.transport.batch import BATCH
from dios.transport.unix.server import ChannelState, TaskChannel, UnreadDescriptors, hung_up
from dios.wire.codec import PROTOCOL_VERSION, decode_request, encode_reply
from dios.wire.environments import digest_of
from dios.wire.messages import AnyCall, Failure, Hello, Limits
from dios.wire.types import Brand, Cause

_log: Final = logging.getLogger(__name__)

DEFECT: Final = "an internal error of the node ended this connection; see the node's log"
_SEND_HIGH: Final = limits.SEND_QUEUE_BYTES_MAX // 2
_FORK_S_MAX: Final = 120.0
"""The time in which a session must fork itself after the order."""


class ProcessSpawner(Protocol):
    """A factory of task processes."""

    async def wait_fit(self) -> None:
        """Wait until it is known if pure tasks can run. Raise DiosError with the reason if they cannot."""

    def using(self, lineage: str, template: str = "") -> AbstractContextManager[object]:
        """Keep the lineage from which a task is being started."""

    async def prepare(self, template: str, lineage: str, *, forkable: bool) -> None:
        """Wait until the zygote or the template of a task runs. Raise DiosError with advice if it cannot."""

    def require_forkable(self) -> None:
        """Raise DiosError with the reason if no session can be forked."""

    def take(
        self, brand: Brand, task_limits: Limits, template: str = "", lineage: str = OWN
    ) -> TaskProcess | None:
        """Return a process that waits for such a task, or None: then ``spawn`` starts one."""

    async def spawn(
        self,
        brand: Brand,
        task_limits: Limits,
        template: str = "",
        *,
        lineage: str = OWN,
        forkable: bool = False,
    ) -> TaskProcess:
        """Start a process, from a template if one is given. Raise DiosError with advice if that fails."""

    async def fork(self, task_limits: Limits, session: TaskProcess) -> TaskProcess:
        """Wait until a session has forked itself. Raise DiosError with the reason if it does not."""

    async def hold(self, child: TaskProcess, share: TaskShare) -> None:
        """Hold a process to its part of the machine. Raise DiosError if it cannot be pinned as that says."""


def _lineage_of(effect: Spawn, environment: str = "") -> str:
    own = Principal(f"uid:{os.geteuid()}")
    return lineage_of(
        effect.principal,
        own,
        is_gateway=effect.is_gateway,
        environment=environment,
        isolation=effect.isolation,
    )


class Payer(NamedTuple):
    """The principal and the job that are charged for the audit records of a connection's calls."""

    principal: Principal
    job: TaskId


class TaskHostParts(NamedTuple):
    """The parts of the host that serving tasks needs."""

    driver: Driver
    outbox: Outbox
    pages: PublicPages
    consoles: Consoles
    persister: Persister
    clock: Clock
    rates: Rates
    stored: StoredBytes
    charges: AuditCharges
    contents: Contents
    environments: EnvironmentStore


class _StartedTask:
    """A task from its Spawn effect to its end. It remembers requests made before the process exists."""

    def __init__(self, principal: Principal, job: TaskId) -> None:
        self.principal: Final = principal
        self.job: Final = job
        self.process: TaskProcess | None = None
        self.channel: TaskChannel | None = None
        self.killed = False
        self.suspended = False
        self.preparing = trio.CancelScope()
        self.environment = ""
        """The key of its environment, once it is there."""
        self.archive: int | bytes | None = None
        """The archive of its environment, until that is made; a descriptor is closed then."""

    def apply(self, process: TaskProcess) -> None:
        """Set the process and carry out the requests that came before it existed."""
        self.process = process
        if self.killed:
            process.kill()
        elif self.suspended:
            process.suspend()


class TaskHost:
    """All tasks and sessions of the node. Its trio tasks run in ``nursery``."""

    def __init__(self, nursery: trio.Nursery, spawner: ProcessSpawner, gate: Gate) -> None:
        self._nursery: Final = nursery
        self._spawner: Final = spawner
        self._running: Final[dict[TaskId, _StartedTask]] = {}
        # A process takes milliseconds to make, so that principals take turns.
        self._starters: Final = TaskPrincipals()
        self._spawn_turns: Final = FairQueue(self._starters, limits.SPAWNS_AT_ONCE_MAX)
        self._call_turns: Final = CallTurns(nursery)
        # Many sessions that open at once would keep calls waiting, also in the same queue.
        self._opening_turns: Final = CallTurns(nursery)
        self.openings = 0
        """The number of sessions whose Hello was read, and that wait for their turn to open."""
        self._sessions: Final[dict[TaskId, TaskChannel]] = {}
        self._closing: Final[set[TaskId]] = set()
        self._empty = trio.Event()
        self.gate: Final = gate
        self._stopped: Final[dict[TaskId, list[bytes]]] = {}
        """Calls that were received and not handled when the gate closed, or by a predecessor."""
        self._session_peers: Final[dict[TaskId, tuple[int, int]]] = {}
        self._newcomers: Final[dict[TaskChannel, tuple[int, int]]] = {}
        self.unread: Final = UnreadDescriptors(resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 2)
        self._held: Final = HeldShares(nursery, spawner.hold, self._process_of)
        self._parts: TaskHostParts

    def connect(self, parts: TaskHostParts) -> None:
        """Set the other parts of the host, which need this object themselves."""
        self._parts = parts

    @property
    def sound(self) -> bool:
        """True if the node's state is intact, so that it may go on after an error in one connection."""
        return self._parts.driver.sound

    @property
    def sessions(self) -> int:
        """The number of connected programs of users."""
        return len(self._sessions)

    def is_session(self, task: TaskId) -> bool:
        """Return True for a connected program of a user, which is not in a sandbox."""
        return task in self._sessions

    async def wait_all_ended(self) -> None:
        """Wait until all tasks and sessions have ended."""
        while self._running or self._sessions:
            self._empty = trio.Event()
            await self._empty.wait()

    # -- the successor of this process -----------------------------------------------------------------
    @property
    def starting(self) -> int:
        """The number of tasks whose process does not exist yet."""
        return sum(running.channel is None for running in self._running.values())

    @property
    def ending(self) -> int:
        """The number of tasks whose process has ended, and whose end was not reported yet."""
        return sum(
            running.process is not None and running.process.exit is not None
            for running in self._running.values()
        )

    def has_session_of(self, pid: int) -> bool:
        """Return True if a session of that process is open."""
        return any(peer_pid == pid for _, peer_pid in self._session_peers.values())

    def hand_over(self, zygotes: Sequence[form.Zygote]) -> tuple[list[form.Task], list[form.Session]]:
        """Describe all tasks and sessions for the successor of this process. The gate is closed."""
        places = {
            (child.pid, child.number): place
            for place, zygote in enumerate(zygotes)
            for child in zygote.children
        }
        tasks: list[form.Task] = []
        for task, running in self._running.items():
            process, channel = running.process, running.channel
            if process is None or channel is None:
                raise InvariantError("a task that has not started cannot be handed over")
            place = places.get((process.pid, process.number))
            if place is None:
                raise InvariantError("the process of a task that is handed over has ended")
            tasks.append(
                form.Task(
                    task,
                    running.principal,
                    running.job,
                    place,
                    process.number,
                    self._described_channel(task, channel),
                    running.killed,
                    running.suspended,
                )
            )
        sessions = [
            form.Session(
                task,
                *self._session_peers[task],
                self._described_channel(task, channel),
                task in self._closing,
            )
            for task, channel in self._sessions.items()
        ]
        return tasks, sessions

    def _described_channel(self, task: TaskId, channel: TaskChannel) -> form.Channel:
        return described_channel(channel, self._stopped.get(task, ()))

    def take_over(self, tasks: Iterable[form.Task], zygotes: Sequence[ZygoteLink]) -> None:
        """Continue with the tasks of the predecessor."""
        for described in tasks:
            task = TaskId(described.task)
            running = _StartedTask(Principal(described.principal), TaskId(described.job))
            running.process = process = zygotes[described.zygote].children[described.child]
            running.channel = taken_channel(described.channel, self._nursery, self.unread)
            running.killed, running.suspended = described.killed, described.suspended
            self._stopped[task] = list(described.channel.calls)
            self._parts.outbox.open(task, running.channel)
            self._running[task] = running
            effect = Spawn(task, process.brand, "", ObjectId(0), Limits(), running.principal, running.job)
            self._nursery.start_soon(self._run_task, effect, running, name="task")

    # -- what the core asks (``effector.Tasks``) ------------------------------------------------------
    def spawn(self, effect: Spawn) -> None:
        """Begin to start a process; replies to the task are queued until it is connected.

        A process that waits for such a task is connected at once.
        """
        parts = self._parts
        parts.pages.open(effect.task)
        parts.outbox.open(effect.task)
        running = _StartedTask(effect.principal, effect.job)
        # Without it the start fails, unless the environment is there: in particular for a content that is
        # damaged, on another node, or read for the first time, which would take long.
        if effect.archive and not parts.contents.is_slow(effect.archive):
            with contextlib.suppress(DiosError, OSError):
                running.archive = source_of(parts.contents.current(effect.archive))
        waiting = self._waiting_process(effect)
        if waiting is not None:
            try:
                self._begin(effect.task, running, waiting)
            except BaseException:
                waiting.close()
                raise
        self._running[effect.task] = running
        self._nursery.start_soon(self._run_task, effect, running, name="task")

    def kill(self, task: TaskId) -> None:
        """End a task's process. Do nothing if it has ended."""
        running = self._running.get(task)
        if running is not None:
            running.killed = True
            running.preparing.cancel()
            if running.process is not None:
                running.process.kill()

    def suspend(self, task: TaskId) -> None:
        """Stop a task's process."""
        running = self._running.get(task)
        if running is not None:
            running.suspended = True
            if running.process is not None:
                running.process.suspend()

    def resume(self, task: TaskId) -> None:
        """Continue a task's process."""
        running = self._running.get(task)
        if running is not None:
            running.suspended = False
            if running.process is not None:
                running.process.resume()

    def hold(self, shares: tuple[tuple[TaskId, TaskShare], ...], lease_ms: int) -> None:
        """Hold running tasks to these shares for ``lease_ms``, and others that were held no longer."""
        self._held.set(shares, lease_ms)

    def prune_environments(self, digest: str, unused_ms: int) -> None:
        """Begin to remove environments in which no task runs."""
        self._nursery.start_soon(self._prune, digest, unused_ms / 1000, name="remove environments")

    async def _prune(self, digest: str, unused_s: float) -> None:
        await self._parts.environments.prune(digest, unused_s=unused_s)

    def _process_of(self, task: TaskId) -> TaskProcess | None:
        running = self._running.get(task)
        return None if running is None else running.process

    def close(self, task: TaskId, reason: str) -> None:
        """Close a session's connection after its queued replies are sent."""
        del reason
        channel = self._sessions.get(task)
        if channel is not None and task not in self._closing:
            self._closing.add(task)
            self._nursery.start_soon(_close_later, channel, name="close a connection")

    def overrun(self, task: TaskId, why: str) -> None:
        """Close the connection of a task that does not read its replies."""
        _log.warning("a connection was closed", extra={"why": why})
        connection = self._parts.outbox.get(task)
        self._parts.outbox.close(task)
        if connection is not None and connection.channel is not None:
            connection.channel.close()
        self._parts.driver.post(Disconnected(self._parts.clock.now(), task, why))

    # -- one task -----------------------------------------------------------------------------------
    async def _run_task(self, effect: Spawn, running: _StartedTask) -> None:
        task = effect.task
        end = Exit(Cause.SPAWN)
        rates = self._parts.rates
        try:
            if effect.share.network:
                rates.limit_task(task, effect.share.network)
            end = await self._start_and_serve(effect, running)
        except (DiosError, OSError) as error:
            refusal = translate_os_error(error)
            end = Exit(Cause.SPAWN, exit_code=int(refusal.code), detail=refusal.message)
        except Exception as error:
            if not self._parts.driver.sound:
                raise
            _log.exception("an internal error ended a task", exc_info=error)
            end = Exit(Cause.NODE, detail=DEFECT)
        finally:
            del self._running[task]
            if isinstance(running.archive, int):
                os.close(running.archive)
            rates.end_task(task)
            parts = self._parts
            parts.environments.note_use(running.environment)
            detail = self._described(end, parts.consoles.of(task))
            written = parts.consoles.of(task).last_bytes(limits.LOG_BYTES_MAX)
            parts.consoles.ended(task, effect.principal, effect.job)
            parts.outbox.close(task)
            parts.driver.feed(
                TaskEnded(
                    parts.clock.now(),
                    task,
                    detail[0],
                    end.exit_code,
                    end.signal,
                    detail[1],
                    end.cpu_ms,
                    end.memory_bytes,
                )
            )
            if written:
                payload, payloads = parts.driver.register_payload(written)
                parts.driver.feed(LogLeft(parts.clock.now(), task, payload, len(written)), payloads)
            parts.pages.close(task)
            self._check_empty()

    async def _start_and_serve(self, effect: Spawn, running: _StartedTask) -> Exit:
        parts, task = self._parts, effect.task
        process = running.process or await self._spawn_in_turn(effect, running)
        if process is None:
            return Exit(Cause.KILLED, detail="it was ended before it started")
        try:
            channel = running.channel or self._begin(task, running, process)
            async with trio.open_nursery() as readers:
                readers.start_soon(self._read_console, task, process)
                payer = Payer(effect.principal, effect.job)
                readers.start_soon(self._serve_task, task, channel, payer, process.ended_event)
                end = await process.wait()
                # Read what the process sent before it ended. A child process may hold its ends open.
                drain_s = limits.TASK_DRAIN_MS_MAX / 1000
                readers.cancel_scope.deadline = trio.current_time() + drain_s
        finally:
            if running.channel is not None:
                running.channel.close()
            process.close()
        parts.driver.feed(ConsoleArrived(parts.clock.now(), task, 0))
        return end

    def _waiting_process(self, effect: Spawn) -> TaskProcess | None:
        """Return a process that waits for this task, or None. Starts that wait for a turn come first."""
        if effect.forkable or effect.fork_of or effect.share != NO_SHARE or self._spawn_turns.any_waits:
            return None
        if digest_of(effect.template):
            return None
        try:
            return self._spawner.take(effect.brand, effect.limits, effect.template, _lineage_of(effect))
        except DiosError:
            return None  # the start on demand fails with the reason

    async def _spawn_in_turn(self, effect: Spawn, running: _StartedTask) -> TaskProcess | None:
        """Start the process when its principal has a turn; return None for a task that has ended."""
        if effect.fork_of:
            return await self._fork(effect, running)
        if digest := digest_of(effect.template):
            return await self._spawn_in_environment(effect, running, digest)
        spawn = self._spawn_prepared if effect.brand is Brand.PURE else self._spawn_with_turn
        return await spawn(effect, running, effect.template, _lineage_of(effect))

    async def _spawn_in_environment(
        self, effect: Spawn, running: _StartedTask, digest: str
    ) -> TaskProcess | None:
        """Make the environment of a task if it is not there, and start the process in it."""
        environments = self._parts.environments
        with environments.holding(key_for(effect.principal, digest)):
            key = ""
            with running.preparing:
                await self._spawner.wait_fit()
                archive, running.archive = running.archive, None
                key = await environments.ensure(effect.principal, digest, archive, effect.isolation)
            if not key or running.killed:
                return None
            running.environment, running.preparing = key, trio.CancelScope()
            return await self._spawn_prepared(effect, running, "", _lineage_of(effect, key))

    async def _spawn_prepared(
        self, effect: Spawn, running: _StartedTask, template: str, lineage: str
    ) -> TaskProcess | None:
        """Prepare what the process of a pure task starts from, and start it."""
        with self._spawner.using(lineage, template):
            # Before the turn: a zygote and a template take long to start, and others want to start tasks.
            with running.preparing:
                await self._spawner.wait_fit()
                if effect.forkable:
                    self._spawner.require_forkable()
                await self._spawner.prepare(template, lineage, forkable=effect.forkable)
            return await self._spawn_with_turn(effect, running, template, lineage)

    async def _spawn_with_turn(
        self, effect: Spawn, running: _StartedTask, template: str, lineage: str
    ) -> TaskProcess | None:
        turn = trio.Event()
        self._starters.add(effect.task, effect.principal)
        self._spawn_turns.request_turn(effect.task, turn.set)
        await turn.wait()
        try:
            if running.killed:
                return None
            process = await self._spawner.spawn(
                effect.brand,
                effect.limits,
                template,
                lineage=lineage,
                forkable=effect.forkable,
            )
            await self._hold(process, effect.share)
            return process
        finally:
            self._spawn_turns.end_turn(effect.task)
            self._starters.remove(effect.task)

    async def _fork(self, effect: Spawn, running: _StartedTask) -> TaskProcess | None:
        """Wait until a session has forked itself; return None for a task that was ended meanwhile.

        It takes no turn, because the session decides how long this takes.
        """
        origin = self._running.get(effect.fork_of)
        if origin is None or origin.process is None:
            raise OutOfMemoryError("cannot fork the session: it has ended", call="run")
        process: TaskProcess | None = None
        with running.preparing, trio.move_on_after(_FORK_S_MAX):
            process = await self._spawner.fork(effect.limits, origin.process)
        if process is None and not running.killed:
            raise OutOfMemoryError(f"the session did not fork within {_FORK_S_MAX:.0f} s", call="run")
        if process is not None:
            await self._hold(process, effect.share)
        return process

    async def _hold(self, process: TaskProcess, share: TaskShare) -> None:
        """Hold a process to its part of the machine; end it if that fails."""
        if share == NO_SHARE:
            return
        try:
            await self._spawner.hold(process, share)
        except BaseException:
            process.close()
            raise

    def _begin(self, task: TaskId, running: _StartedTask, process: TaskProcess) -> TaskChannel:
        """Connect a process with its task, and report that to the core after the present step."""
        parts = self._parts
        raw = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM, fileno=process.socket.detach())
        channel = running.channel = TaskChannel(raw, self._nursery, self.unread)
        connection = parts.outbox.get(task)
        if connection is not None:
            connection.attach(channel)
        parts.driver.post(TaskStarted(parts.clock.now(), task, process.pid))
        running.apply(process)
        _log.debug("task started", extra={"connection": f"{task:016x}", "pid": process.pid})
        return channel

    async def _serve_task(self, task: TaskId, channel: TaskChannel, payer: Payer, ended: trio.Event) -> None:
        reason = await self._calls_until_end(task, channel, payer, ended=ended)
        self._parts.driver.feed(Disconnected(self._parts.clock.now(), task, reason))

    async def _read_console(self, task: TaskId, process: TaskProcess) -> None:
        """Read what a task prints until its end. While the gate is closed, it stays in the pipe."""
        while True:
            with self.gate.passing(process.ended_event) as scope:
                await self._read_console_now(task, process.console_fd)
            if not scope.cancelled_caught:
                return
            await self.gate.wait_open(process.ended_event)

    async def _read_console_now(self, task: TaskId, fd: int) -> None:
        parts = self._parts
        console = parts.consoles.of(task)
        os.set_blocking(fd, False)
        while True:
            # While the console has no room the pipe fills up, and a task that prints too fast waits.
            await console.wait_for_room()
            try:
                data = os.read(fd, limits.CONSOLE_READ_BYTES)
            except BlockingIOError:
                await trio.lowlevel.wait_readable(fd)
                continue
            if not data:
                return
            console.append(data)
            parts.driver.feed(ConsoleArrived(parts.clock.now(), task, len(data)))
            await trio.lowlevel.checkpoint()

    @staticmethod
    def _described(end: Exit, console: TaskConsole) -> tuple[Cause, str]:
        """Return the cause of an end, and a description that includes the task's last lines."""
        if end.cause is Cause.EXITED and end.exit_code == 0:
            return end.cause, end.detail
        lines = console.last_lines()
        cause = end.cause
        text = "\n".join(lines)
        if cause is Cause.EXITED and end.exit_code == 1:
            line = exception_line(console.text())
            if line:
                return Cause.EXCEPTION, f"{line[: limits.TEXT_BYTES_MAX // 4]}\n\nLast lines:\n{text}"
        return cause, f"{end.detail}\nLast lines:\n{text}".strip() if lines else end.detail

    # -- one session --------------------------------------------------------------------------------
    async def serve_session(self, task: TaskId, uid: int, pid: int, channel: TaskChannel) -> None:
        """Serve a user's program from its Hello to its end."""
        principal = principal_of(uid)
        self._newcomers[channel] = (uid, pid)
        try:
            opening = await self._receive_hello(channel)
        finally:
            del self._newcomers[channel]
        if opening is None:
            return
        # It has the place as long as it lasts, because a principal without one would begin with a full turn.
        turn = self._opening_turns.join(principal)
        try:
            turn.expected = limits.TURN_OPENING_UNITS
            if not turn.begins():
                self.openings += 1
                try:
                    await turn.wait()
                finally:
                    self.openings -= 1
            turn.spend(limits.TURN_OPENING_UNITS)
            await self._open_and_serve(task, uid, pid, channel, opening)
        finally:
            turn.leave()

    async def _open_and_serve(
        self,
        task: TaskId,
        uid: int,
        pid: int,
        channel: TaskChannel,
        opening: tuple[int, Hello, list[bytes]],
    ) -> None:
        parts, principal = self._parts, principal_of(uid)
        seq, hello, rest = opening
        refused = parts.driver.refusal_of(hello)
        if refused is not None:
            _refuse(channel, refused, seq)
            return
        parts.pages.open(task)
        parts.outbox.open(task, channel)
        self._sessions[task], self._session_peers[task] = channel, (uid, pid)
        groups = tuple(Name(name) for name in hello.groups)
        opened = SessionOpened(parts.clock.now(), task, seq, principal, groups, hello.label, pid)
        await self._serve_opened(task, channel, principal, rest, opened)

    async def continue_session(self, session: form.Session, channel: TaskChannel) -> None:
        """Serve a program that was connected to the predecessor."""
        task = TaskId(session.task)
        self._parts.outbox.open(task, channel)
        self._sessions[task], self._session_peers[task] = channel, (session.uid, session.pid)
        if session.closing:
            self.close(task, "")
        await self._serve_opened(task, channel, principal_of(session.uid), list(session.channel.calls))

    async def _serve_opened(
        self,
        task: TaskId,
        channel: TaskChannel,
        principal: Principal,
        bodies: list[bytes],
        opened: SessionOpened | None = None,
    ) -> None:
        parts = self._parts
        reason = ""
        try:
            if opened is not None:
                parts.driver.feed(opened)
            reason = await self._calls_until_end(task, channel, Payer(principal, task), bodies)
        finally:
            parts.outbox.close(task)
            parts.driver.feed(Disconnected(parts.clock.now(), task, reason))
            parts.pages.close(task)
            parts.consoles.drop(task)
            del self._sessions[task], self._session_peers[task]
            self._closing.discard(task)
            self._check_empty()

    async def _receive_hello(self, channel: TaskChannel) -> tuple[int, Hello, list[bytes]] | None:
        """Return the Hello of a new session, its sequence number, and the frames received after it."""
        with trio.move_on_after(limits.HELLO_MS_MAX / 1000):
            try:
                bodies: list[bytes] = []
                while True:
                    with self.gate.passing() as scope:
                        bodies = await channel.receive()
                    if not scope.cancelled_caught:
                        break
                    await self.gate.wait_open()
                if bodies:
                    request = decode_request(bodies[0])
                    return request.seq, _checked_hello(request.call), bodies[1:]
            except ProtocolError as error:
                _refuse(channel, error)
        return None

    def newcomers(self) -> tuple[form.Newcomer, ...]:
        """Describe the programs that have connected and not said their Hello."""
        return tuple(
            form.Newcomer(uid, pid, described_channel(channel))
            for channel, (uid, pid) in self._newcomers.items()
        )

    # -- frames -------------------------------------------------------------------------------------
    async def _calls_until_end(
        self,
        task: TaskId,
        channel: TaskChannel,
        payer: Payer,
        bodies: list[bytes] | None = None,
        ended: trio.Event | None = None,
    ) -> str:
        """Run ``read_calls``; an internal error ends only this connection, not the node.

        An error inside a step of the core is raised, because the node's state may be wrong after it.
        """
        correlate(connection=f"{task:016x}", principal=payer.principal)
        try:
            return await self.read_calls(task, channel, payer, bodies, ended)
        except Exception as error:
            if not self._parts.driver.sound:
                raise
            _log.exception("an internal error ended a connection", exc_info=error)
            return DEFECT

    def _is_traced(self, task: TaskId) -> bool:
        """Return True if traced calls of a task or session are answered with the times of their parts."""
        return task in self._sessions or task in self._parts.driver.tracer.tasks

    async def read_calls(
        self,
        task: TaskId,
        channel: TaskChannel,
        payer: Payer,
        bodies: list[bytes] | None = None,
        ended: trio.Event | None = None,
    ) -> str:
        """Turn a channel's frames into calls until it ends. Return the reason, empty for an orderly end.

        While the gate is closed, calls that were received and not handled wait. After ``ended``, the
        event of the end of a process, its last calls do not.
        """
        self._stopped[task] = self._stopped.get(task, []) + (bodies or [])
        try:
            while True:
                reason = ""
                with self.gate.passing(ended) as scope:
                    reason = await self._read_calls(task, channel, payer)
                if not scope.cancelled_caught:
                    return reason
                await self.gate.wait_open(ended)
        finally:
            del self._stopped[task]

    async def _read_calls(  # noqa: PLR0915 - the hot path has no calls to parts of it
        self, task: TaskId, channel: TaskChannel, payer: Payer
    ) -> str:
        """Turn a channel's frames into calls until it ends. Return the reason, empty for an orderly end.

        A call waits for a turn of its principal, and while ``payer`` owes for audit records. After a turn,
        the calls of a peer that is gone are dropped: its queue would take turns from others, and a client
        could leave many behind.
        """
        driver = self._parts.driver
        call = driver.call
        persister, rates, wait_off = (
            self._parts.persister,
            self._parts.rates,
            self._parts.stored.wait_for_credit,
        )
        receive = channel.receive
        charges = self._parts.charges

        def ended() -> bool:
            return hung_up(channel.fileno())

        turn = self._call_turns.join(payer.principal)
        bodies, self._stopped[task] = self._stopped[task], []
        handled = 0
        try:
            if not bodies:
                bodies = await receive()
            while bodies:
                if not turn.begins():
                    await turn.wait()
                begun = driver.units
                BATCH.begin(len(bodies))
                for handled, body in enumerate(bodies):
                    request = decode_request(body)
                    if charges.any_debts:
                        BATCH.end()
                        turn.spend(driver.units - begun)
                        await charges.wait_for_credit(*payer, ended)
                        begun = driver.units
                    if rates.hold:
                        BATCH.end()
                        turn.spend(driver.units - begun)
                        await wait_off(task, request.call, channel)
                        begun = driver.units
                    if request.trace is None or not self._is_traced(task):
                        call(task, request.seq, request.call)
                    else:
                        driver.traced_call(task, request.seq, request.call, request.trace)
                    if driver.units - begun >= limits.TURN_UNITS_MAX:
                        BATCH.end()
                        turn.spend(driver.units - begun)
                        handled += 1  # noqa: PLW2901 - this call as well, should the wait be interrupted
                        await turn.wait()
                        begun = driver.units
                        if channel.abandoned:
                            return ""  # a long queue of calls whose answers nobody can read
                        BATCH.begin(len(bodies))
                BATCH.end()
                turn.spend(driver.units - begun)
                bodies, handled = [], 0
                if channel.queued_bytes > _SEND_HIGH:
                    await channel.flush()
                if persister.backlog >= limits.STORE_QUEUE_MAX:
                    await persister.wait_for_room()
                bodies = await receive()
        except ProtocolError as error:
            _refuse(channel, error)
            return error.message
        except trio.Cancelled:
            self._stopped[task] = bodies[handled:]
            raise
        finally:
            BATCH.end()
            turn.leave()
        return ""

    def _check_empty(self) -> None:
        if not self._running and not self._sessions:
            self._empty.set()


def principal_of(uid: int) -> Principal:
    """Return the principal of a process that runs as user ``uid`` (§3.2.2.1)."""
    return Principal(f"uid:{uid}")


def described_channel(channel: TaskChannel, calls: Iterable[bytes] = ()) -> form.Channel:
    """Describe a channel and the calls that were received on it and not handled."""
    fd, unfinished, unsent, unread = channel.hand_over()
    return form.Channel(
        fd, unfinished, tuple(calls), tuple(form.Unsent(*message) for message in unsent), unread
    )


def taken_channel(
    described: form.Channel, nursery: trio.Nursery, unread: UnreadDescriptors | None = None
) -> TaskChannel:
    """Return the channel of a predecessor."""
    unsent = tuple((message.data, message.fds) for message in described.unsent)
    return TaskChannel.taken_over(
        ChannelState(described.fd, described.unfinished, unsent, described.unread), nursery, unread
    )


def _checked_hello(call: AnyCall) -> Hello:
    if not isinstance(call, Hello):
        raise ProtocolError("the first message on a connection must be a Hello")
    if call.version != PROTOCOL_VERSION:
        raise ProtocolError(
            f"the node uses version {PROTOCOL_VERSION} of the protocol and this client version "
            f"{call.version}. Install the same release on both sides."
        )
    return call


def _refuse(channel: TaskChannel, error: DiosError, seq: int = 0) -> None:
    try:
        channel.send_nowait(encode_reply(seq, Failure(int(error.code), error.message)))
    except DiosError:
        return


async def _close_later(channel: TaskChannel) -> None:
    with trio.move_on_after(limits.TASK_DRAIN_MS_MAX / 1000):
        await channel.flush()
    channel.close()
