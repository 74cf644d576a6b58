"""The configuration of a store, its only plain file: its content, version, id, and wrapped data key."""

from __future__ import annotations

import json
import secrets
from typing import Final, NamedTuple

import msgspec

from dios import limits
from dios.errors import InvalidError
from dios.lib.packs import compression
from dios.lib.packs.failures import DamagedBackupError
from dios.lib.packs.keys import KEY_BYTES, Recipient, WrappedKey, wrap
from dios.lib.packs.sealing import DataKey
from dios.lib.packs.targets import Target

PLAIN_VERSION: Final = 1
COMPRESSED_VERSION: Final = 2
"""The version of a store whose chunks are compressed; all others have version 1."""
REPOSITORY_BYTES: Final = 16
CONFIG_PATH: Final = "config"
_BYTES_MAX: Final = 64 * limits.KIB


class StoreKind(NamedTuple):
    """A kind of store: its word in the file, its content in words, and the page that describes it."""

    format: str
    content: str
    page: str


BACKUP: Final = StoreKind("DIOS backup", "a backup", "docs/backup.md#the-format-of-backups")
TIER: Final = StoreKind("DIOS tier", "tiered files", "docs/backup.md#tiering")


class StoreConfig(msgspec.Struct, frozen=True):
    """The content of the file. ``group`` is a keyed digest of the group of tiered files."""

    version: int
    repository: bytes
    recipient: bytes
    wrapped: WrappedKey
    group: str = ""

    @property
    def compress(self) -> bool:
        """Return True if new packs are compressed."""
        return self.version == COMPRESSED_VERSION


class _ConfigText(msgspec.Struct, omit_defaults=True):
    format: str
    version: int
    repository: str
    recipient: str
    ephemeral: str
    sealed: str
    group: str = ""


def new_key() -> DataKey:
    """Return the data key of a new store."""
    return DataKey(secrets.token_bytes(KEY_BYTES), secrets.token_bytes(REPOSITORY_BYTES))


def write_config(
    target: Target, kind: StoreKind, key: DataKey, recipient: Recipient, group: str = ""
) -> StoreConfig:
    """Begin a store in an empty target, with compression if this machine has it.

    Raises FileExistsError if another one was begun meanwhile.
    """
    version = COMPRESSED_VERSION if compression.is_installed() else PLAIN_VERSION
    wrapped = wrap(key.key, recipient, key.repository)
    config = StoreConfig(version, key.repository, recipient.public, wrapped, group)
    target.write(CONFIG_PATH, encode_config(kind, config))
    return config


def encode_config(kind: StoreKind, config: StoreConfig) -> bytes:
    """Return the bytes of the file."""
    text = _ConfigText(
        kind.format,
        config.version,
        config.repository.hex(),
        config.recipient.hex(),
        config.wrapped.ephemeral.hex(),
        config.wrapped.sealed.hex(),
        config.group,
    )
    return (json.dumps({**msgspec.to_builtins(text), "read": kind.page}, indent=2) + "\n").encode()


def read_config(target: Target, kind: StoreKind) -> StoreConfig | None:
    """Return the configuration of a store, or None if the target has none.

    Raises InvalidError if the target has a store of another kind or version, and DamagedBackupError.
    """
    try:
        data = target.read(CONFIG_PATH, _BYTES_MAX)
    except FileNotFoundError:
        return None
    try:
        text = msgspec.json.decode(data, type=_ConfigText)
        wrapped = WrappedKey(bytes.fromhex(text.ephemeral), bytes.fromhex(text.sealed))
        repository, recipient = bytes.fromhex(text.repository), bytes.fromhex(text.recipient)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, ValueError) as error:
        raise DamagedBackupError(f"the file config in {target.place} cannot be read: {error}") from None
    other = next((other for other in (BACKUP, TIER) if other.format == text.format), None)
    if other is None or len(repository) != REPOSITORY_BYTES:
        raise DamagedBackupError(f"the file config in {target.place} is not that of {kind.content}")
    if other is not kind:
        raise InvalidError(
            f"{target.place} has {other.content}. Choose another folder, which has nothing else, for "
            f"{kind.content}."
        )
    if text.version not in {PLAIN_VERSION, COMPRESSED_VERSION}:
        raise InvalidError(
            f"the store in {target.place} has version {text.version}, this program reads "
            f"{COMPRESSED_VERSION}. Update it."
        )
    return StoreConfig(text.version, repository, recipient, wrapped, text.group)
