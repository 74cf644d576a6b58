"""Connects the parts of one node: the only module that knows their concrete classes.

The parts for other nodes are loaded in a node with a cluster only: they take a sixth of the start.
``dios.node.serve`` runs the result.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import trio
from msgspec.structs import replace

from dios import limits
from dios.core.effects import Audit
from dios.core.events import Event, PeerDown, Recovered, TimerFired
from dios.core.machine import Core
from dios.core.model.accounts import Defaults
from dios.core.model.rows import NoRows, RowSource
from dios.core.remote.peers import Here
from dios.host.audit.charges import AuditCharges
from dios.host.audit.journal import AuditJournal
from dios.host.audit.log import AuditLog, BacklogLevel
from dios.host.bandwidth.rates import Rates
from dios.host.content.buffers import BackgroundWork, Buffers
from dios.host.content.consoles import Consoles
from dios.host.content.contents import Contents
from dios.host.content.log_reader import LogReader
from dios.host.content.public_pages import PublicPages
from dios.host.content.stored_bytes import StoredBytes
from dios.host.content.streams import Streams
from dios.host.environments.store import EnvironmentStore
from dios.host.handover import format as form
from dios.host.handover.gate import Gate
from dios.host.handover.memories import MemoryTable, TakenMemories
from dios.host.loop.call_meter import CallMeter
from dios.host.loop.call_tracer import CallTracer
from dios.host.loop.clock import Clock
from dios.host.loop.driver import Driver, Stepper
from dios.host.loop.effector import Effector, EffectorParts
from dios.host.loop.entropy import Entropy
from dios.host.loop.fair_queue import FairQueue, TaskPrincipals
from dios.host.loop.outbox import Outbox
from dios.host.loop.persister import Persister
from dios.host.loop.recorder import Recorder
from dios.host.loop.staging import Staging
from dios.host.loop.vectors import Described
from dios.host.network.sockets import Sockets
from dios.host.process.task_host import ProcessSpawner, TaskHost, TaskHostParts, principal_of
from dios.ids import NodeId, ObjectId, Principal, TaskId
from dios.node.machine import object_descriptors
from dios.node.settings import NodeMode, Settings
from dios.store.log_files import LogStore, MemoryLogs
from dios.store.protocol import Store
from dios.transport.memory.pool import MemoryPool
from dios.wire.messages import Bound
from dios.wire.types import Resource

if TYPE_CHECKING:
    from dios.host.peers.effects import PeerEffects
    from dios.host.peers.links import PeerLinks
    from dios.host.peers.streams import RemoteStreams
    from dios.node.cluster_port import ClusterMembership


class TimerAlarm:
    """A timer that sends the core an event at the time that it requested last."""

    def __init__(self, clock: Clock) -> None:
        self._clock: Final = clock
        self._scope = trio.CancelScope()
        self._deadline: int | None = None
        self._armed: int | None = None
        """The time at which the scope wakes up: the present deadline, or an earlier one."""

    def set(self, deadline: int | None) -> None:
        """Set the time of the next event, in the core's nanoseconds; replaces the earlier one."""
        self._deadline = deadline
        # Most deadlines move to a later time before they pass. Waking up once for nothing costs less than
        # moving the scope's deadline with each of them.
        if deadline is not None and (self._armed is None or deadline < self._armed):
            self._armed = deadline
            self._scope.deadline = self._seconds()

    def _seconds(self) -> float:
        if self._deadline is None:
            return float("inf")
        return trio.current_time() + (self._deadline - self._clock.now()) / 1e9

    async def run(self, ring: Callable[[Event], None]) -> None:
        """Send timer events until cancelled."""
        while True:
            self._armed = self._deadline
            with trio.CancelScope(deadline=self._seconds()) as self._scope:
                await trio.sleep_forever()
            now = self._clock.now()
            if self._deadline is not None and now >= self._deadline:
                self._deadline = None
                ring(TimerFired(now))


def _endless() -> None:
    """Return None: a node without a cluster has no certificate that ends."""


class NodeHost:
    """The parts of a running node; created inside its trio loop, in ``nursery``."""

    def __init__(
        self,
        settings: Settings,
        store: Store,
        audit: AuditLog,
        spawner: ProcessSpawner,
        nursery: trio.Nursery,
        *,
        complete: Callable[[Described], Described],
        core: Stepper | None = None,
        logs: LogStore | None = None,
        membership: ClusterMembership | None = None,
        rows: RowSource = NoRows(),  # noqa: B008 - it has no state
        clock_offset: int | None = None,
        environments: EnvironmentStore | None = None,
    ) -> None:
        self._nursery: Final = nursery
        self.stopping: Final = trio.Event()
        self.clock: Final = Clock(clock_offset)
        self._trusted: Final = {principal_of(0), principal_of(os.geteuid())}
        self.charges: Final = AuditCharges(settings.audit_rate, self._trusted, self.clock.now)
        self.journal: Final = AuditJournal(audit, self.charges)
        self.alarm: Final = TimerAlarm(self.clock)
        self._core: Final = _core_for(settings, membership, rows) if core is None else core
        self.owners: Final = TaskPrincipals()
        self._turns: Final = FairQueue(self.owners)
        self.rates: Final = Rates((settings.link_rate, settings.link_rate, settings.store_rate))
        stored = StoredBytes(self.rates, self.owners)
        self.meter: Final = CallMeter(self.clock.now)
        self.tracer: Final = CallTracer(settings.name, enabled=settings.traces)
        self.driver: Final = Driver(
            self._core, self.clock, self.alarm.set, self.owners, stored, self.meter, self.tracer
        )
        self.pool: Final = MemoryPool()
        self.contents: Final = Contents(store, self.pool)
        self.buffers: Final = Buffers(self.contents, self._contests)
        self.pages: Final = PublicPages()
        nursery.start_soon(self.pages.run, name="outdated slots")
        self.consoles: Final = Consoles()
        self.streams: Final = Streams()
        self.gate: Final = Gate()
        self.sockets: Final = Sockets(nursery, self.streams, self.clock, self.driver.post, self.gate)
        self.logs: Final = MemoryLogs() if logs is None else logs
        self.persister: Final = Persister(store, self.contents, self.driver.persisted, self.logs)
        nursery.start_soon(self.persister.watch)
        self.tasks: Final = TaskHost(nursery, spawner, self.gate)
        self.outbox: Final = Outbox(self.tasks.overrun, self.meter, self.tracer)
        self.staging: Final = Staging(
            self.contents,
            self.buffers,
            self.persister,
            self._done_before,
            lambda: self.driver.has_deferred_volatile,
        )
        self.contents.in_use = self.staging.is_staged
        self._peers: PeerEffects | None = None
        self._between: RemoteStreams | None = None
        self.links: Final = None if membership is None else self._make_links(membership, settings)
        self.certificate_days: Final = _endless if membership is None else membership.certificate_days
        self.effector: Final = self._make_effector(complete)
        self.driver.connect(self.effector, self.staging)
        self.tasks.connect(
            TaskHostParts(
                self.driver,
                self.outbox,
                self.pages,
                self.consoles,
                self.persister,
                self.clock,
                self.rates,
                stored,
                self.charges,
                self.contents,
                environments or EnvironmentStore(settings.environments, 0),
            )
        )

    def _make_effector(self, complete: Callable[[Described], Described]) -> Effector:
        parts = EffectorParts(
            self.contents,
            self.buffers,
            self.staging,
            self.pages,
            self.consoles,
            self.streams,
            self.sockets,
            LogReader(self.logs, self.outbox),
            self.outbox,
            self.tasks,
            self.journal,
            self.clock,
            self.rates,
            None if self.links is None else self._make_peers(self.links),
            tracer=self.tracer,
        )
        return Effector(
            parts,
            post=self.driver.post,
            in_thread=self._in_thread,
            complete=complete,
            begin_shutdown=self.stopping.set,
        )

    def _make_links(self, membership: ClusterMembership, settings: Settings) -> PeerLinks:
        from dios.host.audit.heads import FOLDER  # noqa: PLC0415 - see the top
        from dios.host.peers.bulk import RECEIVING_PERCENT, ReceivingMemory  # noqa: PLC0415 - see the top
        from dios.host.peers.heads import HeadKeeper  # noqa: PLC0415 - the same
        from dios.host.peers.links import PeerLinks  # noqa: PLC0415 - the same
        from dios.host.peers.receiving import LinkParts  # noqa: PLC0415 - the same

        around = LinkParts(
            self.driver,
            self.persister,
            self.clock,
            self.owners,
            self.rates,
            self.charges,
            self.denied_connection,
            ReceivingMemory(settings.volatile_bytes_max * RECEIVING_PERCENT // 100),
            self.tracer,
            HeadKeeper(
                membership.me.node,
                membership.key_digest,
                settings.data / FOLDER,
                self._nursery,
                self.record_head,
            ),
        )
        links = PeerLinks(
            membership.me,
            membership.network,
            membership.guard,
            around,
            self._nursery,
            membership.write_labels,
            membership.user_keys,
            membership.later_secrets,
        )
        self._nursery.start_soon(links.close_idle)
        return links

    def _make_peers(self, links: PeerLinks) -> PeerEffects:
        from dios.host.peers.effects import PeerEffects  # noqa: PLC0415 - see the top
        from dios.host.peers.streams import RemoteStreams  # noqa: PLC0415 - the same

        between = links.streamer = self._between = RemoteStreams(links, self._nursery, self.rates)
        self._nursery.start_soon(between.run)
        self._peers = PeerEffects(
            links, self.outbox, self.buffers, self.contents, self.owners, self.streams, between
        )
        return self._peers

    # -- the successor of this process's program -------------------------------------------------------
    @property
    def core(self) -> Core | None:
        """The core, or None for a node that records its steps."""
        return self._core if isinstance(self._core, Core) else None

    def obstacle(self) -> str:
        """Return the reason why the state cannot be handed over for some time, or an empty text."""
        if self.core is None:
            return "it records its steps, and a recording has one program. Start it without `record`."
        if self.stopping.is_set():
            return "it stops"
        if self._between is not None and (why := self._between.obstacle()):
            return why
        return "the audit log cannot be written" if self.journal.pressure else ""

    def unfinished(self) -> str:
        """Return the reason why the state cannot be handed over at this moment, or an empty text.

        The gate is closed.
        """
        tasks = self.tasks
        if self._between is not None and (why := self._between.unfinished()):
            return why
        if self.sockets.unfinished:
            return "network streams are being opened or closed"
        if self.gate.readers or tasks.starting or tasks.ending or tasks.openings:
            return "tasks or sessions are starting or ending"
        if not self.driver.settled or self.persister.backlog:
            return "calls are being carried out: copies in memory, or writes to the disk"
        return ""

    async def pause_links(self) -> None:
        """Announce to the other nodes that the program is being replaced, and stop the streams with them.

        The streams go on in the new program or after ``resume_links``.
        """
        if self.links is not None and self._between is not None:
            self.links.announce_pause(begins=True)
            self._between.pause()
            await self.links.flush()

    def resume_links(self) -> None:
        """Announce that the program was not replaced, and continue the streams with the other nodes."""
        if self.links is not None and self._between is not None:
            self.links.announce_pause(begins=False)
            self._between.resume()

    def hand_over(self, base: form.HostState, zygotes: tuple[form.Zygote, ...]) -> form.HostState:
        """Add the state of all parts to ``base``. Nothing is unfinished."""
        memories = MemoryTable()
        contents = self.contents.hand_over(memories)
        buffers = self.buffers.hand_over(memories)
        payloads = self.effector.hand_over(memories)
        pages, counters = self.pages.hand_over()
        consoles, ended = self.consoles.hand_over()
        rings, closed = self.streams.hand_over()
        sockets, next_accepted = self.sockets.hand_over()
        tasks, sessions = self.tasks.hand_over(zygotes)
        fetched, between = ((), ()) if self._between is None else self._between.hand_over()
        return replace(
            base,
            clock_offset=self.clock.offset,
            steps=self.driver.hand_over(),
            owners=self.owners.hand_over(),
            memories=memories.hand_over(),
            contents=contents,
            buffers=buffers,
            payloads=payloads,
            pages=pages,
            counters=counters,
            consoles=consoles,
            ended_consoles=ended,
            rings=rings,
            closed_ends=closed,
            sockets=sockets,
            next_accepted=next_accepted,
            zygotes=zygotes,
            tasks=tuple(tasks),
            sessions=tuple(sessions),
            newcomers=self.tasks.newcomers(),
            peers=() if self.links is None else self.links.hand_over(),
            remote_tasks=self.outbox.remote_tasks(),
            fetched_rings=fetched,
            between=between,
        )

    def take_over(self, state: form.HostState) -> None:
        """Continue with the state of the predecessor; tasks and sessions come afterwards."""
        memories = TakenMemories(state.memories)
        self.driver.take_over(state.steps)
        self.contents.take_over(state.contents, memories)
        self.buffers.take_over(state.buffers, memories)
        self.effector.take_over(state.payloads, memories)
        memories.release()
        self.pages.take_over(state.pages, state.counters)
        self.consoles.take_over(state.consoles, state.ended_consoles)
        self.gate.close()
        self.streams.take_over(state.rings, state.closed_ends)
        self.sockets.take_over(state.sockets, state.next_accepted)
        if self._peers is not None:
            self._peers.take_over_streams(state)
        nodes = {remote_task.task: NodeId(remote_task.node) for remote_task in state.remote_tasks}
        for owner in state.owners:
            node = nodes.get(owner.task)
            if node is None or self._peers is None:
                self.owners.add(TaskId(owner.task), owner.principal, TaskId(owner.home_id))
            else:
                self._peers.take_over(owner, node)
        if self.links is not None:
            # The predecessor may have stored one that its core had not heard of yet.
            self.links.report_documents()

    def reconnect(self, state: form.HostState) -> None:
        """End the connections of the predecessor with other nodes, and make them again."""
        for number in state.lingering:
            os.close(number)
        core, links = self.core, self.links
        if core is None or core.state.cluster is None or links is None:
            return
        for node, peer in list(core.state.cluster.peers.items()):
            if peer.connected:
                # That this node's program was replaced is no reason to suspect others.
                self.driver.feed(
                    PeerDown(
                        self.clock.now(), node, peer.epoch, "the program of this node was replaced", idle=True
                    )
                )
        for known_peer in state.peers:
            links.contact(
                NodeId(known_peer.node), known_peer.name, known_peer.address, on_demand=not known_peer.kept
            )

    def recover(self, event: Recovered) -> None:
        """Give the records of the store to the core, before anything else."""
        self.driver.feed(event)
        if self.links is not None:
            self.links.report_documents()

    def denied_connection(self, principal: Principal, why: str) -> None:
        """Record in the audit log that a connection was refused; the core never sees it."""
        self._record_denial("connect", principal, why)

    def broken_connection(self, principal: Principal, why: str) -> None:
        """Record in the audit log that an internal error outside of every step ended a connection."""
        self._record_denial("disconnect", principal, why)

    def _record_denial(self, action: str, principal: Principal, why: str) -> None:
        if self.journal.pressure is BacklogLevel.HIGH:
            return  # the node's log has it; refused strangers must not fill the memory
        self.journal.append_refused(Audit(self.clock.now(), action, "denied", principal, "", "", why))

    def distrust(self, target: ObjectId) -> None:
        """Let each further reader of a stored object open its file again, which checks it."""
        self.contents.reopen(target)
        self.pages.withhold(target)

    def record_border(self, outcome: str, principal: Principal, mark: str, detail: str) -> None:
        """Record in the audit log that a sealed token was used at the border, or refused."""
        if self.journal.pressure is BacklogLevel.HIGH:
            return  # as for refused connections
        self.journal.append_refused(Audit(self.clock.now(), "border", outcome, principal, "", mark, detail))

    def record_scrubbing(self, outcome: str, mark: str, detail: str) -> None:
        """Record in the audit log that a stored object was found damaged, or repaired."""
        self.journal.append(Audit(self.clock.now(), "scrub", outcome, "node", "", mark, detail))

    def record_head(self, outcome: str, node: str, detail: str) -> None:
        """Record in the audit log that the audit log of another node is not what it was."""
        self.journal.append(
            Audit(self.clock.now(), "audit", outcome, Principal(f"node:{node}"), "", "", detail)
        )

    def _contests(self, task: TaskId) -> bool:
        return self.tasks.is_session(task) and self.owners.of(task) not in self._trusted

    def _done_before(self, step: int) -> bool:
        return self.effector.done_before(step)

    def _in_thread(
        self, task: TaskId, work: BackgroundWork, finish: Callable[[Exception | None], None]
    ) -> None:
        def begin() -> None:
            if self._nursery.cancel_scope.cancel_called:
                self._at_the_end(work, finish)
                self._turns.end_turn(task)
            else:
                self._nursery.start_soon(self._work, task, work, finish, name="work in a thread")

        self._turns.request_turn(task, begin)

    async def _work(
        self, task: TaskId, work: BackgroundWork, finish: Callable[[Exception | None], None]
    ) -> None:
        failed: Exception | None = None
        with trio.CancelScope(shield=True):
            try:
                await trio.to_thread.run_sync(work.run)
            except Exception as error:  # noqa: BLE001 - the effector contains what is not expected
                failed = error
        self._turns.end_turn(task)
        self.driver.resume_step(lambda: finish(failed))

    def _at_the_end(self, work: BackgroundWork, finish: Callable[[Exception | None], None]) -> None:
        """Do the work here, because at the end of the node nobody is delayed by it."""
        failed: Exception | None = None
        try:
            work.run()
        except Exception as error:  # noqa: BLE001 - as above
            failed = error
        finish(failed)

    async def settle(self) -> None:
        """Wait until every effect was carried out; at most NODE_STOP_MS_MAX."""
        with trio.move_on_after(limits.NODE_STOP_MS_MAX / 1000):
            await self.driver.wait_idle()

    async def aclose(self) -> None:
        """Write what is queued, and free every memory and descriptor. Call it after the nursery has ended."""
        await self.persister.aclose()
        self.journal.settle_all()
        self.buffers.close_all()
        self.sockets.close_all()
        self.streams.close()
        self.contents.close()
        self.pages.close_all()
        self.pool.close()
        if isinstance(self._core, Recorder):
            self._core.close()


def _core_for(settings: Settings, membership: ClusterMembership | None, rows: RowSource) -> Stepper:
    owner = principal_of(os.geteuid())
    restricted = settings.mode is NodeMode.RESTRICTED
    descriptors = object_descriptors(settings.tasks_max)
    principal_descriptors = descriptors * limits.PRINCIPAL_DESCRIPTORS_PERCENT // 100
    defaults = Defaults(
        settings.task_limits,
        settings.group_limits,
        (Bound(Resource.DESCRIPTORS, principal_descriptors), *settings.principal_limits),
        settings.task_memory_bytes,
        (
            Bound(Resource.TASKS, settings.tasks_max),
            Bound(Resource.VOLATILE_BYTES, settings.volatile_bytes_max),
            Bound(Resource.DESCRIPTORS, descriptors),
        ),
        settings.sandbox_limits,
    )
    here = Here() if membership is None else membership.here
    forgotten = () if membership is None else membership.forgotten
    if settings.record is not None:
        return Recorder(
            settings.record,
            Entropy(),
            owner,
            restricted=restricted,
            defaults=defaults,
            here=here,
            forgotten=forgotten,
        )
    return Core(
        Entropy(),
        owner,
        restricted=restricted,
        defaults=defaults,
        here=here,
        forgotten=forgotten,
        rows=rows,
    )
