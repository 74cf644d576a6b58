"""Fair shares of many resources as a library, on plain arrays: the public face.

Not for: clusters, principals and tasks. Nothing here knows one.
"""

from dios.fairness.allocation import Allocation
from dios.fairness.dc_drf.allocator import DcDrf
from dios.fairness.drf import drf, sdrf, smmf
from dios.fairness.edrf import edrf
from dios.fairness.live_tree import LiveTree
from dios.fairness.simulate import simulate
from dios.fairness.stateful.scheduler import SdrfScheduler

__all__ = [
    "Allocation",
    "DcDrf",
    "LiveTree",
    "SdrfScheduler",
    "drf",
    "edrf",
    "sdrf",
    "simulate",
    "smmf",
]
