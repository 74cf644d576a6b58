"""The connections of both clients to the model, in place of sockets.

A program of the blocking client is a thread. It runs only while the event loop waits for it, from one call to
the next, so that a run depends on its seed alone.
"""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from typing import Final, TypeVar, cast

import trio

from dios.client.aio.connection import AsyncConnection
from dios.client.aio.node import AsyncNode
from dios.client.session import Operation
from dios.client.sync.connection import Connection
from dios.client.sync.node import Node
from dios.errors import DiosError
from dios.wire import messages
from dios.wire.call_table import GIVING_BACK
from dios.wire.messages import AnyCall, AnyResult
from labs.sim.kept.calls import Killed, ModelSession

T = TypeVar("T")

_REQUESTS: Final = GIVING_BACK | {messages.AcquireRead, messages.AcquireWrite}
"""The calls after which a request is open at a node, or not any more."""


class AsyncModelLink:
    """A connection of the async client."""

    page = None
    held_calls = 0

    def __init__(self, session: ModelSession) -> None:
        self._session: Final = session

    @property
    def loop(self) -> AsyncModelLink:
        """Return the part of the event loop that handles need."""
        return self

    async def run(self, operation: Operation[T]) -> T:
        """Run an operation."""
        return await self._session.run(operation, self._call)

    async def _call(self, call: AnyCall) -> AnyResult:
        """Make a call. As with the real client, a cancellation leaves no request open at a node."""
        if not any(type(part) in _REQUESTS for part in messages.calls_of(call)):
            return await self._session.call(call)
        with trio.CancelScope(shield=True):
            result = await self._session.call(call)
        try:
            await trio.lowlevel.checkpoint_if_cancelled()
        except trio.Cancelled:
            self._session.give_back(result)
            raise
        return result

    async def shielded(self, function: Callable[[], Awaitable[T]]) -> T:
        """Run a function to its end, also after a cancellation."""
        with trio.CancelScope(shield=True):
            result = await function()
        return result  # noqa: RET504 - a scope may end the body early

    def close(self) -> None:
        """Close the session."""
        self._session.close()


class ModelLink:
    """A connection of the blocking client, for the thread of one program."""

    page = None
    held_calls = 0
    forked = False

    def __init__(self, session: ModelSession, program: ModelProgram) -> None:
        self._session: Final = session
        self._program: Final = program

    def run(self, operation: Operation[T]) -> T:
        """Run an operation. Raises Killed when the program is killed."""
        return self._program.wait(lambda: self._session.run(operation))

    def run_each(self, operations: Iterable[Operation[T]]) -> list[T | DiosError]:
        """Run operations at the same time; return the result or the error of each. Raises Killed."""
        return self._program.wait(partial(self._run_each, tuple(operations)))

    async def _run_each(self, operations: Sequence[Operation[T]]) -> list[T | DiosError]:
        outcomes: dict[int, T | DiosError] = {}
        ends: list[Killed] = []

        async def run(number: int) -> None:
            try:
                outcomes[number] = await self._session.run(operations[number])
            except DiosError as error:
                outcomes[number] = error
            except Killed as end:
                ends.append(end)

        async with trio.open_nursery() as nursery:
            for number in range(len(operations)):
                nursery.start_soon(run, number)
        if ends:
            raise ends[0]
        return [outcomes[number] for number in range(len(operations))]

    def close(self) -> None:
        """Close the session."""
        self._session.close()


def async_node(session: ModelSession) -> AsyncNode:
    """Return a node of the async client."""
    return AsyncNode(cast("AsyncConnection", AsyncModelLink(session)), session.welcome())


class ModelProgram:
    """A thread of a program, which runs alternately with the event loop.

    ``clock_s`` is the error of the clock of the day of its machine.
    """

    def __init__(self, work: Callable[[ModelProgram], None]) -> None:
        self._work: Final = work
        self._turn: Final = threading.Lock()
        self._back: Final = threading.Lock()
        self._turn.acquire()
        self._back.acquire()
        self._asked: Callable[[], Awaitable[object]] | None = None
        self._answer: object = None
        self._error: BaseException | None = None
        self.clock_s = 0.0

    def node(self, session: ModelSession) -> Node:
        """Return a node of the blocking client."""
        return Node(cast("Connection", ModelLink(session, self)), session.welcome())

    def sleep(self, seconds: float) -> None:
        """Sleep in virtual time."""
        self.wait(partial(trio.sleep, seconds))

    def wait(self, action: Callable[[], Awaitable[T]]) -> T:
        """Let the event loop run an action, and return its result; for the program's own thread."""
        self._asked = action
        self._back.release()
        self._turn.acquire()
        error, self._error = self._error, None
        if error is not None:
            raise error
        return cast("T", self._answer)

    def _main(self) -> None:
        self._turn.acquire()
        _here.program = self
        try:
            if self._error is None:
                self._work(self)
        except Killed:
            self._error = None
        except BaseException as error:  # noqa: BLE001 - the event loop raises it
            self._error = error
        self._asked = None
        self._back.release()

    async def run(self) -> None:
        """Run the program to its end. Raises its error."""
        thread = threading.Thread(target=self._main, daemon=True)
        thread.start()
        cancelled: trio.Cancelled | None = None
        while True:
            self._turn.release()
            self._back.acquire()
            asked = self._asked
            if asked is None:
                break
            try:
                if cancelled is None:
                    self._answer = await asked()
                else:
                    self._error = Killed()
            except trio.Cancelled as error:
                cancelled, self._error = error, Killed()
            except BaseException as error:  # noqa: BLE001 - the program gets it
                self._error = error
        thread.join()
        failure = cancelled or self._error
        if failure is not None:
            raise failure


_here: Final = threading.local()


def present_program() -> ModelProgram | None:
    """Return the program whose thread calls, or None on the thread of the event loop."""
    return getattr(_here, "program", None)
