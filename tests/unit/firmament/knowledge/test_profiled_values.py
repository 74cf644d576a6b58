"""What two looks at a task say, and which rows of Table 6.4 a machine cannot measure."""

from __future__ import annotations

import os
import time
from dataclasses import replace

import pytest

from dios.firmament.descriptors import FinalReport
from dios.firmament.knowledge.samples import Metric, of_report
from dios.firmament.monitor.counters import Counter, CounterReading, TaskCounters, survey
from dios.firmament.monitor.task_probe import TABLE_6_4, TaskProbe, TaskReading, unmeasured, values

SECOND = 1_000_000_000
TICK = SECOND // os.sysconf("SC_CLK_TCK")
PAGE = os.sysconf("SC_PAGE_SIZE")


def reading(at_ns: int, **changed: int) -> TaskReading:
    """A reading with little in it, and these fields."""
    fields: dict[str, int] = {
        name: 0 for name in TaskReading.__slots__ if name not in {"proportional", "missing"}
    }
    fields |= {"at_ns": at_ns, "virtual": 9, "resident": 8} | changed
    return TaskReading(**fields, proportional=None, missing=())


def test_two_looks_make_rates() -> None:
    """Counts are those between the looks, rates are by the time between, sizes are the last ones."""
    before = reading(SECOND, cpu_ns=SECOND, wait_ns=7, minor_faults=5, major_faults=2, read=100, written=90)
    before = replace(before, yields=3, preemptions=8, virtual=1, resident=2)
    after = reading(
        3 * SECOND, cpu_ns=2 * SECOND, wait_ns=SECOND + 7, minor_faults=9, major_faults=3, read=1100
    )
    after = replace(after, written=100, yields=5, preemptions=11)
    assert values(before, after) == {
        Metric.CPU_NS: SECOND,
        Metric.CPU_MILLI: 500,
        Metric.WAIT_NS: SECOND,
        Metric.STRETCH_MILLI: 2000,
        Metric.VIRTUAL: 9,
        Metric.RESIDENT: 8,
        Metric.MINOR_FAULTS: 4,
        Metric.MAJOR_FAULTS: 1,
        Metric.READ_S: 500,
        Metric.WRITTEN_S: 5,
        Metric.YIELDS: 2,
        Metric.PREEMPTIONS: 3,
    }
    assert values(before, replace(after, proportional=6))[Metric.PROPORTIONAL] == 6


def test_counters_have_the_last_word() -> None:
    """Of what procfs and a counter both know the counter's value is taken, and ratios come from counters."""
    before = CounterReading({Counter.INSTRUCTIONS: 1000, Counter.TASK_CLOCK: 0, Counter.LLC_MISSES: 5})
    after = CounterReading(
        {Counter.INSTRUCTIONS: 2_001_000, Counter.TASK_CLOCK: 700, Counter.LLC_MISSES: 1005}
    )
    metrics = values(reading(0, cpu_ns=0), reading(1000, cpu_ns=600), after, before)
    assert metrics[Metric.CPU_NS] == 700
    assert metrics[Metric.CPU_MILLI] == 700
    assert metrics[Metric.IPMA] == 2000
    assert metrics[Metric.MAI_MICRO] == 500
    assert Metric.CPI_MILLI not in metrics


def test_looks_in_the_wrong_order_are_refused() -> None:
    """A second look that is not later raises, rather than dividing by it."""
    for at_ns in (5, 4):
        with pytest.raises(ValueError, match="must be later"):
            values(reading(5), reading(at_ns))


def test_what_runs_backwards_is_nothing() -> None:
    """A count that is smaller than before makes no negative value."""
    metrics = values(reading(1, cpu_ns=9, read=9, yields=9), reading(2))
    assert min(metrics.values()) == 0


def test_each_row_of_table_6_4_is_measured_or_has_a_reason() -> None:
    """On this machine every metric of the thesis is in a task's values, or named with why it is not."""
    reasons = survey()
    refused = unmeasured(reasons)
    assert len(TABLE_6_4) == 12
    probe, pids = TaskProbe(), [os.getpid()]
    with TaskCounters(pids) as counters:
        first = probe.read(time.monotonic_ns(), pids)
        second = probe.read(time.monotonic_ns(), pids)
        measured = values(first, second, counters.read()) | of_report(FinalReport(1.0))
    for row in TABLE_6_4:
        assert (row.metric in measured) != (row.name in refused), (row, refused.get(row.name))
    assert all(why for why in refused.values())


def test_rows_that_need_a_refused_counter_name_it() -> None:
    """CPI needs cycles and instructions: refused cycles are the reason against CPI, and not against MAI."""
    refused = unmeasured({Counter.CYCLES: "cycles: EPERM: not permitted"})
    assert set(refused) == {"Total cycles", "Cycles per instruction (CPI)"}
    assert unmeasured(dict.fromkeys(Counter, "")) == {}
