"""Translates rows of nodes' queues into the scheduler's descriptions of machines, jobs and tasks."""

from __future__ import annotations

from collections.abc import Mapping

from blake3 import blake3

from dios.firmament.coordinator.best_effort import wanted_by
from dios.firmament.descriptors import (
    Block,
    Constraint,
    Interference,
    JobDescriptor,
    Kind,
    MachineDescriptor,
    Resources,
    TaskDescriptor,
)
from dios.wire.messages import Occupant, QueueRows, Submission


def described_machine(board: QueueRows, machine_type: str) -> MachineDescriptor:
    """Return a node as a machine. Its name and rack are labels, too."""
    labels = {"node": board.name, "rack": board.rack, **dict(board.labels)}
    return MachineDescriptor(
        board.node,
        board.name,
        board.rack,
        Resources(float(board.cpus), float(board.memory_bytes), float(board.disk_io), float(board.network)),
        board.slots,
        machine_type,
        labels=tuple(sorted(labels.items())),
    )


def job_of(row: Submission | Occupant) -> int:
    """Return the number of a task's job: its own, or one made of the user and the number that the user gave.

    Users choose numbers independently: the same number of another user is another job.
    """
    if not row.work.job:
        return row.id
    words = f"{row.principal}\0{row.work.job}".encode()
    return int.from_bytes(blake3(words, derive_key_context="dios job 1").digest(8), "big") >> 1


def described_job(row: Submission | Occupant, job: int) -> JobDescriptor:
    """Return the job of a task, which other tasks may name as well."""
    work = row.work
    return JobDescriptor(
        job,
        row.principal,
        row.label,
        Kind.SERVICE if work.service else Kind.BATCH,
        gang=work.gang if isinstance(row, Submission) else 0,
        affinity=work.affinity,
    )


def described_task(
    row: Submission | Occupant, nodes: Mapping[str, int], now: float, pinned: int | None = None
) -> TaskDescriptor:
    """Return a task; ``nodes`` gives the identifiers of machines by name.

    ``pinned`` is the only machine on which it may run, if there is one.
    """
    work = row.work
    waited = row.waited_ms / 1000 if isinstance(row, Submission) else row.age_ms / 1000
    return TaskDescriptor(
        row.id,
        Resources() if work.best_effort else wanted_by(work),
        int(work.priority),
        now - waited + work.deadline_ms / 1000 if work.deadline_ms else None,
        work.equivalence or row.label,
        Interference(work.interference),
        tuple(Block(one.bytes, (nodes[one.node],)) for one in work.near if one.node in nodes),
        tuple(Constraint(one.key, one.operator, one.value, one.hard) for one in work.constraints),
        pinned=pinned,
        # Members of a job over time are stopped when its time is over, and not to make room.
        restartable=work.restartable and not work.reservation,
        admitted=bool(work.reservation),
    )
