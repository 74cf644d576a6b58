"""The failures of requests: kinds with their numbers in the protocols, and the kind of each error."""

from __future__ import annotations

import logging
from enum import Enum
from typing import Final

from dios.errors import (
    Busy,
    ClosedError,
    DiosError,
    InvalidError,
    LimitError,
    NoSpaceError,
    NotPermittedError,
    NotSupportedError,
    OutOfMemoryError,
    TimeLimitError,
    TooLargeError,
)
from dios.lib.sandbox.errors import SandboxCodeError, SandboxEndedError, SessionForkError

_log: Final = logging.getLogger(__name__)


class Kind(Enum):
    """A kind of failure: its HTTP status, and its code in Connect-RPC."""

    INVALID = 400, "invalid_argument"
    UNAUTHENTICATED = 401, "unauthenticated"
    NOT_PERMITTED = 403, "permission_denied"
    NOT_FOUND = 404, "not_found"
    TIMEOUT = 408, "deadline_exceeded"
    EXISTS = 409, "already_exists"
    CONFLICT = 409, "failed_precondition"
    TOO_LARGE = 413, "resource_exhausted"
    LIMIT = 429, "resource_exhausted"
    INTERNAL = 500, "internal"
    UNSUPPORTED = 501, "unimplemented"
    GONE = 502, "unavailable"

    @property
    def status(self) -> int:
        """The HTTP status."""
        return self.value[0]

    @property
    def code(self) -> str:
        """The code in Connect-RPC."""
        return self.value[1]


class RequestError(Exception):
    """A request that is not done: the kind, and a text for the client."""

    def __init__(self, kind: Kind, message: str) -> None:
        super().__init__(message)
        self.kind: Final = kind
        self.message: Final = message


_KINDS: Final[tuple[tuple[type[DiosError], Kind], ...]] = (
    (SandboxEndedError, Kind.GONE),
    (SessionForkError, Kind.CONFLICT),
    (NotSupportedError, Kind.UNSUPPORTED),
    (NotPermittedError, Kind.NOT_PERMITTED),
    (TooLargeError, Kind.TOO_LARGE),
    (LimitError, Kind.LIMIT),
    (OutOfMemoryError, Kind.LIMIT),
    (NoSpaceError, Kind.LIMIT),
    (Busy, Kind.LIMIT),
    (TimeLimitError, Kind.TIMEOUT),
    (ClosedError, Kind.CONFLICT),
    (InvalidError, Kind.INVALID),
)
_KINDS_OF_CODE: Final = {
    "FileNotFoundError": Kind.NOT_FOUND,
    "ProcessLookupError": Kind.NOT_FOUND,
    "FileExistsError": Kind.EXISTS,
    "PermissionError": Kind.NOT_PERMITTED,
    "OverflowError": Kind.TOO_LARGE,
}
"""The kinds of exceptions in the session; others are those of its arguments."""


def as_request_error(error: DiosError) -> RequestError:
    """Return the failure of a request for an error of a sandbox."""
    if isinstance(error, SandboxCodeError):
        failure = error.failure
        remedy = f" {failure.remedy}" if failure.remedy else ""
        kind = _KINDS_OF_CODE.get(failure.type, Kind.INVALID)
        return RequestError(kind, f"{failure.message or failure.type}{remedy}")
    kinds = [kind for kinds_of, kind in _KINDS if isinstance(error, kinds_of)]
    if not kinds:
        # Its text may have places of this machine.
        _log.error("a request failed: %s", error)
        return RequestError(Kind.INTERNAL, "the server could not do this: its log has the reason")
    kind = kinds[0]
    # Clients of E2B know an ended sandbox by these words.
    prefix = "the sandbox was not found: " if kind is Kind.GONE else ""
    return RequestError(kind, prefix + error.message)
