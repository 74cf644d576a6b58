"""The base of the rows that commands print: their type is the schema of ``--json``."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from pathlib import PurePath
from typing import TYPE_CHECKING

import msgspec
from msgspec.structs import fields

if TYPE_CHECKING:
    from typing import Self


class Row(msgspec.Struct):
    """A result of a command, or a part of it. A field without a value (UNSET) is not in the JSON."""

    @classmethod
    def of(cls, source: object, **values: object) -> Self:
        """Return a row with these values, whose other fields are attributes of ``source``.

        A member of an enumeration becomes its name in small letters, and a path becomes text.
        """
        filled = {
            field.encode_name: values[field.name] if field.name in values else getattr(source, field.name)
            for field in fields(cls)
            if field.name in values or hasattr(source, field.name)
        }
        return msgspec.convert(_plain(filled), cls)


def _plain(value: object) -> object:
    if isinstance(value, Enum):
        return value.name.lower()
    if isinstance(value, Mapping):
        return {_plain(key): _plain(content) for key, content in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(content) for content in value]
    return str(value) if isinstance(value, PurePath) else value
