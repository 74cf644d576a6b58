"""Large bytes of executors in DIOS blobs: written once, sealed by the commit, and mapped by their readers.

The committed memory of a blob never changes, so a mapping of it stays as it is whatever happens to the blob.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Sequence
from typing import Final, TypeAlias, cast

from dios.client.session import expect_buffer
from dios.client.sync.connection import Connection
from dios.client.sync.node import Node, Reference
from dios.errors import DamagedError, OutOfMemoryError
from dios.transport.memory.mapping import map_memory
from dios.wire import messages
from dios.wire.types import AcquireIov, NameKind, ObjectType, Semantics

Part: TypeAlias = "bytes | memoryview"

BUFFER_BYTES_MIN: Final = 64 * 1024
"""Smaller buffers of a call travel in its message."""

ALIGNMENT: Final = 64
"""The place of each part in a blob is a multiple of this, as libraries for arrays like it."""

_libc: Final = ctypes.CDLL(None, use_errno=True)
_libc.memcmp.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)


def aligned(place: int) -> int:
    """Return the next place at which a part may begin."""
    return -(-place // ALIGNMENT) * ALIGNMENT


def create_blob(node: Node, parts: Sequence[Part], *, host: str = "") -> Reference:
    """Create an anonymous blob of some parts, each at an aligned place, and return a reference to it.

    Raises LimitError or OutOfMemoryError if there is no room.
    """
    blob = blank_blob(node, host=host)
    try:
        write_parts(blob, parts)
    except BaseException:
        blob.close()
        raise
    return blob


def blank_blob(node: Node, *, host: str = "") -> Reference:
    """Create an anonymous blob without bytes."""
    return node.create(ObjectType.SHMEM_BLOB, naming=NameKind.ANONYMOUS, host=host)


def write_parts(blob: Reference, parts: Sequence[Part]) -> None:
    """Make the parts, each at an aligned place, the content of a blob."""
    places = []
    end = 0
    for part in parts:
        places.append(aligned(end))
        end = places[-1] + len(part)
    request = blob.write(end, Semantics.ANY, blank=True, replace=True)
    try:
        for place, part in zip(places, parts, strict=True):
            request.fill(memoryview(part), place)
        request.finish(end)
    except BaseException:
        request.release()
        raise


def map_blob(blob: Reference, *, private: bool) -> memoryview:
    """Return the present bytes of a blob, which stay when the blob changes or ends.

    They are read-only, or with ``private`` writable: what is written belongs to this process alone. Raises
    OutOfMemoryError if they cannot be mapped.
    """
    connection = cast("Connection", blob.link)
    call = messages.AcquireRead(blob.ref, 0, 0, Semantics.ANY, AcquireIov.CREATE, 0)
    result, fd = expect_buffer(connection.call(call))
    try:
        if fd is None:
            data = bytearray(result.data or b"")
            return memoryview(data) if private else memoryview(data).toreadonly()
        return _mapped(fd, result.start, result.size, private=private)
    finally:
        if fd is not None:
            os.close(fd)
        if result.buffer:
            connection.call(messages.ReleaseRead(blob.ref, result.buffer))


def _mapped(fd: int, start: int, size: int, *, private: bool) -> memoryview:
    if not size:
        return memoryview(b"")
    if os.fstat(fd).st_size < start + size:
        raise DamagedError(f"the node's memory is shorter than the {size} bytes of the blob")
    try:
        return map_memory(fd, size, start=start, writable=private, private=private)
    except OSError as error:
        raise OutOfMemoryError(f"cannot map {size} bytes ({error.strerror}). Drop some results.") from error


def address_of(view: memoryview) -> int:
    """Return the address of the bytes of a mapping or an array; 0 if numpy, which knows it, is not loaded."""
    import sys  # noqa: PLC0415 - with the condition below

    numpy = sys.modules.get("numpy")
    if numpy is None or not view.nbytes:
        return 0
    return cast("int", numpy.frombuffer(view, numpy.uint8).ctypes.data)


def are_equal(address: int, other: int, size: int) -> bool:
    """Return True if the bytes at two addresses are equal."""
    return bool(_libc.memcmp(address, other, size) == 0)
