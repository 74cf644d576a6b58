"""Jobs that say what they need and when, packed tightly, as a library on plain arrays: the public face.

Not for: clusters, principals and running tasks. Nothing here knows one.
"""

from dios.packer import baselines
from dios.packer.allocate import Placement, Refusal, allocate
from dios.packer.datacenter import Capacity, Datacenter, Spot
from dios.packer.job.ti_mra import Edge, JobError, Node, TiMra
from dios.packer.policies import Policy
from dios.packer.share_bandwidth import share_bandwidth

__all__ = [
    "Capacity",
    "Datacenter",
    "Edge",
    "JobError",
    "Node",
    "Placement",
    "Policy",
    "Refusal",
    "Spot",
    "TiMra",
    "allocate",
    "baselines",
    "share_bandwidth",
]
