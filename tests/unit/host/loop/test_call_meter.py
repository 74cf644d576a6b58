"""The meter counts calls while somebody reads metrics, and nothing at other times."""

from __future__ import annotations

from dios import limits
from dios.errors import Code
from dios.host.loop.call_meter import LATENCY_BOUNDS_NS, CallMeter
from dios.ids import TaskId
from dios.wire.messages import Done, Failure

TASK = TaskId(7)


class Time:
    """A clock that a test sets."""

    def __init__(self) -> None:
        self.now_ns = 1_000_000_000

    def now(self) -> int:
        """Return the time."""
        return self.now_ns


def test_counts_by_kind_and_outcome_with_latency() -> None:
    """Answers are counted by the kind of the call and by ``ok`` or the error code, and timed."""
    time = Time()
    meter = CallMeter(time.now)
    meter.note_reader()
    for seq, answer in ((1, Done(0)), (2, Failure(int(Code.EPERM), "no")), (3, Failure(9_999, "newer"))):
        meter.begin(TASK, seq, "Stat")
        time.now_ns += 60_000
        meter.end(TASK, seq, answer)
    assert meter.outcomes == {("Stat", "ok"): 1, ("Stat", "EPERM"): 1, ("Stat", "other"): 1}
    histogram = meter.latencies["Stat"]
    assert histogram.sum_ns == 180_000
    assert histogram.buckets[1] == sum(histogram.buckets) == 3  # between 50 and 100 us
    assert LATENCY_BOUNDS_NS[0] == 50_000


def test_is_off_until_read_and_after_the_last_reader() -> None:
    """Nothing is counted before the first reader, and a while after the last one."""
    time = Time()
    meter = CallMeter(time.now)
    assert not meter.is_on
    meter.note_reader()
    meter.begin(TASK, 1, "Stat")
    time.now_ns += (limits.METER_READER_MS + 1) * 1_000_000
    meter.begin(TASK, 2, "Stat")
    assert not meter.is_on
    meter.end(TASK, 1, Done(0))
    assert not meter.outcomes


def test_answers_to_no_call_are_not_counted() -> None:
    """Events are sent like answers, and are not counted."""
    meter = CallMeter()
    meter.note_reader()
    meter.end(TASK, 0, Done(0))
    assert not meter.outcomes


def test_calls_that_are_never_answered_take_bounded_memory() -> None:
    """The oldest of too many waiting calls is forgotten."""
    meter = CallMeter()
    meter.note_reader()
    for seq in range(limits.METER_CALLS_MAX + 10):
        meter.begin(TASK, seq, "Select")
    assert meter.untimed == 10
    meter.end(TASK, 0, Done(0))
    assert not meter.outcomes
    meter.end(TASK, limits.METER_CALLS_MAX, Done(0))
    assert meter.outcomes == {("Select", "ok"): 1}
