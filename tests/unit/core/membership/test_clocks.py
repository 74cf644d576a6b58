"""The estimate of another node's clock."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from dios.core.membership.clocks import ClockOffset, ClockRecord

SECOND = 1_000_000_000
DELAYS = st.integers(0, SECOND)


@given(st.integers(-(2**40), 2**40), st.lists(st.tuples(DELAYS, DELAYS), min_size=1, max_size=8))
def test_the_true_offset_is_within_the_error(offset: int, trips: list[tuple[int, int]]) -> None:
    """Whatever the delays on the way there and back, and the best answer of several counts."""
    record, now = ClockRecord(), 2**50
    for number, (there, back) in enumerate(trips):
        record.note_ping(number, now)
        clock = now + there + offset
        now += there + back
        record.note_answer(number, clock, now)
        now += SECOND
    reading = record.reading(now)
    assert reading is not None
    assert abs(reading.offset_ns - offset) <= reading.error_ns + 1
    assert reading.error_ns <= min(sum(trip) for trip in trips) // 2 + 1 + 24 * SECOND // 5_000


def test_an_answer_to_another_ping_or_without_a_clock_measures_nothing() -> None:
    """Nor does a second answer to the same ping."""
    record = ClockRecord()
    record.note_ping(1, 100)
    record.note_answer(2, 500, 200)
    record.note_answer(1, 0, 200)
    assert record.reading(200) is None
    record.note_answer(1, 500, 200)
    record.note_answer(1, 9_000, 200)
    assert record.reading(200) == ClockOffset(350, 50)


def test_a_clock_that_was_set_replaces_the_estimate() -> None:
    """An answer that contradicts the estimate counts, although it is less certain."""
    record = ClockRecord()
    record.note_ping(1, 0)
    record.note_answer(1, 50, 100)
    record.note_ping(2, 1_000)
    record.note_answer(2, SECOND, 2_000)
    reading = record.reading(2_000)
    assert reading is not None
    assert abs(reading.offset_ns - SECOND) <= 2_000
