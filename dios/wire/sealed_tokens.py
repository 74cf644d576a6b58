"""Sealed tokens: a right to a group as a text that its holders can narrow, and nobody can widen (ADR 0101).

A token has a *grant*, which the issuer's node recorded, then *caveats*, and a *seal*. The seal of the grant
alone follows from the name of its record, which only nodes of the issuing cluster can derive. Each caveat
replaces the seal by a keyed hash of the caveat under the former seal. So a holder adds a caveat without
asking anybody, and to remove one would mean to invert the hash. The issuing cluster alone can verify a token,
by its own clock.

Nothing here does I/O. ``dios.core.calls.tokens`` issues and redeems; ``docs/tokens.md`` specifies the format.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable
from hmac import compare_digest
from typing import Annotated, Final, NamedTuple, TypeAlias

import msgspec
from blake3 import blake3
from msgspec import Meta, Struct

from dios import limits
from dios.errors import InvalidError, LimitError, NotPermittedError
from dios.ids import Name
from dios.wire.fields import NameBytes, User
from dios.wire.nametext import fingerprint
from dios.wire.types import Permission

PREFIX: Final = "diostoken1"
RIGHTS: Final = Permission.READ | Permission.WRITE
"""The rights that a token can have."""

_RECORD: Final = b"dios record of a token\0"
_SEAL: Final = b"dios seal of a token\0"
_CAVEAT: Final = b"dios caveat of a token\0"
_CHECK_BYTES: Final = 4
_GRANT_TEXT_MAX: Final = 128

_Cluster = Annotated[bytes, Meta(min_length=limits.DIGEST_BYTES, max_length=limits.DIGEST_BYTES)]
_HolderCluster = Annotated[bytes, Meta(max_length=limits.DIGEST_BYTES)]
_Holder = Annotated[str, Meta(pattern=r"\A(uid:(0|[1-9][0-9]{0,9}))?\Z", max_length=14)]
_Rights = Annotated[int, Meta(ge=0, le=int(RIGHTS))]
_Moment = Annotated[int, Meta(ge=1, le=2**63 - 1)]
_Path = Annotated[str, Meta(min_length=1, max_length=limits.SEALED_TOKEN_PATH_CHARS_MAX)]


# -- the parts of a token ---------------------------------------------------------------------------
class TokenGrant(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The first part of a token: the issuer's right to a group, as far as the token gives it away."""

    cluster: _Cluster
    """The SHA-256 of the certificate of the issuing cluster's authority."""
    group: NameBytes
    catalogue: NameBytes
    nonce: NameBytes
    issuer: User
    rights: _Rights
    expires_ns: _Moment
    alias: Annotated[str, Meta(max_length=_GRANT_TEXT_MAX)] = ""
    """The issuer's alias of the group, for people."""

    def __repr__(self) -> str:
        """Return a text without the names, which are secret."""
        return f"<grant of {self.alias} by {self.issuer}>"


class OnlyRights(Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag=1):
    """The caveat that only these rights remain."""

    rights: _Rights


class OnlyUntil(Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag=2):
    """The caveat that the token ends at this moment, by the clock of the issuing cluster."""

    expires_ns: _Moment


class OnlyHolder(Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag=3):
    """The caveat that only a certain cluster, or only a certain user of it, may use the token.

    ``cluster`` is the digest of the root of a foreign cluster, and empty for the issuing cluster itself.
    """

    cluster: _HolderCluster
    user: _Holder = ""


class OnlyPath(Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag=4):
    """The caveat that the token is for one file of the group, or for the files below one directory."""

    path: _Path


Caveat: TypeAlias = OnlyRights | OnlyUntil | OnlyHolder | OnlyPath


class SealedToken(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A grant with caveats, and the seal of all of it. It is a secret, because its possession suffices."""

    grant: TokenGrant
    caveats: Annotated[tuple[Caveat, ...], Meta(max_length=limits.SEALED_TOKEN_CAVEATS_MAX)]
    seal: NameBytes

    def __repr__(self) -> str:
        """Return a text without names and seal, which are secret."""
        return f"<token {token_mark(self.grant)}: {self.grant!r}, {len(self.caveats)} caveats>"


class TokenHolder(NamedTuple):
    """The user who presents a token; ``cluster`` is empty for the issuing cluster, else a foreign one."""

    cluster: bytes
    user: str


class TokenTerms(NamedTuple):
    """The remaining right of a token for one holder."""

    rights: Permission
    expires_ns: int
    paths: tuple[str, ...]
    """A file must be one of each of these paths, or below it."""

    def admits(self, path: str) -> bool:
        """Return True if the token is for the file at this path of the group."""
        return all(path == prefix or path.startswith(f"{prefix}/") for prefix in self.paths)


_encode: Final = msgspec.msgpack.Encoder().encode
_decode: Final = msgspec.msgpack.Decoder(SealedToken).decode
_decode_grant: Final = msgspec.msgpack.Decoder(TokenGrant).decode


# -- sealing ----------------------------------------------------------------------------------------
def record_name(secret: bytes, grant: TokenGrant) -> Name:
    """Return the name of the record of a grant, which only a node with the cluster's secret can derive."""
    return Name(blake3(_RECORD + _encode(grant), key=secret).digest())


def seal_grant(record: bytes, grant: TokenGrant) -> SealedToken:
    """Return the token of a grant whose record has this name, without caveats."""
    return SealedToken(grant, (), _first_seal(record))


def attenuate(token: SealedToken, *caveats: Caveat) -> SealedToken:
    """Return a token with further caveats. Raise LimitError if it would be too long."""
    if len(token.caveats) + len(caveats) > limits.SEALED_TOKEN_CAVEATS_MAX:
        raise LimitError(
            f"a token has at most {limits.SEALED_TOKEN_CAVEATS_MAX} caveats. Ask its issuer for another one."
        )
    narrowed = SealedToken(token.grant, (*token.caveats, *caveats), _sealed(token.seal, caveats))
    if len(_encode(narrowed)) > limits.SEALED_TOKEN_BYTES_MAX:
        raise LimitError(
            f"the token would have more than {limits.SEALED_TOKEN_BYTES_MAX} bytes. Use shorter paths."
        )
    return narrowed


def _first_seal(record: bytes) -> bytes:
    return blake3(_SEAL, key=record).digest()


def _sealed(seal: bytes, caveats: Iterable[Caveat]) -> bytes:
    for caveat in caveats:
        seal = blake3(_CAVEAT + _encode(caveat), key=seal).digest()
    return seal


# -- verifying --------------------------------------------------------------------------------------
def verify(
    secrets: Iterable[bytes], token: SealedToken, holder: TokenHolder, now_ns: int
) -> tuple[Name, TokenTerms]:
    """Return the name of a token's record, and the terms of the token at this cluster's time.

    One of the cluster's secrets must have sealed it. The caller must look for the record besides. Raise
    NotPermittedError for a token that was forged or changed, that is over, is for another holder, or has no
    right left.
    """
    for secret in secrets:
        record = record_name(secret, token.grant)
        if compare_digest(_sealed(_first_seal(record), token.caveats), token.seal):
            return record, terms_of(token, holder, now_ns)
    raise NotPermittedError(
        "the seal of the token does not match: it was changed, or another cluster issued it. Ask its "
        "giver for the whole text."
    )


def terms_of(token: SealedToken, holder: TokenHolder, now_ns: int) -> TokenTerms:
    """Return what the grant and all caveats leave to a holder; the seal is not verified here.

    Raise NotPermittedError as ``verify`` does.
    """
    rights, expires_ns, paths = Permission(token.grant.rights), token.grant.expires_ns, []
    for caveat in token.caveats:
        match caveat:
            case OnlyRights():
                rights &= Permission(caveat.rights)
            case OnlyUntil():
                expires_ns = min(expires_ns, caveat.expires_ns)
            case OnlyHolder():
                _check_holder(caveat, holder)
            case OnlyPath():
                paths.append(caveat.path)
    if expires_ns <= now_ns:
        raise NotPermittedError("the time of the token is over. Ask its giver for a new one.")
    if not rights & Permission.READ:
        raise NotPermittedError("the token gives no right to read. Ask its giver for another one.")
    return TokenTerms(rights, expires_ns, tuple(paths))


def _check_holder(caveat: OnlyHolder, holder: TokenHolder) -> None:
    if caveat.cluster != holder.cluster:
        raise NotPermittedError(
            f"the token is for {cluster_text(caveat.cluster)}, and {cluster_text(holder.cluster)} presented "
            "it. Ask its giver for one of your own."
        )
    if caveat.user not in {"", holder.user}:
        raise NotPermittedError(
            f"the token is for {caveat.user} of {cluster_text(caveat.cluster)} alone, and {holder.user} "
            "presented it. Ask its giver for one of your own."
        )


# -- text -------------------------------------------------------------------------------------------
def encode_token(token: SealedToken) -> bytes:
    """Return a token as bytes, as messages carry it."""
    return _encode(token)


def decode_token(data: bytes) -> SealedToken:
    """Return the token of these bytes. Raise InvalidError for any others, and for longer forms of a token."""
    try:
        token = _decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        # The decoder's message could repeat a part of the token.
        raise InvalidError("the token cannot be read: it is damaged, or of a later release") from None
    # MessagePack has several forms of a number or a text, and the seal is that of the shortest one.
    if _encode(token) != data:
        raise InvalidError("the token cannot be read: it was changed, or it is not in its shortest form")
    return token


def encode_grant(grant: TokenGrant) -> bytes:
    """Return a grant as bytes, as the call that issues it carries it."""
    return _encode(grant)


def decode_grant(data: bytes) -> TokenGrant:
    """Return the grant of these bytes. Raise InvalidError for any others."""
    try:
        return _decode_grant(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise InvalidError("the grant of a token cannot be read") from None


def format_token(token: SealedToken) -> str:
    """Return the text of a token."""
    body = _encode(token)
    return PREFIX + base64.urlsafe_b64encode(body + blake3(body).digest(_CHECK_BYTES)).decode().rstrip("=")


def parse_token(text: str) -> SealedToken:
    """Return the token of a text. Raise InvalidError for any other text, and for a part of one."""
    written = text.strip()
    if not written.startswith(PREFIX) or len(written) > limits.SEALED_TOKEN_TEXT_CHARS_MAX:
        raise InvalidError(f"this is no token: a token begins with {PREFIX}. `dios token issue` makes one.")
    digits = written.removeprefix(PREFIX)
    try:
        data = base64.b64decode(digits + "=" * (-len(digits) % 4), altchars=b"-_", validate=True)
    except (binascii.Error, ValueError):
        raise InvalidError("the token cannot be read: it has other characters. Copy all of it.") from None
    body, check = data[:-_CHECK_BYTES], data[-_CHECK_BYTES:]
    if not compare_digest(blake3(body).digest(_CHECK_BYTES), check):
        raise InvalidError("the checksum of the token does not match. Copy all of it.")
    return decode_token(body)


def token_mark(grant: TokenGrant) -> str:
    """Return the fingerprint that stands for all tokens of a grant in lists and logs."""
    return fingerprint(blake3(_encode(grant)).digest())


def cluster_text(cluster: bytes) -> str:
    """Return a cluster for people, by the beginning of its root's digest."""
    return f"cluster {cluster.hex()[:16]}" if cluster else "the issuing cluster"


def rights_text(rights: Permission) -> str:
    """Return the rights of a token for people."""
    words = [
        word for word, right in (("read", Permission.READ), ("write", Permission.WRITE)) if rights & right
    ]
    return " and ".join(words) or "nothing"
