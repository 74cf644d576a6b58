"""The Welcome: the first message of a connection."""

from __future__ import annotations

from dios.client.page import MappedPage, Page
from dios.client.session import Answer
from dios.errors import ProtocolError
from dios.transport.unix.client import close_all
from dios.wire.codec import PROTOCOL_VERSION
from dios.wire.messages import Welcome


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
