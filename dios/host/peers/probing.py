"""Whether a node's process is gone for certain: its machine answers, and says that nobody listens.

Not for: connecting (``dios.transport.tcp_tls``).
"""

from __future__ import annotations

import trio

from dios import limits
from dios.transport.tcp_tls import split_address


async def nobody_listens(address: str) -> bool:
    """Whether the machine at "HOST:PORT" refuses connections there at once, for up to PEER_PROBE_MS_MAX."""
    host, port = split_address(address)
    with trio.move_on_after(limits.PEER_PROBE_MS_MAX / 1000):
        try:
            stream = await trio.open_tcp_stream(host, port)
        except OSError as error:
            return _refused(error)
        await trio.aclose_forcefully(stream)
    return False


def _refused(error: BaseException) -> bool:
    """Whether every address that was tried refused."""
    if isinstance(error, BaseExceptionGroup):
        return all(_refused(each) for each in error.exceptions)
    cause = error.__cause__
    if isinstance(error, ConnectionRefusedError) or cause is None:
        return isinstance(error, ConnectionRefusedError)
    return _refused(cause)
