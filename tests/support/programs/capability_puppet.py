"""Inside the task: a hostile program that sends whatever frames it is told, and does whatever it is told.

Not for: attempts, which the tests spell out, or judging them (``capability_stage`` is the outer end). Orders
come on a stream and answers go back on another, which are shared memory: beside the ordered frames the node
hears nothing from this task.
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

fds: list[int] = []
"""Every descriptor that the node sent, for what is told to be done with them."""


def main() -> None:
    """Obey until the orders end."""
    node = dios.connect()
    orders = cast("Stream", node.input("orders"))
    answers = cast("Stream", node.output("answers"))
    channel = cast("ClientChannel", cast("Connection", node.link)._channel)
    space: dict[str, object] = {"node": node, "channel": channel, "fds": fds}
    inside = ambient()
    assert inside is not None
    # The first thing ordered is to say what it was told itself, which attaches both streams.
    assert orders.receive() == b"welcome"
    answers.send(encode_reply(0, inside[1])[4:])
    for order in orders:
        kind, body = order[:4], order[4:]
        if kind in {ASK, SEND}:
            channel.send(body)
        if kind in {ASK, TAKE}:
            answers.send(_next(channel))
        elif kind == DO:
            answers.send(_done(body, space))


def _next(channel: ClientChannel) -> bytes:
    try:
        body, came = channel.receive(WAIT_S)
    except ClosedError:
        return GONE
    except TimeLimitError:
        return LATE
    fds.extend(came)
    return bytes([len(came)]) + body


def _done(source: bytes, space: dict[str, object]) -> bytes:
    space["said"] = ""
    try:
        exec(source.decode(), space)  # noqa: S102 - the task is there to run it
    except Exception:  # noqa: BLE001 - told to who ordered it
        return ("failed: " + traceback.format_exc()).encode()
    return str(space["said"]).encode()
