"""The coordinator's loop: reads nodes' queues, runs rounds, sends placements, and answers questions (§6.5.1).

``assignment`` decides which coordinator is responsible, and the subclasses of ``ClusterService`` decide where
runs go. A coordinator keeps nothing that is lost with it: the next one reads the same queues.
"""

from __future__ import annotations

import contextlib
import json
import math
import sys
import time
from functools import partial
from typing import TYPE_CHECKING, Final

import msgspec
import trio

from dios.errors import DiosError, NotSupportedError
from dios.firmament.coordinator.assignment import Assignment, CandidateNode, assign_nodes
from dios.firmament.coordinator.cluster_queries import ENFORCEMENT
from dios.firmament.coordinator.cluster_service import NodeActions
from dios.firmament.coordinator.kernel_compilation import BackgroundCompiler, KernelCompilationError
from dios.firmament.coordinator.node_admission import REFRESH_S, NodeAdmissions
from dios.firmament.coordinator.node_monitor import NodeMonitor, log_failure
from dios.firmament.coordinator.node_queue import NodeView, QueueMark, joined
from dios.firmament.coordinator.observer import MeasurementReport
from dios.firmament.coordinator.share_storage import ShareStorage
from dios.firmament.coordinator.start_up_service import StartUpService
from dios.firmament.coordinator.traffic_monitor import CONTROL_S, TrafficMonitor
from dios.firmament.knowledge.knowledge_base import KnowledgeBase
from dios.limits import QUEUE_WAIT_MS_MAX

if TYPE_CHECKING:
    from dios.client.aio.node import AsyncNode
    from dios.client.ops.cluster import Member
    from dios.firmament.coordinator.assignment import StartOptions
    from dios.firmament.coordinator.cluster_service import ClusterService
    from dios.firmament.coordinator.kernel_compilation import KernelCompiler
    from dios.firmament.coordinator.scheduler_service import NodeBandwidth, SchedulerService
    from dios.firmament.custom_model.remote_model import RemoteModel
    from dios.firmament.policies.stored_shares import StoredPolicy
    from dios.wire.messages import Asked, QueueRows, SetAdmission

_LOADING: Final = "coordinator: loading the flow scheduler\n"
_LOADED: Final = "coordinator: the flow scheduler is loaded\n"
_UNLOADING: Final = "coordinator: idle for some minutes; it starts again without the flow scheduler\n"
_COMPILING: Final = (
    "coordinator: the scheduler's kernels are being compiled, which happens once after an installation and "
    "takes some minutes; a simple rule places runs meanwhile\n"
)
_COMPILED: Final = "coordinator: the kernels are compiled; the flow scheduler places runs from now on\n"

_RETRY_S: Final = 0.25
_JOIN_S: Final = 3.0
"""The time within which a node that has joined reports whether it has a coordinator."""
_IDLE_CHECK_S: Final = 30.0
_ROUND_S_MAX: Final = 0.5
"""The longest time between rounds while tasks wait, because costs change with time."""
_PAUSE_PART: Final = 2.0
_PAUSE_S_MAX: Final = 0.1
"""After work that took t, a loop pauses for ``_PAUSE_PART`` t, at most this time: changes come together."""
_PAUSE_FULL_S: Final = 0.05
"""The pause after a queue was read while the nodes can start no further tasks."""
_PAUSE_WAITING_S: Final = 0.02
"""The least pause after a queue was read while tasks wait."""
_PAUSE_OWN_S: Final = 0.1
"""The pause after the own queue was read in a coordinator that does not schedule, but measures the tasks."""
_PLACEMENTS_MAX: Final = 16
"""Placements of one message."""
_CAPACITIES_S: Final = 3.0
"""The longest time that a question about a job waits for all nodes to report their capacities."""
_MODEL_LOOK_S: Final = 10.0
"""The time between two looks for a model that has failed, and may be opened again."""
_RATES_LEASE_MS: Final = 5_000
"""Rates of a coordinator that has ended are valid for this time."""
_ADMISSION_PAUSE_S: Final = 1.0
"""The least time between two messages about quotas to a node."""
_ADMISSION_TIMEOUT_S: Final = 5.0
_STORE_SHARES_S: Final = 10.0
"""Commitments of the last seconds may be lost with a coordinator. Weights and quotas are stored at once."""
UNLOAD_S: Final = 600.0
"""The idle time after which a coordinator ends to free the memory of the flow scheduler and its libraries."""


class Coordinator:
    """The coordinator of one node.

    Args:
        node: the connection to the own node.
        options: the settings of the node.
        knowledge: what was measured before.
        delegation_s: the time that a rack's coordinator has for the runs of its own nodes.
        kernels: compiles the scheduler's kernels; tests pass a fake.
    """

    def __init__(
        self,
        node: AsyncNode,
        options: StartOptions,
        *,
        knowledge: KnowledgeBase,
        delegation_s: float,
        kernels: KernelCompiler | None = None,
    ) -> None:
        self._node = node
        self._options = options
        self._storage = ShareStorage(node)
        self._attending_since = 0.0
        self._knowledge = knowledge
        self._delegation_s = delegation_s
        self._kernels = kernels or BackgroundCompiler()
        self._compilation_ended = trio.Event()
        self._asleep = False
        """True while the flow scheduler is compiled but not loaded: nothing is scheduled."""
        self._needed = trio.Event()
        """Set when the flow scheduler is needed."""
        self._awake = trio.Event()
        """Set when the flow scheduler places runs, or the simple rule because kernels are missing."""
        self._used_at = 0.0
        """The last time at which there was something to schedule, or a question."""
        self._own = ""
        self._own_id = 0
        self._members: dict[str, Member] = {}
        """The usable nodes, by name."""
        self._followed: dict[str, trio.CancelScope] = {}
        """The nodes whose queues are being read, with a scope that cancels the present read."""
        self._member_since: dict[str, float] = {}
        self._assignment = Assignment()
        self._service: ClusterService | None = None
        self._flow: SchedulerService | None = None
        """The same as ``_service`` once the flow scheduler places runs."""
        self._lock = trio.Lock()
        """Held while the service or the knowledge base is used."""
        self._monitor = NodeMonitor(node, knowledge, self._lock)
        self._assigning = trio.Lock()
        self._storing = trio.Lock()
        """Held from the moment that weights and quotas may change until they are stored."""
        self._changed = trio.Event()
        self._chosen = trio.Event()
        """Set when the chosen cost model may be another one."""
        self._admissions = NodeAdmissions()
        self._admission_changed = trio.Event()
        """Set when nodes may have to learn other quotas, holdings or reasons."""
        self._traffic = TrafficMonitor()
        self._metering = trio.Event()
        """Set when meters may be due earlier than planned."""
        self._capacities_changed = trio.Event()
        """Set, and replaced, when a node has reported its traffic and capacities."""
        self._answered: set[tuple[str, int]] = set()
        """Questions in the nodes' queues that are, or are being, answered."""
        self._reported: dict[str, int] = {}

    async def run(self) -> None:
        """Work until cancelled, or until the connection to the node ends."""
        own = next(member for member in await self._node.nodes() if member.here)
        self._own, self._own_id = own.name, own.node
        await self._storage.begin()
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._compile_kernels)
                nursery.start_soon(self._follow_members, nursery)
                nursery.start_soon(self._monitor.run)
                nursery.start_soon(self._run_rounds, nursery)
                nursery.start_soon(self._share)
                nursery.start_soon(self._enforce)
                nursery.start_soon(self._open_chosen_models)
                nursery.start_soon(self._unload_when_idle, nursery.cancel_scope)
        finally:
            self._monitor.close()

    # The service ----------------------------------------------------------------------------------------

    async def _compile_kernels(self) -> None:
        """Compile the kernels in the background, also in a coordinator that schedules only later."""
        if not await trio.to_thread.run_sync(self._kernels.is_ready):
            await self._compile(again=False)
        self._compilation_ended.set()

    async def _compile(self, *, again: bool) -> None:
        try:
            await self._kernels.compile(again=again)
        except KernelCompilationError as error:
            # The flow scheduler compiles them in this process then.
            sys.stderr.write(f"coordinator: {error}\n")

    async def _start_service(self, nursery: trio.Nursery) -> None:
        """Start to schedule, by the flow scheduler if its kernels are compiled, else by the simple rule."""
        self._asleep = await trio.to_thread.run_sync(self._kernels.is_ready)
        if not self._asleep:
            sys.stderr.write(_COMPILING)
        self._service = StartUpService(self._options, self._own, self._knowledge, self._kernels)
        self._service.unmeasured = self._monitor.unmeasured
        nursery.start_soon(self._switch_to_flow_service)

    async def _open_flow_service(self, *, may_compile: bool) -> SchedulerService | None:
        """Return the flow scheduler, or None if a kernel would have to be compiled and may not be."""
        # Late, because the scheduler's libraries take seconds to load.
        from dios.firmament.coordinator.scheduler_service import open_service  # noqa: PLC0415 - see above
        from dios.kernels import NotCompiledError  # noqa: PLC0415 - the same

        wall = time.time() - trio.current_time()
        opened = partial(
            open_service, self._options, self._own, self._knowledge, wall, may_compile=may_compile
        )
        try:
            return await trio.to_thread.run_sync(opened)
        except NotCompiledError as error:
            sys.stderr.write(f"coordinator: the kernel {error} was compiled and cannot be loaded\n")
            return None

    async def _load_flow_service(self) -> SchedulerService:
        """Return the flow scheduler; if its kernels cannot be loaded, compile them while the rule places."""
        flow = await self._open_flow_service(may_compile=not self._asleep)
        while flow is None:
            sys.stderr.write(_COMPILING)
            self._asleep = False
            self._awake.set()
            self._changed.set()
            await self._compile(again=True)
            flow = await self._open_flow_service(may_compile=True)
        return flow

    async def _switch_to_flow_service(self) -> None:
        """Replace the simple rule by the flow scheduler once the kernels are compiled and it is needed."""
        await self._compilation_ended.wait()
        if self._asleep:
            await self._needed.wait()
            sys.stderr.write(_LOADING)
        flow = await self._load_flow_service()
        async with self._storing, self._lock:
            assert self._service is not None  # noqa: S101 - it was set before this task was started
            now = trio.current_time()
            flow.take_over(self._service, self._assignment, now)
            flow.unmeasured = self._monitor.unmeasured
            self._service = self._flow = flow
            self._attending_since = now
            if self._storage.shares and self._assignment.attend:
                flow.learn(self._storage.shares, now, commitments=True)
                self._chosen.set()
        sys.stderr.write(_LOADED if self._asleep else _COMPILED)
        self._asleep, self._used_at = False, now
        self._awake.set()
        self._changed.set()
        self._meter_soon(self._assignment.governs)

    def _note_use(self) -> None:
        """Record a use of the flow scheduler, and load it if it is not loaded."""
        self._used_at = trio.current_time()
        self._needed.set()

    async def _unload_when_idle(self, scope: trio.CancelScope) -> None:
        """End this coordinator when its flow scheduler has had nothing to do for some time.

        The node starts it again at once. Memory of libraries is freed only with their process.
        """
        while True:
            await trio.sleep(_IDLE_CHECK_S)
            flow = self._flow
            if flow is None or trio.current_time() - self._used_at < UNLOAD_S:
                continue
            async with self._storing:
                async with self._lock:
                    if self._is_used(flow) or flow.has_unstored_changes():
                        self._note_use()
                        continue
                await log_failure("cannot store the shares", self._store_shares(flow))
            sys.stderr.write(_UNLOADING)
            scope.cancel()

    def _is_used(self, service: ClusterService) -> bool:
        """Return True if the flow scheduler has, or would have, anything to do."""
        return service.has_tasks or service.has_admitted_jobs or self._traffic.competing

    # Nodes and their queues -------------------------------------------------------------------------------

    async def _follow_members(self, nursery: trio.Nursery) -> None:
        known, wait_ms = 0, 0
        while True:
            known, changed = await self._node.changed_nodes(known, wait_ms=wait_ms)
            members = {member.name: member for member in changed if member.usable}
            for name, member in members.items():
                before = self._members.get(name)
                if before is None or before.epoch != member.epoch:
                    self._forget_numbers(name)
                    self._member_since[name] = trio.current_time()
            for name in self._member_since.keys() - members.keys():
                del self._member_since[name]
            self._members = members
            self._follow_queues(nursery)
            await self._update_assignment(nursery)
            wait_ms = self._wait_ms()

    def _wait_ms(self) -> int:
        """Return the time after which the assignment may change without a change of the list of nodes."""
        unknown = self._unknown()
        if not unknown:
            return QUEUE_WAIT_MS_MAX
        until = min(self._member_since[name] for name in unknown) + _JOIN_S
        return 1 + int(max(0.0, until - trio.current_time()) * 1000)

    async def _update_assignment(self, nursery: trio.Nursery) -> None:
        """Compute the assignment from the present nodes, and apply its changes."""
        async with self._assigning:
            assignment = self._current_assignment()
            if assignment.attend and self._service is None:
                await self._start_service(nursery)
                assignment = self._current_assignment()
            if assignment == self._assignment:
                return
            async with self._lock:
                before, self._assignment = self._assignment, assignment
                for scope in self._followed.values():
                    # It reads according to the new assignment, or ends.
                    scope.cancel()
                self._follow_queues(nursery)
                self._metering.set()
                if self._service is not None:
                    now = trio.current_time()
                    self._service.change_assignment(before, assignment, now)
                    if assignment.attend and not before.attend:
                        self._attending_since = now
                        if self._storage.shares:
                            self._service.learn(self._storage.shares, now, commitments=True)
                            self._chosen.set()

    def _unknown(self) -> list[str]:
        """Return the nodes that have just joined and have no coordinator so far."""
        now = trio.current_time()
        return [
            name
            for name, since in self._member_since.items()
            if now - since < _JOIN_S and not self._members[name].coordinated
        ]

    def _current_assignment(self) -> Assignment:
        if self._unknown():
            # A node that has just joined may be the one to lead: its coordinator may be on the way.
            return self._assignment
        nodes = [
            CandidateNode(member.node, name, member.rack, member.coordinated, frozenset(member.barred))
            for name, member in sorted(self._members.items())
        ]
        return assign_nodes(self._own_id, nodes, self._options.set_up, self._delegation_s)

    def _follow_queues(self, nursery: trio.Nursery) -> None:
        """Begin to read the queues that the assignment needs and that are not read already."""
        # The node recognises its coordinator by the read of its own queue, and lets it wait for all others.
        for name in (self._own, *self._members):
            if name in self._members and name not in self._followed and self._needs(name):
                self._followed[name] = trio.CancelScope()
                nursery.start_soon(self._follow_queue, name, nursery)

    async def _follow_queue(self, name: str, nursery: trio.Nursery) -> None:
        """Read a node's queue again and again while the node is usable and its queue is needed."""
        mark, assignment, polls = QueueMark(), None, False
        view = NodeView()
        while name in self._members and self._needs(name):
            if assignment is not self._assignment:
                mark, assignment, polls = QueueMark(), self._assignment, False
            try:
                with trio.CancelScope() as self._followed[name]:
                    queue = await self._read_whole_queue(name, mark, assignment, polls=polls)
                if self._followed[name].cancelled_caught:
                    continue
            except DiosError as error:
                if self._service is not None:
                    self._service.note(f"{name}: {error}")
                # The node may have restarted and count from the beginning.
                mark = QueueMark()
                await trio.sleep(_RETRY_S)
                continue
            if queue.version < mark.since:
                mark = QueueMark()
                self._forget_numbers(name)
                continue
            began = trio.current_time()
            newer = mark.precedes(queue)
            if name == self._own and newer:
                view.update(queue)
                await self._learn(queue.shares_version, queue.shares)
            if name == self._own and view.begin_use(trio.current_time()):
                self._monitor.use(view.rows(queue))
            if assignment is self._assignment and newer:
                mark = QueueMark.behind(queue)
                await self._process_queue(name, queue, nursery)
                # While much changes, several changes are read together.
                await trio.sleep(self._pause_s(name, trio.current_time() - began))
            if name in assignment.below and (queue.waiting or polls):
                # The waiting times of these runs count, and they do not change the queue's version.
                polls = bool(queue.waiting)
                mark = QueueMark()
                await trio.sleep(_ROUND_S_MAX)
        del self._followed[name]
        self._forget_numbers(name)

    def _pause_s(self, name: str, took_s: float) -> float:
        """Return the pause after the queue of a node was read in ``took_s`` seconds."""
        assignment, service = self._assignment, self._service
        if name not in assignment.attend | assignment.machines:
            return _PAUSE_OWN_S
        pause_s = min(_PAUSE_S_MAX, _PAUSE_PART * took_s)
        if service is None or not service.has_waiting_tasks:
            return pause_s
        may_start = service.may_start(trio.current_time())
        return max(_PAUSE_WAITING_S, pause_s) if may_start else _PAUSE_FULL_S

    def _needs(self, name: str) -> bool:
        assignment = self._assignment
        return name in assignment.attend or name in assignment.machines or name == self._own

    async def _read_whole_queue(
        self, name: str, mark: QueueMark, assignment: Assignment, *, polls: bool
    ) -> QueueRows:
        """Wait for a newer queue of a node; a whole answer has all of the node's tasks."""
        queue = await self._read_queue(name, mark, assignment, polls=polls)
        while queue.whole and queue.tasks_listed:
            part = await self._read_queue(name, QueueMark.behind(queue), assignment, polls=polls)
            if part.version < queue.version:
                # The node has restarted meanwhile and counts from the beginning.
                part = await self._read_queue(name, QueueMark(), assignment, polls=True)
            queue = part if part.whole else joined(queue, part)
        return queue

    async def _read_queue(
        self, name: str, mark: QueueMark, assignment: Assignment, *, polls: bool
    ) -> QueueRows:
        """Wait for a newer queue of a node; with ``polls`` read the present one."""
        return await self._node.board(
            self._host(name),
            since=mark.since,
            wait_ms=0 if polls else QUEUE_WAIT_MS_MAX,
            attend=name in assignment.attend and self._service is not None,
            own=name == self._own,
            changes=True,
            listed=mark.listed,
            tasks_listed=mark.tasks_listed,
        )

    def _host(self, name: str) -> str:
        """Return a node's name for a call; empty for the own node."""
        return "" if name == self._own else name

    def _forget_numbers(self, name: str) -> None:
        """Forget the numbers of a node's reports and questions, which begin again when it restarts."""
        self._admissions.forget(name)
        self._admission_changed.set()
        self._reported.pop(name, None)
        self._answered = {pair for pair in self._answered if pair[0] != name}

    async def _process_queue(self, name: str, queue: QueueRows, nursery: trio.Nursery) -> None:
        assignment = self._assignment
        if not (name in assignment.attend or name in assignment.machines):
            return
        async with self._lock:
            service = self._service
            if service is None:
                return
            for number, data in queue.reports:
                if number > self._reported.get(name, 0):
                    self._reported[name] = number
                    service.merge_report(name, _decode_report(data))
            service.read(name, queue, trio.current_time())
            if self._is_used(service):
                self._note_use()
        self._changed.set()
        self._admission_changed.set()
        if queue.tasks or queue.gone:
            self._meter_soon(frozenset({name}))
        # The coordinator of a rack answers the questions of its nodes.
        if name in assignment.attend - assignment.below:
            asked = {(name, question.number): question for question in queue.asked}
            self._answered = {pair for pair in self._answered if pair[0] != name or pair in asked}
            for key in asked.keys() - self._answered:
                self._answered.add(key)
                nursery.start_soon(self._answer, name, asked[key])

    async def _answer(self, name: str, asked: Asked) -> None:
        """Answer a question in a node's queue."""
        if asked.question != ENFORCEMENT:
            self._note_use()
            if self._asleep:
                await self._awake.wait()
        with trio.move_on_after(_CAPACITIES_S):
            while self._service is not None and self._service.must_wait(asked):
                await self._capacities_changed.wait()
        model, refusal = await self._opened_for(asked)
        async with self._storing:
            async with self._lock:
                service, flow = self._service, self._flow
                if service is None:
                    return
                if flow is not None and model is not None:
                    flow.offer_model(model)
                answer = refusal or await trio.to_thread.run_sync(service.answer, asked)
                if flow is not None:
                    flow.discard_offer()
            if flow is not None and flow.has_unstored_changes():
                # A change is stored, and the nodes enforce it, before its caller hears of success.
                try:
                    await self._store_shares(flow)
                    await self._send_admissions()
                except DiosError as error:
                    async with self._lock:
                        answer = flow.storing_failed(str(error), trio.current_time())
        # The caller may have given up meanwhile.
        with contextlib.suppress(DiosError):
            await self._node.advise(self._host(name), asked.number, answer)

    # Operators' own cost models -----------------------------------------------------------------------

    async def _open_model(self, flow: SchedulerService, chosen: StoredPolicy) -> RemoteModel:
        # Late, because it loads the libraries of the flow scheduler.
        from dios.firmament.coordinator.model_tasks import open_model  # noqa: PLC0415 - see above

        return await open_model(self._node, chosen, lambda: flow.model_time_limit_s)

    async def _opened_for(self, asked: Asked) -> tuple[RemoteModel | None, bytes]:
        """Open the model that a question brings along; return it, or else the answer with the reason."""
        flow = self._flow
        chosen = None if flow is None else flow.model_in(asked)
        if flow is None or chosen is None:
            return None, b""
        try:
            return await self._open_model(flow, chosen), b""
        except DiosError as error:
            return None, json.dumps({"ok": False, "error": error.message}).encode()

    async def _open_chosen_models(self) -> None:
        """Open a model that an operator chose at another coordinator or before a restart, or that failed."""
        while True:
            with trio.move_on_after(_MODEL_LOOK_S):
                await self._chosen.wait()
            self._chosen = trio.Event()
            flow = self._flow
            if flow is not None:
                async with self._lock:
                    flow.retry_model(trio.current_time())
            chosen = None if flow is None or not self._assignment.attend else flow.model_to_open
            if flow is None or chosen is None:
                continue
            model, problem = None, ""
            try:
                model = await self._open_model(flow, chosen)
            except DiosError as error:
                problem = error.message
            async with self._lock:
                now = trio.current_time()
                if model is None:
                    flow.fall_back(chosen, problem, now)
                    continue
                flow.offer_model(model)
                if self._assignment.attend:
                    flow.use_offered(chosen, now)
                flow.discard_offer()
            self._changed.set()

    # Rounds -------------------------------------------------------------------------------------------

    async def _run_rounds(self, nursery: trio.Nursery) -> None:
        changed, last = False, -_ROUND_S_MAX
        while True:
            busy = changed or (self._service is not None and self._service.is_busy)
            with trio.move_on_after(_ROUND_S_MAX if busy else math.inf):
                await self._changed.wait()
            changed |= self._changed.is_set()
            self._changed = trio.Event()
            async with self._lock:
                service, now = self._service, trio.current_time()
                if service is None or self._asleep:
                    changed = False
                    continue
                if not self._is_round_due(service, last, now, changed=changed):
                    continue
                changed, last = False, now
                actions = await trio.to_thread.run_sync(service.round, now)
                again = any(action.changes_tasks for action in actions) and service.may_start(now)
                took_s = trio.current_time() - now
            if service.links_changed:
                self._meter_soon(self._assignment.governs)
            for action in actions:
                nursery.start_soon(self._send, action)
            if again:
                # Cost models that place in waves continue at once.
                self._changed.set()
            # While much changes, a round is about several changes.
            await trio.sleep(min(_PAUSE_S_MAX, _PAUSE_PART * took_s))

    @staticmethod
    def _is_round_due(service: ClusterService, last: float, now: float, *, changed: bool) -> bool:
        """Return True if a round may start or stop a task; some models move tasks when others have ended."""
        late = now - last >= _ROUND_S_MAX
        if service.has_admitted_jobs:
            return changed or late
        if service.has_waiting_tasks:
            return late or (changed and service.may_start(now))
        return changed and late

    async def _send(self, action: NodeActions) -> None:
        """Ask a node to start and stop tasks, and record its answer."""
        first, preempted = 0, action.preempted
        while first < len(action.placements) or preempted:
            placements = action.placements[first : first + _PLACEMENTS_MAX]
            await self._send_some(NodeActions(action.host, placements, preempted, action.threads))
            first, preempted = first + _PLACEMENTS_MAX, []
        if action.promised:
            try:
                await self._node.keep_rooms(self._host(action.host), action.promised)
            except NotSupportedError:
                return  # a node of an earlier release shows no promised starts
            except DiosError as error:
                async with self._lock:
                    if self._service is not None:
                        self._service.note(f"{action.host}: {error}")

    async def _send_some(self, action: NodeActions) -> None:
        answer, problem = None, ""
        try:
            answer = await self._node.place(
                self._host(action.host), action.placements, action.preempted, action.threads
            )
        except DiosError as error:
            problem = f"{action.host}: {error}"
        tasks = [task for task, _ in action.placements]
        async with self._lock:
            # The service may be another one than that which decided.
            if self._service is not None:
                if problem:
                    self._service.note(problem)
                now = trio.current_time()
                self._service.record_answer(action.host, tasks, action.preempted, answer, now)
                if answer is None or answer.refused:
                    self._changed.set()

    # Quotas -------------------------------------------------------------------------------------------

    async def _enforce(self) -> None:
        """Send the nodes the quotas and holdings that they enforce, and the reasons why runs wait.

        It waits for a change while no node has to hear anything again.
        """
        while True:
            with trio.move_on_after(math.inf if self._admissions.is_idle else REFRESH_S / 2):
                await self._admission_changed.wait()
            self._admission_changed = trio.Event()
            await self._send_admissions()
            await trio.sleep(_ADMISSION_PAUSE_S)

    async def _send_admissions(self) -> None:
        """Send each node what has changed since its last message."""
        async with self._lock:
            service, assignment = self._service, self._assignment
            if service is None:
                return
            due = self._admissions.due(
                service.cluster,
                service.quotas(),
                assignment,
                self._storage.informed,
                trio.current_time(),
            )
        with trio.move_on_after(_ADMISSION_TIMEOUT_S):
            async with trio.open_nursery() as nursery:
                for name, message in due.items():
                    nursery.start_soon(self._send_admission, name, message)

    async def _send_admission(self, name: str, message: SetAdmission) -> None:
        try:
            await self._node.set_admission(self._host(name), message)
        except NotSupportedError:
            pass  # a node of an earlier release enforces none; it need not hear the same again
        except DiosError as error:
            if self._service is not None:
                self._service.note(f"{name}: {error}")
            return
        self._admissions.confirm(name, message)

    # Shares -------------------------------------------------------------------------------------------

    def _meter_soon(self, names: frozenset[str]) -> None:
        """Read the meters of these nodes soon, because something has changed there."""
        self._traffic.hurry(names)
        self._metering.set()

    async def _share(self) -> None:
        """Store shares regularly, and send rates in each control interval if this coordinator governs.

        The meters of nodes without traffic are read less often.
        """
        store_at = trio.current_time() + _STORE_SHARES_S
        while True:
            due_at = self._traffic.next_due()
            pause_s = math.inf if due_at is None else max(0.0, due_at - trio.current_time())
            with trio.move_on_after(pause_s):
                await self._metering.wait()
            self._metering = trio.Event()
            flow, service, assignment = self._flow, self._service, self._assignment
            self._traffic.keep(assignment.governs)
            now = trio.current_time()
            due = self._traffic.due(now)
            if service is None or not due:
                continue
            bandwidth: dict[str, NodeBandwidth] = {}
            if flow is not None:
                if now >= store_at:
                    store_at = now + _STORE_SHARES_S
                    async with self._storing:
                        await log_failure("cannot store the shares", self._store_shares(flow))
                async with self._lock:
                    now = trio.current_time()
                    bandwidth = await trio.to_thread.run_sync(flow.bandwidth, now, _RATES_LEASE_MS / 1000)
            with trio.move_on_after(CONTROL_S):
                async with trio.open_nursery() as nursery:
                    for name in assignment.governs & (due | bandwidth.keys()):
                        self._traffic.postpone(name, now)
                        nursery.start_soon(self._govern, service, name, bandwidth.get(name))
            if self._traffic.competing:
                self._note_use()

    async def _store_shares(self, flow: SchedulerService) -> None:
        async with self._lock:
            shares = await trio.to_thread.run_sync(flow.shares_to_store, trio.current_time())
        if shares is not None:
            await self._storage.store(shares)
            flow.mark_stored()

    async def _govern(self, service: ClusterService, name: str, bandwidth: NodeBandwidth | None) -> None:
        """Send a node its rates, guarantees and shares; record its traffic."""
        rates, guarantees, parts = ((), (), ()) if bandwidth is None else bandwidth
        try:
            metered = await self._storage.govern(
                name, self._host(name), rates, guarantees, parts, lease_ms=_RATES_LEASE_MS
            )
        except DiosError as error:
            service.note(f"{name}: {error}")
            return
        now = trio.current_time()
        self._traffic.record(name, metered, now, limited=bandwidth is not None)
        flow = self._flow
        if flow is not None:
            async with self._lock:
                flow.record_traffic(name, metered, now)
            self._capacities_changed.set()
            self._capacities_changed = trio.Event()
        self._admission_changed.set()
        await self._learn(metered.shares_version, metered.shares)

    async def _learn(self, version: int, shares: bytes) -> None:
        """Use shares that another coordinator has stored.

        A coordinator that divides bandwidth computes commitments itself. It uses only weights and quotas of
        others, except at its start, when the last shares of its predecessor may still be on their way.
        """
        fresh = True
        try:
            fresh = await self._storage.learn(version, shares)
        except DiosError as error:
            # The shares are in memory, and other nodes store them, too.
            sys.stderr.write(f"coordinator: cannot store the shares: {error}\n")
        if not fresh or not self._assignment.attend:
            return
        now = trio.current_time()
        started_recently = now - self._attending_since < _STORE_SHARES_S
        async with self._lock:
            if self._service is not None:
                commitments = started_recently or not self._assignment.governs
                self._service.learn(shares, now, commitments=commitments)
                self._chosen.set()


def _decode_report(data: bytes) -> MeasurementReport | None:
    try:
        return msgspec.msgpack.decode(data, type=MeasurementReport)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        return None
