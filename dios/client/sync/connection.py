"""One blocking connection to the node: sends calls, waits for their answers, runs operations.

Calls are made one after the other: while a thread waits for an answer, no other thread can call.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Final, TypeVar, cast

from dios.client.session import Answer, Operation, Session, refusal
from dios.client.welcome import expect_welcome
from dios.errors import DiosError, ProtocolError
from dios.ids import Name
from dios.transport.unix.client import ClientChannel, close_all
from dios.wire import messages
from dios.wire.codec import PROTOCOL_VERSION
from dios.wire.messages import AnyCall, Failure

if TYPE_CHECKING:
    from dios.client.page import Page

T = TypeVar("T")


class Connection:
    """One socket to the node, used by the calling threads."""

    def __init__(self, channel: ClientChannel) -> None:
        self._channel: Final = channel
        self._session: Final = Session()
        self._lock: Final = threading.RLock()
        self.page: Page | None = None

    def fileno(self) -> int:
        """Return the descriptor of the socket, to poll together with others."""
        return self._channel.fileno()

    @property
    def session(self) -> Session:
        """Return the session, for a connection that uses the same socket meanwhile."""
        return self._session

    def call(self, call: AnyCall) -> Answer:
        """Make one call and wait for its answer; a Failure is raised as its exception."""
        with self._lock:
            seq, frame = self._session.request(call)
            try:
                body, fds = self._channel.call(frame)
                answered, result = self._session.reply(body, fds)
                if answered != seq:
                    result, fds = self._find(seq, answered, (result, fds))
            except BaseException:
                self._session.give_up(seq, call)
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

    # -- calls that something else can end ---------------------------------------------------------
    def begin(self, call: AnyCall) -> int:
        """Send a call whose answer is taken later; return its number."""
        seq = 0
        # Around the lock, too: Ctrl-C may come at its release, and an unknown answer ends the connection.
        try:
            with self._lock:
                seq, frame = self._session.request(call)
                self._channel.send(frame)
        except BaseException:
            if seq:
                self._session.give_up(seq, call)
            raise
        return seq

    def finish(self, seq: int, call: AnyCall) -> Answer:
        """Wait for the answer to a call that was begun."""
        with self._lock:
            try:
                body, fds = self._channel.receive()
                answered, result = self._session.reply(body, fds)
                if answered != seq:
                    result, fds = self._find(seq, answered, (result, fds))
            except BaseException:
                self._session.give_up(seq, call)
                raise
        if type(result) is Failure:
            raise refusal(result, call)
        return result, fds

    def take(self, seq: int, call: AnyCall) -> Answer | None:
        """Receive one message; return None if it was not the answer to ``seq`` but to an abandoned call.

        It waits for one message at most, for callers that poll; ``finish`` waits for the right one.
        """
        with self._lock:
            try:
                body, fds = self._channel.receive()
                answered, result = self._session.reply(body, fds)
                if answered != seq:
                    for undo in self._session.late(answered, result, fds):
                        self._post(undo)
                    return None
            except BaseException:
                self._session.give_up(seq, call)
                raise
        if type(result) is Failure:
            raise refusal(result, call)
        return result, fds

    def abandon(self, seq: int, call: AnyCall) -> None:
        """Abandon a call that was begun; its answer is handled when it comes."""
        with self._lock:
            self._session.give_up(seq, call)
            self._post(messages.Cancel(seq))

    def _post(self, call: AnyCall) -> None:
        """Make a call whose answer is ignored."""
        self._session.give_up(self.begin(call), call)

    @property
    def answered(self) -> bool:
        """Return True if an answer has been received, which no poll would report."""
        return self._channel.has_received

    def _find(self, seq: int, answered: int, answer: Answer) -> Answer:
        """Handle replies to abandoned calls until the one to ``seq`` comes."""
        while answered != seq:
            undo = self._session.late(answered, *answer)
            for call in undo:
                self._post(call)
            body, fds = self._channel.receive()
            answered, result = self._session.reply(body, fds)
            answer = (result, fds)
        return answer

    # -- begin and end ----------------------------------------------------------------------------
    def hello(self, groups: tuple[Name, ...], label: str) -> messages.Welcome:
        """Introduce a user's process to the node."""
        return self._entered(self.call(messages.Hello(PROTOCOL_VERSION, groups, label)))

    def welcome(self) -> messages.Welcome:
        """Wait for the Welcome of a new task."""
        body, fds = self._channel.receive()
        seq, result = self._session.reply(body, fds)
        if seq:
            close_all(fds)
            raise ProtocolError("the node's first message was not a Welcome")
        return self._entered((result, fds))

    def _entered(self, answer: Answer) -> messages.Welcome:
        welcome, self.page = expect_welcome(answer)
        return welcome

    def close(self) -> None:
        """Close the socket and the page."""
        self._channel.close()
        if self.page is not None:
            self.page.close()
