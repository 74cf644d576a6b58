"""The supervisor of services with nodes that refuse to start programs: that says nothing about a program."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from itertools import count
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import trio
from msgspec.structs import replace
from trio.testing import MockClock

from dios.client.ops.cluster import Member
from dios.client.ops.status import Status
from dios.errors import NotSupportedError
from dios.lib.supervised import records
from dios.lib.supervised.records import SERVICES_NAME, JobState, ServiceGeneration, ServiceRecord
from dios.lib.supervised.supervisor import Supervisor
from dios.wire.types import Cause, NodeStatus, ObjectType, TaskState

if TYPE_CHECKING:
    from dios.client.aio.node import AsyncNode

NAMES = ("n1", "n2")
_LOOKS_MAX = 10_000
REFUSED = "this machine cannot confine pure tasks"
SPEC = ServiceGeneration(b"p" * 32, "program")
JOB = records.created({}, "count", SPEC, 1, JobState(3, 5, b"s" * 32, b"g" * 32))
SERVICE = records.created({}, "web", SPEC, 1)
CHECKED = records.created({}, "web", replace(SPEC, check=b"c" * 32), 1)


class Blob:
    """An object on the first node, or the board."""

    type = ObjectType.DURABLE_BLOB
    node = "n1"
    v_w = 1
    object_id = 1

    def __init__(self, name: bytes, data: bytes = b"") -> None:
        self.name = name
        self.data = data

    async def stat(self) -> Blob:
        """Its version."""
        return self

    async def read_bytes(self) -> bytes:
        """Its content."""
        return self.data

    async def write_bytes(self, data: bytes) -> None:
        """Replace its content."""
        self.data = data

    @asynccontextmanager
    async def read(self, _: object) -> AsyncIterator[SimpleNamespace]:
        """A request that reads."""
        yield SimpleNamespace(view=self.data, v_w=self.v_w)

    @asynccontextmanager
    async def write(self, *_: object, **__: object) -> AsyncIterator[SimpleNamespace]:
        """A request that writes."""
        yield SimpleNamespace(v_w=self.v_w, fill=self._fill)
        self.v_w += 1

    def _fill(self, view: memoryview) -> None:
        self.data = bytes(view)

    async def copy(self, **_: object) -> Blob:
        """Itself: only the first node keeps records."""
        return self

    def restrict(self, *_: str, **__: str) -> Blob:
        """Itself."""
        return self

    async def close(self) -> None:
        """Close nothing."""

    destroy = close


class Run(Blob):
    """A task, whose status a test changes."""

    def __init__(self, status: Status) -> None:
        super().__init__(status.fingerprint.encode())
        self.row = status
        self.fingerprint = status.fingerprint

    async def wait(self, **_: float) -> Status:
        """Its status at its end, which has come."""
        return self.row

    async def destroy(self) -> None:
        """End it."""
        self.end(Cause.KILLED)

    def end(self, cause: Cause, exit_code: int = 0) -> None:
        """End it, unless it has ended."""
        if not self.row.ended:
            self.row = Status(
                self.row.fingerprint,
                self.row.label,
                TaskState.ENDED,
                cause=cause,
                exit_code=exit_code,
                detail=REFUSED,
                node=self.row.node,
                name=self.row.name,
            )


class Rows(list[Status]):
    """The list of tasks, to which every node has answered."""

    incomplete = False


class Site:
    """Two nodes; ``start`` returns the cause for which a program that is started on a node ends at once.

    It may raise, and returns None for a program that runs.
    """

    home = None

    def __init__(self, record: ServiceRecord, start: Callable[[str, str], Cause | None]) -> None:
        self.copy = Blob(SERVICES_NAME, records.encode([record]))
        self.board = Blob(b"board")
        self.start = start
        self.runs: list[Run] = []
        self._numbers = count(1)

    @property
    def record(self) -> ServiceRecord:
        """The stored record."""
        (record,) = records.decode(self.copy.data).values()
        return record

    @property
    def note(self) -> dict[str, object]:
        """What the board says about the first replica."""
        services = json.loads(self.board.data)["services"]
        return cast("dict[str, object]", services[self.record.name][0])

    def replicas(self) -> list[Status]:
        """The starts of the program, the earliest first."""
        return [run.row for run in self.runs if "check" not in run.row.label]

    async def nodes(self) -> list[Member]:
        """Both nodes live."""
        return [
            Member(number, name, "", "", NodeStatus.ALIVE, False, 1, 0, 0, 2, 0, here=number == 1)
            for number, name in enumerate(NAMES, 1)
        ]

    async def lookup(self, name: bytes, **_: object) -> list[Blob]:
        """The records, or the copies of an object."""
        return [self.copy] if name == SERVICES_NAME else [Blob(name)]

    async def find(self, name: bytes) -> Blob:
        """The task, or an object."""
        return next((run for run in self.runs if run.name == name), Blob(name))

    async def group(self, name: bytes) -> Blob:
        """A group."""
        return Blob(name)

    async def create(self, *_: object, **__: object) -> Blob:
        """The board."""
        return self.board

    async def tasks(self) -> Rows:
        """All tasks."""
        return Rows(run.row for run in self.runs)

    async def run(self, _: object, *, host: str, label: str, **__: object) -> Run:
        """Start a task."""
        cause = self.start(host, label)
        number = str(next(self._numbers))
        run = Run(Status(number, label, TaskState.RUNNING, node=host, name=number.encode()))
        self.runs.append(run)
        if cause is not None:
            run.end(cause)
        return run


def supervise(site: Site, until: Callable[[], bool]) -> None:
    """Supervise, in time that passes only while everybody waits, until a condition holds."""

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(Supervisor(cast("AsyncNode", site), lambda _: None).run)
            for _ in range(_LOOKS_MAX):
                await trio.sleep(0.25)
                if until():
                    break
            else:
                raise AssertionError("the condition never held")
            nursery.cancel_scope.cancel()

    trio.run(main, clock=MockClock(autojump_threshold=0))


def test_a_refused_start_is_no_attempt_of_a_kept_job_which_another_node_runs() -> None:
    """The first node refuses; the attempt that runs is the first one, and it counts when it fails."""
    site = Site(JOB, lambda host, _: Cause.SPAWN if host == "n1" else None)
    supervise(site, lambda: any(row.state is TaskState.RUNNING for row in site.replicas()))
    assert [row.node for row in site.replicas()] == ["n1", "n2"]
    assert site.record.generation == 1
    site.runs[-1].end(Cause.EXITED, exit_code=3)
    supervise(site, lambda: site.record.generation == 2)


def test_a_kept_job_that_no_node_starts_waits_and_runs_when_one_can() -> None:
    """It has more refusals than attempts; its status has the reason, and no restart is counted."""
    refusals = 10
    site = Site(JOB, lambda *_: Cause.SPAWN if len(site.runs) < refusals else None)
    supervise(site, lambda: len(site.runs) == refusals)
    assert REFUSED in str(site.note["reason"])
    assert site.note["restarts"] == 0
    supervise(site, lambda: len(site.runs) > refusals)
    assert site.record.job == JOB.job
    assert site.record.generation == 1
    assert site.replicas()[-1].state is TaskState.RUNNING


def test_a_refused_start_is_no_crash_of_a_replica() -> None:
    """Neither an error of the call nor a task that never started counts; a crash does."""

    def start(host: str, _: str) -> Cause | None:
        if len(site.runs) < 4:
            if host == "n2":
                raise NotSupportedError(REFUSED)
            return Cause.SPAWN
        return Cause.EXITED if len(site.runs) == 4 else None

    site = Site(SERVICE, start)
    supervise(site, lambda: any(row.state is TaskState.RUNNING for row in site.replicas()))
    assert site.note["restarts"] == 1


def test_a_health_check_that_could_not_run_costs_no_replica() -> None:
    """However often a node does not start the check, the replica stays, and its health is not known."""
    site = Site(CHECKED, lambda _, label: Cause.SPAWN if "check" in label else None)
    supervise(site, lambda: len(site.runs) > 8)
    assert len(site.replicas()) == 1
    assert "its health is not known yet" in str(site.note["reason"])


def test_a_health_check_that_fails_replaces_the_replica() -> None:
    """As before: after some failures in a row."""
    site = Site(CHECKED, lambda _, label: Cause.EXCEPTION if "check" in label else None)
    supervise(site, lambda: len(site.replicas()) > 1)
    assert site.replicas()[0].cause is Cause.KILLED
