"""A coordinator without any node that admits jobs over time, and what it is told and asked.

Not for: tests.
"""

from __future__ import annotations

import base64
import json
import zlib

from msgspec import Struct, convert

from dios.firmament.coordinator.assignment import Assignment, SetUp, StartOptions
from dios.firmament.coordinator.scheduler_service import SchedulerService
from dios.firmament.knowledge.knowledge_base import KnowledgeBase
from dios.wire.messages import Asked, Metered, Occupant, QueueRows, Submission, Work
from dios.wire.types import TaskState

CPUS = 4
NODES = ("n1", "n2", "n3")
ALL = frozenset(NODES)
WALL = 1.7e9
"""Seconds since 1970 at time 0."""
LINK = 100_000_000 // 8
"""Bytes a second: 100 Mbit/s."""
ME, OTHER = "uid:7", "uid:8"


def board(node: str, tasks: tuple[Occupant, ...] = (), waiting: tuple[Submission, ...] = ()) -> QueueRows:
    """A node's board."""
    return QueueRows(
        1, int(node[1:]), node, "r1", CPUS, 2**30, 16, (), draining=False, coordinated=True,
        waiting=waiting, tasks=tasks, asked=(), reports=(), partial=False,
    )  # fmt: skip


def occupant(task: int, work: Work, principal: str = ME) -> Occupant:
    """A task that runs."""
    return Occupant(
        task, f"{task:012x}", "t", principal, TaskState.RUNNING, 1, 0, work, 0, 0, completed=False
    )


def submission(task: int, work: Work, principal: str = ME) -> Submission:
    """A run that waits on the first node."""
    return Submission(task, f"{task:012x}", "t", principal, 0, work, "n1")


class Yard:
    """An office of three nodes whose links carry 100 Mbit/s."""

    def __init__(
        self, set_up: SetUp = SetUp.CENTRALISED, capacity: int = LINK, *, metered: bool = True
    ) -> None:
        self.office = SchedulerService(StartOptions(set_up, "spread"), "n1", KnowledgeBase("n1", 1), WALL)
        self.office.change_assignment(Assignment(), Assignment(ALL, ALL, leader="n1", governs=ALL), 0.0)
        for node in NODES:
            self.office.read(node, board(node), 0.0)
            if metered:
                self.office.record_traffic(
                    node, Metered(int(node[1:]), (), (capacity, 0, 10**7), 0, b""), 0.0
                )
        self.now = 0.0
        self.office.round(0.0)

    def at(self, now: float) -> None:
        """Time goes on, and a round is made."""
        self.now = now
        self.office.round(now)

    def changed(self) -> bool:
        """Whether nodes are to be told of guarantees at once."""
        return self.office.links_changed

    def ask(self, do: str, *, principal: str = ME, ruler: bool = False, **more: object) -> dict[str, object]:
        """What the desk answers."""
        question = json.dumps({"ask": "pack", "do": do, **more}).encode()
        reply: dict[str, object] = json.loads(self.office.answer(Asked(1, principal, ruler, question)))
        return reply

    def bring(
        self, text: str, do: str = "admit", *, principal: str = ME, wait_s: float = 0.0
    ) -> dict[str, object]:
        """Bring a job, which may wait; the answer."""
        packed = base64.b64encode(zlib.compress(text.encode())).decode()
        return self.ask(do, principal=principal, job=packed, wait_s=wait_s)

    def reserved(self) -> dict[str, float]:
        """Processors that are given away, by node."""
        rows = json.loads(self.office.answer(Asked(1, "uid:0", ruler=True, question=b'{"ask": "status"}')))
        return {row["node"]: row["cpus_set_aside"] for row in rows["nodes"]}


class Member(Struct):
    """A member of a job, as it is told of."""

    member: str
    node: str
    running: bool


class Flow(Struct):
    """An edge, as it is told of."""

    guaranteed_bytes_s: int
    moving_bytes_s: float


class Listed(Struct):
    """A job, as it is told of."""

    number: int
    job: str
    principal: str
    members: list[Member]
    edges: list[Flow]


def listed(yard: Yard, *, principal: str = ME, ruler: bool = False) -> list[Listed]:
    """The jobs that are told of."""
    return convert(yard.ask("list", principal=principal, ruler=ruler)["jobs"], list[Listed])


def places(told: dict[str, object]) -> dict[str, str]:
    """Members and their nodes."""
    assert told["ok"], told
    members = told["members"]
    assert isinstance(members, list)
    return {row["member"]: row["node"] for row in members}


def job(name: str = "job", instants: int = 10, instant_s: float = 2, **tasks: str) -> str:
    """A description in TOML; each task's lines."""
    head = f'name = "{name}"\n' + (
        f"instants = {instants}\ninstant_s = {instant_s}\n" if instants > 1 else ""
    )
    return head + "".join(f"[tasks.{task}]\n{lines}\n" for task, lines in tasks.items())


PAIR = job(instants=1, a="cpu = 1", b="cpu = 4") + '[[edges]]\nfrom = "a"\nto = "b"\nbandwidth = 40\n'
