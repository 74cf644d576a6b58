"""Detection of closed connections, for all functions that store both directions of a connection; compiled.

Connections that end without FIN or RST expire after ``TCP_OPEN_S``, and those that were never accepted after
``idle_s``.
"""

from __future__ import annotations

from typing import Final

from dios.kernels import no_refcount_kernel
from dios.sprayer.flows.flow_table import Flows
from dios.sprayer.functions.tcp_states import TCP_OPEN_S
from dios.sprayer.packets.packet import Flow, Packet

CLOSED_S: Final = 10
"""The number of seconds for which a flow is kept after RST, or FIN from both ends, for late packets."""


@no_refcount_kernel
def track_closing(packet: Packet, flow: Flow, other: Flow, flows: Flows) -> bool:
    """Record SYN, FIN and RST of a packet in ``fins`` of its flow; return True if it closes the connection.

    ``other`` is the flow in the other direction. A forged reset does not end an active connection: a flow
    expires only if it was not seen for a while.
    """
    theirs = flows.get_flow(other)
    mine = flows.get_local_flow(flow)
    if mine is None or packet.syn | packet.fin | packet.rst == 0:
        return False
    mine.fins = 0 if packet.opens else mine.fins | packet.fin
    closed = packet.opens == 0 and (packet.rst != 0 or (theirs is not None and mine.fins & theirs.fins != 0))
    if closed or packet.syn:
        seconds = CLOSED_S if closed else flows.idle if packet.opens else TCP_OPEN_S
        flows.expire_after(flow, seconds)
        flows.expire_after(other, seconds)
    return closed
