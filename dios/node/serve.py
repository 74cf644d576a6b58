"""The life of a node: open the store, recover, serve, and stop in order.

``dios.node.daemon`` starts and stops the process.
"""

from __future__ import annotations

import functools
import gc
import logging
import os
import signal
import socket
import stat
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

import trio

from dios import limits
from dios.core.calls.introspection import IN_STEPS
from dios.core.events import (
    CapacityChanged,
    DormantUse,
    FitnessChanged,
    ObjectRecord,
    Recovered,
    ShutdownBegan,
    TimerFired,
)
from dios.core.machine import Core
from dios.core.model import disclosure
from dios.errors import MESSAGE_CHARS_MAX, DiosError
from dios.host.audit.log import AuditLog
from dios.host.confinement.mechanisms import Probe, all_unknown
from dios.host.environments.store import EnvironmentStore
from dios.host.handover.format import HostState
from dios.host.loop.entropy import Entropy
from dios.host.loop.node_log import NodeLog, close_log, open_log
from dios.host.process.descriptor_limit import raise_descriptor_limit
from dios.host.process.session_server import SessionServer
from dios.host.process.zygote_pool import ZygotePool, open_zygote
from dios.host.process.zygote_process import StartedZygote
from dios.ids import Principal
from dios.installation import version
from dios.node import environment_table, log_table, restart_status
from dios.node.assembly import NodeHost
from dios.node.audit_heads import HeadPublisher, open_heads
from dios.node.continuation import Continuation, Predecessor
from dios.node.fitness import NodeFitness
from dios.node.launch import Launch
from dios.node.machine import come_before_tasks
from dios.node.metrics.of_node import completed as completed_metrics
from dios.node.scrubbing import ScrubbedNode, Scrubbing
from dios.node.service_supervisors import KeepersOfUsers, act_for_users
from dios.node.settings import LogFormat, Settings
from dios.node.task_zygote import BASE_OF_TEMPLATES, WARM_UP_OF_TEMPLATES, modules_of_tasks
from dios.store.lmdb_store import LmdbStore
from dios.transport.memory.reclaimer import RECLAIMER
from dios.transport.unix.server import close_listener, open_listener
from dios.wire.messages import Info, Limits, ResourceCapacity, TableRows, TemplateRow
from dios.wire.node_roles import NodeRight

if TYPE_CHECKING:
    from dios.node.capacity import NodeCapacity
    from dios.node.cluster_port import ClusterPort

_NEVER: Final = 2**31 - 1
_COLLECT_PERIOD_S: Final = 5.0
_QUIET_STEPS: Final = 100  # of the core in that time
_AUDIT_SYNC_S: Final = limits.AUDIT_SYNC_MS / 1000
_AUDIT_IDLE_S: Final = 2.0

_log: Final = logging.getLogger(__name__)


async def serve(
    settings: Settings,
    *,
    started: Callable[[], None] = lambda: None,
    recovering: Callable[[int, int], None] = lambda _, __: None,
    probe: Probe | None = None,
    zygote_process: StartedZygote | None = None,
    launch: Launch | None = None,
    predecessor: Predecessor | None = None,
    accept_lost_audit: bool = False,
) -> None:
    """Run a node until it is stopped by a signal or a request; a second signal ends it at once.

    ``started`` is called once programs can connect, and ``recovering`` before that, in another thread, with
    the number of objects in the store that are done, and of all. ``probe`` is a probe of the machine's
    mechanisms, and ``zygote_process`` a zygote, that were started early. ``launch`` is the command for a
    program that continues the node, and ``predecessor`` has the state of the former program. With
    ``accept_lost_audit`` the node starts even if its audit log is behind a published head. Raise DiosError
    if the node cannot start.
    """
    node_log = open_log(
        settings.log_level,
        as_json=settings.log_format is LogFormat.JSON,
        file=settings.log_file,
        node=settings.name,
    )
    try:
        raise_descriptor_limit()
        come_before_tasks()
        settings.data.mkdir(mode=0o700, parents=True, exist_ok=True)
        with _open_store(settings) as store, _open_audit(settings) as audit:
            heads = await open_heads(
                settings, audit, accept_lost=accept_lost_audit, continued=predecessor is not None
            )
            fitness = NodeFitness(probe or _started_probe(), accept_weaker=settings.accept_weaker_sandbox)
            modules = modules_of_tasks(settings)
            environments = EnvironmentStore(
                settings.environments,
                settings.environments_bytes,
                settings.container_runtime,
                settings.gvisor_runtime,
            )
            await trio.to_thread.run_sync(environments.open)
            async with open_zygote(
                entry=modules.entry,
                preload=modules.preload,
                warm_up=modules.warm_up,
                pool_size=settings.pool_size,
                mechanisms=all_unknown(),
                accept_weaker=settings.accept_weaker_sandbox,
                started=zygote_process,
                defaults=Limits(memory_bytes=settings.task_memory_bytes),
                templates=settings.templates,
                base_of_templates=BASE_OF_TEMPLATES,
                warm_up_of_templates=WARM_UP_OF_TEMPLATES,
                programs=settings.programs,
                processes_max=settings.tasks_max,
                continuations=0 if predecessor is None else predecessor.host.continuations,
                environments=environments,
                container_runtime=settings.container_runtime,
                gvisor_runtime=settings.gvisor_runtime,
            ) as zygote:
                recovered = await trio.to_thread.run_sync(_recover, settings, store, recovering)
                await _serve(
                    settings,
                    store,
                    recovered,
                    audit,
                    heads,
                    zygote,
                    environments,
                    fitness,
                    node_log,
                    started,
                    launch,
                    predecessor,
                )
            heads.close()
            heads.raise_error()
    finally:
        close_log(node_log)


async def _serve(
    settings: Settings,
    store: LmdbStore,
    recovered: tuple[tuple[ObjectRecord, ...], DormantUse],
    audit: AuditLog,
    heads: HeadPublisher,
    zygote: ZygotePool,
    environments: EnvironmentStore,
    fitness: NodeFitness,
    node_log: NodeLog,
    started: Callable[[], None],
    launch: Launch | None,
    predecessor: Predecessor | None,
) -> None:
    for damage in store.damaged:
        _log.error("a stored object is damaged", extra={"what": damage})
    host: NodeHost | None = None
    scrubbing = Scrubbing(settings, store)
    keepers = KeepersOfUsers()
    try:
        async with trio.open_nursery() as nursery:
            before = None if predecessor is None else predecessor.host
            port = await _open_port(settings, nursery, lambda who, why: _denied(host, who, why), before)
            host = NodeHost(
                settings,
                store,
                audit,
                zygote,
                nursery,
                complete=lambda answer: (
                    completed_metrics(
                        environment_table.completed(log_table.completed(answer, node_log), environments),
                        host,
                        store.usage(),
                        scrubbing.counts,
                        zygote.ready,
                    )
                    if isinstance(answer, TableRows)
                    else _completed(
                        answer,
                        settings,
                        fitness,
                        zygote.lineages.template_rows(),
                        host,
                        scrubbing.counts
                        | ({} if port is None else port.membership.machine_counts | keepers.counts),
                        () if capacity is None else capacity.rows(),
                    )
                ),
                core=None if predecessor is None else Core.continued(predecessor.state(Entropy(), store)),
                logs=store.logs,
                rows=store,
                clock_offset=None if before is None else before.clock_offset,
                environments=environments,
                membership=None
                if port is None
                else port.membership._replace(enforcement=zygote.enforcement()),
            )
            capacity = _capacity_of(settings, port, host)
            if before is None:
                host.recover(Recovered(host.clock.now(), *recovered))
            else:
                host.take_over(before)
            nursery.start_soon(host.driver.watch)
            async with _listening(settings, host, nursery, before) as server:
                if before is not None:
                    await _take_over_processes(host, zygote, before)
                nursery.start_soon(host.alarm.run, host.driver.feed)
                nursery.start_soon(_keep_audit, audit, host)
                nursery.start_soon(_publish_heads, heads, host)
                nursery.start_soon(_collect_when_quiet, host)
                await nursery.start(_obey_signals, host)
                await _find_fitness(host, fitness, zygote, nursery)
                _join_others(host, port, settings, capacity, nursery)
                if before is not None:
                    host.reconnect(before)
                    host.gate.open()
                _log.info(
                    "the node serves",
                    extra={"objects": store.usage()["objects"], "socket": str(settings.socket)},
                )
                _calm_collector()
                started()
                helpers = functools.partial(_start_helpers, settings, host, server, port, scrubbing, keepers)
                if launch is None:
                    helpers(nursery)
                else:
                    continuation = Continuation(
                        settings,
                        launch,
                        host,
                        server,
                        zygote,
                        audit,
                        port,
                        version=_release,
                        predecessor=predecessor,
                    )
                    await nursery.start(continuation.obey)
                    nursery.start_soon(continuation.run_helpers, helpers)
                    if before is not None:
                        continuation.announce(before)
                await host.stopping.wait()
            _log.info("the node stops")
            await _end_everything(host, heads)
            nursery.cancel_scope.cancel()
    finally:
        restart_status.remove(settings.data)
        if host is not None:
            await host.aclose()


async def _take_over_processes(host: NodeHost, zygote: ZygotePool, before: HostState) -> None:
    """Continue with the sessions and tasks of the predecessor. No call is handled until the gate opens."""
    while host.tasks.sessions < len(before.sessions):
        await trio.lowlevel.checkpoint()
    links = zygote.take_over(before.zygotes, {(task.zygote, task.child) for task in before.tasks})
    host.tasks.take_over(before.tasks, links)
    # The first event sets the time of the next one.
    host.driver.feed(TimerFired(host.clock.now()))


def _start_helpers(
    settings: Settings,
    host: NodeHost,
    server: SessionServer,
    port: ClusterPort | None,
    scrubbing: Scrubbing,
    keepers: KeepersOfUsers,
    nursery: trio.Nursery,
) -> None:
    """Start what has sessions of its own inside this process."""
    if settings.metrics is not None:
        from dios.node.metrics.keep_exporter import keep_exporter  # noqa: PLC0415 - rarely needed

        nursery.start_soon(keep_exporter, settings)
    if port is not None and port.membership.coordinator:
        from dios.node.coordinator_supervisor import keep_coordinator  # noqa: PLC0415 - as below

        nursery.start_soon(keep_coordinator, settings)
    if settings.border and port is None:
        _log.warning("the node is in no cluster, so it has no border", extra={"setting": "border"})
    elif (
        settings.border and port is not None and (why := port.certificate.own.card.why_not(NodeRight.BORDER))
    ):
        _log.warning("the node has no border", extra={"setting": "border", "why": why})
    elif settings.border and port is not None:
        from dios.node.border.service import Border, keep_border  # noqa: PLC0415 - as below

        border = Border(
            settings, port.certificate.own, server, os.geteuid(), host.record_border, host.denied_connection
        )
        port.certificate.watch(border.adopt)
        nursery.start_soon(keep_border, border, host.stopping)
    if port is not None:
        nursery.start_soon(act_for_users, server, os.geteuid(), host.stopping, settings, keepers)
    scrubbed = ScrubbedNode(host.distrust, host.record_scrubbing, server.open_for)
    nursery.start_soon(scrubbing.run, scrubbed)


def _recover(
    settings: Settings, store: LmdbStore, recovering: Callable[[int, int], None]
) -> tuple[tuple[ObjectRecord, ...], DormantUse]:
    """Read the records that the core needs from the start on; all records if the node is recorded."""
    if settings.record is not None:
        # A replay has no store.
        return tuple(store.recover()), DormantUse()
    records, dormant = store.recover_resident(recovering)
    return tuple(records), dormant


async def _open_port(
    settings: Settings,
    nursery: trio.Nursery,
    denied: Callable[[Principal, str], None],
    before: HostState | None,
) -> ClusterPort | None:
    """Open the port for other nodes. Return None, and load no modules for it, without a cluster."""
    if not settings.identity.exists():
        return None
    from dios.node.cluster_port import open_port  # noqa: PLC0415 - a sixth of the start of a node

    return await open_port(settings, nursery, denied, None if before is None else before.port)


def _denied(host: NodeHost | None, who: Principal, why: str) -> None:
    if host is not None:
        host.denied_connection(who, why)


def _capacity_of(settings: Settings, port: ClusterPort | None, host: NodeHost) -> NodeCapacity | None:
    """Return the capacity of the node's link and disk, which only a cluster needs."""
    if port is None:
        return None
    from dios.node.capacity import NodeCapacity  # noqa: PLC0415 - nodes without a cluster do not need it

    return NodeCapacity.of_node(settings, port.membership.me.address, host.rates)


def _join_others(
    host: NodeHost,
    port: ClusterPort | None,
    settings: Settings,
    capacity: NodeCapacity | None,
    nursery: trio.Nursery,
) -> None:
    """Serve other nodes, look for them, and report free memory and the capacity to the core."""
    if port is None or host.links is None:
        return
    from dios.node.cluster_port import keep_seeds, measure_load, serve_port  # noqa: PLC0415 - loaded already

    nursery.start_soon(serve_port, port, host.links, settings, nursery)
    nursery.start_soon(keep_seeds, settings, host.links)
    nursery.start_soon(measure_load, host.clock, host.driver.feed)
    if capacity is not None:
        nursery.start_soon(
            capacity.keep,
            lambda disk, network: host.driver.feed(CapacityChanged(host.clock.now(), disk, network)),
        )


@asynccontextmanager
async def _listening(
    settings: Settings, host: NodeHost, nursery: trio.Nursery, before: HostState | None
) -> AsyncIterator[SessionServer]:
    if settings.allowed_uids:
        _open_way(settings)
    mode = 0o666 if settings.allowed_uids else 0o600
    if before is None:
        listener = open_listener(settings.socket, mode)
    else:
        listener = socket.socket(fileno=before.listener)
        settings.socket.chmod(mode)
    try:
        server = SessionServer(
            listener,
            host.tasks,
            denied=host.denied_connection,
            broken=host.broken_connection,
            allowed_uids=settings.allowed_uids,
        )
        if before is None:
            nursery.start_soon(server.run)
        else:
            nursery.start_soon(server.run, before.sessions, before.newcomers)
        yield server
    finally:
        close_listener(listener, settings.socket)


def _open_way(settings: Settings) -> None:
    """Let the users in ``allowed_uids`` reach the socket, and report a folder that keeps them out.

    If the socket is in the data directory, others may pass through that, and neither list it nor open
    anything in it: the listener itself decides about users.
    """
    if settings.socket.parent == settings.data:
        with os.scandir(settings.data) as entries:
            for entry in entries:
                mode = stat.S_IMODE(entry.stat(follow_symlinks=False).st_mode)
                plain = entry.is_file(follow_symlinks=False) or entry.is_dir(follow_symlinks=False)
                if plain and mode & 0o007:
                    Path(entry.path).chmod(mode & ~0o007)
        settings.data.chmod(stat.S_IMODE(settings.data.stat().st_mode) & ~0o006 | 0o001)
    for folder in settings.socket.parents:
        if not folder.stat().st_mode & 0o001:
            _log.warning(
                "users in allowed_uids cannot reach the socket: open the folder to others, or set socket",
                extra={"folder": str(folder)},
            )


async def _end_everything(host: NodeHost, heads: HeadPublisher) -> None:
    """End tasks and sessions, wait until everything queued is on disk, and end the connections with nodes."""
    host.driver.feed(ShutdownBegan(host.clock.now()))
    with trio.move_on_after(limits.NODE_STOP_MS_MAX / 2000):
        await host.tasks.wait_all_ended()
    await host.settle()
    await heads.publish()
    if host.links is not None:
        await host.links.flush()
        await host.links.aclose()


async def _obey_signals(
    host: NodeHost, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
) -> None:
    with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        task_status.started()
        async for number in signals:
            if host.stopping.is_set():
                # Everything acknowledged is on disk already, so that this end loses nothing.
                signal.signal(number, signal.SIG_DFL)
                os.kill(os.getpid(), number)
            host.stopping.set()


async def _keep_audit(audit: AuditLog, host: NodeHost) -> None:
    """Write and sync new records ten times a second, and keep the log within its bounds.

    Without new records the bounds are checked less often.
    """
    synced = audit.records
    failing = ""
    while True:
        with trio.move_on_after(0 if failing else _AUDIT_IDLE_S):
            await audit.wait_appended()
        await trio.sleep(_AUDIT_SYNC_S)
        host.journal.settle(host.clock.now())
        try:
            planned = audit.plan_removal(host.clock.now())
            records = audit.records
            if records == synced:
                continue
            audit.flush()
            await trio.to_thread.run_sync(audit.sync)
            if planned:
                await trio.to_thread.run_sync(audit.remove, planned)
                _log.info("old segments of the audit log were removed", extra={"segments": len(planned)})
        except (DiosError, OSError) as error:
            why = str(error)
            if why != failing:
                # Log an error once, not ten times a second: the log may be on the same full disk.
                failing = why
                _log.error("cannot write the audit log", extra={"why": failing})
            continue
        synced = records
        if failing:
            failing = ""
            _log.warning("the audit log can be written again")


async def _publish_heads(heads: HeadPublisher, host: NodeHost) -> None:
    """Publish the heads of the audit log, and stop the node if its log is behind a published one."""
    if host.links is not None:
        heads.send = host.links.publish_head
        host.links.heads.returned = heads.examine
    await heads.run(host.stopping.set)


@contextmanager
def _open_store(settings: Settings) -> Iterator[LmdbStore]:
    store = LmdbStore(settings.data, map_bytes=settings.map_bytes, release=RECLAIMER.close)
    try:
        yield store
    finally:
        store.close()


@contextmanager
def _open_audit(settings: Settings) -> Iterator[AuditLog]:
    audit = AuditLog(settings.audit, bytes_max=settings.audit_bytes, age_ms_max=settings.audit_age)
    try:
        if audit.recovered:
            _log.warning(
                "a crash left an incomplete record in the audit log", extra={"what": audit.recovered}
            )
        yield audit
    finally:
        try:
            audit.close()
        except DiosError as error:
            _log.error("the newest audit records are lost", extra={"why": error.message})


def _calm_collector() -> None:
    """Exempt the modules loaded so far from garbage collection, and collect less often.

    The collector was off during the start, and does not run now: it would find next to nothing. Of itself it
    only looks at young objects: ``_collect_when_quiet`` looks at all.
    """
    gc.freeze()
    gc.set_threshold(limits.GC_THRESHOLD_OBJECTS, limits.GC_YOUNG_RUNS, _NEVER)
    gc.enable()


async def _collect_when_quiet(host: NodeHost) -> None:
    """Look for garbage among all objects after many new ones, if possible while the node has nothing to do.

    With 100,000 objects in a node this takes tens of milliseconds, in which no call is answered.
    """
    while True:
        steps = host.driver.steps
        await trio.sleep(_COLLECT_PERIOD_S)
        grown = gc.get_count()[2]
        is_quiet = host.driver.steps - steps < _QUIET_STEPS
        if grown >= (limits.GC_FULL_RUNS_MIN if is_quiet else limits.GC_FULL_RUNS_MAX):
            gc.collect()


def _started_probe() -> Probe:
    probe = Probe()
    probe.start()
    return probe


async def _find_fitness(
    host: NodeHost, fitness: NodeFitness, zygote: ZygotePool, nursery: trio.Nursery
) -> None:
    """Keep finding out if this node is fit for pure tasks; return once it is known, or after a short time."""

    def report() -> None:
        reason = fitness.reason[:MESSAGE_CHARS_MAX]
        host.driver.feed(FitnessChanged(host.clock.now(), fitness.fitness, reason, zygote.enforcement()))

    nursery.start_soon(fitness.keep, zygote, report, name="fitness for pure tasks")
    await fitness.wait_first()
    report()


def _completed(
    info: Info,
    settings: Settings,
    fitness: NodeFitness,
    templates: tuple[TemplateRow, ...],
    host: NodeHost | None,
    further_counts: Mapping[str, int],
    capacities: tuple[ResourceCapacity, ...],
) -> Info:
    if info.version:
        return info  # another node's answer, which that node has completed
    counts = dict(further_counts)
    if host is not None:
        counts |= host.journal.counts
    if host is not None and host.links is not None:
        counts |= {f"peer_{name}": count for name, count in host.links.counts.items()}
    if IN_STEPS in info.counts:
        counts = disclosure.counts_in_steps(counts)
    return Info(
        _release(),
        str(settings.data),
        dict(info.counts) | counts,
        fitness.guarantees(),
        templates,
        fitness.fitness,
        capacities,
    )


@functools.cache
def _release() -> str:
    """Return the version of the installed package, which is read from its files once."""
    return version()
