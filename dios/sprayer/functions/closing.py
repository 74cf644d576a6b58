"""When what is kept of a connection may be forgotten, for all functions that keep both ways of it; compiled.

Not for: connections that just stop, which are over after ``idle_s``.
"""

from __future__ import annotations

from typing import Final

from dios.kernels import no_refcount_kernel
from dios.sprayer.flows.flow_table import Flows
from dios.sprayer.packets.packet import Flow, Packet

CLOSED_S: Final = 10
"""What is kept so long after FIN from both ends, or RST: last packets may be on their way."""


@no_refcount_kernel
def track_closing(packet: Packet, flow: Flow, other: Flow, flows: Flows) -> bool:
    """Note SYN, FIN and RST of a packet in ``fins`` of its flow; whether the connection is closed by it.

    ``other`` is the flow of what comes back. A reset that somebody made up closes nothing that goes on: a
    flow is over only if it was not seen for a while.
    """
    theirs = flows.get_flow(other)
    mine = flows.get_local_flow(flow)
    if mine is None or packet.syn | packet.fin | packet.rst == 0:
        return False
    mine.fins = 0 if packet.opens else mine.fins | packet.fin
    closed = packet.opens == 0 and (packet.rst != 0 or (theirs is not None and mine.fins & theirs.fins != 0))
    if closed or packet.opens:
        seconds = flows.idle if packet.opens else CLOSED_S
        flows.expire_after(flow, seconds)
        flows.expire_after(other, seconds)
    return closed
