"""What the solvers refuse, and how they say it.

Not for: infeasible or unbounded problems. Those are answers, with a status and a witness.
"""

from __future__ import annotations

from dios.errors import DiosError, InvalidError, NotSupportedError


class InvalidProblemError(InvalidError):
    """The columns or the file are no flow problem; the message names the field and index, or the line."""


class UnknownAlgorithmError(InvalidError):
    """No algorithm has this name; the message lists those there are."""


class MissingSolverError(NotSupportedError):
    """The algorithm needs a package that is not installed; the message says which extra brings it."""


class OutOfRangeError(NotSupportedError):
    """The numbers are too large for this algorithm; the message names one that can."""


class StoppedError(DiosError):
    """The answer is not wanted any more: another algorithm was first."""


class CertificateError(DiosError):
    """The solution is none: the message names the arc or the vertex at fault, and so do the attributes."""

    def __init__(self, message: str, *, arc: int | None = None, vertex: int | None = None) -> None:
        self.arc = arc
        self.vertex = vertex
        super().__init__(message)
