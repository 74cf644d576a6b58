"""The exact end of the fast solver: from any prices and seats to the optimum, by searches in both directions.

Not for: good prices to begin with (``auction.py``), or for keeping a network (``warm.py``).
"""

from __future__ import annotations

import numpy as np

from dios.firmament.solvers.columns import Ints
from dios.firmament.solvers.repair_backward import pull_deficits
from dios.firmament.solvers.repair_forward import push_excess
from dios.firmament.solvers.repair_net import Net, Search, list_askers


def repair(net: Net, search: Search, stats: Ints, *, askers: bool) -> bool:
    """Send and draw until nothing is too much or missing anywhere; False where the network is infeasible.

    Complementary slackness must hold, and ``net.excess`` must be counted. ``askers``: the lists of options by
    vertex are there already; they are made here where something is missing. ``stats`` (4,) begins as zeros.
    """
    if not push_excess(net, search, np.flatnonzero(net.excess > 0), stats):
        return False
    wanting = np.flatnonzero(net.excess[1:] < 0) + 1
    if not len(wanting):
        return True
    if not askers:
        list_askers(net, np.arange(len(net.target)))
    return pull_deficits(net, search, wanting, stats)
