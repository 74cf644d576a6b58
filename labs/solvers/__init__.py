"""Flow solvers that no scheduler needs: general ones, a race of them, and one for networks that change.

Problems, solutions, certificates and the scheduler's own solvers are in ``dios.firmament.solvers``.

- ``registry``: all algorithms by name, those of the product included, and the choice among them;
- ``cost_scaling`` and ``relaxation``, general algorithms, and ``half_arcs``, their residual network;
- ``race``: several algorithms at once;
- ``incremental`` and ``changing_network``: networks of any shape that change;
- ``simplex_restart`` continues the network simplex from the flow of a similar network (§6.4.3).
"""

from labs.solvers.incremental import IncrementalSolver
from labs.solvers.registry import algorithms, solve

__all__ = ["IncrementalSolver", "algorithms", "solve"]
