"""The store of the tiered files of one group: encrypted packs as in a backup, and a configuration.

The catalogue of the group has the digest of each file's list of chunks, and the list those of the chunks. So
the store cannot replace anything. A machine uses only stores that its user opened: a catalogue can be written
by every member of a group, and must not send others to any URL.

The names of a file's packs follow from a random mark, so that they can be removed without the key, also after
a run that broke off. A mark is used for one attempt to store one file, so no pack is ever written twice under
a name.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import count
from typing import Final, NoReturn

import msgspec
from blake3 import blake3

from dios import limits
from dios.client.sync.node import Group
from dios.errors import InvalidError
from dios.lib.catalogue import CatalogueEntry
from dios.lib.packs.chunks import (
    CHUNK_BYTES,
    LIST_BYTES_MAX,
    PACK_BYTES,
    ChunkPlace,
    PackNumbers,
    PackReader,
    PackWriter,
    StoredChunk,
    pack_ids,
    pack_path,
    stored_chunks,
)
from dios.lib.packs.configuration import TIER, StoreConfig, new_key, read_config, write_config
from dios.lib.packs.failures import DamagedBackupError
from dios.lib.packs.keys import PrivateKey, Recipient, unwrap
from dios.lib.packs.sealing import SALT_BYTES, DataKey
from dios.lib.packs.targets import Target, open_target
from dios.lib.packs.writer_state import StateFile, WriterState

_MARK_BYTES: Final = 32
_CONTEXT: Final = "dios tier 1 pack"
_NUMBER_BYTES: Final = 8
_FIXED_BYTES: Final = 1 * limits.MIB
_FILE_BYTES_MAX: Final = limits.BLOB_BYTES_MAX * limits.FILE_PARTS_MAX
_OVERHEAD: Final = 4096
"""Heads, tags and the manifest add less than one byte for each 4,096, and 1 MiB for the ends of parts."""


class _Manifest(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A list of chunks, and the packs that they name by their number."""

    packs: tuple[bytes, ...]
    chunks: tuple[ChunkPlace, ...]


# -- the names of packs -----------------------------------------------------------------------------
def new_mark() -> bytes:
    """Return a mark for one attempt to store a file."""
    return secrets.token_bytes(_MARK_BYTES)


def pack_of(mark: bytes, number: int) -> bytes:
    """Return the id of the pack of a file with this number, from 0 on."""
    hashed = blake3(mark + number.to_bytes(_NUMBER_BYTES, "big"), derive_key_context=_CONTEXT)
    return hashed.digest(SALT_BYTES)


def packs_of(mark: bytes, size: int) -> list[bytes]:
    """Return the ids of all packs that a file of ``size`` bytes can have; some of them may not exist."""
    size = min(size, _FILE_BYTES_MAX)
    stored = size + size // _OVERHEAD + _FIXED_BYTES
    return [pack_of(mark, number) for number in range(stored // PACK_BYTES + 2)]


# -- a store ----------------------------------------------------------------------------------------
class TierStore:
    """A store that can be written and read."""

    def __init__(self, target: Target, key: DataKey, *, compress: bool, group: str) -> None:
        self._target: Final = target
        self._key: Final = key
        self._compress: Final = compress
        self._group: Final = group

    @property
    def place(self) -> str:
        """The URL without user and password, as catalogues have it."""
        return self._target.place

    def require_group(self, group: Group) -> None:
        """Raise InvalidError if the store has the files of another group."""
        if not secrets.compare_digest(self._group.encode(), _group_mark(self._key, group).encode()):
            raise InvalidError(
                f"{self.place} has the tiered files of another group. Give each group a store of its own, "
                "such as another folder of the same bucket. Nothing was changed."
            )

    def require_present(self) -> None:
        """Raise DamagedBackupError if the store was removed or replaced since it was opened."""
        _require_config(self._target, self._key.repository)

    def put(self, mark: bytes, pieces: Iterable[memoryview]) -> bytes:
        """Store the bytes of a file under a new mark, and return the manifest for its entry."""
        numbers = count()
        writer = PackWriter(
            self._target,
            self._key,
            {},
            compress=self._compress,
            salt=lambda size: pack_of(mark, next(numbers))[:size],
        )
        stored = [
            writer.add(bytes(piece[start : start + CHUNK_BYTES]))
            for piece in pieces
            for start in range(0, piece.nbytes, CHUNK_BYTES)
        ]
        own = writer.add_all(_encoded(stored))
        writer.flush()
        return _encoded(own)

    def chunks(self, entry: CatalogueEntry) -> tuple[PackReader, list[StoredChunk]]:
        """Return a reader, and the chunks of a tiered file in their order. Raises DamagedBackupError."""
        reader = PackReader(self._target, self._key)
        own = _decoded(entry.tier.manifest if entry.tier else b"", entry.file)
        if sum(chunk.size for chunk in own) > LIST_BYTES_MAX:
            raise DamagedBackupError(f"the list of chunks of {entry.file} is too long")
        chunks = _decoded(reader.read_all(own), entry.file)
        if sum(chunk.size for chunk in chunks) != entry.size:
            raise DamagedBackupError(f"{entry.file} has another size than its chunks")
        return reader, chunks

    def remove(self, mark: bytes, size: int) -> None:
        """Remove whatever is stored under a mark."""
        for pack in packs_of(mark, size):
            self.remove_pack(pack)

    def packs(self) -> set[bytes]:
        """Return the ids of all packs that the store has."""
        return pack_ids(self._target)

    def remove_pack(self, pack: bytes) -> None:
        """Remove one pack."""
        with suppress(FileNotFoundError):
            self._target.remove(pack_path(pack))


def _encoded(chunks: Iterable[StoredChunk]) -> bytes:
    numbers = PackNumbers()
    places = numbers.places(chunks)
    return msgspec.msgpack.encode(_Manifest(numbers.packs, places))


def _decoded(data: bytes, file: str) -> list[StoredChunk]:
    try:
        manifest = msgspec.msgpack.decode(data, type=_Manifest)
        return stored_chunks(manifest.packs, manifest.chunks)
    except (msgspec.DecodeError, IndexError, RecursionError, ValueError) as error:
        raise DamagedBackupError(f"the list of chunks of {file} cannot be read: {error}") from None


def _group_mark(key: DataKey, group: Group) -> str:
    return key.digest(b"dios tier 1 group" + group.fingerprint.encode()).hex()


# -- opening ----------------------------------------------------------------------------------------
def begin_store(url: str, recipient: Recipient | None, group: Group) -> TierStore:
    """Return the store of a group at a URL, which is begun for ``recipient`` if there is none.

    Raises InvalidError if there is none and no recipient, if this machine has no key for it, or if it
    belongs to another group; TargetError and OSError.
    """
    target = open_target(url)
    config = read_config(target, TIER)
    if config is None:
        with StateFile(target.place).locked():
            _begin(target, recipient, group)
    elif recipient is not None and recipient.public != config.recipient:
        raise InvalidError(
            f"the store in {target.place} is for another recipient. Leave --recipient out, or choose another "
            "place."
        )
    return known_store(target.place, group)


def _begin(target: Target, recipient: Recipient | None, group: Group) -> None:
    state = StateFile(target.place)
    if state.load() is not None:
        raise DamagedBackupError(
            f"{target.place} has no file config, but this machine has a key for a store there: its files "
            f"were removed, or it is not mounted. If it is gone for good, remove {state.path} first."
        )
    if recipient is None:
        raise InvalidError(
            f"there is no store of tiered files in {target.place} yet. Begin it with --recipient FILE; `dios "
            "backup keygen` makes the file."
        )
    key = new_key()
    # First, so that no store is begun whose key this machine does not have.
    state.save(WriterState(key.repository, key.key))
    try:
        write_config(target, TIER, key, recipient, _group_mark(key, group))
    except BaseException:
        state.path.unlink(missing_ok=True)
        raise


def open_store(url: str, key: PrivateKey) -> TierStore:
    """Let this machine use a store that another one began: its key is kept.

    Raises InvalidError, DamagedBackupError if the key is another one's, TargetError and OSError.
    """
    target = open_target(url)
    config = read_config(target, TIER)
    if config is None:
        raise InvalidError(f"there is no store of tiered files in {target.place}. Check the URL.")
    data_key = unwrap(config.wrapped, key, config.repository)
    StateFile(target.place).save(WriterState(config.repository, data_key))
    return _known_store(target.place)


def known_store(place: str, group: Group) -> TierStore:
    """Return the store of a group that this user's machine began or opened.

    Raises InvalidError for any other one, DamagedBackupError, TargetError and OSError.
    """
    store = _known_store(place)
    store.require_group(group)
    return store


def _known_store(place: str) -> TierStore:
    state = StateFile(place).load()
    if state is None:
        raise InvalidError(
            f"the bytes are in {place}, and this machine has no key for that store. Run `dios tier open "
            f"{place} --key FILE` with the private key of its recipient, or read the file on the machine "
            "that tiered it. Nothing was changed."
        )
    target = open_target(place)
    config = _require_config(target, state.repository)
    return TierStore(
        target, DataKey(state.key, state.repository), compress=config.compress, group=config.group
    )


def _require_config(target: Target, repository: bytes) -> StoreConfig:
    """Return the configuration of a store; DamagedBackupError if it is gone or that of another store."""
    config = read_config(target, TIER)
    if config is None:
        raise DamagedBackupError(
            f"{target.place} has no file config: the store of tiered files was removed, or is not mounted. "
            "Nothing was changed. If the store is gone for good, `dios tier forget FILE` gives the file up."
        )
    if config.repository != repository:
        raise DamagedBackupError(
            f"{target.place} has another store of tiered files than this machine knows there"
        )
    return config


# -- the bytes of files -----------------------------------------------------------------------------
def stored_pieces(group: Group, entry: CatalogueEntry) -> Iterator[memoryview]:
    """Yield the bytes of a tiered file, which stays tiered. Raises DamagedBackupError, at the end, too.

    Raises InvalidError if this machine does not know the store; TargetError and OSError.
    """
    place = entry.tier.place if entry.tier else ""
    reader, chunks = known_store(place, group).chunks(entry)
    whole = blake3()
    for chunk in chunks:
        data = reader.read(chunk)
        whole.update(data)
        yield memoryview(data)
    if whole.digest() != entry.digest:
        refuse_bytes(entry)


def refuse_bytes(entry: CatalogueEntry) -> NoReturn:
    """Raise the error of a tiered file whose store has other bytes."""
    raise DamagedBackupError(
        f"the bytes of {entry.file} in {entry.tier.place if entry.tier else ''} are not those that were put. "
        "The file stays tiered. Restore it from a backup."
    )


def known_stores(group: Group, entries: Iterable[CatalogueEntry]) -> dict[str, TierStore]:
    """Return the stores of these files by place. Raises InvalidError if this machine does not know one."""
    places = {entry.tier.place for entry in entries if entry.tier is not None}
    return {place: known_store(place, group) for place in places}


def remove_bytes(group: Group, entries: Iterable[CatalogueEntry]) -> None:
    """Remove what the stores have of these files, which are to be removed, too.

    Raises InvalidError, before anything is removed, if this machine does not know one of the stores;
    TargetError and OSError.
    """
    entries = tuple(entries)
    stores = known_stores(group, entries)
    for entry in entries:
        if entry.tier is not None:
            stores[entry.tier.place].remove(entry.tier.mark, entry.size)
