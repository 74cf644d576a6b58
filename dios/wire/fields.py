"""The types of the fields of calls, and the base class of calls."""

from __future__ import annotations

from typing import Annotated, TypeAlias

from msgspec import Meta, Struct

from dios import limits

U64: TypeAlias = Annotated[int, Meta(ge=0, le=2**63 - 1)]
NameBytes: TypeAlias = Annotated[bytes, Meta(min_length=limits.NAME_BYTES, max_length=limits.NAME_BYTES)]
Text: TypeAlias = Annotated[str, Meta(max_length=limits.TEXT_BYTES_MAX)]
Inline: TypeAlias = Annotated[bytes, Meta(max_length=limits.INLINE_BYTES_MAX)]
Groups: TypeAlias = Annotated[tuple[U64, ...], Meta(max_length=limits.GROUPS_PER_CALL_MAX)]
Arguments: TypeAlias = Annotated[tuple[Text, ...], Meta(max_length=limits.ARGUMENTS_MAX)]


class Call(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The base class of every call of a task to its node."""
