"""The task of one session, seen from its caller: it starts, gets orders, and ends.

Nothing that comes from the session is trusted: frames, their order and their sizes are checked, and the
session that sends anything else is ended.

The methods that wait are generators of ``steps``. The types are those of the blocking client; the handles
of the async client have the same operations.
"""

from __future__ import annotations

import contextlib
import math
import re
import threading
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple, NoReturn, Protocol, TypeAlias, TypeVarTuple, cast

import msgspec

from dios.client.ops.attributes import Handed
from dios.client.ops.status import Status
from dios.client.sync.node import Node, Reference, Stream, Task
from dios.errors import DiosError, InvalidError, ProtocolError, TimeLimitError
from dios.lib.executor import frames
from dios.lib.sandbox import protocol
from dios.lib.sandbox.bounds import SandboxBounds
from dios.lib.sandbox.errors import SandboxEndedError, SessionForkError
from dios.lib.sandbox.forking import THREADS
from dios.lib.sandbox.network.grant import NetworkGrant
from dios.lib.sandbox.protocol import Begin, CheckedAnswer, ForkSession, Order, SessionTask
from dios.lib.sandbox.result import SandboxDisplay, display_of
from dios.lib.sandbox.session import PROGRAM
from dios.lib.sandbox.steps import Steps, Write, call, each_side_by_side, read, side_by_side
from dios.limits import KIB, MIB
from dios.wire.nametext import fingerprint
from dios.wire.types import Brand, Cause, Isolation, TaskState

if TYPE_CHECKING:
    from dios.client.session import Operation
    from dios.transport.rings.waiting import RingEnd, RingReader, RingWriter
    from dios.wire.messages import Limits

CANNOT_CREATE: Final = "cannot create the task's process: "
"""The begin of the reasons of the node, which says nothing about a fork."""

LABEL: Final = "sandbox"
"""The label of the task of a session."""

_FAMILY: Final = re.compile(rf"{LABEL} of ([0-9a-f]{{1,64}})")

_RING_BYTES: Final = MIB
_SMALL_RING_BYTES: Final = 4 * KIB

_START_WAIT_S: Final = 300.0
"""A session whose process runs begins within this time, also on a very busy machine."""

_FIRST_PAUSE_S: Final = 0.02
_PAUSE_S_MAX: Final = 1.0
_END_WAIT_S: Final = 10.0
"""The node reports the reason of an end within this time. A session that ended its streams may go on, so an
order waits for no longer than its own time, and the grace."""

_ORDER_END_S: Final = 1.0
"""The node takes back the order of a failed fork within this time."""

GRACE_S: Final = 2.0
"""The time in which interrupted code must stop; a session that goes on is ended."""

_INTERRUPT_BYTES: Final = 8
_INTERRUPT_ROOM: Final = 2 * _INTERRUPT_BYTES
"""More than the bytes of an interrupt in its stream; a session that does not read them gets no more."""

_ENDINGS: Final = {
    Cause.MEMORY: "it needed more memory than memory= allows",
    Cause.CPU: "it used the processor time that cpu_seconds= allows",
    Cause.SANDBOX: "it made a system call that ends a pure task",
    Cause.KILLED: "it was killed",
    Cause.NODE: "the node stopped",
    Cause.PREEMPTED: "it had to leave its node, and was stopped",
    Cause.MOVED: "it had to leave its node",
    Cause.TIME: "its time was over",
}


Values = TypeVarTuple("Values")

Show: TypeAlias = Callable[[int, bytes], None]
"""Called with output as it comes: the number of the stream, and bytes."""

ShowDisplay: TypeAlias = Callable[[SandboxDisplay], None]
"""Called with the values that code shows while it runs."""

_CLEARED: Final = {b"\0": SandboxDisplay(clear=True), b"\1": SandboxDisplay(clear=True, wait=True)}


Sink: TypeAlias = Callable[[memoryview], None]
"""Called with the bytes of changed files; it raises ProtocolError for more than it expects."""


class _Starter(Protocol):
    """Starts the task of a session with inputs."""

    def __call__(self, *program: Reference, inputs: Mapping[str, Handed]) -> Operation[Task]:
        """Return the operation; a fork has no program of its own."""


class OrderOutcome(NamedTuple):
    """The answer to an order, None if the session ended, and True if it was interrupted at its time limit."""

    answer: CheckedAnswer | None
    late: bool


class _Printed:
    """The output that the caller has not taken yet, bounded."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max: Final = bytes_max
        self._data: Final = {protocol.STDOUT: bytearray(), protocol.STDERR: bytearray()}
        self._seen = dict.fromkeys(self._data, 0)

    def add(self, body: memoryview) -> tuple[int, bytes]:
        """Add the body of a frame; return its stream and what is kept of it.

        Raises ProtocolError for what an honest session does not send.
        """
        stream = body[0] if len(body) > 1 else 0
        kept = self._data.get(stream)
        if kept is None:
            raise ProtocolError("its output is of no stream, or empty")
        # Threads may use the amount of the former order first.
        self._seen[stream] += len(body) - 1
        if self._seen[stream] > 2 * (self._bytes_max + 1):
            raise ProtocolError("it printed more than a session sends")
        part = bytes(body[1 : 1 + max(0, self._bytes_max + 1 - len(kept))])
        kept += part
        return stream, part

    def renew(self) -> None:
        """Allow the full amount again, at the begin of an order."""
        self._seen = dict.fromkeys(self._seen, 0)

    def take(self) -> tuple[bytes, bytes]:
        """Return standard output and standard error, and forget them."""
        stdout, stderr = map(bytes, self._data.values())
        for kept in self._data.values():
            kept.clear()
        return stdout, stderr


class _Displays:
    """The values that a run shows, counted."""

    def __init__(self, bounds: SandboxBounds) -> None:
        self._bounds: Final = bounds
        self.renew()

    def renew(self) -> None:
        """Allow the full amount again, at the begin of an order."""
        self._count = self._bytes = 0

    def decode(self, kind: int, body: memoryview) -> SandboxDisplay:
        """Return the value in a frame. Raise ProtocolError for what an honest session does not send."""
        self._count += 1
        # Threads may use the amount of the former order first.
        if self._count > 2 * (self._bounds.displays + 1):
            raise ProtocolError("it shows more values than a session sends")
        if kind == protocol.CLEAR:
            cleared = _CLEARED.get(bytes(body[:2]))
            if cleared is None:
                raise ProtocolError("its order to clear is none")
            return cleared
        record, table = protocol.decoded_display(body, self._bounds)
        self._bytes += record.size
        if self._bytes > 2 * self._bounds.display_bytes:
            raise ProtocolError("it shows larger values than a session sends")
        return display_of(record, table)


def family_of(status: Status) -> str | None:
    """Return the family of the task of a session, or None for a task that is no session.

    It is the fingerprint of the session from which all others of the family were forked.
    """
    if status.brand is not Brand.PURE:
        return None
    if status.label == LABEL:
        return status.fingerprint
    match = _FAMILY.fullmatch(status.label)
    return match and match[1]


class SessionLink:
    """One session: its task, its streams, and the order that it obeys at present."""

    def __init__(self, bounds: SandboxBounds, grant: NetworkGrant | None = None) -> None:
        self._bounds: Final = bounds
        self._grant: Final = grant
        self._gateway: Task | None = None
        self._opened: Final[list[Reference]] = []
        self._number = 0
        self._present = 0
        self._show: Show | None = None
        self._show_display: ShowDisplay | None = None
        self._sink: Sink | None = None
        self._failed: BaseException | None = None
        self._ready = False
        self._interrupting: Final = threading.Lock()
        self._printed: Final = _Printed(bounds.output_bytes)
        self._displays: Final = _Displays(bounds)
        self._buffer: Final = frames.FrameBuffer(max(bounds.answer_bytes, 64 * KIB))
        self._family = ""
        self.task: Task | None = None
        """The task, once it was ordered."""
        self._orders: RingWriter
        self._answers: RingReader
        self._interrupts: RingWriter | None = None
        self.ended = ""
        """The reason why the session ended; empty while it runs."""

    def start(
        self,
        node: Node,
        inputs: Mapping[str, Reference],
        limits: Limits,
        template: str = "",
        *,
        forkable: bool = False,
        isolation: Isolation = Isolation.KERNEL,
    ) -> Steps[None]:
        """Start the task, and wait until the session has started. Raise SandboxEndedError if it does not."""
        started = partial(
            node.run_op,
            args=() if self._grant is None else tuple(map(str, self._grant.origins)),
            label=LABEL,
            limits=limits,
            local=True,
            template=template,
            forkable=forkable,
            sandbox=True,
            isolation=isolation,
        )
        try:
            yield from self._open(node, inputs, started, node.create_program_op(PROGRAM.encode()))
            yield from self._begin()
        except GeneratorExit:
            raise
        except BaseException:
            yield from self.close()
            raise
        if self.ended:
            raise SandboxEndedError(f"the session did not start: {self.ended}")

    def start_as_fork(
        self,
        node: Node,
        origin: SessionLink,
        inputs: Mapping[str, Reference],
        timeout_s: float | None,
    ) -> Steps[None]:
        """Fork another session, and wait until the fork has started. Raise SessionForkError with the reason.

        Raise SandboxEndedError if the other session has ended, before or at that: also if it has not forked
        in time.
        """
        origin.require_alive()
        timeout_s = min(_START_WAIT_S, math.inf if timeout_s is None else timeout_s)
        deadline = time.monotonic() + timeout_s
        name = None if origin.task is None else origin.task.name
        self._family = origin._family or (fingerprint(name) if name else "")
        # Without waiting: the process is made only when the session has its order.
        started = partial(
            node.run_op,
            label=f"{LABEL} of {self._family}",
            local=True,
            wait=False,
            fork_of=origin.task,
        )
        try:
            yield from self._open(node, inputs, started)
            done = yield from origin.exchange(ForkSession(), timeout_s)
            answer = done.answer
            origin.require_alive()
            if answer is not None and answer.answer.failure is not None:
                message = answer.answer.failure.message
                # The order of another failed fork is still open: there the node has nothing to say.
                yield from self._raise_fork_error(message, deadline if message == THREADS else None)
            yield from self._begin(deadline)
            if self.ended:
                yield from self._raise_fork_error(self.ended, deadline)
        except GeneratorExit:
            raise
        except BaseException:
            yield from self._end_order()
            yield from self.close()
            raise

    def _end_order(self) -> Steps[None]:
        """End the task of a fork that failed, and wait for its end.

        Until then its order stands, and would get the process of the next fork.
        """
        if self.task is not None:
            with contextlib.suppress(DiosError):
                yield from call(self.task.kill_op())
                yield from call(self.task.wait_op(_ORDER_END_S))

    def require_alive(self) -> None:
        """Raise SandboxEndedError if the session has ended."""
        if self.ended:
            raise SandboxEndedError(f"the session ended: {self.ended}")

    def _raise_fork_error(self, reason: str, deadline: float | None) -> Steps[NoReturn]:
        """Raise SessionForkError with ``reason``, or with the node's if it gives one before a deadline."""
        if self.task is not None and deadline is not None:
            with contextlib.suppress(DiosError):
                status = yield from call(self.task.wait_op(_time_for_reason(deadline)))
                if status.cause is Cause.SPAWN and status.detail:
                    reason = status.detail
        raise SessionForkError(f"the session cannot be forked now: {reason.removeprefix(CANNOT_CREATE)}")

    def _open(
        self,
        node: Node,
        inputs: Mapping[str, Reference],
        started: _Starter,
        *program: Operation[Reference],
    ) -> Steps[None]:
        sizes = (_RING_BYTES, _RING_BYTES, _SMALL_RING_BYTES)
        streams = (node.create_stream_op(ring_bytes=size) for size in sizes)
        references = yield from side_by_side([*streams, *program], self._opened.append)
        orders, answers, interrupts = (cast("Stream", stream) for stream in references[: len(sizes)])
        lanes: dict[str, Handed] = {}
        if self._grant is not None:
            self._gateway, lanes = yield from self._grant.start(node, self._opened)
        task = yield from call(
            started(
                *references[len(sizes) :],
                inputs={
                    **{name: reference.restrict("read") for name, reference in inputs.items()},
                    protocol.ORDERS: orders.restrict("read"),
                    protocol.ANSWERS: answers.restrict("write"),
                    protocol.INTERRUPTS: interrupts.restrict("read"),
                    **lanes,
                },
            )
        )
        self.task = task
        self._opened.append(task)
        ends: list[RingEnd] = yield from side_by_side(
            [orders.writer_op(), answers.reader_op(), interrupts.writer_op()]
        )
        self._orders, self._interrupts = cast("RingWriter", ends[0]), cast("RingWriter", ends[2])
        self._answers = cast("RingReader", ends[1])

    def _begin(self, deadline: float | None = None) -> Steps[None]:
        try:
            yield from self._send(self._framed(Begin(self._bounds)), time.monotonic() + _START_WAIT_S)
            yield from self._wait_until_ready(deadline)
            self._present = 0
        except TimeLimitError:
            yield from self.end("it did not start in time")
        except DiosError as error:
            yield from self._end_after(error)

    def _wait_until_ready(self, fixed_deadline: float | None = None) -> Steps[None]:
        """Wait for the session. It may end before it has its streams, so this asks the node now and then.

        Without a fixed deadline, the time that the node needs to make its process does not count.
        """
        deadline, pause_s = fixed_deadline or time.monotonic() + _START_WAIT_S, _FIRST_PAUSE_S
        while not self._ready:
            try:
                yield from self._receive(min(pause_s, max(0.0, deadline - time.monotonic())))
            except TimeLimitError:
                pause_s, now = min(2 * pause_s, _PAUSE_S_MAX), time.monotonic()
                if self.task is not None:
                    status = yield from call(self.task.status_op())
                    if status.state is TaskState.ENDED:
                        yield from self.end(_reason(status))
                        return
                    if status.state is not TaskState.RUNNING and fixed_deadline is None:
                        # Its process does not exist yet: the node is busy, or loads a template.
                        deadline = now + _START_WAIT_S
                if now > deadline:
                    raise

    def exchange(
        self,
        task: SessionTask,
        timeout_s: float | None,
        show: Show | None = None,
        show_display: ShowDisplay | None = None,
        sink: Sink | None = None,
    ) -> Steps[OrderOutcome]:
        """Send an order, and return what came of it. The session may have ended with it: see ``ended``.

        ``show`` is called with output as it comes, ``show_display`` with the values that it shows, and
        ``sink`` with the bytes of changed files. An exception from outside, such as Ctrl-C or a cancellation,
        interrupts the order and is raised at its end. Raises InvalidError for an order that cannot be sent,
        before the session has it.
        """
        order = self._framed(task)
        self._printed.renew()
        self._displays.renew()
        self._show, self._show_display, self._sink, self._failed = show, show_display, sink, None
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        late, raised, answer = False, None, None
        sent = False
        while answer is None and not self.ended:
            try:
                if not sent:
                    sent = True
                    yield from self._send(order, deadline)
                answer = yield from self._receive(_left(deadline))
                failed = self._reader_failed()
                if failed is not None and raised is None:
                    raised, deadline = failed, time.monotonic() + GRACE_S
                    self.interrupt()
            except TimeLimitError:
                if late or raised is not None:
                    yield from self.end(f"it did not stop within {GRACE_S:.0f} s after it was interrupted")
                    break
                late, deadline = True, time.monotonic() + GRACE_S
                self.interrupt()
            except DiosError as error:
                yield from self._end_after(error, deadline)
            except GeneratorExit:
                raise
            except BaseException as error:
                if raised is not None:
                    yield from self.end("its caller was interrupted twice")
                    raise
                raised, deadline = error, time.monotonic() + GRACE_S
                self.interrupt()
        self._present = 0
        self._show = self._show_display = self._sink = None
        if raised is not None:
            self._printed.take()
            raise raised
        return OrderOutcome(answer, late)

    def take_printed(self) -> tuple[bytes, bytes]:
        """Return what was printed since the last call, to standard output and to standard error."""
        return self._printed.take()

    def interrupt(self) -> bool:
        """Interrupt the present order, from any thread. Return False if there is none."""
        number = self._present
        with self._interrupting, contextlib.suppress(DiosError):
            interrupts = self._interrupts
            if not number or self.ended or interrupts is None or interrupts.closed:
                return False
            if interrupts.room >= _INTERRUPT_ROOM:
                interrupts.send(number.to_bytes(_INTERRUPT_BYTES, "little"))
        return True

    def _framed(self, task: Begin | SessionTask) -> bytes:
        """Return the frame of the next order. Raise InvalidError if it cannot be encoded, or is too long.

        An order of other types would end the session, which cannot decode it.
        """
        kind = type(task)
        try:
            msgspec.convert((kind.__struct_config__.tag, *msgspec.structs.astuple(task)), kind)
        except msgspec.ValidationError as error:
            fields = ", ".join(kind.__struct_fields__)
            raise InvalidError(f"an argument has a wrong type: {error} of ({fields})") from None
        try:
            return frames.frame(protocol.ORDER, msgspec.msgpack.encode(Order(self._number + 1, task)))
        except UnicodeEncodeError as error:
            raise InvalidError(
                f"the text cannot be sent, because UTF-8 has no such character: {error}"
            ) from None
        except OverflowError as error:
            raise InvalidError(f"the data cannot be sent to the session: {error}") from None

    def _send(self, order: bytes, deadline: float | None) -> Steps[None]:
        self._number += 1
        self._present = self._number
        try:
            yield Write(self._orders, order, _left(deadline))
        except TimeLimitError:
            raise ProtocolError("it did not read its orders") from None

    def _receive(self, timeout_s: float | None) -> Steps[CheckedAnswer | None]:
        """Wait for bytes. Return the answer if it was among them.

        Raise TimeLimitError if no time is left and it was not, also if other bytes come all the time.
        """
        data = yield from read(self._answers, timeout_s)
        answer: CheckedAnswer | None = None
        for kind, body in self._buffer.feed(data):
            if kind == protocol.OUTPUT:
                printed = self._printed.add(body)
                self._hand_over(self._show, *printed)
            elif kind in {protocol.DISPLAY, protocol.CLEAR} and self._ready:
                self._hand_over(self._show_display, self._displays.decode(kind, body))
            elif kind == protocol.DONE and answer is None and self._present and self._ready:
                answer = protocol.decoded_answer(body, self._present, self._bounds)
            elif kind == protocol.FILES and answer is None and self._sink is not None:
                self._sink(body)
            elif kind == protocol.READY and not self._ready and not body:
                self._ready = True
            else:
                raise ProtocolError(f"it sent a frame of kind {kind}, which was not due")
        if answer is None and timeout_s == 0:
            raise TimeLimitError("no answer came in time")
        return answer

    def _hand_over(self, show: Callable[[*Values], None] | None, *values: *Values) -> None:
        if show is not None:
            try:
                show(*values)
            except BaseException as error:  # noqa: BLE001 - raised at the end of the order
                self._show = self._show_display = None
                self._failed = error

    def _reader_failed(self) -> BaseException | None:
        """Return the exception of the function that gets output, if it raised."""
        return self._failed

    # -- the end ----------------------------------------------------------------------------------
    def _end_after(self, error: DiosError, deadline: float | None = None) -> Steps[None]:
        """End the session after an error of its streams."""
        if isinstance(error, ProtocolError) or self.task is None:
            yield from self.end(f"it broke the protocol: {error.message}")
            return
        try:
            status = yield from call(self.task.wait_op(_time_for_reason(deadline)))
        except DiosError as unknown:
            yield from self.end(f"{error.message}; its task gave no reason ({unknown.message})")
        else:
            yield from self.end(_reason(status))

    @property
    def running_task(self) -> Task:
        """The task of a session that has begun."""
        assert self.task is not None, "a session that has begun has a task"  # noqa: S101 - by its start
        return self.task

    def end_with_task(self) -> Steps[None]:
        """End the session, with the reason of the node, if its task has ended."""
        status = yield from call(self.running_task.status_op())
        if status.state is TaskState.ENDED:
            yield from self.end(_reason(status))

    def kill(self) -> Steps[None]:
        """End the task, while an order runs, too: the order then ends."""
        self.ended = self.ended or "it was closed"
        if self.task is not None:
            with contextlib.suppress(DiosError):
                yield from call(self.task.kill_op())

    def end(self, reason: str) -> Steps[None]:
        """End the session now."""
        self.ended = self.ended or reason
        yield from self.close()

    def close(self, *others: Operation[None]) -> Steps[None]:
        """End the task and drop the streams, and run ``others``; a second call does nothing else."""
        self.ended = self.ended or "it was closed"
        kills = [task.kill_op() for task in (self.task, self._gateway) if task in self._opened]
        # The end of a stream is closed under the lock, because an interrupt may use it in another thread.
        with self._interrupting:
            for reference in self._opened:
                reference.detach()
        # In one message: the node handles them in this order.
        closed = [handle.close_op() for handle in reversed(self._opened)]
        self._opened.clear()
        # After an error the node is gone, and everything on it.
        with contextlib.suppress(DiosError):
            yield from each_side_by_side([*kills, *closed, *others])


def _left(deadline: float | None) -> float | None:
    return None if deadline is None else max(0.0, deadline - time.monotonic())


def _time_for_reason(deadline: float | None) -> float:
    left = _left(deadline)
    return _END_WAIT_S if left is None else min(_END_WAIT_S, max(GRACE_S, left))


def _reason(status: Status) -> str:
    """Return the cause of a session's end, and what the node adds to it."""
    known = _ENDINGS.get(status.cause)
    if status.cause is Cause.EXITED:
        known = f"it left its process with exit status {status.exit_code}"
    detail = status.detail.strip()
    return f"{known} ({detail})" if known and detail else known or detail or "its task ended"
