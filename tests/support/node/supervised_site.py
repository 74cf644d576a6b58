"""Two nodes as the supervisor of services sees them, with records, tasks and a board that tests look at."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from itertools import count
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import trio
from trio.testing import MockClock

from dios.client.ops.cluster import Gathered, Member
from dios.client.ops.status import Status
from dios.lib.supervised import records
from dios.lib.supervised.records import SERVICES_NAME, ServiceGeneration, ServiceRecord
from dios.lib.supervised.supervisor import supervise as supervise_services
from dios.wire.types import Cause, NodeStatus, ObjectType, TaskState

if TYPE_CHECKING:
    from typing import Self

    from dios.client.aio.node import AsyncNode

NAMES = ("n1", "n2")
_LOOKS_MAX = 10_000
REFUSED = "this machine cannot confine pure tasks"
SPEC = ServiceGeneration(b"p" * 32, "program")


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


class NoOutput:
    """The console of a task that has printed nothing."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close nothing."""

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        raise StopAsyncIteration


class Run(Blob):
    """A task, whose status a test changes."""

    def __init__(self, status: Status) -> None:
        super().__init__(status.fingerprint.encode())
        self.row = status
        self.fingerprint = status.fingerprint

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close nothing."""

    async def console(self) -> NoOutput:
        """Its output."""
        return NoOutput()

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


class Site:
    """Two nodes; ``start`` returns the cause for which a program that is started on a node ends at once.

    It may raise, and returns None for a program that runs.
    """

    home = None

    def __init__(self, *known: ServiceRecord, start: Callable[[str, str], Cause | None]) -> None:
        self.copy = Blob(SERVICES_NAME, records.encode(known))
        self.board = Blob(b"board")
        self.start = start
        self.runs: list[Run] = []
        self.arguments: dict[str, tuple[str, ...]] = {}
        """Of each run, by label."""
        self.room: trio.Event | None = None
        """With a scheduler: runs wait for it."""
        self.waiting: list[str] = []
        """The labels of the runs that wait for it, without those that were withdrawn."""
        self._numbers = count(1)

    @property
    def records(self) -> dict[str, ServiceRecord]:
        """The stored records by name."""
        return records.decode(self.copy.data)

    @property
    def record(self) -> ServiceRecord:
        """The only stored record."""
        (record,) = self.records.values()
        return record

    def change(self, record: ServiceRecord) -> None:
        """Store another record of a service."""
        self.copy.data = records.encode((self.records | {record.name: record}).values())
        self.copy.v_w += 1

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
            Member(
                number,
                name,
                "",
                "",
                NodeStatus.ALIVE,
                False,
                1,
                0,
                0,
                2,
                0,
                here=number == 1,
                coordinated=self.room is not None,
            )
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

    async def tasks(self) -> Gathered[Status]:
        """All tasks."""
        return Gathered([run.row for run in self.runs])

    def add(self, label: str, host: str = NAMES[0]) -> Run:
        """Add a task that runs on a node."""
        number = str(next(self._numbers))
        run = Run(Status(number, label, TaskState.RUNNING, node=host, name=number.encode()))
        self.runs.append(run)
        return run

    async def run(self, _: object, *, host: str, label: str, args: tuple[str, ...] = (), **__: object) -> Run:
        """Start a task; one that names no node waits for the scheduler, which chooses the first."""
        self.arguments[label] = args
        if not host:
            assert self.room is not None
            self.waiting.append(label)
            try:
                await self.room.wait()
            finally:
                self.waiting.remove(label)
            host = NAMES[0]
        cause = self.start(host, label)
        run = self.add(label, host)
        if cause is not None:
            run.end(cause)
        return run


def closed_room() -> trio.Event:
    """Return an event for ``Site.room``: until it is set, the scheduler places no run."""

    async def event() -> trio.Event:
        return trio.Event()

    return trio.run(event)


def supervise(site: Site, until: Callable[[], bool]) -> None:
    """Supervise, in time that passes only while everybody waits, until a condition holds."""

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(supervise_services, cast("AsyncNode", site), lambda _: None)
            for _ in range(_LOOKS_MAX):
                await trio.sleep(0.25)
                if until():
                    break
            else:
                raise AssertionError("the condition never held")
            nursery.cancel_scope.cancel()

    trio.run(main, clock=MockClock(autojump_threshold=0))
