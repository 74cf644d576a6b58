"""Files that only this user can read, for as long as a command runs."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from dios.client.locate import default_socket
from dios.trusted_files import require_trusted


@contextlib.contextmanager
def private_file(name: str, text: str) -> Iterator[Path]:
    """Keep a text in a new file of this user, and delete the file at the end.

    Raise UntrustedError or OSError.
    """
    folder = default_socket().parent
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    require_trusted(folder, "the folder of the private file")
    path = folder / name
    path.unlink(missing_ok=True)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    with open(os.open(path, flags, 0o600), "w", encoding="utf-8") as file:  # noqa: PTH123 - of a descriptor
        file.write(text)
    try:
        yield path
    finally:
        path.unlink(missing_ok=True)
