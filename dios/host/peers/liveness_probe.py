"""Finds out if a lost node's process has certainly ended: its machine refuses connections at its address."""

from __future__ import annotations

import trio

from dios import limits
from dios.errors import DiosError
from dios.host.peers.connection_protocols import PeerNetwork
from dios.host.peers.link import PeerLink

_BETWEEN_S = limits.PEER_PROBE_MS_MAX / 10_000


async def refuses_connections(network: PeerNetwork, link: PeerLink) -> bool:
    """Return True if the node's machine refuses connections at its address within PEER_PROBE_MS_MAX.

    It tries repeatedly, because the connections of a killed process may end shortly before its port closes.
    Return False as soon as the node is connected again.
    """
    with trio.move_on_after(limits.PEER_PROBE_MS_MAX / 1000):
        while link.session is None:
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
    """Return True if every address that was tried refused the connection."""
    if isinstance(error, BaseExceptionGroup):
        return all(_refused(inner) for inner in error.exceptions)
    cause = error.__cause__
    if isinstance(error, ConnectionRefusedError) or cause is None:
        return isinstance(error, ConnectionRefusedError)
    return _refused(cause)
