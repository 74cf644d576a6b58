"""The supervisor of one user's services on one node: while the node leads, it keeps the replicas running.

It runs in the node's process, with a session of the node that acts for the user. It has no state that
matters, because it sees the replicas in the list of tasks.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Final, NamedTuple, cast

import trio
from msgspec.structs import replace

from dios import limits
from dios.core.model.names import log_name
from dios.errors import DiosError, TimeLimitError
from dios.ids import Name
from dios.lib.closing import close_all_async
from dios.lib.supervised import records
from dios.lib.supervised.decisions import Replica, ServiceDecision, Start, array_steps, next_steps
from dios.lib.supervised.pauses import NodeRefusals, StartPause
from dios.lib.supervised.predecessors import View, is_complete, missing_tasks, still_waiting
from dios.lib.supervised.records import (
    STATE_LABEL,
    JobEnd,
    JobState,
    ReplicaNote,
    ServiceGeneration,
    ServiceRecord,
    ServicesReport,
)
from dios.lib.user_records.leader import Leader, Round
from dios.wire.node_roles import NodeRight
from dios.wire.types import Cause, ObjectType, TaskState

if TYPE_CHECKING:
    from dios.client.aio.node import AsyncNode, AsyncReference, AsyncTask
    from dios.client.ops.cluster import Member
    from dios.client.ops.status import Status

_LIVING: Final = frozenset({TaskState.STARTING, TaskState.RUNNING, TaskState.PAUSED})
_AT_ONCE: Final = frozenset({Cause.NODE_LOST, Cause.NODE, Cause.PREEMPTED, Cause.MOVED})
"""Ends for which the program is not to blame."""
_NO_ATTEMPT: Final = _AT_ONCE | {Cause.SPAWN}
"""Ends that count as no attempt of a kept job: a task that could not be started has run nothing."""
_BY_SCHEDULER: Final = ""
"""In place of a node's name: the scheduler chooses the node."""


class _Watched(NamedTuple):
    """A replica that this supervisor has seen: the task, its node, and the time when it was seen first."""

    fingerprint: str
    node: str
    since: float


class _Health:
    """The results of the health checks of one replica; ``unknown`` is why the last one could not run."""

    __slots__ = ("failed", "is_running", "next_at", "passed", "unknown")

    def __init__(self) -> None:
        self.failed = 0
        self.passed = False
        self.unknown = ""
        self.is_running = False
        self.next_at = 0.0


async def supervise(node: AsyncNode, log: Callable[[str], None]) -> None:
    """Supervise the services of one user until cancelled; ``node`` is a session that acts for the user.

    Raise DiosError if the connection ends.
    """

    def begin(nursery: trio.Nursery) -> Callable[[Round[dict[str, ServiceRecord]]], Awaitable[None]]:
        return _Supervisor(leader, node, log, nursery).act

    leader: Leader[dict[str, ServiceRecord]] = Leader(
        node, records.SERVICE_RECORDS, log, begin, round_ms=limits.SERVICE_ROUND_MS
    )
    await leader.run()


class _Supervisor:
    """The supervisor while its node leads."""

    def __init__(
        self,
        leader: Leader[dict[str, ServiceRecord]],
        node: AsyncNode,
        log: Callable[[str], None],
        nursery: trio.Nursery,
    ) -> None:
        self._leader: Final = leader
        self._node: Final = node
        self._log: Final = log
        self._nursery: Final = nursery
        self._kept: Final[dict[str, int]] = {}
        self._busy: set[tuple[str, Start]] = set()
        self._watched: Final[dict[tuple[str, Start], _Watched]] = {}
        self._pauses: Final[dict[tuple[str, Start], StartPause]] = {}
        self._refusals: Final = NodeRefusals()
        self._starting: Final[dict[tuple[str, Start], str]] = {}
        self._starts: Final[dict[tuple[str, Start], tuple[str, trio.CancelScope]]] = {}
        """The token of the record and the scope of each start under way."""
        self._health: Final[dict[str, _Health]] = {}
        self._stopped: Final[set[str]] = set()
        self._known: Mapping[str, ServiceRecord] = {}
        self._replaced: Final[dict[str, tuple[ServiceRecord, float]]] = {}
        """By token, the records whose names others have now, with the time when they were seen last."""
        self._missed: frozenset[str] = frozenset()

    async def act(self, turn: Round[dict[str, ServiceRecord]]) -> None:
        """Compare the services with the tasks that run, and start and stop replicas."""
        services, now = turn.records, turn.now
        living = [member for member in turn.members if member.usable]
        await self._keep_objects(
            services,
            [member.name for member in living if member.may(NodeRight.KEEP)],
            repaired=turn.repaired,
            moved=turn.moved,
        )
        self._withdraw_starts(services)
        if turn.suspects:
            return
        self._busy = set(self._starting)
        rows = await self._node.tasks()
        if not is_complete(turn.members, rows):
            return  # a living node did not answer
        view = View(services, rows, complete=True, missed=self._missed)
        jobs = (record.job for record in services.values() if record.job is not None)
        self._missed = missing_tasks(view, (predecessor for job in jobs for predecessor in job.after))
        self._forget(services)
        await self._end_replaced(services, rows, now)
        for record in services.values():
            if record.waits and await self._wait_for_others(record, view):
                continue
            await self._supervise(record, rows, living)
        await self._show(services, turn.here.name)

    # -- objects ------------------------------------------------------------------------------------
    async def _keep_objects(
        self, services: Mapping[str, ServiceRecord], nodes: Sequence[str], *, repaired: bool, moved: bool
    ) -> None:
        """Keep the objects of each service on all nodes, and delete those that no generation needs."""
        for record in services.values():
            changed = self._kept.get(record.name) != record.version
            self._kept[record.name] = record.version
            if repaired or changed:
                await self._leader.copies.spread(record.objects(), nodes)
            if moved or changed:
                await self._leader.copies.drop(record.dropped)

    # -- one service --------------------------------------------------------------------------------
    async def _wait_for_others(self, record: ServiceRecord, view: View) -> bool:
        """Record which runs a job still waits for. Return True if it waits now, or never begins."""
        job = record.job
        if job is None or job.end is not None:
            return False
        waiting = still_waiting(view, job.after)
        if waiting.never:
            await self._leader.copies.store(
                {record.name: records.not_begun(record, waiting.never, time.time_ns())}
            )
            return True
        if waiting.after != job.after:
            await self._store(records.with_after(record, waiting.after))
        return True

    async def _store(self, record: ServiceRecord) -> None:
        """Bring a changed record to all copies."""
        await self._leader.copies.store({record.name: record})

    async def _supervise(
        self, record: ServiceRecord, rows: Sequence[Status], nodes: Sequence[Member]
    ) -> None:
        now = trio.current_time()
        living: list[Replica] = []
        ended: dict[str, Status] = {}
        done: dict[int, Status] = {}
        attempts = record.attempts()
        for row in rows:
            place = record.place(row.label)
            if place is None:
                continue
            if row.state is TaskState.RUNNING:
                self._refusals.forget(record.name, row.node)
            if row.state in _LIVING:
                living.append(Replica(*place, row.fingerprint, row.node, row.started_ns, row.name))
            elif row.ended:
                ended[row.fingerprint] = row
                slot, generation = place
                # After a partition an attempt may have two tasks. The killed task does not count.
                was_killed = slot not in done or done[slot].cause is Cause.KILLED
                if attempts.get(slot) == generation and row.cause not in _NO_ATTEMPT and was_killed:
                    done[slot] = row
        for replica in living:
            if attempts.get(replica.slot) == replica.generation:
                done.pop(replica.slot, None)
        self._note_ends(record, living, ended, {member.name for member in nodes}, now)
        if done:
            await self._end_attempts(record, done)
            return
        for replica in living:
            key = (record.name, Start(replica.slot, replica.generation))
            if key not in self._watched:
                self._watched[key] = _Watched(replica.fingerprint, replica.node, now)
        for replica in living:
            self._check(record, replica, now)
        if record.job is not None and record.job.array is not None:
            starting = [place for name, place in self._starting if name == record.name]
            steps = array_steps(record, living, starting, self._paused(record.name, now))
        else:
            # A job stays on a draining node to its end, as other tasks do.
            draining = {member.name for member in nodes if member.draining and record.job is None}
            steps = next_steps(
                record,
                living,
                lambda candidate: self._is_healthy(record, candidate, rows, now),
                lambda candidate: candidate.node in draining,
            )
        await self._take(record, steps, living, nodes, now)

    async def _end_replaced(
        self, services: Mapping[str, ServiceRecord], rows: Sequence[Status], now: float
    ) -> None:
        """End the tasks of removed services and jobs, if others with their names followed at once."""
        for name, former in self._known.items():
            if name in services and services[name].token != former.token:
                self._replaced[former.token] = former, now
        self._known = services
        for token, (former, seen_at) in list(self._replaced.items()):
            living = [row for row in rows if row.state in _LIVING and former.place(row.label) is not None]
            for row in living:
                self._stopped.add(row.fingerprint)
                await self._kill(row)
            # A start that was under way may still come to a task.
            if living:
                self._replaced[token] = former, now
            elif now - seen_at > limits.SERVICE_START_MS_MAX / 1000:
                del self._replaced[token]

    def _note_ends(
        self,
        record: ServiceRecord,
        living: Sequence[Replica],
        ended: Mapping[str, Status],
        nodes: set[str],
        now: float,
    ) -> None:
        there = {replica.fingerprint for replica in living}
        for key, seen in list(self._watched.items()):
            if key[0] != record.name or key in self._busy or seen.fingerprint in there:
                continue
            del self._watched[key]
            self._health.pop(seen.fingerprint, None)
            if seen.fingerprint in self._stopped:
                self._stopped.discard(seen.fingerprint)
                continue
            row = ended.get(seen.fingerprint)
            if row is not None and row.cause is Cause.SPAWN:
                why = f"{seen.node} could not start it: {_first_line(row)}"
                if self._refusals.is_open(record.name, seen.node, now):
                    self._refusals.note(record.name, seen.node, now, why)
                self._pause(key).wait(now, why)
                continue
            lost = seen.node not in nodes or (row is not None and row.cause in _AT_ONCE)
            self._pause(key).note_end(now, now - seen.since, _reason(row, seen.node), lost=lost)

    async def _end_attempts(self, record: ServiceRecord, rows: Mapping[int, Status]) -> None:
        """Record the ends of the attempts of a kept job, by slot, with the output if no attempt follows."""
        changed = record
        for slot, row in rows.items():
            before = changed.attempt(slot)
            changed = await self._after_end(changed, slot, row)
            following = changed.attempt(slot)
            # A program that fails again and again is started later and later.
            pause = None if before is None else self._pauses.pop((record.name, Start(slot, before)), None)
            if pause is not None and following is not None:
                self._pauses[record.name, Start(slot, following)] = pause
        await self._store(changed)

    async def _after_end(self, record: ServiceRecord, slot: int, row: Status) -> ServiceRecord:
        """Return a record after the end of the attempt in a slot."""
        is_array = record.job is not None and record.job.array is not None
        most = limits.JOB_ELEMENT_DETAIL_MAX if is_array else limits.KEPT_JOB_DETAIL_MAX
        end = JobEnd(row.cause, row.exit_status, row.ended_ns, row.node, row.detail[:most])
        changed = records.ended(record, end, slot)
        if changed.attempt(slot) is not None:
            return changed
        # The nodes keep the last output of each task; that of a whole job is copied to all nodes.
        kept = log_name(Name(row.name)) if row.name is not None else None
        output = kept if is_array else await self._keep_output(row)
        return records.ended(record, replace(end, output=output), slot)

    async def _keep_output(self, row: Status) -> bytes | None:
        """Store the output of an ended task, and return its name; None if there is none to be had."""
        try:
            with trio.fail_after(limits.SERVICE_START_MS_MAX / 1000):
                data = await self._output_of(row)
                home = self._node.home
                if not data or home is None:
                    return None
                kept = await self._node.create(ObjectType.DURABLE_BLOB, groups=[home], data=data)
                await kept.close()
                return kept.name
        except (DiosError, trio.TooSlowError) as error:
            self._log(f"the output of {row.label} could not be stored: {error}")
            return None

    async def _output_of(self, row: Status) -> bytes:
        """Return the output that the task's node keeps, or its end, which is stored on a second node."""
        if row.name is None:
            return b""
        task = await self._node.find(row.name)
        if task is not None:
            try:
                async with task, await cast("AsyncTask", task).console() as console:
                    parts = [part async for part in console]
                return b"".join(parts)[-limits.KEPT_JOB_OUTPUT_BYTES_MAX :]
            except DiosError:
                pass
        log = await self._node.find(log_name(Name(row.name)))
        if log is None:
            return b""
        async with log:
            return await log.read_bytes()

    async def _take(
        self,
        record: ServiceRecord,
        steps: ServiceDecision,
        living: Sequence[Replica],
        nodes: Sequence[Member],
        now: float,
    ) -> None:
        for replica in steps.stop:
            self._stopped.add(replica.fingerprint)
            await self._kill(replica)
        for place in steps.start:
            key = (record.name, place)
            if key in self._starting or key in self._busy or now < self._pause(key).not_before:
                continue
            # This replica replaces the one in the same slot.
            others = [other for other in living if other.slot != place.slot and other not in steps.stop]
            known = node_order(nodes, others, self._starting, record)
            order = [name for name in known if self._refusals.is_open(record.name, name, now)]
            if record.job is not None and order == known and any(member.coordinated for member in nodes):
                # Jobs wait for their turn as other runs do. After a refusal the supervisor avoids that node.
                order = [_BY_SCHEDULER] if order else []
            if not known:
                self._pause(key).wait(now, _no_place(nodes))
            elif not order:
                first = self._refusals.next(record.name, known)
                self._pause(key).wait(first.not_before, first.reason)
            spec = record.spec_of(place.slot, place.generation)
            if order and spec is not None and self._has_room(order[0]):
                self._starting[key] = order[0]
                self._nursery.start_soon(self._start, record, spec, place, order)
        if steps.complete:
            await self._store(records.verified(record))

    async def _kill(self, target: Replica | Status) -> None:
        task = None if target.name is None else await self._node.find(target.name)
        if task is not None:
            with suppress(DiosError):
                await task.destroy()
            with suppress(DiosError):
                await task.close()

    def _pause(self, key: tuple[str, Start]) -> StartPause:
        return self._pauses.setdefault(key, StartPause())

    def _paused(self, name: str, now: float) -> set[Start]:
        """Return the replicas of a service that may not start yet."""
        return {
            place
            for (owner, place), pause in self._pauses.items()
            if owner == name and now < pause.not_before
        }

    def _has_room(self, host: str) -> bool:
        """Return True if one more start may wait; those that the scheduler places leave room for others."""
        queued = sum(node_name == _BY_SCHEDULER for node_name in self._starting.values())
        is_free = host != _BY_SCHEDULER or queued < limits.SERVICE_STARTS_QUEUED_MAX
        return is_free and len(self._starting) < limits.SERVICE_STARTS_MAX

    # -- starts -------------------------------------------------------------------------------------
    async def _start(
        self, record: ServiceRecord, spec: ServiceGeneration, place: Start, order: Sequence[str]
    ) -> None:
        """Start a replica on the first of these nodes that takes it, until ``_withdraw_starts`` ends that."""
        key = (record.name, place)
        with trio.CancelScope() as scope:
            self._starts[key] = record.token, scope
            try:
                await self._start_first(record, spec, place, order)
            finally:
                self._starting.pop(key, None)
                self._starts.pop(key, None)

    def _withdraw_starts(self, services: Mapping[str, ServiceRecord]) -> None:
        """Withdraw the starts that wait for a place, of jobs and elements that are not wanted any more.

        A new job may have the name of a removed one.
        """
        for (name, place), (token, scope) in self._starts.items():
            record = services.get(name)
            is_same = record is not None and record.token == token
            if record is None or not is_same or record.spec_of(place.slot, place.generation) is None:
                scope.cancel()

    async def _start_first(
        self, record: ServiceRecord, spec: ServiceGeneration, place: Start, order: Sequence[str]
    ) -> None:
        key = (record.name, place)
        why = "no node can take it"
        for host in order:
            self._starting[key] = host
            # A run waits in the queue of the scheduler for as long as it has to.
            most = math.inf if host == _BY_SCHEDULER else limits.SERVICE_START_MS_MAX / 1000
            try:
                with trio.fail_after(most):
                    await self._start_on(host, record, spec, place)
            except trio.TooSlowError:
                why = f"{host} did not start it in {limits.SERVICE_START_MS_MAX // 1000} s"
            except DiosError as error:
                why = error.message if host == _BY_SCHEDULER else f"{host}: {error.message}"
            else:
                return
        self._pause(key).note_refusal(trio.current_time(), why)

    async def _start_on(
        self, host: str, record: ServiceRecord, spec: ServiceGeneration, place: Start
    ) -> None:
        job = record.job
        arguments = spec.arguments
        if job is not None and job.array is not None:
            arguments = (*arguments, str(place.slot))
        task = await self._run(spec.program, host, record.label(*place), spec, arguments, job=job)
        # Known from now on, because it may end before the next list of tasks.
        self._watched[record.name, place] = _Watched(task.fingerprint, host or task.node, trio.current_time())
        with suppress(DiosError):
            await task.close()

    async def _run(
        self,
        program: bytes,
        host: str,
        label: str,
        spec: ServiceGeneration,
        arguments: Sequence[str],
        *,
        is_check: bool = False,
        job: JobState | None = None,
    ) -> AsyncTask:
        """Start a program with everything that a replica gets; a check ends with this session."""
        opened: list[AsyncReference] = []
        try:
            executable = await self._found(program, "its program", opened)
            inputs = {}
            for service_input in spec.inputs:
                input_reference = await self._found(
                    service_input.name, f"its input {service_input.label}", opened
                )
                inputs[service_input.label] = input_reference.restrict("read", "delegate")
            own = () if job is None else (job.group,)
            groups = [await self._node.group(name) for name in (*spec.groups, *own)]
            # The elements of an array have no common state.
            if job is not None and job.array is None:
                opened += await self._node.lookup(job.state)
            states = [] if job is None else [state for state in opened if state.name == job.state]
            if None in groups:
                raise records.missing("one of its groups was destroyed")
            return await self._node.run(
                executable,
                groups=[group for group in groups if group is not None],
                inputs=inputs,
                outputs=[state.restrict("read", "write", label=STATE_LABEL) for state in states],
                args=arguments,
                label=label,
                limits=spec.bounds,
                work=None if is_check else spec.work,
                host=host,
                template="" if is_check else spec.template,
                network=spec.network,
                detach=not is_check,
            )
        finally:
            with trio.CancelScope(shield=True):
                await close_all_async(opened)

    async def _found(self, name: bytes, description: str, opened: list[AsyncReference]) -> AsyncReference:
        reference = await self._node.find(name)
        if reference is None:
            raise records.missing(f"{description} is on no node that answers")
        opened.append(reference)
        return reference

    # -- health -------------------------------------------------------------------------------------
    def _is_healthy(
        self, record: ServiceRecord, replica: Replica, rows: Sequence[Status], now: float
    ) -> bool:
        seen = self._watched.get((record.name, Start(replica.slot, replica.generation)))
        spec = record.specs().get(replica.generation)
        if spec is None or seen is None or seen.fingerprint != replica.fingerprint:
            return False
        runs = any(row.fingerprint == replica.fingerprint and row.state is TaskState.RUNNING for row in rows)
        lasted = now - seen.since >= spec.healthy_ms / 1000
        return runs and lasted and (spec.check is None or self._health_of(replica).passed)

    def _health_of(self, replica: Replica) -> _Health:
        return self._health.setdefault(replica.fingerprint, _Health())

    def _check(self, record: ServiceRecord, replica: Replica, now: float) -> None:
        """Begin a health check if its time has come."""
        spec = record.specs().get(replica.generation)
        if spec is None or spec.check is None:
            return
        health = self._health_of(replica)
        if not health.is_running and now >= health.next_at:
            health.is_running = True
            health.next_at = now + spec.check_every_ms / 1000
            self._nursery.start_soon(self._check_one, record, spec, replica, health)

    async def _check_one(
        self, record: ServiceRecord, spec: ServiceGeneration, replica: Replica, health: _Health
    ) -> None:
        why = health.unknown = ""
        label = f"{record.name}.{replica.slot} check"
        arguments = (record.name, str(replica.slot), replica.node)
        task: AsyncTask | None = None
        try:
            task = await self._run(spec.check or b"", replica.node, label, spec, arguments, is_check=True)
            status = await _end_of_check(task)
            if not status.ended and status.state is TaskState.RUNNING:
                why = f"its health check took more than {limits.SERVICE_CHECK_MS_MAX // 1000} s"
            elif status.ended and status.cause not in _NO_ATTEMPT and not status.ok:
                why = f"its health check ended with {status.exit_status}"
            elif not status.ok:
                health.unknown = _first_line(status) or "it did not start in time"
        except DiosError as error:
            health.unknown = error.message
        finally:
            health.is_running = False
            with trio.CancelScope(shield=True), suppress(DiosError):
                if task is not None:
                    await task.destroy()
                    await task.close()
        if health.unknown:
            # A check that did not run says nothing about the replica: the next one follows.
            self._pause((record.name, Start(replica.slot, replica.generation)))
            return
        health.passed = not why
        health.failed = health.failed + 1 if why else 0
        if health.failed >= limits.SERVICE_CHECKS_FAILED_MAX:
            key = (record.name, Start(replica.slot, replica.generation))
            seen = self._watched.pop(key, None)
            self._health.pop(replica.fingerprint, None)
            self._stopped.add(replica.fingerprint)
            now = trio.current_time()
            self._pause(key).note_end(now, 0 if seen is None else now - seen.since, why)
            await self._kill(replica)

    # -- reports ------------------------------------------------------------------------------------
    def _forget(self, services: Mapping[str, ServiceRecord]) -> None:
        """Forget the replicas of services, slots and generations that are not wanted any more."""
        for key in list(self._pauses):
            record = services.get(key[0])
            place = key[1]
            if record is None or record.spec_of(place.slot, place.generation) is None:
                del self._pauses[key]
                self._watched.pop(key, None)
        self._refusals.keep(services)

    def _unknown_health(self, name: str, place: Start) -> str:
        """Return the reason why the health of a replica is not known; empty if it is."""
        seen = self._watched.get((name, place))
        health = None if seen is None else self._health.get(seen.fingerprint)
        if health is None or not health.unknown:
            return ""
        return f"its health is not known yet, because its check could not run: {health.unknown}"

    async def _show(self, services: Mapping[str, ServiceRecord], here: str) -> None:
        """Write what only the leader knows where the user's commands read it."""
        now = trio.current_time()
        notes = {
            name: [
                ReplicaNote(
                    place.slot,
                    place.generation,
                    pause.restarts,
                    self._unknown_health(name, place) or pause.reason,
                    self._starting.get((name, place), ""),
                    pause.not_before > now,
                )
                for (owner, place), pause in sorted(self._pauses.items())
                if owner == name
            ]
            for name in services
        }
        await self._leader.show(ServicesReport(here, notes))


def node_order(
    nodes: Sequence[Member],
    living: Sequence[Replica],
    starting: Mapping[tuple[str, Start], str],
    record: ServiceRecord,
) -> list[str]:
    """Return the nodes in the order in which to try them: those with the fewest replicas in rack and node.

    Nodes that drain, or are not fit for pure tasks, are left out.
    """
    taken = Counter(replica.node for replica in living)
    taken.update(host for (name, _), host in starting.items() if name == record.name)
    racks: Counter[str] = Counter()
    for node in nodes:
        racks[node.rack or node.name] += taken[node.name]

    def rank(member: Member) -> tuple[int, int, float, str]:
        return (
            racks[member.rack or member.name],
            taken[member.name],
            member.tasks / max(member.cpus, 1),
            member.name,
        )

    return [member.name for member in sorted(nodes, key=rank) if member.fit and not member.draining]


def _no_place(nodes: Sequence[Member]) -> str:
    """Return the reason why no node may start a replica."""
    return f"no node takes it: {', '.join(f'{member.name} is {member.condition}' for member in nodes)}"


def _reason(row: Status | None, node: str) -> str:
    """Return one line about the end of a replica."""
    if row is None:
        return f"lost with {node}"
    first = _first_line(row)
    how = f"ended with {row.exit_status} ({row.cause.name.lower().replace('_', ' ')})"
    return f"{how}: {first}" if first else how


async def _end_of_check(task: AsyncTask) -> Status:
    """Return the status of a health check at its end, or when its time is over."""
    try:
        return await task.wait(timeout=limits.SERVICE_CHECK_MS_MAX / 1000)
    except TimeLimitError:
        return await task.status()


def _first_line(row: Status) -> str:
    return row.detail.strip().partition("\n")[0][:200]
