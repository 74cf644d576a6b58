"""What profiling would have measured of simulated tasks, as samples for a knowledge base (§6.5.3).

For: the engine (``run``). Not for: real tasks (``profiling``).
"""

from __future__ import annotations

from dios.firmament.knowledge.samples import Metric, Sample
from dios.firmament.simulate.world import RunningTaskView, TaskRecord


def running_sample(seen: RunningTaskView, now: float) -> Sample:
    """A task while it runs: what its counters say over the last moment."""
    rate = seen.program.instructions / seen.pace.stretch
    values = {
        Metric.INSTRUCTIONS_S: round(rate),
        Metric.CPU_MILLI: round(1000 * seen.usage.cpus),
        Metric.RESIDENT: round(seen.usage.memory),
    }
    if rate:
        values[Metric.PS_PER_INSTRUCTION] = round(1e12 / rate)
    record = seen.record
    return Sample.of(
        record.name, record.machine_type, seen.machine, round(now * 1e9), values, beside=seen.beside
    )


def final_sample(record: TaskRecord) -> Sample:
    """A task at its end: its final report, and its time for each instruction (§7.2.2)."""
    return Sample.at_end(
        record.name,
        record.machine_type,
        record.machine_name,
        round(record.ended * 1e9),
        record.report(),
        record.task,
        beside=record.beside,
        also={Metric.PS_PER_INSTRUCTION: round(record.runtime * 1e12 / record.instructions)},
    )
