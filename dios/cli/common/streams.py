"""The standard streams of a program, and how it ends when they are closed, full or gone."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Final, NoReturn, Protocol

INTERRUPTED: Final = 130
_FAILED: Final = 1
_STREAMS: Final = ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w"))


class Program(Protocol):
    """A Typer application."""

    def __call__(self, *, prog_name: str) -> object:
        """Run the command line of this process."""


def open_standard_streams() -> None:
    """Give closed standard streams the null device.

    Otherwise the next file or socket would get the number of one, and receive what is written to it.
    """
    for number, name, mode in _STREAMS:
        if getattr(sys, name) is None:
            opened = os.open(os.devnull, os.O_RDWR)
            if opened != number:
                os.dup2(opened, number)
                os.close(opened)
            setattr(sys, name, os.fdopen(number, mode))


def run(name: str, load: Callable[[], Program]) -> NoReturn:
    """Import and run a program, and exit with its status.

    A reader that has closed the pipe, a full device and Ctrl-C end it without a traceback.
    """
    status: object = 0
    try:
        open_standard_streams()
        try:
            load()(prog_name=name)
        except SystemExit as ended:
            status = ended.code
        sys.stdout.flush()
    except KeyboardInterrupt:
        sys.stderr.write(f"{name}: interrupted\n")
        status = INTERRUPTED
    except BrokenPipeError:
        drop_output()
        status = status or _FAILED
    except OSError as error:
        drop_output()
        sys.stderr.write(f"{name}: {error.filename or 'standard output'}: {error.strerror or error}\n")
        status = status or _FAILED
    sys.exit(status if isinstance(status, int | str) else 0)


def drop_output() -> None:
    """Give standard output the null device, or the interpreter reports what is left in its buffer at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC), 1)
