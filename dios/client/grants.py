"""Grants: the text that lets another user read a group, and the grants that this user has accepted.

A grant is worth nothing to anybody but its reader: the node compares the reader with the user of the process.
Accepted grants are files in the folder ``grants`` next to the keyring.
"""

from __future__ import annotations

import base64
import binascii
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Final
from urllib.parse import quote, unquote

import msgspec
from blake3 import blake3

from dios.client.keyring import check_group_alias, default_path
from dios.errors import ExistsError, InvalidError
from dios.limits import NAME_BYTES
from dios.trusted_files import require_trusted

PREFIX: Final = "diosgrant1"
_CHECK_BYTES: Final = 4
_TEXT_MAX: Final = 2_048
_Name = Annotated[bytes, msgspec.Meta(min_length=NAME_BYTES, max_length=NAME_BYTES)]
_User = Annotated[str, msgspec.Meta(pattern=r"\Auid:(0|[1-9][0-9]{0,9})\Z", max_length=14)]


class Grant(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The right of one user to read a group until a moment, as the issuer's node recorded it."""

    alias: Annotated[str, msgspec.Meta(max_length=128)]
    """The issuer's alias of the group, which is proposed to the reader."""
    group: _Name
    catalogue: _Name
    nonce: _Name
    issuer: _User
    reader: _User
    expires_ns: Annotated[int, msgspec.Meta(ge=1, le=2**63 - 1)]

    def __repr__(self) -> str:
        """Return a text without the names, which are secret."""
        return f"<Grant of {self.alias} by {self.issuer} to {self.reader}>"


_decode: Final = msgspec.msgpack.Decoder(Grant).decode


def format_grant(grant: Grant) -> str:
    """Return a grant as text."""
    body = msgspec.msgpack.encode(grant)
    return PREFIX + base64.b32encode(body + blake3(body).digest(_CHECK_BYTES)).decode().rstrip("=").lower()


def parse_grant(text: str) -> Grant:
    """Return the grant of a text. Raises InvalidError for any other text, and for one that was mistyped."""
    written = text.strip().lower()
    if not written.startswith(PREFIX) or len(written) > _TEXT_MAX:
        raise InvalidError(f"this is no grant: a grant begins with {PREFIX}. `dios group share` prints one.")
    digits = written.removeprefix(PREFIX).upper()
    try:
        data = base64.b32decode(digits + "=" * (-len(digits) % 8))
        body, check = data[:-_CHECK_BYTES], data[-_CHECK_BYTES:]
        if blake3(body).digest(_CHECK_BYTES) != check:
            raise InvalidError("the checksum of the grant does not match. Copy all of it.")
        return _decode(body)
    except (binascii.Error, msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidError(f"the grant cannot be read: {error}. Copy all of it.") from None


def _folder() -> Path:
    return default_path().parent / "grants"


def accepted_grants() -> Mapping[str, Grant]:
    """Return this user's accepted grants by alias. Raises InvalidError if one is damaged."""
    folder = _folder()
    try:
        names = sorted(path.name for path in folder.iterdir())
    except FileNotFoundError:
        return {}
    require_trusted(folder, "the folder of accepted grants")
    grants = {}
    for name in names:
        if not name.startswith("."):
            path = folder / name
            require_trusted(path, "an accepted grant")
            grants[unquote(name)] = parse_grant(path.read_text(encoding="ascii", errors="replace"))
    return grants


def keep_grant(alias: str, grant: Grant) -> None:
    """Store an accepted grant under an alias. Raises ExistsError if another group has the alias."""
    check_group_alias(alias)
    known = accepted_grants().get(alias)
    if known is not None and known.group != grant.group:
        raise ExistsError(f"another group is shared with you as {alias!r} already. Choose another with --as.")
    folder = _folder()
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    path = folder / quote(alias, safe="")
    temporary = path.with_name(f".{path.name}.new")
    temporary.unlink(missing_ok=True)
    fd = os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600)
    with os.fdopen(fd, "w") as file:
        file.write(format_grant(grant) + "\n")
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)


def forget_grant(alias: str) -> bool:
    """Remove an accepted grant; return False if there was none."""
    path = _folder() / quote(alias, safe="")
    existed = path.exists()
    path.unlink(missing_ok=True)
    return existed
