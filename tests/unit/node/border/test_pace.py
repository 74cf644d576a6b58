"""The bounds of a border: handshakes with strangers, and callers that drip."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest
import trio
from trio.testing import MockClock

from dios import limits
from dios.node.border.connections import CallConnection
from dios.node.border.pace import HandshakePace
from dios.wire.border import FilePart, WriteReady, encode_frame

STRANGER, OTHER, NODE = "192.0.2.1", "192.0.2.2", "198.51.100.7"


def admitted(pace: HandshakePace, address: str, tries: int = 1_000) -> int:
    """The number of handshakes with an address that may begin at this moment."""
    return sum(pace.admits(address) for _ in range(tries))


async def test_an_address_has_few_handshakes_and_others_their_own(mock_clock: MockClock) -> None:
    """A flood from one address leaves another one its handshakes; with time come further ones."""
    pace = HandshakePace()
    first = admitted(pace, STRANGER)
    assert 0 < first <= 2 * limits.BORDER_HANDSHAKES_EACH_S + 1
    assert admitted(pace, OTHER) == first
    mock_clock.jump(1)
    assert 0 < admitted(pace, STRANGER) <= limits.BORDER_HANDSHAKES_EACH_S + 1


async def test_many_addresses_together_have_a_bound(autojump_clock: MockClock) -> None:
    """Strangers from everywhere cause a bounded number; an address where a cluster was keeps its own."""
    pace = HandshakePace()
    pace.passed(NODE)
    flood = sum(pace.admits(f"10.0.{number // 256}.{number % 256}") for number in range(5_000))
    assert flood <= 2 * limits.BORDER_HANDSHAKES_S + 1
    assert admitted(pace, NODE, limits.BORDER_REQUESTS_BURST) == limits.BORDER_REQUESTS_BURST
    assert not pace.admits(STRANGER)
    assert len(pace._buckets) <= limits.BORDER_ADDRESSES_MAX
    for number in range(limits.BORDER_ADDRESSES_MAX + 5):
        pace.passed(str(number))
    assert len(pace._known) == limits.BORDER_ADDRESSES_MAX


async def test_an_address_that_passed_has_the_rate_of_its_calls(autojump_clock: MockClock) -> None:
    """What an address used as a stranger does not count once a node of a trusted cluster came from it."""
    pace = HandshakePace()
    admitted(pace, NODE)
    assert not pace.admits(NODE)
    pace.passed(NODE)
    assert admitted(pace, NODE) >= limits.BORDER_REQUESTS_BURST


class DrippingLine:
    """A connection whose other end sends a part, or takes a frame, every ``pause_s``."""

    def __init__(self, pause_s: float, part: bytes) -> None:
        self._pause_s = pause_s
        self._body = encode_frame(FilePart(part))[4:]

    async def receive(self) -> bytes | None:
        """Wait, and return a part."""
        await trio.sleep(self._pause_s)
        return self._body

    async def send(self, frame: bytes) -> None:
        """Wait until a frame is taken."""
        assert frame
        await trio.sleep(self._pause_s)


def receiving(caller: CallConnection) -> Callable[[], Awaitable[object]]:
    """What a writer does."""
    return caller.receive_part


def sending(caller: CallConnection) -> Callable[[], Awaitable[object]]:
    """What a reader does."""
    return lambda: caller.send(WriteReady())


@pytest.mark.parametrize("action", [receiving, sending])
async def test_a_caller_that_drips_loses_its_call(
    autojump_clock: MockClock,
    action: Callable[[CallConnection], Callable[[], Awaitable[object]]],
) -> None:
    """A byte every second is too slow after BORDER_SLOW_MS_MAX, for a writer and for a reader."""
    moves = action(CallConnection(DrippingLine(1, b"x")))
    began = trio.current_time()

    async def move_all() -> None:
        for _ in range(100):
            await moves()

    with pytest.raises(BrokenPipeError, match="too slow"):
        await move_all()
    assert trio.current_time() - began <= limits.BORDER_SLOW_MS_MAX / 1000 + 0.1


async def test_a_caller_at_the_minimum_rate_keeps_its_call(autojump_clock: MockClock) -> None:
    """Bytes at the rate, with pauses, are fast enough for any time; a long pause ends even a fast one."""
    part = bytes(limits.BORDER_RATE_BYTES_S_MIN)
    caller = CallConnection(DrippingLine(1, part))
    for _ in range(100):
        assert len((await caller.receive_part()).data) == len(part)
    silent = CallConnection(DrippingLine(limits.BORDER_IDLE_MS_MAX / 1000 + 1, part))
    silent._rate._left_s = 1e6
    with pytest.raises(BrokenPipeError):
        await silent.receive_part()


async def test_a_caller_that_came_late_is_too_slow_at_its_next_part(mock_clock: MockClock) -> None:
    """A part that arrives after the time for it, on a busy machine, uses all of the next one's time."""

    class LateLine(DrippingLine):
        async def receive(self) -> bytes | None:
            mock_clock.jump(2 * limits.BORDER_SLOW_MS_MAX / 1000)
            return self._body

    caller = CallConnection(LateLine(0, b"x"))
    assert (await caller.receive_part()).data == b"x"
    late = caller._rate
    slow = DrippingLine(1, b"x")
    with pytest.raises(BrokenPipeError, match="too slow"):
        await late.wait(slow.receive, lambda _: 1)
