"""Packs: stored files of many chunks, so that many small files make few large ones.

A pack is a magic number and encrypted chunks, which are compressed before in backups of version 2. Its name
is the salt of its key: a pack that is stored under the name of another one cannot be decrypted. The lists of
files say where each chunk is.
"""

from __future__ import annotations

import re
import secrets
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate
from typing import Annotated, Final, NamedTuple

import msgspec

from dios import limits
from dios.lib.packs import compression
from dios.lib.packs.failures import DamagedBackupError
from dios.lib.packs.sealing import SALT_BYTES, TAG_BYTES, DataKey
from dios.lib.packs.targets import Target

CHUNK_BYTES: Final = 4 * limits.MIB
"""The size of the chunks of a file; the last one is shorter."""
PACK_BYTES: Final = 16 * limits.MIB
"""A pack is stored when it has this size."""
LIST_BYTES_MAX: Final = 2 * limits.GIB
PACKS: Final = "packs"
PACK_BYTES_MAX: Final = PACK_BYTES + CHUNK_BYTES + limits.KIB
PACK_MAGIC: Final = b"DIOSBKP1"
PACK_MAGIC_COMPRESSED: Final = b"DIOSBKP2"
_PACK_FILE: Final = re.compile(r"[0-9a-f]{64}")
_PACKS_KEPT: Final = 3
_LENGTH_BYTES: Final = 4
"""The length of a sealed chunk, before it in a pack whose chunks are compressed."""


class ChunkPlace(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A chunk: its keyed digest, the number of its pack in a list of packs, its offset there and its size."""

    digest: Annotated[bytes, msgspec.Meta(min_length=32, max_length=32)]
    pack: Annotated[int, msgspec.Meta(ge=0)]
    offset: Annotated[int, msgspec.Meta(ge=0)]
    size: Annotated[int, msgspec.Meta(ge=0, le=CHUNK_BYTES)]


class StoredChunk(NamedTuple):
    """A chunk with the id of its pack."""

    digest: bytes
    pack: bytes
    offset: int
    size: int


def pack_path(pack: bytes) -> str:
    """Return the place of a pack."""
    return f"{PACKS}/{pack.hex()}"


def pack_ids(target: Target) -> set[bytes]:
    """Return the packs in a target."""
    return {bytes.fromhex(name) for name in target.names(PACKS) if _PACK_FILE.fullmatch(name)}


class PackNumbers:
    """The list of the packs that a record names, while the record is made."""

    def __init__(self) -> None:
        self._numbers: Final[dict[bytes, int]] = {}

    def places(self, chunks: Iterable[StoredChunk]) -> tuple[ChunkPlace, ...]:
        """Return chunks with the numbers of their packs."""
        number = self._numbers
        return tuple(
            ChunkPlace(chunk.digest, number.setdefault(chunk.pack, len(number)), chunk.offset, chunk.size)
            for chunk in chunks
        )

    @property
    def packs(self) -> tuple[bytes, ...]:
        """Return the packs by number."""
        return tuple(self._numbers)


def stored_chunks(packs: Sequence[bytes], places: Iterable[ChunkPlace]) -> list[StoredChunk]:
    """Return the chunks of a record with the ids of their packs."""
    return [StoredChunk(place.digest, packs[place.pack], place.offset, place.size) for place in places]


class PackWriter:
    """Stores chunks that are not ``known`` yet, in packs. ``flush`` stores the last pack.

    ``stored`` gets the chunks of each pack when it is stored. ``compress`` is for backups of version 2.
    """

    def __init__(
        self,
        target: Target,
        key: DataKey,
        known: dict[bytes, StoredChunk],
        *,
        compress: bool = False,
        salt: Callable[[int], bytes] = secrets.token_bytes,
        stored: Callable[[list[StoredChunk]], object] = lambda _: None,
    ) -> None:
        self._target: Final = target
        self._key: Final = key
        self._known: Final = known
        self._compress: Final = compress
        self._salt: Final = salt
        self._stored: Final = stored
        self._chunks: list[StoredChunk] = []
        self._pack = b""
        self._parts: list[bytes] = []
        self._size = 0
        self.stored_bytes = 0
        """The size of all packs that were stored."""

    def add(self, data: bytes) -> StoredChunk:
        """Store a chunk of at most CHUNK_BYTES, unless its bytes are stored already; return its place."""
        digest = self._key.digest(data)
        known = self._known.get(digest)
        if known is not None:
            return known
        if not self._parts:
            magic = PACK_MAGIC_COMPRESSED if self._compress else PACK_MAGIC
            self._pack, self._parts, self._size = self._salt(SALT_BYTES), [magic], len(magic)
        offset = self._size
        payload = compression.packed(data) if self._compress else data
        sealed = self._key.seal_chunk(self._pack, offset, digest, payload)
        if self._compress:
            sealed = len(sealed).to_bytes(_LENGTH_BYTES, "big") + sealed
        self._parts.append(sealed)
        self._size += len(sealed)
        chunk = self._known[digest] = StoredChunk(digest, self._pack, offset, len(data))
        self._chunks.append(chunk)
        if self._size >= PACK_BYTES:
            self.flush()
        return chunk

    def add_all(self, data: bytes) -> list[StoredChunk]:
        """Store bytes of any size, in chunks."""
        return [self.add(data[start : start + CHUNK_BYTES]) for start in range(0, len(data), CHUNK_BYTES)]

    def flush(self) -> None:
        """Store the chunks that are not stored yet."""
        if self._parts:
            self._target.write(pack_path(self._pack), b"".join(self._parts))
            self.stored_bytes += self._size
            self._stored(self._chunks)
            self._parts, self._chunks = [], []


class PackReader:
    """Reads chunks, and keeps the last few packs: chunks that were stored together are read together."""

    def __init__(self, target: Target, key: DataKey) -> None:
        self._target: Final = target
        self._key: Final = key
        self._packs: Final[OrderedDict[bytes, bytes]] = OrderedDict()

    def read(self, chunk: StoredChunk) -> bytes:
        """Return the bytes of a chunk. Raises DamagedBackupError if they are not those that were stored."""
        pack = self._packs.get(chunk.pack)
        if pack is None:
            pack = self._read_pack(chunk.pack)
            self._packs[chunk.pack] = pack
            if len(self._packs) > _PACKS_KEPT:
                self._packs.popitem(last=False)
        else:
            self._packs.move_to_end(chunk.pack)
        key, at = self._key, chunk.offset
        if not pack.startswith(PACK_MAGIC_COMPRESSED):
            sealed = memoryview(pack)[at : at + chunk.size + TAG_BYTES]
            return key.open_chunk(chunk.pack, at, chunk.digest, sealed)
        length = int.from_bytes(pack[at : at + _LENGTH_BYTES], "big")
        sealed = memoryview(pack)[at + _LENGTH_BYTES : at + _LENGTH_BYTES + length]
        if len(sealed) != length:
            raise DamagedBackupError(f"pack {chunk.pack.hex()[:12]} was cut since it was stored")
        return key.open_chunk(
            chunk.pack, at, chunk.digest, sealed, lambda payload: compression.unpacked(payload, chunk.size)
        )

    def has(self, pack: bytes) -> bool:
        """Return True if the pack is in memory."""
        return pack in self._packs

    def read_all(self, chunks: Iterable[StoredChunk]) -> bytes:
        """Return the bytes of several chunks."""
        return b"".join(self.read(chunk) for chunk in chunks)

    def _read_pack(self, pack: bytes) -> bytes:
        try:
            data = self._target.read(pack_path(pack), PACK_BYTES_MAX)
        except FileNotFoundError:
            raise DamagedBackupError(f"pack {pack.hex()[:12]} is missing in {self._target.place}") from None
        if not data.startswith((PACK_MAGIC, PACK_MAGIC_COMPRESSED)):
            raise DamagedBackupError(
                f"pack {pack.hex()[:12]} was changed, replaced or cut since it was stored"
            )
        return data


class ChunkSource:
    """The bytes of a file in a store, as a source of the files of a group."""

    def __init__(self, reader: PackReader, chunks: list[StoredChunk]) -> None:
        self._reader: Final = reader
        self._chunks: Final = chunks
        self._ends: Final = list(accumulate(chunk.size for chunk in chunks))

    def chunks(self, offset: int, size: int) -> Iterator[memoryview]:
        """Yield the bytes of a range, a chunk at a time."""
        at, end = offset, offset + size
        for number in range(bisect_right(self._ends, offset), len(self._chunks)):
            if at >= end:
                return
            first = self._ends[number] - self._chunks[number].size
            piece = memoryview(self._reader.read(self._chunks[number]))[at - first : end - first]
            yield piece
            at += piece.nbytes
