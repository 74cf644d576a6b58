"""Fair division of several resources, as a library on plain numpy arrays.

The functions and classes exported here are the public interface. Nothing in this package knows about
clusters, principals or machines. Read the modules in this order:

- ``allocation``: the result type :class:`Allocation` and the checks of array arguments;
- ``drf``: dominant resource fairness (DRF) and its stateful forms for divisible demands (SMMF, SDRF);
- ``edrf``, ``edrf_kernels``, ``sparse_demands``: extended DRF (EDRF) for many tenants with sparse demands;
- ``substitutes``: DRF for users with several ways to do their work, on processors or GPUs;
- ``dc_drf``: EDRF with a deadline (DC-DRF), one allocation for each control interval;
- ``stateful``: SDRF for indivisible tasks, event by event (:class:`SdrfScheduler`);
- ``live_tree``: the SDRF paper's ordered tree for priorities that change with time.

``labs.simulate.fairness.generate_demands`` makes demands of many tenants from a seed, to try these functions.
"""

from dios.fairness.allocation import Allocation
from dios.fairness.dc_drf.allocator import DcDrf
from dios.fairness.drf import drf, sdrf, smmf
from dios.fairness.edrf import edrf
from dios.fairness.live_tree import LiveTree
from dios.fairness.stateful.scheduler import SdrfScheduler
from dios.fairness.substitutes import SubstituteAllocation, drf_with_substitutes

__all__ = [
    "Allocation",
    "DcDrf",
    "LiveTree",
    "SdrfScheduler",
    "SubstituteAllocation",
    "drf",
    "drf_with_substitutes",
    "edrf",
    "sdrf",
    "smmf",
]
