"""The extensions that a node signs for other nodes."""

from __future__ import annotations

from pathlib import Path

import pytest

from dios.core import effects as fx
from dios.core.effects import Extension
from dios.core.events import ExtensionsFailed
from dios.errors import InvalidError
from dios.host.peers.mandates import MandateSigner
from dios.ids import NodeId
from dios.wire import dcp
from dios.wire.mandates import EVERY_PURPOSE, FOR_CHILDREN, MandateTerms, Purpose, make_mandate, read_mandate
from tests.support.core.cluster import AUTHORITY, key_digest_of, node_key
from tests.support.core.user_keys import ALICE, key_of
from tests.support.peers.hosts import CALLER, connected, two_hosts, until


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


async def test_the_core_learns_of_an_extension_that_was_not_signed(tmp_path: Path) -> None:
    """The request goes without it, and the extension goes with the next one."""
    async with two_hosts(tmp_path) as (local, other):
        await connected(local, other)
        extension = Extension(mandate(1), Purpose.OBJECTS, 5_000)
        asked = dcp.Ask(1, 1, dcp.Rows(CALLER))
        local.do(fx.Send(other.node, asked, extensions=(extension,)))
        await until(lambda: local.core.seen(ExtensionsFailed), "the core is told")
        (failed,) = local.core.seen(ExtensionsFailed)
        assert (failed.node, failed.keys) == (other.node, (extension.key,))
        await until(lambda: asked in other.messages(), "the request has arrived")
