"""The data key of a repository: digests of chunks, and the encryption of chunks and snapshots.

Each pack and each snapshot has a key of its own, derived with its random salt. In a pack the offset of a
chunk is its nonce. So no nonce is used twice, and a chunk is bound to its pack, its offset and its digest.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Final

from blake3 import blake3
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from dios.lib.packs.failures import DamagedBackupError

SALT_BYTES: Final = 32
DIGEST_BYTES: Final = 32
TAG_BYTES: Final = 16
_NONCE_BYTES: Final = 12
_CIPHERS_KEPT: Final = 16
_KEY_BYTES: Final = 32


class DataKey:
    """The secret of one repository."""

    def __init__(self, key: bytes, repository: bytes) -> None:
        self.repository: Final = repository
        self.key: Final = key
        self._digest_key: Final = self._derived(b"digest", b"")
        self._cipher_of_pack = lru_cache(_CIPHERS_KEPT)(
            lambda salt: ChaCha20Poly1305(self._derived(b"pack", salt))
        )

    def __repr__(self) -> str:
        return f"<DataKey of {self.repository.hex()[:12]}>"

    def _derived(self, purpose: bytes, salt: bytes) -> bytes:
        return HKDF(SHA256(), _KEY_BYTES, salt, b"dios backup 1 " + purpose + self.repository).derive(
            self.key
        )

    def digest(self, data: bytes | memoryview) -> bytes:
        """Return the keyed digest of bytes: it says nothing about them to those without the key."""
        return blake3(data, key=self._digest_key).digest()

    def seal_chunk(self, pack: bytes, offset: int, digest: bytes, data: bytes | memoryview) -> bytes:
        """Encrypt a chunk for its place in a pack."""
        return self._cipher_of_pack(pack).encrypt(offset.to_bytes(_NONCE_BYTES, "big"), data, digest)

    def open_chunk(
        self,
        pack: bytes,
        offset: int,
        digest: bytes,
        sealed: bytes | memoryview,
        unpack: Callable[[bytes], bytes] = bytes,
    ) -> bytes:
        """Decrypt a chunk from its place in a pack, unpack it, and compare its digest.

        Raises DamagedBackupError, and the errors of ``unpack``.
        """
        try:
            data = self._cipher_of_pack(pack).decrypt(offset.to_bytes(_NONCE_BYTES, "big"), sealed, digest)
        except InvalidTag:
            raise _changed(f"pack {pack.hex()[:12]} at {offset}") from None
        data = unpack(data)
        if self.digest(data) != digest:
            raise _changed(f"pack {pack.hex()[:12]} at {offset}")
        return data

    def seal_snapshot(self, sequence: int, salt: bytes, data: bytes) -> bytes:
        """Encrypt a snapshot; ``salt`` is random and used once."""
        cipher = ChaCha20Poly1305(self._derived(b"snapshot", salt))
        return cipher.encrypt(bytes(_NONCE_BYTES), data, sequence.to_bytes(8, "big"))

    def open_snapshot(self, sequence: int, salt: bytes, sealed: bytes) -> bytes:
        """Decrypt a snapshot. Raises DamagedBackupError."""
        cipher = ChaCha20Poly1305(self._derived(b"snapshot", salt))
        try:
            return cipher.decrypt(bytes(_NONCE_BYTES), sealed, sequence.to_bytes(8, "big"))
        except InvalidTag:
            raise _changed(f"snapshot {sequence}") from None


def _changed(subject: str) -> DamagedBackupError:
    return DamagedBackupError(f"{subject} was changed, replaced or cut since it was stored")
