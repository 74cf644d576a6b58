"""Signs the extensions with which other nodes act for users.

``dios.core.remote.mandate_table`` chooses the extensions, ``dios.core.remote.authority`` decides what counts.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from dios.core.effects import Extension
from dios.errors import InvalidError
from dios.ids import NodeId
from dios.wire.mandates import Register, extend, key_digest, public_bytes, stated_mandate

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

_SIGNED_MAX: Final = 256
"""Extensions that are kept, because requests that start tasks of one hour have equal ones."""


class RegisterStore(Protocol):
    """The register of enrolled principals; ``dios.transport.identity.principals`` implements it."""

    @property
    def present(self) -> Register | None:
        """The register that is used, None if the cluster has none."""

    def is_known(self, data: bytes) -> bool:
        """Return True if this is the register that is used."""
        ...

    def accept(self, data: bytes) -> Register | None:
        """Use a register; return it if it is newer. Raise ProtocolError, NotPermittedError."""

    async def save(self) -> None:
        """Store the register that is used. Raise OSError."""


class UserKeys(NamedTuple):
    """The register of users, and a function that reads the node's own key, with which it acts for them."""

    register: RegisterStore
    key: Callable[[], Ed25519PrivateKey]


class MandateSigner:
    """Signs extensions with the node's key, which is read when the first one is signed."""

    def __init__(self, key: Callable[[], Ed25519PrivateKey]) -> None:
        self._read_key: Final = key
        self._key: Ed25519PrivateKey | None = None
        self._signed: Final[dict[tuple[bytes, NodeId, bytes], bytes]] = {}

    def sign(self, extension: Extension, node: NodeId, node_key: bytes) -> bytes:
        """Return the mandate that an extension makes for a node, whose key has this digest.

        Raise DamagedError or OSError if the node's own key cannot be read, ProtocolError if the mandate has
        the maximum of extensions, InvalidError if it is not for the node's own key.
        """
        place = extension.key, node, node_key
        data = self._signed.get(place)
        if data is None:
            self._key = self._key or self._read_key()
            if stated_mandate(extension.mandate).node_key != key_digest(public_bytes(self._key)):
                raise InvalidError("the mandate is for another key than this node's")
            data = extend(extension.mandate, self._key, node, node_key, extension.purposes, extension.end_ms)
            self._signed[place] = data
            if len(self._signed) > _SIGNED_MAX:
                del self._signed[next(iter(self._signed))]
        return data
