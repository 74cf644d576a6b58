"""The keys with which a node signs the heads of its audit log.

It is a module of its own because a node that has published no head loads no cryptography at its start.
"""

from __future__ import annotations

from typing import Final

from dios.host.audit import signing
from dios.host.audit.heads import AuditHead
from dios.node.settings import Settings
from dios.transport.identity import identity


class HeadKeys:
    """The key of a node in its cluster, and the key that it has without a cluster."""

    def __init__(self, settings: Settings) -> None:
        """Read the keys. Raise DamagedError or OSError."""
        self._data: Final = settings.data
        self._identity: Final = identity.load(settings.data)
        keys = [] if self._identity is None else [self._identity.key()]
        alone = signing.read_key(settings.data)
        self._public: Final = {
            signing.public_bytes(key) for key in (*keys, *([] if alone is None else [alone]))
        }

    def sign(self, head: AuditHead) -> AuditHead:
        """Return the head of this node with a signature. Raise DamagedError or OSError."""
        if self._identity is None:
            return signing.sign(head, signing.read_key(self._data) or signing.create_key(self._data))
        return signing.sign(head._replace(node=int(self._identity.node)), self._identity.key())

    def has_signed(self, head: AuditHead) -> bool:
        """Return True if this node has signed a head; in a copy of a log without keys, if anybody has."""
        return (head.key in self._public or not self._public) and signing.is_genuine(head)
