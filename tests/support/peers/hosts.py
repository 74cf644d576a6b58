"""Hosts of one cluster that speak over real connections, around cores that are told what to answer."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import trio

from dios.core import effects as fx
from dios.core.effects import Effect, Outcome
from dios.core.events import Event, PeerUp, Received
from dios.host.audit.log import AuditLog
from dios.host.content.memories import ContentMemory
from dios.host.peers.links import PeerLinks
from dios.ids import NodeId, ObjectId, TaskId, Ticket
from dios.node.assembly import NodeHost
from dios.node.cluster_port import ClusterPort, open_port, serve_port
from dios.node.settings import load
from dios.transport.identity import identity
from dios.transport.memory.memfd import copies_of
from dios.wire import dcp
from dios.wire.messages import AnyResult, Attached, Buffer, Results, Stat
from dios.wire.node_roles import NodeRole
from dios.wire.types import Brand
from tests.support.host.harness import TASK, WAIT_S, GatedStore, NoTasks, RecordingChannel, ScriptedCore

T = TypeVar("T")
DEPUTY = TaskId(4711)
BLOB = ObjectId(5)
CALLER = dcp.Caller(DEPUTY, "uid:1", "f" * 16, Brand.PURE)


class ReadingChannel(RecordingChannel):
    """A channel that reads what it is sent descriptors of, as a task would."""

    def __init__(self) -> None:
        super().__init__()
        self.read: list[bytes] = []
        self.ends: list[list[int]] = []

    def send_nowait(self, frame: bytes, fds: Sequence[int] = ()) -> None:
        """Keep a frame, and the bytes of its buffer."""
        super().send_nowait(frame, fds)
        result = self.replies[-1][1]
        left = list(fds)
        for part in result.results if isinstance(result, Results) else (result,):
            if isinstance(part, Buffer):
                data = os.pread(left.pop(0), part.size, part.start) if part.mapping else part.data
                self.read.append(data or b"")
        if isinstance(result, Attached):
            self.ends.append(copies_of(fds))


class PeerHost:
    """A host of a cluster's node, its scripted core, and one task of its own."""

    def __init__(self, host: NodeHost, core: ScriptedCore, port: ClusterPort) -> None:
        assert host.links is not None
        self.host = host
        self.core = core
        self.port = port
        self.links: PeerLinks = host.links
        self.channel = ReadingChannel()
        host.outbox.open(TASK, self.channel)  # type: ignore[arg-type] # all that the outbox asks of a channel

    @property
    def node(self) -> NodeId:
        """Its id."""
        return self.port.membership.me.node

    @property
    def name(self) -> str:
        """What it is called."""
        return self.port.membership.me.name

    @property
    def address(self) -> str:
        """Where it listens."""
        return self.port.membership.me.address

    def do(self, *after: Effect) -> None:
        """One step that comes to this."""
        self.core.outcomes.append(Outcome([], list(after), Ticket(0), Ticket(0), None))
        self.host.driver.call(TASK, 1, Stat(1))

    def when_received(self, answer: Callable[[Received], list[Effect]]) -> None:
        """What the core does with every message from now on."""
        former = self.core.step

        def step(event: Event) -> Outcome:
            if not isinstance(event, Received):
                return former(event)
            self.core.events.append(event)
            return Outcome([], answer(event), Ticket(0), Ticket(0), None)

        self.host.driver._take = step  # type: ignore[misc] # the driver keeps the core's method

    def blob(self, content: bytes | ContentMemory, number: ObjectId = BLOB) -> None:
        """Let an object have this content."""
        self.host.contents.set(number, content)

    def messages(self) -> list[dcp.Message]:
        """What it was told."""
        return [event.message for event in self.core.seen(Received)]

    def ask(self, other: PeerHost, body: dcp.RequestBody, source: fx.WriteSource | None = None) -> None:
        """Send a request."""
        self.do(fx.Send(other.node, dcp.Ask(1, 1, body), source))

    def results(self) -> list[AnyResult]:
        """What its task was answered."""
        return [result for _, result, _ in self.channel.replies]


async def until(condition: Callable[[], T], goal: str) -> T:
    """Wait until something is true, and return it."""
    with trio.fail_after(WAIT_S):
        while not (outcome := condition()):  # noqa: ASYNC110 - conditions of another node's making
            await trio.sleep(0.001)
    assert outcome, goal
    return outcome


async def connected(*hosts: PeerHost) -> None:
    """Connect every pair."""
    for host in hosts:
        for other in hosts:
            if host is not other:
                host.links.contact(other.node, other.name, other.address)
    for host in hosts:
        for other in hosts:
            if host is not other:
                await until(lambda near=host, other=other: other.node in ups(near), "they are connected")  # type: ignore[misc] # bound early


def ups(host: PeerHost) -> set[NodeId]:
    """The nodes that its core knows to be up."""
    return {event.node for event in host.core.seen(PeerUp)}


def identities(folder: Path, count: int, role: NodeRole = NodeRole.MEMBER) -> list[Path]:
    """Data directories of a cluster's nodes n0, n1 ..., of which the first one is an authority."""
    paths = [folder / f"n{number}" for number in range(count)]
    for path in paths:
        path.mkdir()
    first = identity.create_cluster(paths[0], name="n0")
    for path in paths[1:]:
        identity.admit_here(first, path, name=path.name, role=role)
    return paths


@asynccontextmanager
async def peer_host(data: Path) -> AsyncIterator[PeerHost]:
    """One host of a cluster, serving."""
    store, core = GatedStore(), ScriptedCore()
    list(store.recover())
    audit = AuditLog(data / "audit")
    host: NodeHost | None = None
    try:
        async with trio.open_nursery() as nursery:
            settings = replace(load(data, environ={}), listen="127.0.0.1:0")
            port = await open_port(
                settings, nursery, lambda who, why: None if host is None else host.denied_connection(who, why)
            )
            assert port is not None
            host = NodeHost(
                settings,
                store,
                audit,
                NoTasks(),
                nursery,
                complete=lambda info: info,
                core=core,
                membership=port.membership,
            )
            assert host.links is not None
            nursery.start_soon(serve_port, port, host.links, settings, nursery)
            yield PeerHost(host, core, port)
            await host.links.aclose()
            nursery.cancel_scope.cancel()
    finally:
        if host is not None:
            await host.aclose()
        audit.close()


@asynccontextmanager
async def two_hosts(folder: Path) -> AsyncIterator[tuple[PeerHost, PeerHost]]:
    """Two hosts of one cluster, not connected yet; the first has the lower id."""
    path, other = identities(folder, 2)
    async with peer_host(path) as first, peer_host(other) as second:
        yield (first, second) if first.node < second.node else (second, first)
