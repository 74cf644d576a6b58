"""Fair shares of many resources as a library, on plain arrays: the public face.

Not for: clusters, principals and tasks. Nothing here knows one.
"""

from dios.fairness.allocation import Allocation
from dios.fairness.dc_drf import DcDrf
from dios.fairness.drf import drf, sdrf, smmf
from dios.fairness.edrf import edrf

__all__ = ["Allocation", "DcDrf", "drf", "edrf", "sdrf", "smmf"]
