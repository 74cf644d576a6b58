"""The messages of a border: between programs and their node, and between two clusters (ADR 0101).

A frame is a length of four bytes and a body, as on all connections. A program sends a call to the border of
its node. A node sends the call on, with the program's user, if another cluster issued the token. There is
nothing about members, tasks or scheduling here, and each call carries the token that it uses.
"""

from __future__ import annotations

import struct
from typing import Annotated, Final, TypeAlias, TypeVar

import msgspec
from msgspec import Meta, Struct

from dios import limits
from dios.errors import ProtocolError
from dios.wire.fields import U63, Message, Text, User

_LENGTH: Final = struct.Struct("<I")
_Token = Annotated[bytes, Meta(max_length=limits.SEALED_TOKEN_BYTES_MAX)]
_Digest = Annotated[bytes, Meta(max_length=limits.DIGEST_BYTES)]
_Code = Annotated[int, Meta(ge=1, le=65_535)]


# -- calls ------------------------------------------------------------------------------------------
class AskCluster(Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag=1):
    """Ask a node for the identity of its cluster. The answer is a ``ClusterIdentity``."""


class CheckToken(Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag=2):
    """Redeem a token without reading anything. The answer is ``CheckedToken``."""

    token: _Token


class ListFiles(Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag=3):
    """List the files of a token whose paths come after ``after``. The answer is a ``FileList``."""

    token: _Token
    after: Text = ""


class ReadFile(Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag=4):
    """Read a file. The answer is a ``FileHead``, and then its bytes in ``FilePart`` frames.

    If the file still has the digest ``known``, the answer is a ``FileHead`` without bytes.
    """

    token: _Token
    path: Text
    known: _Digest = b""


class WriteFile(Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag=5):
    """Store a file, in place of another one only with ``replace``.

    The answer is ``WriteReady``; then the caller sends the bytes in ``FilePart`` frames, and the last answer
    is a ``WrittenFile``.
    """

    token: _Token
    path: Text
    size: Annotated[int, Meta(ge=0, le=limits.BORDER_WRITE_BYTES_MAX)]
    digest: Annotated[bytes, Meta(min_length=limits.DIGEST_BYTES, max_length=limits.DIGEST_BYTES)]
    replace: bool = False


TokenCall: TypeAlias = CheckToken | ListFiles | ReadFile | WriteFile
BorderCall: TypeAlias = AskCluster | TokenCall


class ForwardedCall(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A call of a user of the sending cluster, between two clusters."""

    user: User
    call: TokenCall


# -- answers ----------------------------------------------------------------------------------------
class ClusterIdentity(Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag=1):
    """The digest of the root of the node's cluster."""

    cluster: _Digest


class CheckedToken(Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag=2):
    """The terms of a token that the issuing cluster has accepted."""

    rights: Annotated[int, Meta(ge=0, le=3)]
    expires_ns: U63
    paths: Annotated[tuple[Text, ...], Meta(max_length=limits.SEALED_TOKEN_CAVEATS_MAX)]


class FileRow(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A file of a group: path, bytes, time of its storage, and the BLAKE3 digest of its bytes if known."""

    path: Text
    size: U63
    put_ns: U63
    digest: _Digest


class FileList(Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag=3):
    """Files in the order of their paths; with ``more``, others come after the last of them."""

    files: Annotated[tuple[FileRow, ...], Meta(max_length=limits.BORDER_LIST_BYTES)]
    more: bool


class FileHead(Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag=4):
    """A file whose bytes follow, unless it is ``unchanged``."""

    file: FileRow
    unchanged: bool = False


class FilePart(Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag=5):
    """The next bytes of a file."""

    data: Annotated[bytes, Meta(min_length=1, max_length=limits.BORDER_PART_BYTES)]


class WriteReady(Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag=7):
    """The token permits the writing of the file: its bytes can come."""


class WrittenFile(Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag=8):
    """The file is stored, and visible to all readers."""

    file: FileRow


class Refusal(Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag=6):
    """The error of a call, in place of an answer or of the rest of it."""

    code: _Code
    message: Message


BorderAnswer: TypeAlias = (
    ClusterIdentity | CheckedToken | FileList | FileHead | FilePart | WriteReady | WrittenFile | Refusal
)

T = TypeVar("T")
_encode: Final = msgspec.msgpack.Encoder().encode
_calls: Final[msgspec.msgpack.Decoder[BorderCall]] = msgspec.msgpack.Decoder(BorderCall)
_forwarded: Final = msgspec.msgpack.Decoder(ForwardedCall)
_parts: Final = msgspec.msgpack.Decoder(FilePart)
_answers: Final[msgspec.msgpack.Decoder[BorderAnswer]] = msgspec.msgpack.Decoder(BorderAnswer)


def encode_frame(message: BorderCall | ForwardedCall | BorderAnswer) -> bytes:
    """Return a message with its length."""
    body = _encode(message)
    return _LENGTH.pack(len(body)) + body


def decode_call(body: bytes) -> BorderCall:
    """Return the call of a program. Raise ProtocolError for other bytes."""
    return _decoded(_calls, body)


def decode_forwarded(body: bytes) -> ForwardedCall:
    """Return the call that another cluster sent. Raise ProtocolError for other bytes."""
    return _decoded(_forwarded, body)


def decode_answer(body: bytes) -> BorderAnswer:
    """Return an answer. Raise ProtocolError for other bytes."""
    return _decoded(_answers, body)


def decode_part(body: bytes) -> FilePart:
    """Return the next bytes that a caller writes. Raise ProtocolError for other bytes."""
    return _decoded(_parts, body)


def _decoded(decoder: msgspec.msgpack.Decoder[T], body: bytes) -> T:
    try:
        return decoder.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        # The decoder's message could repeat a part of a token.
        raise ProtocolError("a message at the border cannot be read: it is malformed") from None


class AnswerCheck:
    """The order of the answers to one call, which the receiver of a foreign node's frames enforces."""

    def __init__(self, call: BorderCall) -> None:
        self._call: Final = call
        self._left: int | None = None
        self._is_ready = False
        self.is_complete = False

    def take(self, answer: BorderAnswer) -> None:
        """Accept the next answer. Raise ProtocolError for one that the call does not have at this place."""
        match answer:
            case Refusal():
                self.is_complete = True
            case FilePart() if self._left is not None and len(answer.data) <= self._left:
                self._left -= len(answer.data)
                self.is_complete = not self._left
            case FileHead() if isinstance(self._call, ReadFile) and self._left is None:
                self._left = 0 if answer.unchanged else answer.file.size
                self.is_complete = not self._left
            case WriteReady() if isinstance(self._call, WriteFile) and not self._is_ready:
                self._is_ready = True
            case WrittenFile() if self._is_ready:
                self.is_complete = True
            case CheckedToken() if isinstance(self._call, CheckToken):
                self.is_complete = True
            case FileList() if isinstance(self._call, ListFiles):
                self.is_complete = True
            case ClusterIdentity() if isinstance(self._call, AskCluster):
                self.is_complete = True
            case _:
                raise ProtocolError("the border sent an answer that the call does not have")
