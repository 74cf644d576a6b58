"""Translates rows of nodes' queues into the scheduler's descriptions of machines, jobs and tasks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from blake3 import blake3

from dios.firmament.coordinator.best_effort import wanted_by
from dios.firmament.descriptors import (
    NOT_FIT,
    Block,
    Constraint,
    Inner,
    Interference,
    JobDescriptor,
    Kind,
    Level,
    MachineDescriptor,
    Resources,
    TaskDescriptor,
)
from dios.wire.messages import DeviceRequest, Occupant, QueueRows, Submission
from dios.wire.node_labels import NO_LIMBO
from dios.wire.types import Fitness, Operator

_FOR_PURE: Final = (Constraint(NOT_FIT, Operator.ABSENT),)
"""The constraint of pure tasks. While all machines are fit it costs nothing (``policies.restrictions``)."""


def device_label(request: DeviceRequest) -> str:
    """Return the label of the machines that have at least this number of devices of a kind."""
    return f"{request.kind} devices >= {request.count}"


def _device_labels(board: QueueRows) -> dict[str, str]:
    """Return a label for each number of devices of each kind that a run may ask for here."""
    return {
        device_label(DeviceRequest(device.kind, count)): "yes"
        for device in board.devices
        for count in range(1, device.count + 1)
    }


def insides_of(board: QueueRows) -> tuple[Inner, ...]:
    """Return the parts of a node for the flow network: sockets, caches, cores and threads (Table C.1).

    A socket here is the smaller of package and NUMA node, because tasks share memory there.
    """
    sockets: dict[tuple[int, int], dict[int, dict[int, list[int]]]] = {}
    for processor in board.threads:
        caches = sockets.setdefault((processor.socket, processor.numa), {})
        caches.setdefault(processor.cache, {}).setdefault(processor.core, []).append(processor.thread)
    return tuple(
        Inner(
            Level.SOCKET,
            f"socket{socket}.{numa}",
            tuple(
                Inner(
                    Level.CACHE,
                    f"cache{cache}",
                    tuple(
                        Inner(
                            Level.CORE,
                            f"core{core}",
                            tuple(Inner(Level.THREAD, thread_name(t)) for t in threads),
                        )
                        for core, threads in cores.items()
                    ),
                )
                for cache, cores in caches.items()
            ),
        )
        for (socket, numa), caches in sockets.items()
    )


def thread_name(thread: int) -> str:
    """Return the name of a hardware thread in the flow network."""
    return f"cpu{thread}"


def described_machine(board: QueueRows, machine_type: str, *, inside: bool = False) -> MachineDescriptor:
    """Return a node as a machine. Its name, its rack and its numbers of devices are labels, too.

    With ``inside`` the machine has its sockets, caches, cores and threads, and otherwise it is a leaf.
    """
    labels = {"node": board.name, "rack": board.rack, **dict(board.labels), **_device_labels(board)}
    if board.fitness is not Fitness.FIT:
        labels[NOT_FIT] = board.fitness.name.lower()
    if not board.limbo_from_nodes:
        labels[NO_LIMBO] = "yes"
    return MachineDescriptor(
        board.node,
        board.name,
        board.rack,
        Resources(
            float(board.cpus),
            float(board.memory_bytes),
            float(board.disk_io),
            float(board.network),
            float(sum(device.count for device in board.devices)),
        ),
        board.slots,
        machine_type,
        labels=tuple(sorted(labels.items())),
        inner=insides_of(board) if inside else (),
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
    row: Submission | Occupant,
    nodes: Mapping[str, int],
    now: float,
    pinned: int | None = None,
    copy_of: int | None = None,
) -> TaskDescriptor:
    """Return a task; ``nodes`` gives the identifiers of machines by name.

    ``pinned`` is the only machine on which it may run, if there is one, and ``copy_of`` the task of which it
    is a copy.
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
        tuple(Block(block.bytes, (nodes[block.node],)) for block in work.near if block.node in nodes),
        (
            *(
                Constraint(constraint.key, constraint.operator, constraint.value, constraint.hard)
                for constraint in work.constraints
            ),
            *(Constraint(device_label(device), Operator.PRESENT) for device in work.devices),
            *(_FOR_PURE if isinstance(row, Submission) and row.pure else ()),
        ),
        pinned=pinned,
        expected_runtime=work.time_ms / 1000 if work.time_ms else None,
        # Members of a job over time are stopped when its time is over, and not to make room.
        restartable=work.restartable and not work.reservation,
        admitted=bool(work.reservation),
        copy_of=copy_of,
    )
