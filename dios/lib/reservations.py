"""Jobs that say what they need and when: a place for all of their tasks, or none (Packer paper, section III).

For: `dios run JOB.toml`, and programs that start a job's tasks themselves. Not for: the description
(``docs/packing.md``), nor for deciding, which is the cluster's coordinator's.

    with reserve(node, Path("job.toml").read_text()) as job:
        tasks = [node.run("work.py", host=member.node, work=job.work(member)) for member in job.tasks]
        for task in tasks:
            task.wait()              # at the end of the block all is given back
"""

from __future__ import annotations

import base64
import json
import zlib
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self

import msgspec

from dios.errors import DiosError, InvalidError
from dios.limits import NODE_NAME_BYTES_MAX, SCHEDULER_QUESTION_BYTES_MAX
from dios.wire.messages import Work

if TYPE_CHECKING:
    from dios.client.sync.node import Node

_ORIGIN: Final = "the job"
"""What the coordinator calls a description whose file it does not know."""


class JobMember(msgspec.Struct, frozen=True):
    """One of a job's tasks, or a node whose store it uses, and its place.

    ``start_s`` and ``end_s`` count from when the job was admitted; an end of None is that of the task.
    """

    name: str = msgspec.field(name="member")
    node: str
    service: bool
    start_s: float
    end_s: float | None
    cpus: float
    """Cores, at its highest."""
    memory_bytes: int
    """Likewise."""


class _Told(msgspec.Struct):
    ok: bool
    error: str = ""
    job: str = ""
    number: int = 0
    lease_s: float = 0.0
    length_s: float | None = None
    members: tuple[JobMember, ...] = ()


@dataclass(frozen=True)
class ReservationPlan:
    """Where a job would go."""

    job: str
    length_s: float | None
    """How long it may take; None: as long as its tasks."""
    members: tuple[JobMember, ...]

    @property
    def tasks(self) -> tuple[JobMember, ...]:
        """The members that are to be started."""
        return tuple(member for member in self.members if not member.service)


@dataclass(frozen=True)
class Reservation(ReservationPlan):
    """A job that is admitted: what it asked for is kept for it until it ends or is released.

    One of which no task runs has to be renewed within ``lease_s`` seconds.
    """

    number: int
    lease_s: float
    _node: Node

    def work(self, member: JobMember) -> Work:
        """What to run a task with, on ``member.node``, so that it is this member."""
        label = label_of(self.job, member)
        # When its time is over it is stopped.
        return Work(equivalence=label, restartable=True, reservation=self.number, member=member.name)

    def renew(self) -> None:
        """Say that the job is still wanted; InvalidError when it is over."""
        _ask(self._node, {"do": "renew", "number": self.number})

    def release(self) -> None:
        """Give everything back; InvalidError when it is over."""
        _ask(self._node, {"do": "release", "number": self.number})

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.release()
        except DiosError:
            # Its time is over, or nobody can be told: then its lease ends it.
            return


def label_of(job: str, member: JobMember) -> str:
    """What a member's task is called."""
    return f"{job}/{member.name}".encode()[:NODE_NAME_BYTES_MAX].decode(errors="ignore")


def check(node: Node, text: str, origin: str = _ORIGIN) -> ReservationPlan:
    """Where a job would go now, by its description in TOML; nothing is kept.

    Raises:
        InvalidError: it makes no sense, or has no place; with the field and its line in ``origin``, or what
            is short and when.
    """
    told = _ask(node, {"do": "check", "job": _packed(text)}, origin)
    return ReservationPlan(told.job, told.length_s, told.members)


def reserve(node: Node, text: str, origin: str = _ORIGIN) -> Reservation:
    """Keep for a job all that it asks for from now on. Raises as ``check``; then nothing is kept."""
    told = _ask(node, {"do": "admit", "job": _packed(text)}, origin)
    return Reservation(told.job, told.length_s, told.members, told.number, told.lease_s, node)


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
    try:
        told = msgspec.json.decode(answer, type=_Told)
    except msgspec.DecodeError as error:
        raise InvalidError(f"the coordinator's answer makes no sense: {error}") from None
    if not told.ok:
        at_fault = told.error.removeprefix(f"{_ORIGIN}:")
        raise InvalidError(told.error if at_fault == told.error else f"{origin}:{at_fault}")
    return told
