"""Join tokens: one line of text that admits a machine to a cluster, and the list of issued tokens.

A token has the root's certificate, and a certificate of the role *join* with its key. That suffices for
a connection in which both ends are authenticated, and for nothing else. It is valid at the node that issued
it, which alone counts its uses and judges its time. ``dios.transport.identity.joining`` uses tokens.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import os
import time
from pathlib import Path
from typing import Annotated, Final, NamedTuple, TypeAlias

import msgspec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from msgspec import Meta, Struct
from msgspec.structs import replace

from dios import limits
from dios.errors import DamagedError, InvalidError, LimitError, NotPermittedError, ProtocolError
from dios.transport.identity import durable_files
from dios.transport.identity.certificates import CertificateRole, card_of, make_join
from dios.transport.identity.identity import Identity
from dios.wire.node_roles import NodeRole, roles_of

_PREFIX: Final = "dios-join-1."
_CHECK_BYTES: Final = 8
_TAG: Final = b"dios join token 1\0"
_BOOK: Final = "tokens"

_Certificate: TypeAlias = Annotated[bytes, Meta(max_length=limits.TOKEN_TEXT_CHARS_MAX)]


class Token(NamedTuple):
    """The content of a token. Its text is a secret, and so is the key."""

    authority: bytes
    """The root's certificate; the answering node must be of its cluster."""
    certificate: bytes
    key: Ed25519PrivateKey

    def __repr__(self) -> str:
        return f"<join token {self.number:016x}>"

    @property
    def number(self) -> int:
        """Return the number of the token in the list."""
        return card_of(self.certificate).number

    @property
    def cluster(self) -> bytes:
        """Return the SHA-256 of the root's certificate."""
        return hashlib.sha256(self.authority).digest()


class _TokenContent(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    authority: _Certificate
    certificate: _Certificate
    key: Annotated[bytes, Meta(min_length=32, max_length=32)]


class _Row(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    number: Annotated[int, Meta(ge=0)]  # 64 bits, all that MessagePack has
    expires_s: Annotated[int, Meta(ge=0, le=2**53)]
    uses_left: Annotated[int, Meta(ge=0, le=limits.TOKEN_USES_MAX)]
    roles: Annotated[str, Meta(max_length=limits.NODE_NAME_BYTES_MAX)] = str(NodeRole.MEMBER)
    """The roles of the nodes that it admits."""


_encode: Final = msgspec.msgpack.Encoder().encode
_content: Final = msgspec.msgpack.Decoder(_TokenContent)
_book: Final = msgspec.msgpack.Decoder(Annotated[tuple[_Row, ...], Meta(max_length=limits.TOKENS_MAX)])


def issue(
    identity: Identity,
    *,
    uses: int = 1,
    valid_s: int = 3600,
    role: NodeRole = NodeRole.MEMBER,
    now_s: float | None = None,
) -> str:
    """Return the text of a new token that admits ``uses`` nodes here within the next ``valid_s`` seconds.

    They get these roles. ``now_s`` is this machine's clock, seconds since 1970. Raises
    InvalidError for numbers out of range, LimitError if TOKENS_MAX tokens are valid or this node can admit no
    node, NotPermittedError if its role does not let it.
    """
    if not 1 <= uses <= limits.TOKEN_USES_MAX:
        raise InvalidError(f"an invitation admits 1 to {limits.TOKEN_USES_MAX} nodes, not {uses}")
    if not 1 <= valid_s <= limits.TOKEN_VALID_S_MAX:
        raise InvalidError(f"an invitation is valid for 1 to {limits.TOKEN_VALID_S_MAX} s, not {valid_s}")
    expires_s = int(time.time() if now_s is None else now_s) + valid_s
    key = Ed25519PrivateKey.generate()
    row = _Row(
        int.from_bytes(os.urandom(8), "big"),
        expires_s,
        uses,
        str(role),
    )
    certificate = make_join(row.number, expires_s, key.public_key(), identity.chain[0], identity.key())
    with durable_files.locked(identity.folder):
        rows = _read(identity.folder, time.time())
        if len(rows) >= limits.TOKENS_MAX:
            raise LimitError(
                f"this node has {limits.TOKENS_MAX} valid invitations, the maximum. Wait until some expire."
            )
        _write(identity.folder, (*rows, row))
    return _text(_TokenContent(identity.chain[-1], certificate, key.private_bytes_raw()))


def _text(content: _TokenContent) -> str:
    body = _encode(content)
    check = hashlib.sha256(_TAG + body).digest()[:_CHECK_BYTES]
    return _PREFIX + base64.urlsafe_b64encode(check + body).rstrip(b"=").decode("ascii")


def read(text: str) -> Token:
    """Read a token's text; InvalidError if it is not exactly the text that ``issue`` returned."""
    text = text.strip()
    if not text.startswith(_PREFIX) or len(text) > limits.TOKEN_TEXT_CHARS_MAX:
        raise InvalidError(f"this is not an invitation: an invitation begins with {_PREFIX}")
    damaged = InvalidError("the invitation is incomplete or changed. Copy the whole line again.")
    try:
        whole = base64.b64decode(
            text[len(_PREFIX) :] + "=" * (-(len(text) - len(_PREFIX)) % 4), b"-_", validate=True
        )
        content = _content.decode(whole[_CHECK_BYTES:])
        # Compares the checksum, and the unused bits of the last character too.
        if _text(content) != text:
            raise damaged
        token = Token(
            content.authority, content.certificate, Ed25519PrivateKey.from_private_bytes(content.key)
        )
        roles = card_of(token.authority).role, card_of(token.certificate).role
    except (ValueError, binascii.Error, msgspec.MsgspecError, ProtocolError):
        raise damaged from None
    if roles != (CertificateRole.ROOT, CertificateRole.JOIN):
        raise damaged
    return token


def check(folder: Path, number: int, *, now_s: float | None = None) -> NodeRole:
    """Return the role of the nodes that a token admits.

    Raises NotPermittedError unless it is in the list with uses left, and has not expired.
    """
    with durable_files.locked(folder):
        row = _find(_read(folder, time.time() if now_s is None else now_s), number)
    return roles_of(row.roles)


def use(folder: Path, number: int, *, now_s: float | None = None) -> None:
    """Count one use of a token durably, before the answer; raises NotPermittedError."""
    with durable_files.locked(folder):
        rows = _read(folder, time.time() if now_s is None else now_s)
        row = _find(rows, number)
        used = replace(row, uses_left=row.uses_left - 1)
        _write(folder, tuple(used if other is row else other for other in rows))


def _find(rows: tuple[_Row, ...], number: int) -> _Row:
    row = next((candidate for candidate in rows if candidate.number == number), None)
    if row is None:
        raise NotPermittedError("the invitation has expired. Make a new one there with `dios-node invite`.")
    if row.uses_left < 1:
        raise NotPermittedError("the invitation is used up. Make a new one there with `dios-node invite`.")
    return row


def _read(folder: Path, now_s: float) -> tuple[_Row, ...]:
    """Return the tokens that have not expired; tokens that are not in the list are refused."""
    try:
        rows = _book.decode((folder / _BOOK).read_bytes())
    except FileNotFoundError:
        return ()
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise DamagedError(
            f"the list of invitations {folder / _BOOK} is damaged: {error}. Remove it; make new invitations."
        ) from None
    return tuple(row for row in rows if row.expires_s > now_s)


def _write(folder: Path, rows: tuple[_Row, ...]) -> None:
    durable_files.write(folder / _BOOK, _encode(rows))
