"""The signatures of audit heads: with a node's key, or a key of its own if it is in no cluster.

It is a module of its own because a node without a cluster loads no cryptography during its start.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from dios.host.audit.heads import FOLDER, AuditHead
from dios.transport.identity import durable_files
from dios.transport.identity.certificates import key_digest, key_of_pem, pem_of_key

_KEY_NAME: Final = "key"
_TAG: Final = b"dios audit head 1\0"


def read_key(data: Path) -> Ed25519PrivateKey | None:
    """Return the key of a node without a cluster, or None if it has none. Raise DamagedError, OSError."""
    try:
        return key_of_pem((data / FOLDER / _KEY_NAME).read_bytes())
    except FileNotFoundError:
        return None


def create_key(data: Path) -> Ed25519PrivateKey:
    """Create the key of a node without a cluster, durably. Raise OSError."""
    (data / FOLDER).mkdir(mode=0o700, exist_ok=True)
    key = Ed25519PrivateKey.generate()
    durable_files.write(data / FOLDER / _KEY_NAME, pem_of_key(key))
    return key


def public_bytes(key: Ed25519PrivateKey) -> bytes:
    """Return the public key of a private one, 32 bytes."""
    return key.public_key().public_bytes_raw()


def digest_of(public_key: bytes) -> bytes:
    """Return the digest of a public key as certificates have it."""
    return key_digest(Ed25519PublicKey.from_public_bytes(public_key))


def sign(head: AuditHead, key: Ed25519PrivateKey) -> AuditHead:
    """Return the head with a signature."""
    unsigned = head._replace(key=public_bytes(key))
    return unsigned._replace(signature=key.sign(_TAG + unsigned.signed_text.encode()))


def is_genuine(head: AuditHead) -> bool:
    """Return True if the head was signed with the key that it names."""
    try:
        Ed25519PublicKey.from_public_bytes(head.key).verify(head.signature, _TAG + head.signed_text.encode())
    except (InvalidSignature, ValueError):
        return False
    return True
