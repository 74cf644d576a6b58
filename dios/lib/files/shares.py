"""The content of the record of a share, for its issuer: the node itself reads the record's name alone."""

from __future__ import annotations

from typing import Annotated, Final

import msgspec

from dios.lib.decoding import decoded
from dios.limits import TEXT_BYTES_MAX

SHARE_ALIAS: Final = "share/"
"""The beginning of the aliases under which the keyring has the names of records."""

_Text = Annotated[str, msgspec.Meta(max_length=TEXT_BYTES_MAX)]
_Time = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]


class Share(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A share of a group: the alias of the group, the reader, the end, and the time of the share."""

    alias: _Text
    reader: _Text
    expires_ns: _Time
    shared_ns: _Time


encode_share: Final = msgspec.msgpack.Encoder().encode
_decode: Final = msgspec.msgpack.Decoder(Share).decode


def decode_share(data: bytes) -> Share:
    """Return the content of a record. Raises DamagedError for any other bytes."""
    return decoded(_decode, data, "the record of a share cannot be read")
