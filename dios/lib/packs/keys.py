"""The key pair of a recipient of backups, its two files, and data keys that are wrapped to it.

The recipient's file has the public key, and a secret that all its writers share. The secret takes part in the
wrapping, so that a store that knows the public key cannot make a backup of its own and pass it off as ours.
"""

from __future__ import annotations

import os
import secrets
from pathlib import Path
from typing import Final, NamedTuple

from blake3 import blake3
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from dios.client.written_files import sync_folder
from dios.errors import InvalidError, NotPermittedError
from dios.lib.packs.failures import DamagedBackupError
from dios.trusted_files import require_trusted

KEY_BYTES: Final = 32
_FILE_BYTES_MAX: Final = 4096
_CHECK_BYTES: Final = 4
_PRIVATE_TAG: Final = "dios-backup-key-1"
_RECIPIENT_TAG: Final = "dios-backup-recipient-1"
_PRIVATE_HEADER: Final = (
    "# The private key of backups: a person who has it can read them. Without it nobody can.\n"
    "# Keep copies of this file where neither the cluster nor the backups are.\n"
)
_RECIPIENT_HEADER: Final = (
    "# The recipient of backups: `dios backup create` encrypts to it and cannot decrypt with it.\n"
    "# A person who has it can make backups that look like yours: keep it to yourself.\n"
)
_WRAP_INFO: Final = b"dios backup 1 wrap"
_NONCE: Final = bytes(12)
"""Each wrapping has a key of its own, so its nonce may be constant."""


class Recipient(NamedTuple):
    """The half of a key pair that makes backups."""

    public: bytes
    seal: bytes

    def __repr__(self) -> str:
        """Return a text without the secret of the writers."""
        return f"<Recipient {self.public.hex()[:12]}>"


class PrivateKey(NamedTuple):
    """The half of a key pair that reads backups."""

    private: bytes
    seal: bytes

    def __repr__(self) -> str:
        """Return a text without the key."""
        return "<PrivateKey>"

    def recipient(self) -> Recipient:
        """Return the other half."""
        public = X25519PrivateKey.from_private_bytes(self.private).public_key()
        return Recipient(public.public_bytes_raw(), self.seal)


class WrappedKey(NamedTuple):
    """A data key that only the owner of the recipient's private key can read."""

    ephemeral: bytes
    sealed: bytes


def generate() -> PrivateKey:
    """Return a new key pair."""
    return PrivateKey(X25519PrivateKey.generate().private_bytes_raw(), secrets.token_bytes(KEY_BYTES))


def wrap(data_key: bytes, recipient: Recipient, repository: bytes) -> WrappedKey:
    """Encrypt the data key of a repository to a recipient."""
    ephemeral = X25519PrivateKey.generate()
    public = ephemeral.public_key().public_bytes_raw()
    shared = ephemeral.exchange(X25519PublicKey.from_public_bytes(recipient.public))
    key = _wrapping_key(shared, recipient, public, repository)
    return WrappedKey(public, ChaCha20Poly1305(key).encrypt(_NONCE, data_key, _WRAP_INFO + repository))


def unwrap(wrapped: WrappedKey, key: PrivateKey, repository: bytes) -> bytes:
    """Return the data key of a repository. Raises DamagedBackupError if this key cannot read it."""
    try:
        other = X25519PublicKey.from_public_bytes(wrapped.ephemeral)
        shared = X25519PrivateKey.from_private_bytes(key.private).exchange(other)
        wrapping = _wrapping_key(shared, key.recipient(), wrapped.ephemeral, repository)
        return ChaCha20Poly1305(wrapping).decrypt(_NONCE, wrapped.sealed, _WRAP_INFO + repository)
    except (InvalidTag, ValueError):
        raise DamagedBackupError(
            "this key cannot open the backup: it was made for another recipient, or its file `config` was "
            "changed. Give the private key that belongs to the --recipient of `dios backup create`."
        ) from None


def _wrapping_key(shared: bytes, recipient: Recipient, ephemeral: bytes, repository: bytes) -> bytes:
    salt = ephemeral + recipient.public
    return HKDF(SHA256(), KEY_BYTES, salt, _WRAP_INFO + repository).derive(shared + recipient.seal)


# -- files ------------------------------------------------------------------------------------------
def save_pair(path: Path, key: PrivateKey) -> Path:
    """Write the private key to ``path`` and the recipient next to it; return the recipient's path.

    Raises FileExistsError, and leaves what is there: a key that is written over takes its backups along.
    """
    public = path.with_name(path.name + ".pub")
    if public.exists():
        raise FileExistsError(17, "there is a file already; choose another place for the key", str(public))
    write_private(path, _PRIVATE_HEADER + _line(_PRIVATE_TAG, key.private + key.seal))
    try:
        recipient = key.recipient()
        write_private(public, _RECIPIENT_HEADER + _line(_RECIPIENT_TAG, recipient.public + recipient.seal))
    except BaseException:
        path.unlink(missing_ok=True)
        raise
    return public


def write_private(path: Path, text: str) -> None:
    """Write a new file that only its owner can read, and sync it and its folder. Raises FileExistsError."""
    fd = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(fd, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        sync_folder(path.parent)
    except BaseException:
        path.unlink(missing_ok=True)
        raise


def load_private(path: Path) -> PrivateKey:
    """Read a private key. Raises NotPermittedError if others may read it, InvalidError if it is none."""
    return PrivateKey(*_load(path, _PRIVATE_TAG, "the private key"))


def load_recipient(path: Path) -> Recipient:
    """Read a recipient. Raises NotPermittedError if others may read or change it, InvalidError."""
    return Recipient(*_load(path, _RECIPIENT_TAG, "the recipient"))


def _load(path: Path, tag: str, description: str) -> tuple[bytes, bytes]:
    with path.open(encoding="utf-8", errors="replace") as file:
        if os.fstat(file.fileno()).st_mode & 0o077:
            raise NotPermittedError(f"others may read {description}. Run: chmod 600 {path}")
        require_trusted(path, description)
        text = file.read(_FILE_BYTES_MAX)
    for line in text.splitlines():
        first_word, _, rest = line.partition(" ")
        if first_word != tag:
            continue
        try:
            value, check = (bytes.fromhex(part) for part in rest.split())
        except ValueError:
            break
        if len(value) == 2 * KEY_BYTES and check == _check(tag, value):
            return value[:KEY_BYTES], value[KEY_BYTES:]
        break
    raise InvalidError(
        f"{path} is not {description} of backups, or it is damaged. `dios backup keygen FILE` makes "
        "FILE, which is "
        "for --key, and FILE.pub, which is for --recipient."
    )


def _line(tag: str, value: bytes) -> str:
    return f"{tag} {value.hex()} {_check(tag, value).hex()}\n"


def _check(tag: str, value: bytes) -> bytes:
    return blake3(tag.encode() + value).digest(_CHECK_BYTES)
