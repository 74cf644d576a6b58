"""The number of packets that a worker receives at once."""

from __future__ import annotations

from dios.limits import SPRAYER_BATCH, SPRAYER_BATCH_CYCLES, SPRAYER_BATCH_MIN
from dios.sprayer.functions.synthetic import Synthetic
from dios.sprayer.memory_engine import MemoryEngine
from dios.sprayer.runtime.workers import Workers
from tests.support.sprayer.frames import ACK, Made

EACH = SPRAYER_BATCH_CYCLES // 8
FRAMES = 40 * SPRAYER_BATCH


def test_what_takes_long_is_taken_in_few() -> None:
    """A slow function receives only the packets of about one turn, but at least some."""
    frames = [Made(source_port=number, flags=ACK).frame() for number in range(1, FRAMES + 1)]
    workers = Workers(Synthetic(EACH), MemoryEngine(frames), now=1)
    taken = [workers.turn(0) for _ in range(40)]
    assert taken[0] == SPRAYER_BATCH, "nothing is known of it yet"
    # A quarter of what is new counts each time, so it comes near from above.
    assert all(SPRAYER_BATCH_MIN <= count <= 12 for count in taken[8:]), taken


def test_one_that_takes_very_long_gets_the_least() -> None:
    """However slow a function is, it gets some packets."""
    frames = [Made(source_port=number, flags=ACK).frame() for number in range(1, FRAMES + 1)]
    workers = Workers(Synthetic(4 * SPRAYER_BATCH_CYCLES), MemoryEngine(frames), now=1)
    taken = [workers.turn(0) for _ in range(30)]
    assert set(taken[20:]) == {SPRAYER_BATCH_MIN}, taken
