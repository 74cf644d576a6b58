"""One blocking connection to the node: sends calls, waits for their answers, runs operations.

Any number of threads call at once. One of the threads that wait for an answer is the *reader*: it receives
for all, hands the others their answers, and passes the socket on when it has its own. A thread that calls
alone is its own reader and wakes nobody.

A connection belongs to the process that opened it: a forked child gets an error that says to connect again.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import threading
import weakref
from collections import deque
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final, TypeVar, cast

from dios.client.session import Answer, Operation, Session, pause_s, refusal
from dios.client.tracing import active
from dios.client.welcome import expect_welcome, receive_welcome
from dios.errors import ClosedError, Code, DiosError, InvalidError, TooManyCallsError
from dios.forks import give_up_in_child
from dios.ids import Name
from dios.limits import CALLS_UNDER_WAY_MAX
from dios.transport.rings.adaptive_spin import AdaptiveSpin
from dios.transport.unix.client import ClientChannel, Received
from dios.wire import messages
from dios.wire.codec import PROTOCOL_VERSION
from dios.wire.messages import AnyCall, AnyResult, Failure

if TYPE_CHECKING:
    from dios.client.page import Page

T = TypeVar("T")

_FORKED: Final = (
    "this connection belongs to the process that opened it, of which this process is a fork. "
    "Connect again here with dios.connect()."
)

_INTERRUPTED: Final = (
    "the thread that received for all threads was interrupted. It is unknown whether this call was made."
)


class _ForkedChannel:
    """The place of a channel in a forked child, which must not use the socket of its parent."""

    def fileno(self) -> int:
        """Refuse: polling the socket would take the parent's answers."""
        raise ClosedError(_FORKED)

    @property
    def has_received(self) -> bool:
        """Return False: nothing is received here."""
        return False

    def send(self, _frame: bytes) -> None:
        """Refuse."""
        raise ClosedError(_FORKED)

    def receive(self) -> Received:
        """Refuse."""
        raise ClosedError(_FORKED)

    def close(self) -> None:
        """Do nothing: the copy of the socket ends with this process."""


class Connection:
    """One socket to the node, used by any number of threads."""

    def __init__(self, channel: ClientChannel) -> None:
        self._channel: ClientChannel | _ForkedChannel = channel
        self._session: Final = Session()
        self._sending = threading.Lock()
        self._state = threading.Lock()
        self._reader = 0
        """The number of the reader's call; 0 if no thread receives now."""
        self._waiting: Final[dict[int, threading.Lock | int | None]] = {}
        """The calls without an answer, each with the lock on which its thread sleeps, or the descriptor that
        it polls; None while it does neither.
        """
        self._arrived: Final[dict[int, Answer | DiosError]] = {}
        """The answers that the reader received for other threads."""
        self._shared = False
        """True once a thread had to wait for another one, or polls the socket."""
        self._taking = False
        """True while the reader has received a message that it has not handed over yet."""
        self._answers = 0
        """The number of answers so far, without the refusals of calls that are made again."""
        self._held: Final[deque[threading.Lock]] = deque()
        """The locks of the calls that are made again when another one is answered."""
        self._spin: Final = AdaptiveSpin().spin
        self._poll: Final = select.poll()
        if channel.fileno() >= 0:
            self._poll.register(channel.fileno(), select.POLLIN)
        self.page: Page | None = None
        _open.add(self)

    def fileno(self) -> int:
        """Return the descriptor of the socket, to poll together with others."""
        return self._channel.fileno()

    @property
    def session(self) -> Session:
        """Return the session, for a connection that uses the same socket meanwhile."""
        return self._session

    @property
    def held_calls(self) -> int:
        """Return the number of calls that wait in this client until the node has room for them."""
        return len(self._held)

    @property
    def forked(self) -> bool:
        """Return True in a process that was forked from the one that opened the connection."""
        return isinstance(self._channel, _ForkedChannel)

    def call(self, call: AnyCall) -> Answer:
        """Make one call and wait for its answer; a Failure is raised as its exception.

        If as many calls wait at the node as may wait, it is made again when another one is answered, and
        after a pause. Raises ClosedError in a forked child.
        """
        refused = 0
        while True:
            answers = self._answers
            try:
                return self._make(call)
            except TooManyCallsError:
                self._wait_for_answer(answers, refused)
                refused += 1

    def _wait_for_answer(self, answers: int, refused: int) -> None:
        """Wait until another call is answered or a pause is over, but not if one was since ``answers``.

        A call that was refused before comes first. Another thread receives: it waits for one of these calls.
        """
        held = threading.Lock()
        held.acquire()
        # First it is listed, then the count is compared. A thread that receives does it the other way round.
        if refused:
            self._held.appendleft(held)
        else:
            self._held.append(held)
        try:
            if self._answers == answers:
                held.acquire(timeout=pause_s(refused, len(self._held), others=bool(self._waiting)))
        except BaseException:
            if held not in self._held:
                self._wake_held()
            raise
        finally:
            with contextlib.suppress(ValueError):
                self._held.remove(held)

    def _wake_held(self) -> None:
        with contextlib.suppress(IndexError):
            self._held.popleft().release()

    def _count(self, result: AnyResult) -> None:
        """Count an answer, and let a call be made again that was refused because too many wait."""
        if type(result) is not Failure or result.code != Code.ENOBUFS:
            self._answers += 1
            if self._held:
                self._wake_held()

    def _make(self, call: AnyCall) -> Answer:
        seq = 0
        channel = self._channel
        try:
            with self._sending:
                seq, frame = self._session.request(call)
                self._waiting[seq] = None
                channel.send(frame)
            with self._state:
                alone = not self._reader and not self._shared and seq in self._waiting
                if alone:
                    self._reader = seq
            if alone:
                # The same as ``_read``, without calls of other methods: most programs have one thread.
                self._spin(self._here)
                self._taking = True
                body, fds = channel.receive()
                answered, result = self._session.reply(body, fds)
                if answered == seq:
                    del self._waiting[seq]
                    self._count(result)
                    self._taking = False
                    self._reader = 0
                    if self._shared:
                        self._pass_on()
                else:
                    self._hand_over(answered, result, fds)
                    self._taking = False
                    result, fds = self._read(seq)
            else:
                result, fds = self._wait(seq)
        except BaseException as error:
            if seq:
                self._give_up(seq, call, error)
            raise
        if type(result) is Failure:
            raise refusal(result, call)
        return result, fds

    def run(self, operation: Operation[T]) -> T:
        """Run an operation to its end and return its result."""
        call_node = self.call
        try:
            call = next(operation)
            while True:
                try:
                    answer = call_node(call)
                except DiosError as error:
                    call = operation.throw(error)
                else:
                    call = operation.send(answer)
        except StopIteration as done:
            return cast("T", done.value)

    def run_each(self, operations: Iterable[Operation[T]]) -> list[T | DiosError]:
        """Run operations of one call each, many at a time; return the result or the error of each.

        Each call is a message of its own, so that it may wait at the node, unlike those of a vector.
        """
        outcomes: list[T | DiosError] = []
        begun: deque[tuple[Operation[T], int, AnyCall]] = deque()
        try:
            for operation in operations:
                call = next(operation)
                begun.append((operation, self._send(call), call))
                if len(begun) == CALLS_UNDER_WAY_MAX:
                    outcomes.append(self._end(*begun.popleft()))
            while begun:
                outcomes.append(self._end(*begun.popleft()))
        finally:
            for _, seq, call in begun:
                with contextlib.suppress(DiosError):
                    self.abandon(seq, call)
        return outcomes

    def _end(self, operation: Operation[T], seq: int, call: AnyCall) -> T | DiosError:
        try:
            operation.send(self._answer(seq, call))
        except StopIteration as done:
            return cast("T", done.value)
        except DiosError as error:
            return error
        raise InvalidError("an operation that is run next to others has one call")

    def _answer(self, seq: int, call: AnyCall) -> Answer:
        """Wait for the answer to a call that was sent; make it again if too many waited at the node."""
        try:
            result, fds = self._wait(seq)
        except BaseException as error:
            self._give_up(seq, call, error)
            raise
        if type(result) is not Failure:
            return result, fds
        if result.code == Code.ENOBUFS:
            return self.call(call)
        raise refusal(result, call)

    # -- waiting ----------------------------------------------------------------------------------
    def _wait(self, seq: int) -> Answer:
        """Return the answer to ``seq``: as the reader, or when the reader has received it.

        An exception of any kind is followed by ``_give_up``, which passes the socket on.
        """
        while True:
            with self._state:
                if seq in self._arrived:
                    break
                if not self._reader:
                    self._reader = seq
                    break
                sleeper = threading.Lock()
                sleeper.acquire()
                self._waiting[seq] = sleeper
                self._shared = True
                if not self._reader:
                    # It ended without the lock, and may not have seen this thread.
                    continue
            sleeper.acquire()
        return self._read(seq) if self._reader == seq else self._taken(seq)

    def _read(self, seq: int) -> Answer:
        """Receive for all threads until the answer to ``seq`` comes."""
        channel = self._channel
        if not channel.has_received:
            self._spin(self._here)
        answer = None
        while answer is None:
            if self._shared and not channel.has_received:
                # An interrupt of the main thread comes here, and not where it would lose others' answers.
                self._poll.poll()
            self._taking = True
            answer = self._receive(seq)
            self._taking = False
        self._reader = 0
        if self._shared:
            self._pass_on()
        return answer

    def _here(self) -> object:
        return self._poll.poll(0)

    def _taken(self, seq: int) -> Answer:
        arrived = self._arrived.pop(seq)
        if isinstance(arrived, DiosError):
            raise arrived
        return arrived

    def _receive(self, wanted: int) -> Answer | None:
        """Receive one message as the reader; return the wanted one, hand another one to its thread."""
        body, fds = self._channel.receive()
        seq, result = self._session.reply(body, fds)
        if seq == wanted:
            self._waiting.pop(seq, None)
            self._count(result)
            return result, fds
        self._hand_over(seq, result, fds)
        return None

    def _hand_over(self, seq: int, result: AnyResult, fds: tuple[int, ...]) -> None:
        """Give an answer to its thread, or handle the answer to an abandoned call."""
        with self._state:
            known = seq in self._waiting
            if known:
                self._arrived[seq] = result, fds
                _wake(self._waiting.pop(seq))
        self._count(result)
        if not known:
            for undo in self._session.late(seq, result, fds):
                self._post(undo)

    def _pass_on(self) -> None:
        with self._state:
            if not self._reader:
                self._wake_next()

    def _wake_next(self) -> None:
        """Wake a sleeping thread, which becomes the reader; the caller holds ``_state``."""
        if not self._waiting:
            return
        for seq, sleeper in list(self._waiting.items()):
            if sleeper is not None and not isinstance(sleeper, int):
                self._waiting[seq] = None
                sleeper.release()
                return
        if self._channel.has_received:
            # No poll reports these messages to the threads that poll the socket.
            for sleeper in list(self._waiting.values()):
                _wake(sleeper)

    def _fail_others(self, error: DiosError) -> None:
        """End the waiting calls of all other threads; the caller holds ``_state``."""
        for other, sleeper in list(self._waiting.items()):
            del self._waiting[other]
            self._arrived[other] = type(error)(error.message)
            _wake(sleeper)
        while self._held:
            self._wake_held()

    def _give_up(self, seq: int, call: AnyCall, error: BaseException | None = None) -> None:
        """Abandon a call that was interrupted or refused, and let another thread receive."""
        with self._state:
            arrived = self._arrived.pop(seq, None)
            self._waiting.pop(seq, None)
            if self._reader == seq:
                self._reader = 0
                if isinstance(error, DiosError):
                    self._fail_others(error)
                elif self._taking:
                    self._fail_others(ClosedError(_INTERRUPTED))
                self._taking = False
            if not self._reader:
                self._wake_next()
            self._session.give_up(seq, call)
        if isinstance(arrived, tuple):
            for undo in self._session.late(seq, *arrived):
                self._post(undo)

    # -- calls that something else can end ---------------------------------------------------------
    def begin(self, call: AnyCall, wake: int | None = None) -> int:
        """Send a call whose answer is taken later; return its number.

        ``wake`` is a descriptor to which a byte is written when another thread has received the answer.
        """
        self._shared = True
        return self._send(call, wake)

    def _send(self, call: AnyCall, wake: int | None = None) -> int:
        seq = 0
        # Around the lock, too: Ctrl-C may come at its release, and an unknown answer ends the connection.
        try:
            with self._sending:
                seq, frame = self._session.request(call)
                self._waiting[seq] = wake
                self._channel.send(frame)
        except BaseException as error:
            if seq:
                self._give_up(seq, call, error)
            raise
        return seq

    def take(self, seq: int, call: AnyCall) -> Answer | None:
        """Return the answer to a call that was begun, or None if it is not here yet.

        It receives at most one message, and only if there is one, for callers that poll.
        """
        answer: Answer | None = None
        try:
            with self._state:
                arrived = seq in self._arrived
                if not arrived and not self._reader:
                    self._reader = seq
            if arrived:
                answer = self._taken(seq)
            elif self._reader == seq:
                if self._channel.has_received or self._poll.poll(0):
                    self._taking = True
                    answer = self._receive(seq)
                    self._taking = False
                with self._state:
                    self._reader = 0
                    self._wake_next()
        except BaseException as error:
            self._give_up(seq, call, error)
            raise
        if answer is not None and type(answer[0]) is Failure:
            raise refusal(answer[0], call)
        return answer

    def abandon(self, seq: int, call: AnyCall) -> None:
        """Abandon a call that was begun; its answer is handled when it comes."""
        self._give_up(seq, call)
        self._post(messages.Cancel(seq))

    def _post(self, call: AnyCall) -> None:
        """Make a call whose answer is ignored."""
        with self._sending:
            seq, frame = self._session.request(call)
            self._session.give_up(seq, call)
            self._channel.send(frame)

    def has_answer(self, seq: int) -> bool:
        """Return True if ``take`` has something to do that no poll would report."""
        return seq in self._arrived or self._channel.has_received

    # -- begin and end ----------------------------------------------------------------------------
    def hello(self, groups: tuple[Name, ...], label: str) -> messages.Welcome:
        """Introduce a user's process to the node."""
        active.start_by_environment()
        welcome, self.page = expect_welcome(self.call(messages.Hello(PROTOCOL_VERSION, groups, label)))
        self._session.answers_traces = welcome.traces
        return welcome

    def welcome(self) -> messages.Welcome:
        """Wait for the Welcome of a new task."""
        welcome, self.page = receive_welcome(cast("ClientChannel", self._channel))
        return welcome

    def close(self) -> None:
        """Close the socket and the page; threads that wait get ClosedError."""
        if self._waiting and not self.forked:
            with socket.socket(fileno=os.dup(self._channel.fileno())) as same:
                # Closing alone would not wake a thread that receives.
                same.shutdown(socket.SHUT_RDWR)
        self._channel.close()
        if self.page is not None:
            self.page.close()

    def close_in_child(self) -> None:
        """Refuse all calls from now on: this process was forked. The locks may be held by absent threads."""
        self._channel = _ForkedChannel()
        self._sending = threading.Lock()
        self._state = threading.Lock()
        self._reader = 0
        self._taking = False
        self._waiting.clear()
        self._held.clear()


def _wake(sleeper: threading.Lock | int | None) -> None:
    if isinstance(sleeper, int):
        os.write(sleeper, b"w")
    elif sleeper is not None:
        sleeper.release()


_open: Final[weakref.WeakSet[Connection]] = weakref.WeakSet()


def _close_all_in_child() -> None:
    for connection in list(_open):
        connection.close_in_child()


give_up_in_child(_close_all_in_child)
