"""The generations of the cluster's secret: who makes them, which of them counts, and who never gets one."""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from dios import limits
from dios.errors import DamagedError, LimitError, NotPermittedError, ProtocolError
from dios.ids import NodeId
from dios.transport.identity import durable_files, generations
from dios.transport.identity.generations import Generations, KnownGenerations
from dios.transport.identity.identity import Identity, admit_here, load
from dios.wire.node_roles import NodeRole
from tests.support.peers import connections


def make_cluster(folder: Path, names: str = "n1 n2") -> list[Identity]:
    """Return the authorities of one cluster."""
    return connections.make_cluster(folder, names, role=NodeRole.AUTHORITY)


def again(node: Identity) -> Identity:
    """Return a node as it is after a restart."""
    identity = load(node.folder.parent)
    assert identity is not None
    return identity


def signed(
    by: Identity, number: int, secrets: Sequence[bytes], withheld: set[NodeId] | None = None
) -> Generations:
    """Return whatever the holder of a node's key can sign."""
    return generations.make(by.chain, by.key(), number, secrets, withheld or set())


def secret_of(number: int) -> bytes:
    """Return a secret."""
    return bytes([number]) * 32


async def test_a_generation_counts_on_all_nodes_and_after_restarts(tmp_path: Path) -> None:
    """Each has a higher order than the last one, and all former secrets stay."""
    n1, n2 = make_cluster(tmp_path)
    assert (n1.generations.secrets, n1.generations.mark, n1.generations.document) == ((), 0, b"")
    await n1.generations.rotate(exactly=True)
    assert await n2.generations.accept(n1.generations.document)
    await n2.generations.rotate(exactly=True)
    assert await n1.generations.accept(n2.generations.document)
    assert not await n1.generations.accept(n2.generations.document)
    assert len(n1.generations.secrets) == 2
    for node in (n1, n2):
        restarted = again(node).generations
        assert (restarted.secrets, restarted.mark) == (n1.generations.secrets, n2.generations.mark)
    assert n1.generations.mark
    assert n1.secret not in n1.generations.secrets


async def test_an_earlier_document_changes_nothing(tmp_path: Path) -> None:
    """A member that repeats what counted before does not bring it back."""
    n1, n2 = make_cluster(tmp_path)
    await n1.generations.rotate(exactly=True)
    first = n1.generations.document
    await n2.generations.accept(first)
    await n1.generations.rotate(exactly=True)
    assert await n2.generations.accept(n1.generations.document)
    assert not await n2.generations.accept(first)
    assert n2.generations.secrets == n1.generations.secrets


async def test_a_removed_node_does_not_get_the_next_generation(tmp_path: Path) -> None:
    """One is due after a removal, whoever made it; and it is held back from the removed node for good."""
    n1, n2, n3 = make_cluster(tmp_path, "n1 n2 n3")
    await n1.generations.rotate(exactly=True)
    await n2.generations.accept(n1.generations.document)
    assert n1.generations.may_have(n3.node)
    statement = await n1.trust.remove(n3.node)
    await n2.trust.accept(statement)
    assert n1.generations.is_due
    assert n2.generations.is_due
    await n1.generations.rotate(exactly=True)
    await n2.generations.accept(n1.generations.document)
    for node in (n1, n2, again(n2)):
        assert not node.generations.is_due
        assert not node.generations.may_have(n3.node)
        assert node.generations.may_have(n1.node)


async def test_nodes_that_do_not_believe_a_removal_hold_the_generation_back_as_well(tmp_path: Path) -> None:
    """The document says from which nodes it is withheld; a member that was restored gets the next one."""
    n1, n2, n3 = make_cluster(tmp_path, "n1 n2 n3")
    await n1.trust.remove(n3.node)
    await n1.generations.rotate(exactly=True)
    await n2.generations.accept(n1.generations.document)
    assert not n2.revoked
    assert not n2.generations.may_have(n3.node)
    await n2.generations.rotate(exactly=False)
    assert not n2.generations.may_have(n3.node)
    await n2.generations.rotate(exactly=True)
    assert n2.generations.may_have(n3.node)


async def test_what_a_removed_node_signs_is_void(tmp_path: Path) -> None:
    """It can make a document with a higher number, and a colluding member can pass it on."""
    n1, n2, n3 = make_cluster(tmp_path, "n1 n2 n3")
    await n1.trust.remove(n3.node)
    await n1.generations.rotate(exactly=True)
    before = n1.generations.secrets
    forged = signed(n3, 99, [secret_of(1)])
    assert not await n1.generations.accept(forged.data)
    assert n1.generations.secrets == before
    assert await n2.generations.accept(forged.data)
    # n2 had not heard of the removal. The next generation of n1 has a lower number: both are kept at n2,
    # which makes one that all believe.
    await n2.trust.accept(n1.trust.statements[0])
    assert await n2.generations.accept(n1.generations.document)
    assert n2.generations.is_due
    await n2.generations.rotate(exactly=False)
    assert await n1.generations.accept(n2.generations.document)
    assert n1.generations.secrets == n2.generations.secrets
    assert set(before) < set(n1.generations.secrets)
    assert n1.generations.secrets[-1] not in {*before, secret_of(1)}


async def test_of_two_that_were_made_at_once_both_are_kept(tmp_path: Path) -> None:
    """All nodes choose the same one, and make a further one, which has both secrets."""
    n1, n2 = make_cluster(tmp_path)
    await n1.generations.rotate(exactly=True)
    await n2.generations.rotate(exactly=True)
    first, second = n1.generations.document, n2.generations.document
    assert await n1.generations.accept(second)
    assert await n2.generations.accept(first)
    assert n1.generations.mark == n2.generations.mark
    assert n1.generations.is_due
    assert set(again(n1).generations.secrets) == set(n2.generations.secrets)
    assert n1.generations.secrets[-1] == n2.generations.secrets[-1]
    await n1.generations.rotate(exactly=False)
    assert await n2.generations.accept(n1.generations.document)
    assert n2.generations.secrets == n1.generations.secrets
    assert [node.generations.is_due for node in (n1, n2)] == [False, False]


async def test_a_generation_that_cannot_be_stored_does_not_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither one's own nor another node's: a crash must not take away what sealed something."""
    n1, n2 = make_cluster(tmp_path)
    await n2.generations.rotate(exactly=True)

    def full(_path: Path, _data: bytes) -> None:
        raise OSError(errno.ENOSPC, "no room")

    with monkeypatch.context() as small:
        small.setattr(durable_files, "write", full)
        with pytest.raises(OSError, match="no room"):
            await n1.generations.rotate(exactly=True)
        with pytest.raises(OSError, match="no room"):
            await n1.generations.accept(n2.generations.document)
    assert n1.generations.secrets == ()
    assert await n1.generations.accept(n2.generations.document)


@pytest.mark.parametrize("role", [NodeRole.WORKER, NodeRole.MEMBER])
async def test_only_authorities_make_generations(tmp_path: Path, role: NodeRole) -> None:
    """A node of another role could use them up. All refuse what it signs, and have those of others."""
    (n1,) = make_cluster(tmp_path, "n1")
    other = admit_here(n1, tmp_path / "w", name="w", role=role)
    with pytest.raises(NotPermittedError, match="w is no authority"):
        await other.generations.rotate(exactly=True)
    with pytest.raises(ProtocolError, match=r"w is no authority|certificate that removes no nodes"):
        await n1.generations.accept(signed(other, 1, [secret_of(1)]).data)
    await n1.generations.rotate(exactly=True)
    assert await other.generations.accept(n1.generations.document)
    assert not other.generations.is_due


async def test_no_known_secret_is_lost_in_a_flood(tmp_path: Path) -> None:
    """Of too many secrets the first ones stay; and a number far ahead keeps nobody from the next one."""
    n1, n2 = make_cluster(tmp_path)
    await n1.generations.rotate(exactly=True)
    (honest,) = n1.generations.secrets
    for number in (2, 3, 2**61):
        flood = [os.urandom(32) for _ in range(limits.GENERATIONS_MAX)]
        await n1.generations.accept(signed(n2, number, flood).data)
        assert honest in n1.generations.secrets
    assert n1.generations.known.document is not None
    assert n1.generations.known.document.number == 2**61
    assert honest in again(n1).generations.secrets


async def test_a_node_is_admitted_with_the_generations(tmp_path: Path) -> None:
    """It seals with the present one from its first moment on."""
    (n1,) = make_cluster(tmp_path, "n1")
    await n1.generations.rotate(exactly=True)
    n2 = admit_here(n1, tmp_path / "n2", name="n2")
    assert n2.generations.secrets == n1.generations.secrets
    assert n2.generations.mark == n1.generations.mark


async def test_strange_documents_are_refused(tmp_path: Path) -> None:
    """Those of another cluster, and altered ones."""
    (n1,) = make_cluster(tmp_path / "one", "n1")
    (m1,) = make_cluster(tmp_path / "two", "m1")
    await m1.generations.rotate(exactly=True)
    with pytest.raises(ProtocolError):
        await n1.generations.accept(m1.generations.document)
    document = signed(n1, 1, [secret_of(1)]).data
    for place in range(0, len(document), 7):
        with pytest.raises(ProtocolError):
            await n1.generations.accept(
                document[:place] + bytes([document[place] ^ 4]) + document[place + 1 :]
            )
    with pytest.raises(ProtocolError, match="twice"):
        await n1.generations.accept(signed(n1, 1, [secret_of(1)] * 2).data)
    assert n1.generations.secrets == ()


async def test_the_number_of_generations_is_bounded(tmp_path: Path) -> None:
    """A full list is refused with a reason, and none is due any more."""
    n1, n2 = make_cluster(tmp_path)
    every = [os.urandom(32) for _ in range(limits.GENERATIONS_MAX)]
    assert await n1.generations.accept(signed(n1, 1, every).data)
    with pytest.raises(LimitError, match="the maximum"):
        await n1.generations.rotate(exactly=True)
    await n1.trust.remove(n2.node)
    assert not n1.generations.is_due
    assert len(n1.generations.document) < limits.STATEMENT_BYTES_MAX


@pytest.mark.parametrize("data", [b"", b"rubbish", b"\x93\x01\xc4\x01x\x90"])
def test_a_damaged_file_says_what_to_do(tmp_path: Path, data: bytes) -> None:
    """The other nodes have it, too."""
    (n1,) = make_cluster(tmp_path, "n1")
    (n1.folder / "generations").write_bytes(data)
    (n1.folder / "generations").chmod(0o600)
    with pytest.raises(DamagedError, match="Remove the file"):
        again(n1)


async def test_a_file_that_others_can_read_is_not_used(tmp_path: Path) -> None:
    """As with the first secret."""
    (n1,) = make_cluster(tmp_path, "n1")
    await n1.generations.rotate(exactly=True)
    (n1.folder / "generations").chmod(0o644)
    with pytest.raises(NotPermittedError, match="can be read by other users"):
        again(n1)


def test_nothing_shows_a_secret(tmp_path: Path) -> None:
    """What is printed has numbers alone."""
    (n1,) = make_cluster(tmp_path, "n1")
    known = KnownGenerations(signed(n1, 1, [b"s" * 32]))
    assert "sss" not in repr(known) + repr(known.document) + repr(n1)
