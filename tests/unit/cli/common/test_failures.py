"""A command goes on after a bad file, lists what failed, and ends with 1; errors of everything end it."""

from __future__ import annotations

import errno

import pytest
import typer

from dios.cli.common.failures import SHOWN_MAX, Failures
from dios.errors import ClosedError, DamagedError, InvalidError, NoSpaceError, UnreachableError


def test_errors_of_one_file_are_listed_at_the_end(capsys: pytest.CaptureFixture[str]) -> None:
    """With the path and the reason, also for --json; then the status is 1."""
    failures = Failures("failed")
    handled = []
    for path, error in (
        ("a", DamagedError("it is damaged")),
        ("b", None),
        ("c", UnreachableError("n2 does not answer")),
        ("d", PermissionError(errno.EACCES, "Permission denied", "/out/d")),
        ("e", FileNotFoundError("gone")),
    ):
        with failures.going_on(path):
            if error is not None:
                raise error
            handled.append(path)
    assert handled == ["b"]
    assert not capsys.readouterr().err
    with pytest.raises(typer.Exit) as ended:
        failures.end()
    assert ended.value.exit_code == 1
    listed = [
        "failed: a: it is damaged",
        "failed: c: n2 does not answer",
        "failed: d: /out/d: Permission denied",
        "failed: e: gone",
    ]
    assert capsys.readouterr().err.splitlines() == listed
    assert [f"failed: {row.path}: {row.failure}" for row in failures.rows()] == listed


@pytest.mark.parametrize(
    "error",
    [
        ClosedError("the node ended"),
        NoSpaceError("the disk is full"),
        OSError(errno.ENOSPC, "No space left on device"),
        OSError(errno.EROFS, "Read-only file system"),
        BrokenPipeError(errno.EPIPE, "Broken pipe"),
        KeyboardInterrupt(),
        ValueError("a defect"),
    ],
)
def test_errors_of_every_file_end_the_command(error: BaseException) -> None:
    """The next file would have the same error."""
    failures = Failures("failed")
    with pytest.raises(type(error)), failures.going_on("a"):
        raise error
    assert not failures.reasons


def test_the_list_is_bounded_and_written_once(capsys: pytest.CaptureFixture[str]) -> None:
    """A person gets the first ones and the number of the others; a program gets all."""
    failures = Failures("left out")
    for number in range(SHOWN_MAX + 1_500):
        with failures.going_on(str(number)):
            raise InvalidError("it is no file")
    failures.show()
    failures.show()
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == SHOWN_MAX + 1
    assert lines[-1] == "left out: 1,500 more"
    assert len(failures.rows()) == SHOWN_MAX + 1_500


def test_without_a_failure_the_command_ends_well(capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing is written, and nothing raised."""
    Failures("failed").end()
    assert not capsys.readouterr().err
