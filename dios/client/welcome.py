"""The Welcome: the first message of a connection."""

from __future__ import annotations

from dios.client.page import MappedPage, Page
from dios.client.session import Answer
from dios.errors import ProtocolError
from dios.transport.unix.client import ClientChannel, close_all
from dios.wire.codec import PROTOCOL_VERSION, decode_reply
from dios.wire.messages import Welcome


def receive_welcome(channel: ClientChannel) -> tuple[Welcome, Page]:
    """Wait for the Welcome of a new task; ProtocolError for anything else, ClosedError if there is none."""
    body, fds = channel.receive()
    try:
        reply = decode_reply(body)
    except ProtocolError:
        close_all(fds)
        raise
    if reply.seq:
        close_all(fds)
        raise ProtocolError("the node's first message was not a Welcome")
    return expect_welcome((reply.result, fds))


def expect_welcome(answer: Answer) -> tuple[Welcome, Page]:
    """Return the answer as a Welcome, and the page that came with it; ProtocolError for anything else."""
    result, fds = answer
    if not isinstance(result, Welcome) or len(fds) != 1:
        close_all(fds)
        raise ProtocolError(f"the node answered with a {type(result).__name__}, not a Welcome with a page")
    if result.version != PROTOCOL_VERSION:
        close_all(fds)
        raise ProtocolError(
            f"the node speaks version {result.version}, this client {PROTOCOL_VERSION}. Update the older one."
        )
    return result, MappedPage(fds[0])
