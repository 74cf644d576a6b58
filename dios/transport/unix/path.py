"""Addresses of Unix sockets whose path is longer than a socket address."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dios.limits import SOCKET_PATH_BYTES_MAX


@contextmanager
def socket_address(path: Path) -> Iterator[str]:
    """Yield an address of the socket at ``path`` that is valid inside the ``with`` only.

    A socket address has at most 107 bytes. A longer path is replaced by a descriptor of its folder, whose
    name in /proc is short; only the file name of the socket must then fit. Raises OSError if the folder
    does not exist.
    """
    text = os.fspath(path)
    if len(os.fsencode(text)) <= SOCKET_PATH_BYTES_MAX:
        yield text
        return
    folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)
