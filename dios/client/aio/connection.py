"""One connection to the node on an event loop: any number of tasks call at once.

A callback of the loop receives the answers and wakes the tasks; there is no task that reads. A call that is
cancelled leaves the connection as it was: a frame of which nothing was sent is taken back, another one is
sent to its end, and then the node forgets the call.
"""

from __future__ import annotations

import contextlib
from collections import deque
from typing import TYPE_CHECKING, Final, TypeVar, cast

from dios.client.aio.channel import AsyncChannel
from dios.client.aio.event_loop import EventLoop, Stop, Waiter
from dios.client.aio.running_loop import running_loop
from dios.client.session import Answer, Operation, Session, pause_s, refusal
from dios.client.tracing import active
from dios.client.welcome import expect_welcome
from dios.errors import ClosedError, Code, DiosError, TooManyCallsError
from dios.ids import Name
from dios.wire import messages
from dios.wire.call_table import GIVING_BACK
from dios.wire.codec import PROTOCOL_VERSION
from dios.wire.messages import AnyCall, Failure

if TYPE_CHECKING:
    from dios.client.page import Page

T = TypeVar("T")

_UNDOING_CALLS_MAX: Final = 8
_WITHOUT_TURN_MAX: Final = 64
"""More calls than any operation makes to undo its first ones."""


class _Slot:
    """An open call, and its answer when that has come."""

    __slots__ = ("answer", "call", "waiter")

    def __init__(self, call: AnyCall, waiter: Waiter) -> None:
        self.call: Final = call
        self.waiter: Final = waiter
        self.answer: Answer | DiosError | None = None


def _gives_back(call: AnyCall) -> bool:
    return any(type(part) in GIVING_BACK for part in messages.calls_of(call))


class AsyncConnection:
    """One socket to the node; ``session`` is shared with a connection that uses the socket at other times."""

    def __init__(self, channel: AsyncChannel, session: Session | None = None) -> None:
        self.loop: Final[EventLoop] = running_loop()
        self._channel: Final = channel
        self._session: Final = Session() if session is None else session
        self._slots: Final[dict[int, _Slot]] = {}
        self._over: DiosError | None = None
        self._stop_reading: Final[Stop] = self.loop.watch_readable(channel.sock, self._on_readable)
        self._stop_writing: Stop | None = None
        self._held: Final[deque[Waiter]] = deque()
        """The calls that are made again when another one is answered, because too many wait at the node."""
        self.page: Page | None = None
        self._without_call = 0

    @property
    def held_calls(self) -> int:
        """Return the number of calls that wait in this client until the node has room for them."""
        return len(self._held)

    async def call(self, call: AnyCall) -> Answer:
        """Make one call and wait for its answer; a Failure is raised as its exception.

        If it is cancelled, the call is abandoned at the node too, and references that it granted are dropped.
        If as many calls wait at the node as may wait, it is made again when another one is answered, and
        after a pause.
        """
        refused = 0
        while True:
            try:
                return await self._make(call)
            except TooManyCallsError:
                await self._wait_for_answer(refused)
                refused += 1

    async def _wait_for_answer(self, refused: int) -> None:
        """Wait until another call is answered or a pause is over. A call that was refused before is first."""
        pause = pause_s(refused, len(self._held), others=bool(self._slots))
        waiter = self.loop.waiter()
        if refused:
            self._held.appendleft(waiter)
        else:
            self._held.append(waiter)
        try:
            await self.loop.wait_at_most(waiter, pause)
        except BaseException:
            if waiter not in self._held:
                self._wake_held()
            raise
        finally:
            with contextlib.suppress(ValueError):
                self._held.remove(waiter)

    def _wake_held(self) -> None:
        if self._held:
            self._held.popleft().wake()

    async def _make(self, call: AnyCall) -> Answer:
        if self._over is not None:
            raise self._over
        seq, frame = self._session.request(call)
        slot = self._slots[seq] = _Slot(call, self.loop.waiter())
        try:
            self._send(frame)
            await slot.waiter.wait()
        except BaseException:
            self._abandon(seq, slot, frame)
            raise
        answer = slot.answer
        if type(answer) is not tuple:
            raise cast("DiosError", answer)
        if type(answer[0]) is Failure:
            raise refusal(answer[0], call)
        return answer

    async def run(self, operation: Operation[T]) -> T:
        """Run an operation to its end and return its result.

        Among operations that make no call, some let other tasks run, so that a loop of them does.
        """
        try:
            call = next(operation)
        except StopIteration as done:
            self._without_call += 1
            if not self._without_call % _WITHOUT_TURN_MAX:
                await self.loop.checkpoint()
            return cast("T", done.value)
        try:
            while True:
                try:
                    answer = await self.call(call)
                except DiosError as error:
                    call = operation.throw(error)
                except BaseException:
                    self._unwind(operation)
                    raise
                else:
                    call = operation.send(answer)
        except StopIteration as done:
            return cast("T", done.value)

    def _unwind(self, operation: Operation[T]) -> None:
        """Let an operation that is cancelled give back what its first calls got, without waiting for it."""
        with contextlib.suppress(DiosError, StopIteration):
            for _ in range(_UNDOING_CALLS_MAX):
                self._post(operation.throw(ClosedError("the operation was cancelled")))
        operation.close()

    # -- sending ----------------------------------------------------------------------------------
    def _send(self, frame: bytes) -> None:
        if not self._channel.send(frame) and self._stop_writing is None:
            self._stop_writing = self.loop.watch_writable(self._channel.sock, self._on_writable)

    def _on_writable(self) -> None:
        try:
            if not self._channel.flush():
                return
        except DiosError as error:
            self._end(error)
        self._stop_sending()

    def _stop_sending(self) -> None:
        if self._stop_writing is not None:
            self._stop_writing()
            self._stop_writing = None

    def _post(self, call: AnyCall) -> None:
        """Make a call whose answer is ignored."""
        if self._over is None:
            seq, frame = self._session.request(call)
            self._session.give_up(seq, call)
            with contextlib.suppress(DiosError):
                self._send(frame)

    def _abandon(self, seq: int, slot: _Slot, frame: bytes) -> None:
        """Forget a call that was cancelled, here and at the node; undo its effect if it was made.

        A call that gives something back is made all the same: nobody would repeat it.
        """
        self._slots.pop(seq, None)
        if slot.answer is None:
            if _gives_back(slot.call) or not self._channel.withdraw(frame):
                self._session.give_up(seq, slot.call)
                self._post(messages.Cancel(seq))
        elif not isinstance(slot.answer, DiosError):
            # The answer came at the same time as the cancellation.
            self._session.give_up(seq, slot.call)
            self._undo(seq, slot.answer)

    def _undo(self, seq: int, answer: Answer) -> None:
        for call in self._session.late(seq, *answer):
            self._post(call)

    # -- receiving --------------------------------------------------------------------------------
    def _on_readable(self) -> None:
        if self._over is not None:
            return
        try:
            received = self._channel.receive()
            while received:
                body, fds = received.popleft()
                seq, result = self._session.reply(body, fds)
                slot = self._slots.pop(seq, None)
                if self._held and not (type(result) is Failure and result.code == Code.ENOBUFS):
                    self._wake_held()
                if slot is None:
                    self._undo(seq, (result, fds))
                else:
                    slot.answer = result, fds
                    slot.waiter.wake()
        except DiosError as error:
            self._end(error)
        except BaseException:
            self._end(ClosedError("this connection was closed"))
            raise

    def _end(self, error: DiosError) -> None:
        if self._over is not None:
            return
        self._over = error
        self._stop_sending()
        self._stop_reading()
        for slot in self._slots.values():
            slot.answer = error
            slot.waiter.wake()
        self._slots.clear()
        while self._held:
            self._wake_held()

    # -- begin and end ----------------------------------------------------------------------------
    async def hello(self, groups: tuple[Name, ...], label: str) -> messages.Welcome:
        """Introduce a user's process to the node."""
        active.start_by_environment()
        answer = await self.call(messages.Hello(PROTOCOL_VERSION, groups, label))
        welcome, self.page = expect_welcome(answer)
        self._session.answers_traces = welcome.traces
        return welcome

    def close(self) -> None:
        """Close the socket and the page; waiting callers get ClosedError."""
        self._end(ClosedError("this connection was closed"))
        self._channel.close()
        if self.page is not None:
            self.page.close()

    def hand_back(self) -> None:
        """Close this connection, and leave its socket to the connection with which it shares the session.

        The next frame on the socket begins at the next byte, in both directions.
        """
        with contextlib.suppress(DiosError):
            self._channel.block()
        while self._over is None and self._channel.within_frame:
            self._on_readable()
        self.page = None
        self.close()
