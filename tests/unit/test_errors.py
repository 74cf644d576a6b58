from __future__ import annotations

import copy
import pickle

import pytest

from dios.errors import (
    DiosError,
    ExistsError,
    LimitError,
    ProtocolError,
    TimeLimitError,
    UnreachableError,
    unwrap_group,
)


class WithStatusError(DiosError):
    """An error whose initialiser takes other arguments than the message."""

    def __init__(self, message: str, status: object) -> None:
        super().__init__(message, call="spawn", fingerprint="12ab")
        self.status = status


@pytest.mark.parametrize(
    "error",
    [
        LimitError("full", call="create", fingerprint="12ab"),
        ProtocolError("no"),
        WithStatusError("ended", 3),
        TimeLimitError("late", call="select"),
        UnreachableError("gone", fingerprint="12ab"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_an_error_keeps_everything_between_processes(error: DiosError) -> None:
    """A pickled and a copied error have the class, the text and the attributes of the original."""
    for copied in (pickle.loads(pickle.dumps(error)), copy.copy(error)):  # noqa: S301 - made here
        assert type(copied) is type(error)
        assert str(copied) == str(error)
        assert vars(copied) == vars(error)
        assert copied.args == error.args


@pytest.mark.parametrize(
    ("error", "kind"),
    [(TimeLimitError("late"), TimeoutError), (UnreachableError("gone"), ConnectionError)],
    ids=["timeout", "connection"],
)
def test_a_program_catches_the_errors_of_python(error: DiosError, kind: type[OSError]) -> None:
    """A time limit is a TimeoutError and an unreachable node a ConnectionError, with their error numbers."""
    assert isinstance(error, kind)
    assert isinstance(error, OSError)
    assert error.errno == error.code
    assert str(error) == error.message


def test_the_first_error_of_ours_is_taken_out_of_groups() -> None:
    """Out of nested groups the DiosError is the one to show, else the first; another error is its own."""
    wanted, other = ExistsError("taken"), ValueError("x")
    assert unwrap_group(BaseExceptionGroup("g", [other, BaseExceptionGroup("h", [wanted])])) is wanted
    assert unwrap_group(BaseExceptionGroup("g", [BaseExceptionGroup("h", [other])])) is other
    assert unwrap_group(other) is other
