"""Sealed tokens as files: those that a user has imported, and those that commands read and write (ADR 0101).

Imported tokens are files of mode 0600 in the folder ``tokens`` next to the keyring. A token is never part of
a command's arguments, which all users of the machine can see.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final
from urllib.parse import quote, unquote

from dios import limits
from dios.client.keyring import check_alias, default_path
from dios.errors import ExistsError, InvalidError
from dios.trusted_files import require_trusted
from dios.wire.sealed_tokens import PREFIX, SealedToken, format_token, parse_token

STANDARD: Final = "-"
"""The argument that stands for standard input or standard output."""


def imported_tokens() -> Mapping[str, SealedToken]:
    """Return this user's imported tokens by alias. Raises InvalidError if one is damaged."""
    folder = _folder()
    try:
        names = sorted(path.name for path in folder.iterdir())
    except FileNotFoundError:
        return {}
    require_trusted(folder, "the folder of imported tokens")
    return {unquote(name): read_token_file(str(folder / name)) for name in names if not name.startswith(".")}


def keep_token(alias: str, token: SealedToken) -> None:
    """Store an imported token under an alias. Raises ExistsError if the alias is in use."""
    check_alias(alias)
    folder = _folder()
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    try:
        write_token_file(str(folder / quote(alias, safe="")), token)
    except FileExistsError:
        raise ExistsError(
            f"you have imported a token as {alias!r} already. Choose another name with --as, or run "
            f"`dios token forget {alias}`."
        ) from None


def forget_token(alias: str) -> bool:
    """Remove an imported token; return False if there was none."""
    path = _folder() / quote(alias, safe="")
    existed = path.exists()
    path.unlink(missing_ok=True)
    return existed


def token_of(text: str) -> SealedToken:
    """Return the token that an argument means: an imported one, else that of a file or of standard input.

    Raises InvalidError for anything else, also for a token itself, and UntrustedError for a file that another
    user could have changed.
    """
    if text.startswith(PREFIX):
        raise InvalidError(
            "the argument is a token, which is a secret: other users can see arguments. Put it into a file "
            "of mode 0600, or pass it on standard input with '-'."
        )
    known = None if text == STANDARD or "/" in text else imported_tokens().get(text)
    return read_token_file(text) if known is None else known


def read_token_file(text: str) -> SealedToken:
    """Return the token in a file, or on standard input for ``-``. Raises InvalidError."""
    if text == STANDARD:
        return parse_token(sys.stdin.read(limits.SEALED_TOKEN_TEXT_CHARS_MAX + 2))
    path = Path(text)
    if not path.is_file():
        raise InvalidError(
            f"there is no file {text!r} with a token, and no imported token of that name. `dios token ls` "
            "lists yours."
        )
    require_trusted(path, "the token")
    with path.open(encoding="ascii", errors="replace") as file:
        return parse_token(file.read(limits.SEALED_TOKEN_TEXT_CHARS_MAX + 2))


def write_token_file(text: str, token: SealedToken) -> None:
    """Write a token into a new file that only this user can read, or to standard output for ``-``.

    Raises FileExistsError if there is a file.
    """
    if text == STANDARD:
        sys.stdout.write(f"{format_token(token)}\n")
        return
    fd = os.open(text, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600)
    with os.fdopen(fd, "w") as file:
        file.write(format_token(token) + "\n")
        file.flush()
        os.fsync(fd)


def _folder() -> Path:
    return default_path().parent / "tokens"
