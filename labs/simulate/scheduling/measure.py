"""Samples of simulated tasks for a knowledge base, like those that a node measures (§6.5.3).

Real tasks are measured by ``monitor.task_probe``.
"""

from __future__ import annotations

from dios.firmament.knowledge.samples import Metric, Sample
from labs.simulate.scheduling.world import RunningTaskView, TaskRecord


def running_sample(seen: RunningTaskView, now: float) -> Sample:
    """Return a sample of a running task, from its present speed."""
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
    """Return a sample of a task that has ended: its final report, and its time per instruction (§7.2.2)."""
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
