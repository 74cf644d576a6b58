"""Paths of Unix sockets that are longer than a socket address holds.

Not for: choosing where a node's socket lies (``dios.client``, ``dios.node``).
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dios.limits import SOCKET_PATH_BYTES_MAX


@contextmanager
def socket_address(path: Path) -> Iterator[str]:
    """Give an address for the socket at ``path``, which is valid inside the ``with`` only.

    A socket address holds 107 bytes. A longer path is reached through a descriptor of its folder, whose
    name below /proc is short; only the socket's own file name must then fit. Raises OSError
    when the folder does not exist.
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
