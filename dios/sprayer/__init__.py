"""Network functions in Python that use every core, even for a single flow (thesis chapter 3).

These names are the public interface: write a ``NetworkFunction``, then ``run`` it between interfaces or
``replay`` a file through it. Built-in functions are in ``dios.sprayer.functions``.

To read the implementation, begin with ``network_function`` (the class that users write) and ``engine`` (the
source and sink of frames). Then read the packages:

- ``packets``: descriptors of packets, parsing and rewriting of headers.
- ``flows``: five-tuples and the flow tables of all cores.
- ``compile``: compilation of handlers, and the processor instructions that Numba lacks.
- ``runtime``: the loop of each core, running a function, its statistics.
- ``linux``: engines on packet sockets and AF_XDP sockets.
- ``functions``: NAT, NAT64, SIIT, firewall, load balancer, monitor, redundancy elimination, deep packet
  inspection.

``memory_engine`` has frames in memory for tests, and ``pcap`` replays files with it.
"""

from dios.sprayer.flows.five_tuple import drop, get_five_tuple, hand_over, reverse, with_source, with_target
from dios.sprayer.flows.flow_table import Flows
from dios.sprayer.memory_engine import MemoryEngine
from dios.sprayer.network_function import HandlerError, NetworkFunction
from dios.sprayer.packets.packet import (
    FUNCTION,
    INSIDE,
    NO_ADDRESS,
    NO_FLOW,
    NO_PORT,
    OUTSIDE,
    REFUSED,
    TABLE_FULL,
    Batch,
    Flow,
    Kept,
    Packet,
    halves,
)
from dios.sprayer.packets.rewrite import set_payload_size, set_source, set_target
from dios.sprayer.pcap import PcapError, replay
from dios.sprayer.runtime.running import run
from dios.sprayer.runtime.workers import Statistics, Workers, jain

__all__ = [
    "FUNCTION",
    "INSIDE",
    "NO_ADDRESS",
    "NO_FLOW",
    "NO_PORT",
    "OUTSIDE",
    "REFUSED",
    "TABLE_FULL",
    "Batch",
    "Flow",
    "Flows",
    "HandlerError",
    "Kept",
    "MemoryEngine",
    "NetworkFunction",
    "Packet",
    "PcapError",
    "Statistics",
    "Workers",
    "drop",
    "get_five_tuple",
    "halves",
    "hand_over",
    "jain",
    "replay",
    "reverse",
    "run",
    "set_payload_size",
    "set_source",
    "set_target",
    "with_source",
    "with_target",
]
