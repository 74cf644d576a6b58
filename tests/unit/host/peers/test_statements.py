from pathlib import Path

import pytest
import trio
import trio.testing

from dios import limits
from dios.host.loop.clock import Clock
from dios.host.peers.statements import StatementAllowance, StatementReader
from dios.ids import NodeId
from dios.transport.identity import statements
from dios.transport.identity.identity import Identity, known_of
from tests.support.peers.connections import make_cluster


@pytest.fixture(autouse=True)
def small_burst(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a burst end after a few statements, each of which is written to disk."""
    monkeypatch.setattr(limits, "STATEMENTS_BURST", 20)


class VirtualClock(Clock):
    """A clock that shows trio's time."""

    def now(self) -> int:
        """Return trio's time."""
        return int(trio.current_time() * 1_000_000_000)


def stated(by: Identity, number: int) -> bytes:
    """A member's statement with this number, which removes a made-up node."""
    return statements.make(by.chain, by.key(), number, {1_000 + number: 0}, {by.node: by.card.key}).data


async def test_statements_are_counted_for_their_signer(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    """A signer gets a burst and its rate over all relays; a relay goes on, and others' statements count."""
    here, bad, good, *relays = make_cluster(tmp_path, "here bad good r1 r2 r3")
    for member in (bad, good, *relays):
        here.trust.note(known_of(member.cards))
    told: list[tuple[NodeId, bytes]] = []
    async with trio.open_nursery() as nursery:
        reader = StatementReader(
            here.trust, VirtualClock(), nursery, lambda node, said: told.append((node, said))
        )
        most, extra = limits.STATEMENTS_BURST, 30
        said = [stated(bad, number) for number in range(1, most + extra + 1)]
        for place, statement in enumerate(said):
            await reader.merge(relays[place % 3].node, statement)
        assert [statement for _, statement in told] == said[:most]
        assert reader.waiting == 1
        other = stated(good, 1)
        await reader.merge(relays[0].node, other)
        assert told.pop() == (relays[0].node, other)
        while len(told) == most:  # noqa: ASYNC110 - the time is virtual
            await trio.sleep(0.1)
        # Only the newest of those above the rate is left, and it comes from its relay.
        assert reader.waiting == 0
        assert told[most:] == [(relays[(most + extra - 1) % 3].node, said[-1])]
        assert set(here.trust.statements) == {said[-1], other}


async def test_no_more_statements_of_a_signer_count_than_its_rate(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    """A signer that never stops changes a node's mind at its rate only, however many relays it has."""
    here, bad, *relays = make_cluster(tmp_path, "here bad r1 r2")
    for member in (bad, *relays):
        here.trust.note(known_of(member.cards))
    told: list[bytes] = []
    async with trio.open_nursery() as nursery:
        reader = StatementReader(here.trust, VirtualClock(), nursery, lambda _, said: told.append(said))
        seconds, number = 20, 0
        for _ in range(limits.STATEMENTS_BURST):
            number += 1
            await reader.merge(relays[0].node, stated(bad, number))
        for _ in range(seconds):
            for relay in relays:
                for _ in range(5):
                    number += 1
                    await reader.merge(relay.node, stated(bad, number))
            assert reader.waiting <= 1
            await trio.sleep(1)
        nursery.cancel_scope.cancel()
    assert limits.STATEMENTS_BURST < len(told) <= limits.STATEMENTS_BURST + seconds * limits.STATEMENTS_PER_S


def test_an_allowance_grows_with_time() -> None:
    """After a burst the allowance is used up, and it grows with time, never above the burst."""
    allowance, second = StatementAllowance(limits.STATEMENTS_BURST, 0), 1_000_000_000
    taken = 0
    while allowance.take(0):
        taken += 1
    assert taken == limits.STATEMENTS_BURST
    assert sum(allowance.take(3 * second) for _ in range(9)) == 3 * limits.STATEMENTS_PER_S
    assert sum(allowance.take(1_000 * second) for _ in range(600)) == limits.STATEMENTS_BURST
