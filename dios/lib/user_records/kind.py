"""A kind of records that all nodes keep for a user: their special name, stored form, and merge."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Generic, TypeVar

from dios.wire.types import Flag

S = TypeVar("S")


@dataclass(frozen=True, slots=True)
class RecordKind(Generic[S]):
    """The records of a user of one kind. ``S`` is their content in memory; no bytes are the empty content.

    ``merge`` unites copies that differ; the order and the number of copies make no difference to its result.
    """

    special_name: bytes
    flag: Flag
    decode: Callable[[bytes], S]
    encode: Callable[[S], bytes]
    merge: Callable[[Iterable[S]], S]
