"""Clients that read through the operations of the real client, often without a call, and the check of it.

A read without a call must return what a call would return at that moment, and must not happen while a request
that excludes it has its buffer: then every history is one that the table of levels allows, because the
read could have been a call. The steps of the simulation are atomic, so each can be compared with the node.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator
from random import Random
from typing import Final, Protocol, TypeAlias, cast

from dios.client.ops.attributes import NodeBase
from dios.client.ops.handles import ReferenceOps
from dios.client.ops.requests import ReadOps
from dios.client.page import Page
from dios.client.session import Answer, Operation
from dios.errors import DiosError, error_for
from dios.ids import BufferId, ObjectId, TaskId
from dios.wire import messages
from dios.wire.types import Permission, Semantics
from labs.sim.node.host import SimHost

Request: TypeAlias = tuple[TaskId, int]
"""A buffer of a task."""

_LEVELS: Final = (Semantics.ANY, Semantics.ANY, Semantics.MRSW, Semantics.EXCL)
_POPULAR: Final = 4
_SOLE: Final = (Semantics.EXCL, Semantics.SRMW)


class _Link:
    """The connection of a simulated client, as operations see it."""

    def __init__(self, page: Page) -> None:
        self.page: Final[Page | None] = page


class _Owner:
    """The node of a simulated client's handles."""

    def __init__(self, page: Page) -> None:
        self.link: Final = _Link(page)


class DirectReads:
    """The check of all reads without a call: against the host's contents, and the requests of all clients."""

    def __init__(self) -> None:
        self.count = 0
        self.popular: Final[deque[int]] = deque(maxlen=_POPULAR)
        """Objects that clients have read through their operations."""
        self._host: SimHost | None = None
        self._excluding: Final[dict[Request, tuple[int, bool]]] = {}

    def started(self, host: SimHost) -> None:
        """Begin with a new start of the node, where no request is open."""
        self._host = host
        self._excluding.clear()

    def view(self, task: TaskId) -> memoryview:
        """Return the public page of a task."""
        assert self._host is not None  # noqa: S101 - there are clients after a start only
        return self._host.views[task]

    def acquired(self, task: TaskId, ref: int, buffer: int, level: Semantics, *, writing: bool) -> None:
        """Note that a client has got a buffer, which excludes reads if it is to write, or of some levels."""
        assert self._host is not None  # noqa: S101 - as above
        holder = self._host.core.state.tasks.get(task)
        held = None if holder is None else holder.buffers.get(BufferId(buffer))
        if held is not None and held.reference.id == ref and (writing or level in _SOLE):
            self._excluding[task, buffer] = held.object.id, level in _SOLE

    def commits(self, task: TaskId, buffer: int) -> None:
        """Note that a client commits a request. One of some levels excludes reads until its release."""
        if self._excluding.get((task, buffer), (0, True))[1] is False:
            del self._excluding[task, buffer]

    def releases(self, task: TaskId, buffer: int) -> None:
        """Note that a client releases a buffer: from now on others may read."""
        self._excluding.pop((task, buffer), None)

    def check(self, task: TaskId, reference: messages.Reference, data: bytes) -> None:
        """Check one read without a call, at its moment."""
        host = self._host
        assert host is not None  # noqa: S101 - as above
        self.count += 1
        target = ObjectId(reference.object)
        try:
            now = host.contents.current(target)
        except DiosError:
            return  # the disk has damaged the bytes, and a call would fail
        if data != now:
            raise AssertionError(f"a read without a call returned {data!r}, a call would return {now!r}")
        if any(self._is_open(request) for request, of in self._excluding.items() if of[0] == target):
            raise AssertionError("a read without a call was made while a request that excludes it was open")
        holder = host.core.state.tasks.get(task)
        held = None if holder is None else holder.table.find(reference.ref)
        if host.settled and (held is None or held.object.zombie or not held.permissions & Permission.READ):
            raise AssertionError("a read without a call was made through a reference without that right")

    def _is_open(self, request: Request) -> bool:
        """Return True if the request is still open: the node may have taken back its reference."""
        assert self._host is not None  # noqa: S101 - as above
        holder = self._host.core.state.tasks.get(request[0])
        buffer = None if holder is None else holder.buffers.get(BufferId(request[1]))
        return buffer is not None and not buffer.object.zombie


Running: TypeAlias = tuple[Generator[messages.AnyCall, Answer, object], Callable[[object], None]]


class CallMaker(Protocol):
    """The function that sends a call; its answer is given to ``DirectReader.answered`` with the operation."""

    def __call__(self, call: messages.AnyCall, running: Running) -> None:
        """Send a call."""


class DirectReader:
    """One client's handles and its requests that are open without a call."""

    def __init__(self, rng: Random, task: TaskId, check: DirectReads, send: CallMaker) -> None:
        self._rng: Final = rng
        self._task: Final = task
        self._check: Final = check
        self._send: Final = send
        self._owner: Final = cast("NodeBase", _Owner(Page(check.view(task))))
        self._handles: Final[dict[int, ReferenceOps[object]]] = {}
        self._open: Final[list[ReadOps]] = []

    def act(self, reference: messages.Reference) -> None:
        """Read an object, begin a request to read it, or end a request."""
        dice = self._rng.random()
        if self._open and dice < 0.4:
            self._end(self._open.pop(self._rng.randrange(len(self._open))))
            return
        handle = self._handles.get(reference.ref)
        if handle is None:
            handle = self._handles[reference.ref] = ReferenceOps(self._owner, reference)
        level = self._rng.choice(_LEVELS)
        self._check.popular.append(reference.object)
        if dice < 0.8:
            read = handle.read_bytes_op(semantics=level)
            self._begin(read, lambda data: self._check.check(self._task, reference, cast("bytes", data)))
        elif handle.kept(level) is not None:
            request = ReadOps(handle, 0, 0, level)
            self._begin(request.acquire_op(), lambda _: self._acquired(request))

    def _acquired(self, request: ReadOps) -> None:
        self._check.check(self._task, request.reference.info, bytes(request.view))
        self._open.append(request)

    def _end(self, request: ReadOps) -> None:
        data = bytes(request.view)
        reference = request.reference.info

        def ended(_: object) -> None:
            self._check.check(self._task, reference, data)

        self._begin(request.finish_op(), ended)

    def _begin(self, operation: Operation[object], direct: Callable[[object], None]) -> None:
        """Run an operation; ``direct`` is called with its result if it made no call."""
        running = (operation, direct)
        try:
            call = next(operation)
        except StopIteration as done:
            direct(done.value)
            return
        self._send(call, running)

    def answered(self, running: Running, result: messages.AnyResult, data: bytes | None) -> None:
        """Continue an operation with the answer to its call."""
        operation = running[0]
        try:
            if isinstance(result, messages.Failure):
                call = operation.throw(error_for(result.code, result.message))
            elif isinstance(result, messages.Buffer):
                inside = messages.Buffer(result.buffer, result.size, result.v_r, result.v_w, data=data)
                call = operation.send((inside, ()))
            else:
                call = operation.send((result, ()))
        except (StopIteration, DiosError):
            return
        self._send(call, running)
