"""Minimum-cost flow as a library: problems, solvers and certificates. It knows no tasks or machines.

In the order in which to read it:

- ``problem``: a problem and its solution; ``dimacs``: the text format; ``columns``: columns of numbers;
- ``certificate``: the independent check of a solution; ``errors``: the errors;
- ``registry``: the algorithms by name, and the choice among them;
- general algorithms: ``standard`` (their common part), ``network_simplex``, ``cost_scaling``,
  ``successive_shortest``, ``relaxation``, ``ortools_solver``, and ``portfolio``, a race of several;
- their parts: ``half_arcs`` (the residual network), ``heap``, ``potentials`` (prices by label correction);
- the fast algorithm for networks of scheduling shape: ``contraction`` to a small network, ``auction`` for
  good prices, ``repair`` to the exact optimum;
- networks that change: ``warm_solver`` for the scheduler's rounds; ``changing_network`` and
  ``incremental`` for networks of any shape. Both solve by ``repair``.

``simplex_restart`` continues the network simplex from the flow of a similar network (§6.4.3).
"""

from dios.firmament.solvers.certificate import certificate
from dios.firmament.solvers.errors import (
    CertificateError,
    InvalidProblemError,
    MissingSolverError,
    OutOfRangeError,
    UnknownAlgorithmError,
)
from dios.firmament.solvers.incremental import IncrementalSolver
from dios.firmament.solvers.problem import FlowProblem, FlowSolution
from dios.firmament.solvers.registry import algorithms, solve

__all__ = [
    "CertificateError",
    "FlowProblem",
    "FlowSolution",
    "IncrementalSolver",
    "InvalidProblemError",
    "MissingSolverError",
    "OutOfRangeError",
    "UnknownAlgorithmError",
    "algorithms",
    "certificate",
    "solve",
]
