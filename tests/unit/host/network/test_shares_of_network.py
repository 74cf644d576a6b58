"""Sockets and look-ups of names: a greedy principal leaves as many to the others as it has."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import pytest
import trio
import trio.testing
from msgspec.structs import replace

from dios import limits
from dios.core.effects import CloseNetwork, OpenNetwork
from dios.core.events import Event, NetworkFailed, NetworkOpened
from dios.host.content.streams import Streams
from dios.host.handover.gate import Gate
from dios.host.loop.clock import Clock
from dios.host.network.addresses import Resolver
from dios.host.network.socket_pump import SocketBackend
from dios.host.network.sockets import Sockets
from dios.ids import ObjectId, Principal
from dios.wire.types import Mode, ObjectType
from tests.support.host.ring_ends import Ends

GREEDY, OTHER = Principal("uid:1"), Principal("uid:2")
WAIT_S = 30


@asynccontextmanager
async def open_sockets(
    monkeypatch: pytest.MonkeyPatch, most: int
) -> AsyncIterator[tuple[Sockets, list[Event]]]:
    """The sockets of a node that has few of them, and the events that its core gets."""
    monkeypatch.setattr(limits, "NETWORK_SOCKETS_MAX", most)
    events: list[Event] = []
    with trio.fail_after(WAIT_S):
        async with trio.open_nursery() as nursery:
            sockets = Sockets(nursery, Streams(), Clock(), events.append, Gate())
            yield sockets, events
            sockets.close_all()
            nursery.cancel_scope.cancel()


async def listen(
    sockets: Sockets,
    events: list[Event],
    number: int,
    principal: Principal,
    kind: ObjectType = ObjectType.TCP_ACCEPT_STREAM,
) -> bool:
    """Open a listener, or another socket; return True if the node had room for it."""
    target = ObjectId(number)
    sockets.open(OpenNetwork(target, kind, "127.0.0.1:0", 4096, principal=principal))
    while True:
        for event in events:
            if isinstance(event, NetworkOpened | NetworkFailed) and event.object == target:
                return isinstance(event, NetworkOpened)
        await trio.sleep(0.001)


async def test_no_principal_takes_all_sockets(monkeypatch: pytest.MonkeyPatch) -> None:
    """A principal gets half of the sockets, another one finds some, and a closed one is free again."""
    async with open_sockets(monkeypatch, 4) as (sockets, events):
        assert [await listen(sockets, events, number, GREEDY) for number in (1, 2, 3)] == [True, True, False]
        assert await listen(sockets, events, 4, OTHER)
        assert not await listen(sockets, events, 5, OTHER)
        sockets.close(CloseNetwork(ObjectId(1)))
        assert await listen(sockets, events, 6, GREEDY)


async def test_connections_that_wait_count_for_their_listener(monkeypatch: pytest.MonkeyPatch) -> None:
    """Strangers who connect to a listener take sockets of its principal, and none of another one."""
    async with open_sockets(monkeypatch, 6) as (sockets, events):
        assert await listen(sockets, events, 1, GREEDY)
        opened = next(event for event in events if isinstance(event, NetworkOpened))
        host, _, port = opened.address.rpartition(":")
        crowd = [await trio.open_tcp_stream(host, int(port)) for _ in range(6)]
        await trio.testing.wait_all_tasks_blocked(0.05)
        assert len(sockets) == 3
        assert await listen(sockets, events, 2, OTHER)
        for stream in crowd:
            await stream.aclose()


@pytest.fixture
def ends() -> Iterator[Ends]:
    """A ring whose writer stays."""
    both_ends = Ends()
    yield both_ends
    both_ends.close()


async def test_a_closed_socket_counts_until_its_bytes_are_sent(
    monkeypatch: pytest.MonkeyPatch, ends: Ends
) -> None:
    """A principal that closes sockets behind which bytes wait keeps their places, and no others."""
    async with open_sockets(monkeypatch, 2) as (sockets, events):
        assert await listen(sockets, events, 1, GREEDY, ObjectType.UDP_STREAM)
        backend = sockets._endpoints[ObjectId(1)]
        assert isinstance(backend, SocketBackend)
        backend.end_attached(Mode.WRITE, ends.reader)
        sockets.close(CloseNetwork(ObjectId(1)))
        assert len(sockets) == 1
        assert not await listen(sockets, events, 2, GREEDY)
        assert await listen(sockets, events, 3, OTHER)


async def test_a_successor_knows_the_principals_of_sockets(monkeypatch: pytest.MonkeyPatch) -> None:
    """After the program of the node was replaced, each principal has the places that it had."""
    async with (
        open_sockets(monkeypatch, 4) as (former, events),
        open_sockets(monkeypatch, 4) as (sockets, later),
    ):
        assert await listen(former, events, 1, GREEDY)
        assert await listen(former, events, 2, GREEDY)
        described, next_accepted = former.hand_over()
        sockets.take_over([replace(entry, fd=os.dup(entry.fd)) for entry in described], next_accepted)
        assert not await listen(sockets, later, 3, GREEDY)
        assert await listen(sockets, later, 4, OTHER)


@pytest.fixture
def slow_names(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """A name server that answers for ``slow`` names only when the event is set."""
    answer, known = threading.Event(), socket.getaddrinfo

    def getaddrinfo(host: str, *arguments: int, **options: int) -> object:
        if options.get("flags", 0) & socket.AI_NUMERICHOST:
            raise socket.gaierror(socket.EAI_NONAME, "not a number")
        if host.startswith("slow"):
            answer.wait(WAIT_S)
        return known("127.0.0.1", *arguments, **options)

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    yield answer
    answer.set()


async def test_slow_names_of_one_principal_keep_no_other_waiting(slow_names: threading.Event) -> None:
    """Not even look-ups that were given up: their threads hold places until the name server answers."""
    resolver = Resolver()
    with trio.fail_after(WAIT_S):
        async with trio.open_nursery() as nursery:
            for number in range(3 * limits.NETWORK_RESOLVERS_MAX):
                nursery.start_soon(_give_up_soon, resolver, f"slow{number}:1")
        places = await resolver.resolve("quick:1", socket.SOCK_STREAM, OTHER, passive=False)
        assert places[0].name[0] == "127.0.0.1"
        assert resolver._places.used == limits.NETWORK_RESOLVERS_MAX // 2
        slow_names.set()
        assert await resolver.resolve("slow:1", socket.SOCK_STREAM, GREEDY, passive=False)


async def _give_up_soon(resolver: Resolver, name: str) -> None:
    with trio.move_on_after(0.05):
        await resolver.resolve(name, socket.SOCK_STREAM, GREEDY, passive=False)
