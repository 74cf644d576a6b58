"""A real node whose system refuses to execute another program."""

from __future__ import annotations

import errno
import os
import sys
from typing import NoReturn

from dios.node import daemon


def refuse(path: str, arguments: list[str]) -> NoReturn:
    """Fail like a machine without memory."""
    del arguments
    raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM), path)


if __name__ == "__main__":
    os.execv = refuse  # type: ignore[assignment] # as this program calls it
    sys.exit(daemon.main(sys.argv[1:]))
