"""The extensions that a node signs for other nodes."""

from __future__ import annotations

import errno

import pytest

from dios.core.effects import Extension
from dios.errors import InvalidError
from dios.host.peers.links import PeerLinks
from dios.host.peers.mandates import MandateSigner
from dios.ids import NodeId
from dios.wire.mandates import EVERY_PURPOSE, FOR_CHILDREN, MandateTerms, Register, make_mandate, read_mandate
from tests.support.core.cluster import AUTHORITY, key_digest_of, node_key
from tests.support.core.user_keys import ALICE, key_of


def mandate(node: int) -> bytes:
    """A mandate of a user for the key of a node, under the id of the first."""
    terms = MandateTerms(1, key_digest_of(node), AUTHORITY, ALICE, (), 1_000)
    return make_mandate(key_of(ALICE), terms, EVERY_PURPOSE, 1_000, 9_000)


def test_an_extension_is_signed_for_the_key_of_the_other_node() -> None:
    """It can be read, and is signed once."""
    signer = MandateSigner(lambda: node_key(1))
    extension = Extension(mandate(1), FOR_CHILDREN, 5_000)
    signed = read_mandate(signer.sign(extension, NodeId(2), key_digest_of(2)))
    assert (signed.nodes, signed.node_key) == ((1, 2), key_digest_of(2))
    assert (signed.purposes, signed.end_ms) == (FOR_CHILDREN, 5_000)
    assert signer.sign(extension, NodeId(2), key_digest_of(2)) == signed.data


def test_nothing_is_signed_with_another_key_than_the_mandates() -> None:
    """No node would accept it: the mandate was made for another key."""
    signer = MandateSigner(lambda: node_key(1))
    with pytest.raises(InvalidError, match="another key than this node's"):
        signer.sign(Extension(mandate(3), FOR_CHILDREN, 5_000), NodeId(2), key_digest_of(2))


class _OnFullDisk:
    """A register that cannot be stored."""

    stored: Register | None = None

    def is_known(self, data: bytes) -> bool:
        """It was never stored."""
        return data == b""

    async def accept(self, data: bytes) -> Register | None:
        """There is no room for it."""
        raise OSError(errno.ENOSPC, "no room for a register", str(len(data)))


async def test_a_register_that_cannot_be_stored_ends_no_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    """The connection serves all users; the node that sent it sends it again when it connects."""
    links = PeerLinks.__new__(PeerLinks)
    monkeypatch.setattr(links, "_register", _OnFullDisk(), raising=False)
    assert await links._passed_on(NodeId(2), b"a register")
