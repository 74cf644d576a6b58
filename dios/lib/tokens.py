"""Sealed tokens for programs: issue one for a group, narrow it offline, and read with one (ADR 0101).

A token is a secret: keep it in a file that only its user can read, and never in an argument of a command.
``docs/tokens.md`` has the whole story.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final, cast

from blake3 import blake3

from dios import limits
from dios.client.border import BorderConnection
from dios.errors import DamagedError, InvalidError, LimitError, NotPermittedError
from dios.lib.files.paths import checked_path
from dios.wire.border import (
    AskCluster,
    CheckedToken,
    CheckToken,
    ClusterIdentity,
    FileHead,
    FileList,
    FilePart,
    FileRow,
    ListFiles,
    ReadFile,
    WriteFile,
)
from dios.wire.sealed_tokens import (
    Caveat,
    OnlyHolder,
    OnlyPath,
    OnlyRights,
    OnlyUntil,
    SealedToken,
    TokenGrant,
    TokenTerms,
    attenuate,
    encode_token,
    format_token,
    parse_token,
    seal_grant,
)
from dios.wire.types import Permission

if TYPE_CHECKING:
    from typing import Self

    from dios.client.sync.node import Group, Node, Reference

__all__ = [
    "Caveat",
    "FileRow",
    "OnlyHolder",
    "OnlyPath",
    "OnlyRights",
    "OnlyUntil",
    "SealedToken",
    "TokenFiles",
    "TokenTerms",
    "attenuate",
    "cluster_of",
    "format_token",
    "import_token",
    "issue_token",
    "only_path",
    "parse_token",
]

_NONCE_BYTES: Final = limits.NAME_BYTES


def cluster_of(node: str | Path | None = None) -> bytes:
    """Return the digest that identifies the cluster of a node with a border, as tokens have it."""
    connection = BorderConnection(node)
    try:
        return cast("ClusterIdentity", connection.ask(AskCluster())).cluster
    finally:
        connection.close()


def issue_token(
    session: Node,
    group: Group,
    catalogue: Reference,
    *,
    cluster: bytes,
    issuer: str,
    expires_ns: int,
    alias: str = "",
    write: bool = False,
) -> tuple[SealedToken, Reference]:
    """Return a new token to read the files that ``catalogue`` lists in ``group``, and its record.

    With ``write``, its holders may store files as well, in the name and on the account of the issuer.

    ``cluster`` is the digest of the session's cluster, ``issuer`` the user of the session as ``uid:1000``,
    ``expires_ns`` the end in nanoseconds since 1970. Destroying the record revokes the token, and every token
    that was made of it. Raises NotPermittedError for a group with a secrecy label, and NotPermittedError and
    InvalidError as the node does.
    """
    if catalogue.secrecy:
        raise NotPermittedError(
            f"the group is labelled {', '.join(catalogue.secrecy)}, and no token gives what has a label. "
            "Store copies of the files in a group without a label, if they may be given away."
        )
    grant = TokenGrant(
        cluster,
        group.name or group.read_name(),
        catalogue.name or b"",
        secrets.token_bytes(_NONCE_BYTES),
        issuer,
        int(Permission.READ | Permission.WRITE if write else Permission.READ),
        expires_ns,
        alias,
    )
    record = session.issue_token(group, grant)
    return seal_grant(record.name or b"", grant), record


def only_path(path: str) -> OnlyPath:
    """Return the caveat for one file or directory of the group. Raises InvalidError for an invalid path."""
    checked = checked_path(path)
    if len(checked) > limits.SEALED_TOKEN_PATH_CHARS_MAX:
        raise InvalidError(f"the path is longer than {limits.SEALED_TOKEN_PATH_CHARS_MAX} characters")
    return OnlyPath(checked)


def import_token(token: SealedToken | str, node: str | Path | None = None) -> TokenFiles:
    """Return the files of a token, for reading by the border of this user's node. It is a context manager.

    Raises InvalidError for a text that is no token, and UnreachableError if the node has no border.
    """
    return TokenFiles(parse_token(token) if isinstance(token, str) else token, node)


class TokenFiles:
    """The files of a sealed token, read live from the cluster that issued it.

    Every method raises NotPermittedError if the token was revoked, is over, or is not for this user and
    cluster, and UnreachableError if the issuing cluster does not answer.
    """

    def __init__(self, token: SealedToken, node: str | Path | None = None) -> None:
        self.token: Final = token
        self._data: Final = encode_token(token)
        self._connection: Final = BorderConnection(node)

    def terms(self) -> TokenTerms:
        """Return the terms that the issuing cluster grants now."""
        checked = cast("CheckedToken", self._connection.ask(CheckToken(self._data)))
        return TokenTerms(Permission(checked.rights), checked.expires_ns, checked.paths)

    def files(self) -> Iterator[FileRow]:
        """Yield the files in the order of their paths."""
        after = ""
        while True:
            page = cast("FileList", self._connection.ask(ListFiles(self._data, after)))
            yield from page.files
            if not page.more or not page.files or page.files[-1].path <= after:
                return
            after = page.files[-1].path

    def parts(self, path: str, *, known: bytes = b"") -> Iterator[FileRow | bytes]:
        """Yield the description of a file, and then its bytes in parts of at most 256 KiB.

        There are no parts if the file still has the digest ``known``. After the last part the digest of all
        bytes is compared; it raises DamagedError if it differs.
        """
        digest, head = blake3(), None
        for answer in self._connection.call(ReadFile(self._data, checked_path(path), known)):
            if isinstance(answer, FileHead):
                head = answer
                yield answer.file
            elif isinstance(answer, FilePart):
                digest.update(answer.data)
                yield answer.data
        if head is None or head.unchanged:
            return
        if head.file.digest and digest.digest() != head.file.digest:
            raise DamagedError(f"the bytes of {path!r} do not have the digest in the catalogue. Read again.")

    def read_bytes(self, path: str, *, size_max: int = limits.BORDER_READ_BYTES_MAX) -> bytes:
        """Return the bytes of a file; LimitError if it has more than ``size_max``."""
        content = bytearray()
        for part in self.parts(path):
            if isinstance(part, FileRow):
                if part.size > size_max:
                    raise LimitError(
                        f"{path!r} has {part.size} bytes, more than {size_max}. Read it with parts()."
                    )
            else:
                content += part
        return bytes(content)

    def write_bytes(self, path: str, data: bytes, *, replace: bool = False) -> FileRow:
        """Store a file in the group, and return its entry; in place of another file only with ``replace``.

        The file belongs to the issuer of the token, and counts with that user. Raises ExistsError if there is
        a file, LimitError for more than BORDER_WRITE_BYTES_MAX bytes or if the issuer has no room.
        """
        size = len(data)
        if size > limits.BORDER_WRITE_BYTES_MAX:
            raise LimitError(f"a token writes files of at most {limits.BORDER_WRITE_BYTES_MAX} bytes")
        call = WriteFile(self._data, checked_path(path), size, blake3(data).digest(), replace)
        places = range(0, size, limits.BORDER_PART_BYTES)
        parts = (data[place : place + limits.BORDER_PART_BYTES] for place in places)
        return self._connection.write(call, parts).file

    def close(self) -> None:
        """End the connection."""
        self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
