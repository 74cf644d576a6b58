"""Minimum-cost flow as a library: problems, solvers and the check of their answers.

Not for: scheduling. Nothing here knows a task or a machine.
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
