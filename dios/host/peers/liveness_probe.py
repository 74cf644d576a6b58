"""Whether a node's process is gone for certain: its machine answers, and says that nobody listens.

Not for: connecting (``dios.transport.tcp.tls``).
"""

from __future__ import annotations

import trio

from dios import limits
from dios.errors import DiosError
from dios.host.peers.connection_protocols import Network
from dios.host.peers.link import Link

_BETWEEN_S = limits.PEER_PROBE_MS_MAX / 10_000


async def nobody_listens(network: Network, link: Link) -> bool:
    """Whether the node's machine refuses connections at its address, asked for up to PEER_PROBE_MS_MAX.

    Again and again: of a process that is killed the connections may end a moment before its port does. Over
    as soon as there is a connection with the node.
    """
    with trio.move_on_after(limits.PEER_PROBE_MS_MAX / 1000):
        while link.standing is None:
            try:
                line = await network.dial(link.address, expect=link.node)
            except (DiosError, OSError) as error:
                if _refused(error):
                    return True
            else:
                line.close()
            await trio.sleep(_BETWEEN_S)
    return False


def _refused(error: BaseException) -> bool:
    """Whether every address that was tried refused."""
    if isinstance(error, BaseExceptionGroup):
        return all(_refused(each) for each in error.exceptions)
    cause = error.__cause__
    if isinstance(error, ConnectionRefusedError) or cause is None:
        return isinstance(error, ConnectionRefusedError)
    return _refused(cause)
