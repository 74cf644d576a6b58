"""Network functions in Python that use every core, even for one flow: the public face.

Not for: functions that are ready, which are in ``dios.sprayer.functions``.
"""

from dios.sprayer.flows.five_tuple import drop, get_five_tuple, reverse, with_source, with_target
from dios.sprayer.flows.flow_table import Flows
from dios.sprayer.memory_engine import MemoryEngine
from dios.sprayer.network_function import HandlerError, NetworkFunction
from dios.sprayer.packets.packet import (
    FUNCTION,
    INSIDE,
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
