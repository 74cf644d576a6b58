"""One connection to the node on trio: any number of tasks call at once, one reader gets the answers."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Final, TypeVar, cast

import outcome
import trio

from dios.client.session import Answer, Operation, Session, refusal
from dios.client.welcome import expect_welcome
from dios.errors import ClosedError, DiosError
from dios.ids import Name
from dios.transport.unix.client_trio import AsyncClientChannel
from dios.wire import messages
from dios.wire.codec import PROTOCOL_VERSION
from dios.wire.messages import AnyCall, Failure

if TYPE_CHECKING:
    from dios.client.page import Page

T = TypeVar("T")


class _Slot:
    """An open call: the trio task that waits for its answer, or the answer if it came first."""

    __slots__ = ("arrived", "call", "task")

    def __init__(self, call: AnyCall) -> None:
        self.call: Final = call
        self.task: trio.lowlevel.Task | None = None
        self.arrived: outcome.Outcome[Answer] | None = None


class AsyncConnection:
    """One socket to the node; ``session`` is shared with a connection that uses the socket at other times."""

    def __init__(self, channel: AsyncClientChannel, session: Session | None = None) -> None:
        self._channel: Final = channel
        self._session: Final = Session() if session is None else session
        self._slots: Final[dict[int, _Slot]] = {}
        self._sending: Final = trio.Lock()
        self._reading: Final = trio.CancelScope()
        self._over: DiosError | None = None
        self._stopped: Final = trio.Event()
        self.page: Page | None = None
        trio.lowlevel.spawn_system_task(self._read, name="dios client")

    async def call(self, call: AnyCall) -> Answer:
        """Make one call and wait for its answer; a Failure is raised as its exception.

        If it is cancelled, the call is abandoned at the node too, and references that it granted are dropped.
        """
        if self._over is not None:
            raise self._over
        seq, frame = self._session.request(call)
        slot = self._slots[seq] = _Slot(call)
        try:
            await self._send(frame)
        except BaseException:
            self._forget(seq)
            raise
        if slot.arrived is None:
            slot.task = trio.lowlevel.current_task()

            def abort(_: object) -> trio.lowlevel.Abort:
                self._forget(seq)
                self._post(messages.Cancel(seq))
                return trio.lowlevel.Abort.SUCCEEDED

            result, fds = cast("Answer", await trio.lowlevel.wait_task_rescheduled(abort))
        else:
            result, fds = slot.arrived.unwrap()
        if type(result) is Failure:
            raise refusal(result, call)
        return result, fds

    async def run(self, operation: Operation[T]) -> T:
        """Run an operation to its end and return its result."""
        try:
            call = next(operation)
            while True:
                try:
                    answer = await self.call(call)
                except DiosError as error:
                    call = operation.throw(error)
                else:
                    call = operation.send(answer)
        except StopIteration as done:
            return cast("T", done.value)

    async def _send(self, frame: bytes) -> None:
        # An incomplete frame would make the connection unusable, so a send is not interrupted.
        with trio.CancelScope(shield=True):
            async with self._sending:
                await self._channel.send(frame)

    def _forget(self, seq: int) -> None:
        slot = self._slots.pop(seq, None)
        if slot is not None:
            self._session.give_up(seq, slot.call)

    def _post(self, call: AnyCall) -> None:
        """Make a call whose answer is ignored."""
        if self._over is None:
            trio.lowlevel.spawn_system_task(self._send_unheard, call, name="dios client post")

    async def _send_unheard(self, call: AnyCall) -> None:
        seq, frame = self._session.request(call)
        self._session.give_up(seq, call)
        with contextlib.suppress(DiosError):
            await self._send(frame)

    # -- the reader -------------------------------------------------------------------------------
    async def _read(self) -> None:
        try:
            with self._reading:
                while True:
                    self._hand_out(*await self._channel.receive())
        except DiosError as error:
            self._end(error)
        finally:
            self._end(ClosedError("this connection was closed"))
            self._stopped.set()

    def _hand_out(self, body: bytes, fds: tuple[int, ...]) -> None:
        seq, result = self._session.reply(body, fds)
        slot = self._slots.pop(seq, None)
        if slot is None:
            for call in self._session.late(seq, result, fds):
                self._post(call)
            return
        self._settle(slot, outcome.Value((result, fds)))

    def _settle(self, slot: _Slot, answer: outcome.Outcome[Answer]) -> None:
        if slot.task is None:
            slot.arrived = answer
        else:
            trio.lowlevel.reschedule(slot.task, answer)

    def _end(self, error: DiosError) -> None:
        if self._over is not None:
            return
        self._over = error
        for slot in self._slots.values():
            self._settle(slot, outcome.Error(error))
        self._slots.clear()

    # -- begin and end ----------------------------------------------------------------------------
    async def hello(self, groups: tuple[Name, ...], label: str) -> messages.Welcome:
        """Introduce a user's process to the node."""
        answer = await self.call(messages.Hello(PROTOCOL_VERSION, groups, label))
        welcome, self.page = expect_welcome(answer)
        return welcome

    async def close(self) -> None:
        """Close the socket and the page; waiting callers get ClosedError."""
        self._reading.cancel()
        self._end(ClosedError("this connection was closed"))
        with trio.CancelScope(shield=True):
            await self._stopped.wait()
        self._channel.close()
        if self.page is not None:
            self.page.close()
