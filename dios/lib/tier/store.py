"""The store of the tiered files of one group: encrypted packs as in a backup, and a configuration.

The catalogue of the group has the digest of each file's list of chunks, and the list those of the chunks. So
the store cannot replace anything. A machine uses only stores that its user opened: a catalogue can be written
by every member of a group, and must not send others to any URL.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterable
from contextlib import suppress
from typing import Final

import msgspec

from dios.client.sync.node import Group
from dios.errors import InvalidError
from dios.lib.backup import compression, records
from dios.lib.backup.failures import DamagedBackupError
from dios.lib.backup.keys import KEY_BYTES, PrivateKey, Recipient, WrappedKey, unwrap, wrap
from dios.lib.backup.packs import PackNumbers, PackReader, PackWriter, StoredChunk, stored_chunks
from dios.lib.backup.records import CHUNK_BYTES, ChunkPlace
from dios.lib.backup.sealing import DataKey
from dios.lib.backup.targets import Target, open_target
from dios.lib.backup.writer_state import StateFile, WriterState
from dios.lib.catalogue import CatalogueEntry
from dios.lib.tier.marks import PackNames, packs_of

_FORMAT: Final = "DIOS tier"
_VERSIONS: Final = frozenset({records.FORMAT_VERSION, records.COMPRESSED_VERSION})


class _Manifest(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A list of chunks, and the packs that they name by their number."""

    packs: tuple[bytes, ...]
    chunks: tuple[ChunkPlace, ...]


class _Config(msgspec.Struct, frozen=True):
    """The only plain file of a store. ``group`` is a keyed digest, which says nothing without the key."""

    format: str
    version: int
    repository: str
    recipient: str
    ephemeral: str
    sealed: str
    group: str


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
        if not secrets.compare_digest(self._group, _group_mark(self._key, group)):
            raise InvalidError(
                f"{self.place} has the tiered files of another group. Give each group a store of its own, "
                "such as another folder of the same bucket. Nothing was changed."
            )

    def require_present(self) -> None:
        """Raise DamagedBackupError if the store was removed or replaced since it was opened."""
        _require_config(self._target, self._key.repository)

    def put(self, mark: bytes, pieces: Iterable[memoryview]) -> bytes:
        """Store the bytes of a file under a new mark, and return the manifest for its entry."""
        writer = PackWriter(self._target, self._key, {}, compress=self._compress, salt=PackNames(mark))
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
        if sum(chunk.size for chunk in own) > records.LIST_BYTES_MAX:
            raise DamagedBackupError(f"the list of chunks of {entry.file} is too long")
        chunks = _decoded(reader.read_all(own), entry.file)
        if sum(chunk.size for chunk in chunks) != entry.size:
            raise DamagedBackupError(f"{entry.file} has another size than its chunks")
        return reader, chunks

    def remove(self, mark: bytes, size: int) -> None:
        """Remove whatever is stored under a mark."""
        for pack in packs_of(mark, size):
            with suppress(FileNotFoundError):
                self._target.remove(records.pack_path(pack))

    def packs(self) -> set[bytes]:
        """Return the ids of all packs that the store has."""
        return records.pack_ids(self._target.names(records.PACKS))

    def remove_pack(self, pack: bytes) -> None:
        """Remove one pack."""
        with suppress(FileNotFoundError):
            self._target.remove(records.pack_path(pack))


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
    config = _read_config(target)
    if config is None:
        with StateFile(target.place).locked():
            _begin(target, recipient, group)
    elif recipient is not None and recipient.public.hex() != config.recipient:
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
    compress = compression.is_installed()
    key = DataKey(secrets.token_bytes(KEY_BYTES), secrets.token_bytes(records.REPOSITORY_BYTES))
    wrapped = wrap(key.key, recipient, key.repository)
    config = _Config(
        _FORMAT,
        records.COMPRESSED_VERSION if compress else records.FORMAT_VERSION,
        key.repository.hex(),
        recipient.public.hex(),
        wrapped.ephemeral.hex(),
        wrapped.sealed.hex(),
        _group_mark(key, group),
    )
    # First, so that no store is begun whose key this machine does not have.
    state.save(WriterState(key.repository, key.key))
    try:
        told = {**msgspec.structs.asdict(config), "read": "docs/backup.md#tiering"}
        target.write(records.CONFIG_PATH, (json.dumps(told, indent=2) + "\n").encode())
    except BaseException:
        state.path.unlink(missing_ok=True)
        raise


def open_store(url: str, key: PrivateKey) -> TierStore:
    """Let this machine use a store that another one began: its key is kept.

    Raises InvalidError, DamagedBackupError if the key is another one's, TargetError and OSError.
    """
    target = open_target(url)
    config = _read_config(target)
    if config is None:
        raise InvalidError(f"there is no store of tiered files in {target.place}. Check the URL.")
    repository, wrapped = bytes.fromhex(config.repository), _wrapped(config)
    StateFile(target.place).save(WriterState(repository, unwrap(wrapped, key, repository)))
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
    key = DataKey(state.key, state.repository)
    compress = config.version == records.COMPRESSED_VERSION
    return TierStore(target, key, compress=compress, group=config.group)


def _require_config(target: Target, repository: bytes) -> _Config:
    """Return the configuration of a store; DamagedBackupError if it is gone or that of another store."""
    config = _read_config(target)
    if config is None:
        raise DamagedBackupError(
            f"{target.place} has no file config: the store of tiered files was removed, or is not mounted. "
            "Nothing was changed. If the store is gone for good, `dios tier forget FILE` gives the file up."
        )
    if bytes.fromhex(config.repository) != repository:
        raise DamagedBackupError(
            f"{target.place} has another store of tiered files than this machine knows there"
        )
    return config


def _wrapped(config: _Config) -> WrappedKey:
    return WrappedKey(bytes.fromhex(config.ephemeral), bytes.fromhex(config.sealed))


def _read_config(target: Target) -> _Config | None:
    try:
        data = target.read(records.CONFIG_PATH, records.CONFIG_BYTES_MAX)
    except FileNotFoundError:
        return None
    try:
        config = msgspec.json.decode(data, type=_Config)
        _wrapped(config)
        repository = bytes.fromhex(config.repository)
    except (msgspec.DecodeError, UnicodeDecodeError, ValueError) as error:
        if b'"DIOS backup"' in data:
            raise InvalidError(
                f"{target.place} has a backup. Tiered files need a place of their own: choose another folder."
            ) from None
        raise DamagedBackupError(f"the file config in {target.place} cannot be read: {error}") from None
    if config.format != _FORMAT or len(repository) != records.REPOSITORY_BYTES:
        raise DamagedBackupError(f"the file config in {target.place} is not that of tiered files")
    if config.version not in _VERSIONS:
        raise InvalidError(f"the store in {target.place} has version {config.version}. Update this program.")
    return config
