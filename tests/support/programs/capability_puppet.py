"""Inside the task: a hostile program that sends whatever frames it is told, and does whatever it is told.

Not for: attempts, which the tests spell out, or judging them (``hostile_pair`` is the outer end). Orders come
on a stream and answers go back on another, which are shared memory: beside the ordered frames the node hears
nothing from this task. In a session each order is a call of ``Hands.obey``.
"""

from __future__ import annotations

import traceback
from typing import Final, cast

import dios
from dios.client.sync.connection import Connection
from dios.client.sync.node import Stream, ambient
from dios.errors import ClosedError, TimeLimitError
from dios.transport.unix.client import ClientChannel
from dios.wire.codec import encode_reply

ASK: Final = b"ask "
"""Send the frame, and answer with how many descriptors came back, and the reply."""

SEND: Final = b"send"
"""Send the frame and wait for nothing."""

TAKE: Final = b"take"
"""Answer with the next message from the node."""

DO: Final = b"do  "
"""Run the source; answer with what it leaves in ``said``."""

WAIT_S: Final = 20.0
GONE: Final = b"gone"
LATE: Final = b"late"

NOTHING: Final = b""
"""The answer to SEND."""


class Hands:
    """What the orders are carried out with: the connection of this task, and what ordered source text left.

    A fork makes its own, because it has another connection than its origin.
    """

    def __init__(self) -> None:
        self.node: Final = dios.connect()
        self._channel: Final = cast("ClientChannel", cast("Connection", self.node.link)._channel)
        self._fds: Final[list[int]] = []
        self._space: Final[dict[str, object]] = {
            "node": self.node,
            "channel": self._channel,
            "fds": self._fds,
        }

    def welcome(self) -> bytes:
        """Return what the node told this task at its start."""
        inside = ambient()
        assert inside is not None
        return encode_reply(0, inside[1])[4:]

    def obey(self, order: bytes) -> bytes:
        """Carry out one order, and return the answer."""
        kind, body = order[:4], order[4:]
        if kind in {ASK, SEND}:
            self._channel.send(body)
        if kind in {ASK, TAKE}:
            return self._next()
        return self._done(body) if kind == DO else NOTHING

    def _next(self) -> bytes:
        try:
            body, came = self._channel.receive(WAIT_S)
        except ClosedError:
            return GONE
        except TimeLimitError:
            return LATE
        self._fds.extend(came)
        return bytes([len(came)]) + body

    def _done(self, source: bytes) -> bytes:
        self._space["said"] = ""
        try:
            exec(source.decode(), self._space)  # noqa: S102 - the task is there to run it
        except Exception:  # noqa: BLE001 - told to who ordered it
            return ("failed: " + traceback.format_exc()).encode()
        return str(self._space["said"]).encode()


def main() -> None:
    """Obey until the orders end."""
    hands = Hands()
    orders = cast("Stream", hands.node.input("orders"))
    answers = cast("Stream", hands.node.output("answers"))
    # The first thing ordered is to say what it was told itself, which attaches both streams.
    assert orders.receive() == b"welcome"
    answers.send(hands.welcome())
    for order in orders:
        answer = hands.obey(order)
        if order[:4] != SEND:
            answers.send(answer)
