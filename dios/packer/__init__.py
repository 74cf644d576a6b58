"""Jobs that say what they need and when, packed tightly, as a library on plain arrays: the public face.

Not for: clusters, principals and running tasks. Nothing here knows one.
"""

from dios.packer.share_bandwidth import share_bandwidth
from dios.packer.ti_mra import Edge, JobError, Node, TiMra

__all__ = ["Edge", "JobError", "Node", "TiMra", "share_bandwidth"]
