from __future__ import annotations

import contextvars
import traceback

import pytest

from dios.host.process.last_exception import exception_line


def printed(error: BaseException) -> str:
    """What Python prints of an exception that passed a function of the library and that nothing caught."""

    def fails() -> None:
        raise error

    context = contextvars.copy_context()
    try:
        context.run(fails)
    except BaseException as caught:  # noqa: BLE001 - only to be printed
        return "before\n" + "".join(traceback.format_exception(caught))
    raise AssertionError


def with_note(error: BaseException) -> BaseException:
    """The exception with a note of two lines."""
    error.add_note("a note\nof two lines")
    return error


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (ValueError("boom"), "ValueError: boom"),
        (KeyboardInterrupt(), "KeyboardInterrupt"),
        (ValueError("first\nsecond"), "ValueError: first"),
        (with_note(ValueError("boom")), "ValueError: boom"),
        (ExceptionGroup("two", [ValueError(1), TypeError(2)]), "ExceptionGroup: two (2 sub-exceptions)"),
    ],
)
def test_the_line_that_names_an_exception_is_found(error: BaseException, told: str) -> None:
    """Notes, further lines of the message and the members of a group do not hide it."""
    assert exception_line(printed(error)) == told


def test_the_last_of_a_chain_counts() -> None:
    """An exception raised while another was handled is the one that ended the program."""
    error = ValueError("second")
    error.__context__ = TypeError("first")
    assert exception_line(printed(error)) == "ValueError: second"


@pytest.mark.parametrize("text", ["", "hello\nworld", "Traceback (most recent call last):\n  File", "x: y"])
def test_other_output_tells_of_no_exception(text: str) -> None:
    """Without a traceback that came to its end there is nothing to tell."""
    assert not exception_line(text)
