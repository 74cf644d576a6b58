import itertools
from pathlib import Path

import msgspec
import pytest

from dios import limits
from dios.errors import LimitError, ProtocolError
from dios.ids import NodeId
from dios.transport.identity.certificates import CertificateDetails, CertificateRole, cards_of
from dios.transport.identity.identity import Identity, known_of, load
from dios.transport.identity.trust import Known, Trust
from tests.support.peers.connections import make_cluster


def refusal(at: Identity, peer: Identity) -> str:
    """Why ``at`` refuses the peer's chain; empty when it does not."""
    return at.trust.refusal(cards_of(peer.chain))


def meet(nodes: list[Identity]) -> None:
    """All know each other, as after a first connection."""
    for one, other in itertools.permutations(nodes, 2):
        one.trust.note(known_of(other.card))


def test_a_revoked_node_is_refused_for_ever(tmp_path: Path) -> None:
    """Who was revoked is refused, by name, also after the revoker has started anew."""
    n1, n2 = make_cluster(tmp_path)
    assert not refusal(n1, n2)
    n1.trust.revoke(n2.node)
    assert refusal(n1, n2) == "n2 was revoked"
    again = load(tmp_path / "n1")
    assert again is not None
    assert again.revoked == {n2.node}
    assert refusal(again, n2)
    assert [known.name for known in again.trust.known] == ["n1"]


def test_what_a_revoked_node_signs_counts_no_more(tmp_path: Path) -> None:
    """Whoever goes through a revoked node is refused, at any distance, and told to join anew."""
    n1, n2, n3, n4 = make_cluster(tmp_path, "n1 n2 n3 n4", in_a_row=True)
    n1.trust.revoke(n2.node)
    for late in (n3, n4):
        assert "which was revoked. Join it again" in refusal(n1, late)


def test_nodes_that_were_known_stay(tmp_path: Path) -> None:
    """Those whom the revoker knew stay, with all that they admit, and the chains above do not count."""
    n1, n2, n3, n4 = make_cluster(tmp_path, "n1 n2 n3 n4", in_a_row=True)
    meet([n1, n2, n3])
    n1.trust.revoke(n2.node)
    assert [refusal(n1, node) for node in (n3, n4)] == ["", ""]
    # Under its id with another key, as the revoked one could sign it, it is nobody that was kept.
    (far,) = make_cluster(tmp_path / "far", "n9")
    far.trust.merge(n1.trust.encode())
    assert not refusal(far, n3)
    false = [card._replace(key=bytes(32)) if card.number == n3.node else card for card in cards_of(n3.chain)]
    assert "which was revoked" in far.trust.refusal(false)


def test_who_is_kept_by_anybody_stays(tmp_path: Path) -> None:
    """Of two that revoke one node at the same time, each keeps whom it knew, and all keep both."""
    (n1,) = make_cluster(tmp_path, "n1")
    for kept in (3, 4):
        n1.trust.merge(msgspec.msgpack.encode((1, [2], [(kept, bytes([kept]) * 32)])))
    above = CertificateDetails(CertificateRole.NODE, 2, "n2", bytes(32))
    for kept in (3, 4):
        assert not n1.trust.refusal(
            [CertificateDetails(CertificateRole.NODE, kept, "kept", bytes([kept]) * 32), above, n1.card]
        )
    assert n1.trust.refusal(
        [CertificateDetails(CertificateRole.NODE, 5, "not kept", bytes(32)), above, n1.card]
    )


def test_the_first_node_is_nothing_special(tmp_path: Path) -> None:
    """The node that every chain goes through can be revoked by one that it admitted; the others go on."""
    n1, n2, n3 = make_cluster(tmp_path, "n1 n2 n3")
    meet([n1, n2, n3])
    n2.trust.revoke(n1.node)
    n3.trust.merge(n2.trust.encode())
    assert refusal(n3, n1) == "n1 was revoked"
    assert [refusal(n2, n3), refusal(n3, n2)] == ["", ""]


def test_another_key_under_a_known_id_is_refused(tmp_path: Path) -> None:
    """A trusted node cannot sign itself a certificate with the id of another one."""
    n1, n2 = make_cluster(tmp_path)
    forged = cards_of(n2.chain)[0]._replace(number=n1.node)
    assert "another key" in n2.trust.refusal([forged, *cards_of(n2.chain)[1:]])


def test_lists_are_merged_in_any_order(tmp_path: Path) -> None:
    """However often and in whichever order nodes tell each other, they come to the same."""
    nodes = make_cluster(tmp_path, "n1 n2 n3 n4 n5")
    meet(nodes)
    n1, n2, n3, n4, n5 = nodes
    n1.trust.revoke(n4.node)
    n2.trust.revoke(n5.node)
    one, two = n1.trust.encode(), n2.trust.encode()
    assert [n3.trust.merge(data) for data in (one, two, one, two)] == [True, True, False, False]
    n1.trust.merge(two)
    n2.trust.merge(one)
    assert n5.card.key not in n1.trust.encode()
    assert n1.trust.digest == n2.trust.digest == n3.trust.digest
    assert n1.revoked == {n4.node, n5.node}
    # Kept by the one before it was revoked by the other.
    assert refusal(n1, n5) == "n5 was revoked"


def test_who_watches_is_told_once_for_each_change(tmp_path: Path) -> None:
    """A watcher hears of what is new, of nothing that was known, and of nothing after it left."""
    n1, n2 = make_cluster(tmp_path)
    told: list[frozenset[NodeId]] = []
    leave = n1.trust.watch(lambda: told.append(n1.revoked))
    n1.trust.revoke(n2.node)
    n1.trust.revoke(n2.node)
    assert told == [{n2.node}]
    leave()
    leave()
    n1.trust.revoke(NodeId(7))
    assert len(told) == 1


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xc1",
        msgspec.msgpack.encode((2, [], [])),
        msgspec.msgpack.encode((1, [0], [])),
        msgspec.msgpack.encode((1, [2**63], [])),
        msgspec.msgpack.encode((1, [], [(1, b"short")])),
        msgspec.msgpack.encode((1, [], [], [])),
        msgspec.msgpack.encode((1, list(range(1, limits.NODES_FORGOTTEN_MAX + 2)), [])),
        b"\x93\x01\xdd\xff\xff\xff\xff",
        bytes(limits.TRUST_BYTES_MAX + 1),
    ],
)
def test_a_malformed_list_changes_nothing(tmp_path: Path, data: bytes) -> None:
    """What is no list of revocations is refused whole."""
    (n1,) = make_cluster(tmp_path, "n1")
    before = n1.trust.encode()
    with pytest.raises(ProtocolError):
        n1.trust.merge(data)
    assert n1.trust.encode() == before


def test_the_longest_lists_fit_a_message(tmp_path: Path) -> None:
    """Lists at their bound can be told; one more is refused and changes nothing."""
    (n1,) = make_cluster(tmp_path, "n1")
    most = limits.NODES_FORGOTTEN_MAX
    first = 2**63 - 1 - 2 * most
    revoked = list(range(first, first + most))
    kept = [(number, bytes(32)) for number in range(first + most, first + 2 * most)]
    n1.trust.merge(msgspec.msgpack.encode((1, revoked, kept)))
    whole = n1.trust.encode()
    assert len(whole) <= limits.TRUST_BYTES_MAX
    with pytest.raises(LimitError):
        n1.trust.merge(msgspec.msgpack.encode((1, [5], [])))
    assert n1.trust.encode() == whole


def test_nodes_are_remembered_over_a_restart(tmp_path: Path) -> None:
    """Whom a node has met it knows after its next start; who was revoked does not come back by being met."""
    n1, n2 = make_cluster(tmp_path)
    new = Known(5, "n5", bytes(32))
    n2.trust.note(new)
    assert new in Trust(n2.folder).known
    n2.trust.revoke(n1.node)
    n2.trust.note(known_of(n1.card))
    assert [known.name for known in Trust(n2.folder).known] == sorted(
        ["n2", "n5"], key=lambda name: {"n2": n2.node, "n5": 5}[name]
    )
