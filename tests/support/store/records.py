"""Records and contents for tests of the store.

Not for: asserting anything.
"""

from __future__ import annotations

import os
from pathlib import Path

from dios.core.events import ObjectRecord
from dios.ids import Name, ObjectId, Principal
from dios.store.protocol import ExtentContent, InlineContent, InlinePayload, Put, Store
from dios.wire.types import Buffering, Deletion, ObjectType


def record(number: int, *, size: int = 0, v_w: int = 1) -> ObjectRecord:
    """A record of a durable blob whose name belongs to its number."""
    return ObjectRecord(
        object=ObjectId(number),
        name=Name(number.to_bytes(32, "little")),
        type=ObjectType.DURABLE_BLOB,
        groups=(Name(b"g" * 32),),
        owner=Principal("uid:1000"),
        deletion=Deletion.IMMORTAL,
        buffering=Buffering.DOUBLE,
        size=size,
        v_r=0,
        v_w=v_w,
    )


def put(number: int, data: bytes, *, v_w: int = 1) -> Put:
    """A Put of a record with its content."""
    return Put(record(number, size=len(data), v_w=v_w), InlinePayload(data))


def content(store: Store, number: int) -> bytes:
    """The whole content of an object; closes what it opens."""
    stored = store.open_content(ObjectId(number))
    if isinstance(stored, InlineContent):
        return stored.data
    try:
        return os.pread(stored.fd, stored.size + 1, 0)
    finally:
        os.close(stored.fd)


def extent(store: Store, number: int) -> ExtentContent:
    """The content of an object that must be large; the caller closes it."""
    stored = store.open_content(ObjectId(number))
    assert isinstance(stored, ExtentContent)
    return stored


def descriptors() -> list[str]:
    """The open descriptors of this process, and the files behind them."""
    # Listing them opens one more, which is gone when its link is read.
    folder = Path("/proc/self/fd")
    return sorted(f"{path.name} {path.readlink()}" for path in folder.iterdir() if path.is_symlink())
