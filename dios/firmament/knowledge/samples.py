"""Measurements of tasks and announcements of blocks, in the form in which coordinators forward them (§6.5.3).

Every entry has an identity: the coordinator that made it, the start of that coordinator, and a number. An
entry that arrives twice, in another order or through several parents is recognised by its identity.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from typing import Final

import msgspec

from dios import limits
from dios.errors import InvalidError
from dios.firmament.descriptors import FinalReport
from dios.firmament.knowledge.aggregates import VALUE_MAX
from dios.firmament.knowledge.usage_profile import UsageProfile, fault_of

VERSION: Final = 1
"""Of batches. A coordinator that does not know usage profiles refuses a batch that holds one."""

BATCH_HEAD_BYTES: Final = 64
"""The most bytes of a batch that are not entries."""

_NS: Final = 1_000_000_000
_PS: Final = 1_000_000_000_000


class BadKnowledgeError(InvalidError):
    """A sample, a batch or a stored knowledge base is invalid; the message names the reason."""


class Metric(IntEnum):
    """The values that a sample may hold, in bytes if the name has no unit. Numbers never change."""

    RUNTIME_NS = 1
    """From start to end; only in final samples."""
    CPU_NS = 2
    CPU_MILLI = 3
    """Thousandths of a hardware thread in use, over the sample's time."""
    RESIDENT = 4
    """Real memory; in a final sample its peak."""
    VIRTUAL = 5
    PROPORTIONAL = 6
    """Real memory, with shared pages counted in part."""
    WAIT_NS = 7
    """Time in which the task was runnable and waited for a processor."""
    READ_S = 8
    """Bytes per second read from disks."""
    WRITTEN_S = 9
    NETWORK_S = 10
    MINOR_FAULTS = 11
    MAJOR_FAULTS = 12
    YIELDS = 13
    """Voluntary context switches."""
    PREEMPTIONS = 14
    """Involuntary context switches."""
    MIGRATIONS = 15
    """Changes of processor."""
    CYCLES = 16
    INSTRUCTIONS = 17
    LLC_REFERENCES = 18
    LLC_MISSES = 19
    CPI_MILLI = 20
    """Thousandths of a cycle per instruction."""
    MAI_MICRO = 21
    """Memory accesses per million instructions."""
    IPMA = 22
    """Instructions per memory access (Whare-Map)."""
    PS_PER_INSTRUCTION = 23
    """Picoseconds per instruction, the cost of Whare-Map (§7.2.2)."""
    INSTRUCTIONS_S = 24
    STRETCH_MILLI = 25
    """Thousandths of the time runnable, waiting included, divided by the time on a processor.

    1000 is undisturbed.
    """


SCORES: Final = (Metric.PS_PER_INSTRUCTION, Metric.RUNTIME_NS, Metric.STRETCH_MILLI)
"""Metrics that say how well a task ran; a smaller value is better, and the first that was measured counts.
The second supposes that tasks of one class have about the same work. The last sees only waiting for
processors."""


class Sample(msgspec.Struct, frozen=True, array_like=True, tag=0):
    """The measurements of one task over some time, or, if final, from its start to its end."""

    task_class: str
    """The task's equivalence class."""
    machine_type: str
    machine: str
    """The machine's name; its clock is ``at_ns``."""
    at_ns: int
    """The end of the measured time, in nanoseconds since 1970 by the machine's clock, which may be wrong.

    A clock that restarted with the machine would make new samples older than stored ones.
    """
    values: dict[int, int]
    """By ``Metric``; a missing one was not measured."""
    beside: tuple[str, ...] = ()
    """The classes of the other tasks that ran on the machine at the same time."""
    task: int = -1
    """Its identifier; required in a final sample."""
    final: bool = False
    completed: bool = True
    """In a final sample: False if the task failed or was stopped."""

    @classmethod
    def of(
        cls,
        task_class: str,
        machine_type: str,
        machine: str,
        at_ns: int,
        values: Mapping[Metric, int],
        *,
        beside: tuple[str, ...] = (),
    ) -> Sample:
        """Return a sample of a running task."""
        return cls(task_class, machine_type, machine, at_ns, _plain(values), beside)

    @classmethod
    def at_end(
        cls,
        task_class: str,
        machine_type: str,
        machine: str,
        at_ns: int,
        report: FinalReport,
        task: int,
        *,
        beside: tuple[str, ...] = (),
        also: Mapping[Metric, int] | None = None,
    ) -> Sample:
        """Return the final sample of a task: its report, and further measurements."""
        values = _plain({**of_report(report), **(also or {})})
        return cls(
            task_class,
            machine_type,
            machine,
            at_ns,
            values,
            beside,
            task,
            final=True,
            completed=report.completed,
        )

    @property
    def metrics(self) -> dict[Metric, int]:
        """The values that this version knows."""
        return {Metric(number): value for number, value in self.values.items() if number in METRICS}


class Placing(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """An announcement that a node has a block, or has it no longer (``size`` -1)."""

    block: bytes
    """The fingerprint of the object's name."""
    machine: str
    size: int
    """The number of its bytes that are there."""


class KnowledgeEntry(msgspec.Struct, frozen=True, array_like=True):
    """A sample, an announcement of a block or a usage profile, with its identity."""

    node: str
    incarnation: int
    sequence: int
    content: Sample | Placing | UsageProfile

    @property
    def identity(self) -> tuple[int, int, str]:
        """A unique key, which ascends in time for one node."""
        return self.incarnation, self.sequence, self.node


class BatchMark(msgspec.Struct, frozen=True, array_like=True):
    """The position up to which a knowledge base has been forwarded; the parent returns it."""

    incarnation: int = -1
    position: int = 0


class KnowledgeBatch(msgspec.Struct, frozen=True, array_like=True):
    """The entries that a coordinator forwards to another at once."""

    upto: BatchMark
    """The mark for the next request."""
    lost: int
    """The number of requested entries that were dropped because there were too many."""
    more: bool
    """True if there are further entries now."""
    entries: tuple[KnowledgeEntry, ...]
    version: int = VERSION

    def to_bytes(self) -> bytes:
        """Return the batch as MessagePack."""
        return msgspec.msgpack.encode(self)

    @classmethod
    def from_bytes(cls, data: bytes) -> KnowledgeBatch:
        """Return a batch of another coordinator.

        Raises:
            BadKnowledgeError: the bytes are no batch of this version, or an entry is invalid.
        """
        try:
            batch = msgspec.msgpack.decode(data, type=cls)
        except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
            raise BadKnowledgeError(f"not a batch of samples: {error}") from None
        if batch.version != VERSION:
            raise BadKnowledgeError(f"a batch of version {batch.version}; this coordinator reads {VERSION}")
        if len(batch.entries) > limits.KNOWLEDGE_BATCH_MAX:
            raise BadKnowledgeError(
                f"a batch of {len(batch.entries)} entries; at most {limits.KNOWLEDGE_BATCH_MAX} are allowed"
            )
        for entry in batch.entries:
            check_entry(entry)
        return batch


def encoded_bytes(entry: KnowledgeEntry) -> int:
    """Return the size of an entry in a batch, in bytes."""
    return len(msgspec.msgpack.encode(entry))


def check_entry(entry: KnowledgeEntry) -> None:
    """Check an entry.

    Raises:
        BadKnowledgeError: it names the invalid field and its value.
    """
    _check_text("node", entry.node)
    for name, value in (("incarnation", entry.incarnation), ("sequence", entry.sequence)):
        if not 0 <= value <= VALUE_MAX:
            raise BadKnowledgeError(f"{name} is {value}; it must be 0 or more, and fit 63 bits")
    if isinstance(entry.content, Sample):
        check_sample(entry.content)
    elif isinstance(entry.content, UsageProfile):
        fault = fault_of(entry.content)
        if fault:
            raise BadKnowledgeError(fault)
    else:
        _check_text("machine", entry.content.machine)
        if not 1 <= len(entry.content.block) <= limits.NAME_BYTES:
            raise BadKnowledgeError(
                f"the fingerprint of a block has {len(entry.content.block)} bytes; 1 to "
                f"{limits.NAME_BYTES} are "
                "allowed"
            )
        if not -1 <= entry.content.size <= VALUE_MAX:
            raise BadKnowledgeError(f"the size of a block is {entry.content.size}; it must be -1 or more")


def check_sample(sample: Sample) -> None:
    """Check a sample.

    Raises:
        BadKnowledgeError: it names the invalid field and its value.
    """
    for name in ("task_class", "machine_type", "machine"):
        _check_text(name, getattr(sample, name))
    if not 0 <= sample.at_ns <= VALUE_MAX:
        raise BadKnowledgeError(f"at_ns is {sample.at_ns}; it must be 0 or more")
    if len(sample.beside) > limits.PROFILE_NEIGHBOURS_MAX:
        raise BadKnowledgeError(
            f"the sample has {len(sample.beside)} neighbours; at most {limits.PROFILE_NEIGHBOURS_MAX} are "
            "allowed"
        )
    for neighbour in sample.beside:
        _check_text("beside", neighbour)
    if len(sample.values) > 2 * len(Metric):
        raise BadKnowledgeError(
            f"the sample has {len(sample.values)} values; at most {2 * len(Metric)} are allowed"
        )
    for number, value in sample.values.items():
        if not 0 <= value <= VALUE_MAX:
            name = Metric(number).name if number in METRICS else str(number)
            raise BadKnowledgeError(f"{name} is {value}; it must be 0 or more, and fit 63 bits")
    if sample.final and sample.task < 0:
        raise BadKnowledgeError("a final sample needs the identifier of its task")


def derived(values: Mapping[Metric, int], elapsed_ns: int) -> dict[Metric, int]:
    """Return the values with those that Table 6.4 calculates from them, as far as possible.

    These are CPI, MAI and IPMA, the time per instruction, instructions per second, and the stretch. The time
    is that of the clock, not of the processor, because the thesis divides the run time (§7.2.2): a task that
    waits for memory, disks or processors is slow in either case.

    Args:
        values: totals over ``elapsed_ns``.
        elapsed_ns: nanoseconds; 0 if not known.
    """
    metrics = dict(values)
    instructions, misses = values.get(Metric.INSTRUCTIONS, 0), values.get(Metric.LLC_MISSES)
    ran = values.get(Metric.CPU_NS, 0)
    if instructions:
        if Metric.CYCLES in values:
            metrics[Metric.CPI_MILLI] = values[Metric.CYCLES] * 1000 // instructions
        if misses is not None:
            metrics[Metric.MAI_MICRO] = misses * 1_000_000 // instructions
            # Without a miss the number of instructions is a lower bound.
            metrics[Metric.IPMA] = instructions // max(misses, 1)
        if elapsed_ns > 0:
            metrics[Metric.PS_PER_INSTRUCTION] = elapsed_ns * (_PS // _NS) // instructions
            metrics[Metric.INSTRUCTIONS_S] = instructions * _NS // elapsed_ns
    if ran and Metric.WAIT_NS in values:
        metrics[Metric.STRETCH_MILLI] = (ran + values[Metric.WAIT_NS]) * 1000 // ran
    return metrics


def of_report(report: FinalReport) -> dict[Metric, int]:
    """Return a final report's values as metrics, with derived ones; a 0 counts as not measured."""
    told = {
        Metric.RUNTIME_NS: round(report.runtime * _NS),
        Metric.CPU_NS: round(report.cpu_seconds * _NS),
        Metric.INSTRUCTIONS: report.instructions,
        Metric.CYCLES: report.cycles,
        Metric.LLC_MISSES: report.cache_misses,
        Metric.RESIDENT: report.memory_peak,
    }
    return derived({metric: value for metric, value in told.items() if value > 0}, told[Metric.RUNTIME_NS])


METRICS: Final = frozenset(int(metric) for metric in Metric)
"""The numbers that this version knows. A newer coordinator may send others, which are forwarded."""


def _plain(values: Mapping[Metric, int]) -> dict[int, int]:
    return {int(metric): value for metric, value in values.items()}


def _check_text(name: str, value: str) -> None:
    if not value or len(value.encode()) > limits.PROFILE_TEXT_BYTES_MAX:
        raise BadKnowledgeError(
            f"{name} is {value[:40]!r}; it must have 1 to {limits.PROFILE_TEXT_BYTES_MAX} bytes"
        )
