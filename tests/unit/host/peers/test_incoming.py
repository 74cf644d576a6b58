"""New requests of a node wait for their turn; everything else that it says is processed at once."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

from dios import limits
from dios.core.effects import Effect, Outcome
from dios.core.events import Event, Received
from dios.host.peers.incoming import IncomingQueue
from dios.ids import Ticket
from dios.wire import dcp
from dios.wire.messages import Stat
from tests.support.peers.hosts import CALLER, PeerHost, connected, identities, peer_host, until

REQUESTS = 60


def ask(number: int) -> dcp.Ask:
    """A request."""
    return dcp.Ask(number, 1, dcp.Forward(CALLER, Stat(1)))


def work_hard(target: PeerHost, taken: list[dcp.Message]) -> None:
    """Let each request be a turn's work, and note what is processed."""

    def step(event: Event) -> Outcome:
        nothing: list[Effect] = []
        if isinstance(event, Received):
            taken.append(event.message)
        units = limits.TURN_UNITS_MAX if isinstance(event, Received) else 0
        return Outcome([], nothing, Ticket(0), Ticket(0), None, units)

    target.host.driver._take = step  # type: ignore[misc] # the driver keeps the core's method


async def test_gossip_overtakes_requests_that_wait(tmp_path: Path) -> None:
    """Gossip behind many long requests is processed before most of them; these are processed in order."""
    paths = identities(tmp_path, 2)
    async with peer_host(paths[0]) as target, peer_host(paths[1]) as friend:
        await connected(target, friend)
        taken: list[dcp.Message] = []
        work_hard(target, taken)
        for number in range(1, REQUESTS + 1):
            friend.links.send(target.node, ask(number))
        friend.links.send(target.node, dcp.Gossip(b"alive"))
        await until(lambda: len(taken) == REQUESTS + 1, "everything is processed")
        assert taken.index(dcp.Gossip(b"alive")) < REQUESTS // 2
        numbers = [message.number for message in taken if isinstance(message, dcp.Ask)]
        assert numbers == list(range(1, REQUESTS + 1))


async def test_a_repeat_of_a_request_that_waits_is_answered_at_once(tmp_path: Path) -> None:
    """Its sender learns that the first one waits; the request itself is processed once."""
    paths = identities(tmp_path, 2)
    async with peer_host(paths[0]) as target, peer_host(paths[1]) as friend:
        await connected(target, friend)
        taken: list[dcp.Message] = []
        work_hard(target, taken)
        for number in [*range(1, REQUESTS + 1), REQUESTS, REQUESTS]:
            friend.links.send(target.node, ask(number))
        working = dcp.PeerReply(REQUESTS, dcp.Working())
        await until(lambda: friend.messages().count(working) == 2, "both repeats are answered")
        await until(lambda: len(taken) >= REQUESTS, "everything is processed")
        assert len(taken) == REQUESTS


async def test_the_queue_is_bounded() -> None:
    """Whoever adds more bytes than the bound waits until requests were taken."""
    queue = IncomingQueue()
    number = 0
    await queue.wait_for_room()
    while number * limits.DCP_FRAME_BYTES_MAX <= limits.INCOMING_BYTES_MAX:
        number += 1
        queue.put(ask(number), None, limits.DCP_FRAME_BYTES_MAX)
    with pytest.raises(trio.TooSlowError):
        with trio.fail_after(0.01):
            await queue.wait_for_room()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(queue.wait_for_room)
        await trio.testing.wait_all_tasks_blocked()
        while len(queue) > 1:
            queue.take()
    assert queue.has(number)
    queue.clear()
    assert not queue.has(number)
