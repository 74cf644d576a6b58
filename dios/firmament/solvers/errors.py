"""The errors of the solvers. Infeasible and unbounded problems are results with a status, not errors."""

from __future__ import annotations

from dios.errors import DiosError, InvalidError, NotSupportedError


class InvalidProblemError(InvalidError):
    """The columns or the file are not a flow problem; the message names the field and index, or the line."""


class UnknownAlgorithmError(InvalidError):
    """No algorithm has this name; the message lists the names."""


class MissingSolverError(NotSupportedError):
    """The algorithm needs a package that is not installed; the message names the extra to install."""


class OutOfRangeError(NotSupportedError):
    """The numbers are too large for this algorithm; the message says what to do."""


class CertificateError(DiosError):
    """The solution is wrong; the message and the attributes name the arc or the vertex."""

    def __init__(self, message: str, *, arc: int | None = None, vertex: int | None = None) -> None:
        self.arc = arc
        self.vertex = vertex
        super().__init__(message)
