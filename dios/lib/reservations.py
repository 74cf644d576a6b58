"""Jobs with needs over time: resources for all of their tasks, or for none (Packer paper, section III).

For `dios run JOB.toml`, and programs that start a job's tasks themselves. ``docs/packing.md`` specifies the
description; the cluster's coordinator decides.

    with reserve(node, Path("job.toml").read_text()) as job:
        tasks = [node.run("work.py", host=member.node, work=job.work(member)) for member in job.tasks]
        for task in tasks:
            task.wait()              # at the end of the block everything is released
"""

from __future__ import annotations

import base64
import contextlib
import json
import time
import zlib
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, Self

import msgspec

from dios.errors import DiosError, InvalidError, TimeLimitError, UnreachableError, WouldBlockError
from dios.lib.decoding import decoded
from dios.limits import (
    NODE_NAME_BYTES_MAX,
    SCHEDULER_QUESTION_BYTES_MAX,
    TASK_MEMORY_BYTES_MAX,
    TASK_MEMORY_BYTES_MIN,
)
from dios.wire.messages import Limits, Work

if TYPE_CHECKING:
    from dios.client.sync.node import Node

_ORIGIN: Final = "the job"
"""The coordinator's name for a description without a known file."""
_POLL_S: Final = 1.0
"""The time between two questions for the start of a job that waits; the answer comes 2 s before it."""


class JobMember(msgspec.Struct, frozen=True):
    """One of a job's tasks, or a node whose store it uses, and its place.

    ``start_s`` and ``end_s`` count from the admission of the job; an end of None is the end of the task.
    """

    name: str = msgspec.field(name="member")
    node: str
    service: bool
    start_s: float
    end_s: float | None
    cpus: float
    """The number of cores, at the maximum."""
    memory_bytes: int
    """The bytes of memory, at the maximum."""


class _Told(msgspec.Struct):
    ok: bool
    error: str = ""
    job: str = ""
    number: int = 0
    lease_s: float = 0.0
    length_s: float | None = None
    waits_s: float = 0.0
    members: tuple[JobMember, ...] = ()


@dataclass(frozen=True)
class ReservationPlan:
    """The places of a job's tasks."""

    job: str
    length_s: float | None
    """The longest run time in seconds; None: as long as its tasks run."""
    waits_s: float
    """The seconds until its start; 0 if it may begin now."""
    members: tuple[JobMember, ...]

    @property
    def tasks(self) -> tuple[JobMember, ...]:
        """Return the members that are to be started."""
        return tuple(member for member in self.members if not member.service)


@dataclass(frozen=True)
class Reservation(ReservationPlan):
    """An admitted job: its resources are reserved until it ends or is released.

    A job without running tasks must be renewed within ``lease_s`` seconds.
    """

    number: int
    lease_s: float
    _node: Node

    def work(self, member: JobMember) -> Work:
        """Return the ``work`` with which a task started on ``member.node`` becomes this member."""
        label = label_of(self.job, member)
        # It is stopped at the end of its time.
        return Work(equivalence=label, restartable=True, reservation=self.number, member=member.name)

    @staticmethod
    def limits(member: JobMember) -> Limits:
        """Return the ``limits`` of a task that becomes this member: its memory, if its job reserves any."""
        memory = member.memory_bytes
        if not memory:
            return Limits()
        return Limits(memory_bytes=max(TASK_MEMORY_BYTES_MIN, min(memory, TASK_MEMORY_BYTES_MAX)))

    def renew(self) -> None:
        """Renew the reservation; InvalidError if it has ended."""
        self._renewed()

    def wait(self) -> Reservation:
        """Wait for the start of the job; return the reservation with its places at that time.

        The start is at the latest the promised one. Raise InvalidError if the reservation has ended.
        """
        job, due = self, time.monotonic() + self.waits_s
        while (left := due - time.monotonic()) > 0.0:
            time.sleep(min(left, _POLL_S))
            # While no coordinator answers, the promise of the former one holds.
            with contextlib.suppress(UnreachableError, TimeLimitError, WouldBlockError):
                job = self._renewed()
                due = time.monotonic() + job.waits_s
        return job

    def _renewed(self) -> Reservation:
        told = _ask(self._node, {"do": "renew", "number": self.number})
        return replace(self, waits_s=told.waits_s, members=told.members)

    def release(self) -> None:
        """Release everything; InvalidError if it has ended."""
        _ask(self._node, {"do": "release", "number": self.number})

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self.release()
        except DiosError:
            # It has ended, or the coordinator is unreachable: then its lease ends it.
            return


def label_of(job: str, member: JobMember) -> str:
    """Return the label of a member's task."""
    return f"{job}/{member.name}".encode()[:NODE_NAME_BYTES_MAX].decode(errors="ignore")


def check(node: Node, text: str, origin: str = _ORIGIN, *, wait_s: float = 0.0) -> ReservationPlan:
    """Return the places that a job would get now, from its description in TOML; nothing is reserved.

    A job that may wait for ``wait_s`` seconds gets the earliest start within them.

    Raises:
        InvalidError: it is invalid, or there is no place; with the field and its line in ``origin``, or the
            missing resource and the time.
    """
    told = _ask(node, {"do": "check", "job": _packed(text), "wait_s": wait_s}, origin)
    return ReservationPlan(told.job, told.length_s, told.waits_s, told.members)


def reserve(node: Node, text: str, origin: str = _ORIGIN, *, wait_s: float = 0.0) -> Reservation:
    """Reserve all resources of a job from now on, or from its start if it may wait for ``wait_s`` seconds.

    Its user waits for the start with ``Reservation.wait``. Raises the errors of ``check``, reserving nothing.
    """
    told = _ask(node, {"do": "admit", "job": _packed(text), "wait_s": wait_s}, origin)
    return Reservation(told.job, told.length_s, told.waits_s, told.members, told.number, told.lease_s, node)


def _packed(text: str) -> str:
    packed = base64.b64encode(zlib.compress(text.encode(), 9)).decode()
    most = SCHEDULER_QUESTION_BYTES_MAX - 64
    if len(packed) > most:
        raise InvalidError(
            f"the description takes {len(packed)} bytes, compressed, and at most {most} travel: write "
            "demands as steps, and copies of a task with `count`"
        )
    return packed


def _ask(node: Node, question: dict[str, object], origin: str = _ORIGIN) -> _Told:
    answer = node.ask_scheduler(json.dumps({"ask": "pack", **question}).encode())
    told = decoded(
        msgspec.json.Decoder(_Told).decode,
        answer,
        "the coordinator's answer is malformed",
        InvalidError,
    )
    if not told.ok:
        at_fault = told.error.removeprefix(f"{_ORIGIN}:")
        raise InvalidError(told.error if at_fault == told.error else f"{origin}:{at_fault}")
    return told
