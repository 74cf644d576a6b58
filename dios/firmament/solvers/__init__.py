"""Minimum-cost flow as a library: problems, solvers and certificates. It knows no tasks or machines.

In the order in which to read it:

- ``problem``: a problem and its solution; ``dimacs``: the text format; ``columns``: columns of numbers;
- ``certificate``: the independent check of a solution; ``errors``: the errors;
- ``registry``: the algorithms by name, and the choice among them;
- the fast algorithm for networks of scheduling shape: ``contraction`` to a small network, ``auction`` for
  good prices, ``repair`` to the exact optimum; and ``warm_solver``, which repairs a scheduler's last round;
- for networks of other shapes: ``network_simplex`` and ``ortools_solver``; their common part is ``standard``,
  ``feasibility`` finds those without a solution, and ``potentials`` are prices by label correction.

Further general algorithms, and a solver for networks of any shape that change, are in ``labs.solvers``.
"""

from dios.firmament.solvers.certificate import certificate
from dios.firmament.solvers.errors import (
    CertificateError,
    InvalidProblemError,
    MissingSolverError,
    OutOfRangeError,
    UnknownAlgorithmError,
)
from dios.firmament.solvers.problem import FlowProblem, FlowSolution
from dios.firmament.solvers.registry import algorithms, solve

__all__ = [
    "CertificateError",
    "FlowProblem",
    "FlowSolution",
    "InvalidProblemError",
    "MissingSolverError",
    "OutOfRangeError",
    "UnknownAlgorithmError",
    "algorithms",
    "certificate",
    "solve",
]
