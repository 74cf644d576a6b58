import itertools
import threading
from collections.abc import Mapping
from pathlib import Path
from random import Random

import msgspec
import pytest
import trio
import trio.testing
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from dios import limits
from dios.errors import DamagedError, LimitError, ProtocolError
from dios.ids import NodeId
from dios.transport.identity import durable_files, statements
from dios.transport.identity.certificates import cards_of
from dios.transport.identity.identity import Identity, admit_here, known_of, load, sign_node
from dios.transport.identity.trust import Known, Trust, roster_of
from dios.wire.node_roles import NodeRole
from tests.support.peers.connections import make_cluster
from tests.support.peers.statements import merge, revoke


def refusal(at: Identity, peer: Identity) -> str:
    """Why ``at`` refuses the peer's chain; empty when it does not."""
    return at.trust.refusal(cards_of(peer.chain))


def meet(nodes: list[Identity]) -> None:
    """All know each other, as after a first connection."""
    for node, other in itertools.permutations(nodes, 2):
        node.trust.note(known_of(other.cards))


def tell(teller: Identity, *others: Identity) -> list[bool]:
    """One node sends all statements that it believes to others; whether they changed anything, for each."""
    return [
        sum(merge(other.trust, statement) for statement in teller.trust.statements) > 0 for other in others
    ]


def stated(
    by: Identity,
    number: int,
    removed: Mapping[int, int],
    *kept: Identity,
    extra: Mapping[int, bytes] | None = None,
) -> bytes:
    """What whoever has the key of a node can state, however true."""
    own: dict[int, bytes] = {member.node: member.card.key for member in (by, *kept)}
    return statements.make(by.chain, by.key(), number, removed, {**own, **(extra or {})}).data


def sleeper(below: Identity, folder: Path, name: str = "sleeper") -> Identity:
    """A node that a member admits and shows to nobody."""
    return admit_here(below, folder / name, name=name, role=NodeRole.AUTHORITY)


# -- removals ---------------------------------------------------------------------------------------
def test_a_revoked_node_is_refused_for_ever(tmp_path: Path) -> None:
    """Who was revoked is refused, by name, also after the revoker has started anew."""
    n1, n2 = make_cluster(tmp_path)
    assert not refusal(n1, n2)
    revoke(n1.trust, n2.node)
    assert refusal(n1, n2) == "n2 was revoked"
    again = load(tmp_path / "n1")
    assert again is not None
    assert again.revoked == {n2.node}
    assert refusal(again, n2)
    assert [known.name for known in again.trust.known] == ["n1"]


def test_what_a_revoked_node_signs_counts_no_more(tmp_path: Path) -> None:
    """Whoever goes through a revoked node is refused, at any distance, and told to join anew."""
    n1, n2, n3, n4 = make_cluster(tmp_path, "n1 n2 n3 n4", in_a_row=True)
    revoke(n1.trust, n2.node)
    for late in (n3, n4):
        assert "which was revoked. Join it again" in refusal(n1, late)


def test_nodes_that_were_known_stay(tmp_path: Path) -> None:
    """Those whom the revoker knew stay, with all that they admit, and the chains above do not count."""
    n1, n2, n3, n4 = make_cluster(tmp_path, "n1 n2 n3 n4", in_a_row=True)
    far = admit_here(n1, tmp_path / "far", name="far")
    meet([n1, n2, n3])
    revoke(n1.trust, n2.node)
    assert [refusal(n1, node) for node in (n3, n4)] == ["", ""]
    # Under its id with another key, as the revoked one could sign it, it is nobody that was kept.
    tell(n1, far)
    assert not refusal(far, n3)
    false = [card._replace(key=bytes(32)) if card.number == n3.node else card for card in cards_of(n3.chain)]
    assert "which was revoked" in far.trust.refusal(false)


def test_who_is_kept_by_any_member_stays(tmp_path: Path) -> None:
    """Of two that revoke one node at the same time, each keeps whom it knew, and all keep both."""
    n1, n2, n3, n4 = make_cluster(tmp_path, "n1 n2 n3 n4")
    bad = sleeper(n1, tmp_path, "bad")
    n5, n6 = (sleeper(bad, tmp_path, name) for name in ("n5", "n6"))
    n2.trust.note(known_of(n5.cards))
    n3.trust.note(known_of(n6.cards))
    lists = [revoke(n2.trust, bad.node), revoke(n3.trust, bad.node)]
    for at, order in ((n1, lists), (n4, lists[::-1])):
        for statement in order:
            merge(at.trust, statement)
        assert [refusal(at, node) for node in (n5, n6)] == ["", ""]
        assert refusal(at, sleeper(bad, tmp_path / at.name, f"late-{at.name}"))


def test_the_first_node_is_nothing_special(tmp_path: Path) -> None:
    """The node that every chain goes through can be revoked by one that it admitted; the others go on."""
    n1, n2, n3 = make_cluster(tmp_path, "n1 n2 n3")
    meet([n1, n2, n3])
    revoke(n2.trust, n1.node)
    tell(n2, n3)
    assert refusal(n3, n1) == "n1 was revoked"
    assert [refusal(n2, n3), refusal(n3, n2)] == ["", ""]
    again = load(tmp_path / "n3")
    assert again is not None
    assert [refusal(again, n1), refusal(again, n2)] == ["n1 was revoked", ""]


def test_another_key_under_a_known_id_is_refused(tmp_path: Path) -> None:
    """A trusted node cannot sign itself a certificate with the id of another one."""
    n1, n2 = make_cluster(tmp_path)
    forged = cards_of(n2.chain)[0]._replace(number=n1.node)
    assert "another key" in n2.trust.refusal([forged, *cards_of(n2.chain)[1:]])


@pytest.mark.long
@pytest.mark.parametrize("seed", range(6))
def test_statements_are_merged_in_any_order(tmp_path: Path, seed: int) -> None:
    """However often and in whichever order nodes tell each other, they come to the same."""
    rng = Random(seed)  # noqa: S311 - repeatable, nothing secret
    nodes = make_cluster(tmp_path, "n1 n2 n3 n4 n5 n6")
    meet(nodes)
    n1, n2, n3, n4, n5, n6 = nodes
    said = [revoke(n1.trust, n4.node), revoke(n2.trust, n5.node), revoke(n1.trust, n5.node)]
    said.append(revoke(n2.trust, n6.node))
    for _ in range(3):
        for statement, at in rng.sample(list(itertools.product(said, (n1, n2, n3))), 12):
            merge(at.trust, statement)
    assert n1.trust.digest == n2.trust.digest == n3.trust.digest
    assert n3.revoked == {n4.node, n5.node, n6.node}
    assert refusal(n1, n5) == "n5 was revoked"
    assert {known.name for known in n3.trust.known} == {"n1", "n2", "n3"}


def test_who_watches_is_told_once_for_each_change(tmp_path: Path) -> None:
    """A watcher hears of what is new, of nothing that was known, and of nothing after it left."""
    n1, n2, n3 = make_cluster(tmp_path, "n1 n2 n3")
    told: list[frozenset[NodeId]] = []
    leave = n1.trust.watch(lambda: told.append(n1.revoked))
    revoke(n3.trust, n2.node)
    assert tell(n3, n1) == [True]
    assert tell(n3, n1) == [False]
    assert told == [{n2.node}]
    leave()
    leave()
    revoke(n1.trust, NodeId(7))
    assert len(told) == 1


# -- a traitor --------------------------------------------------------------------------------------
@pytest.mark.parametrize("relayed_first", [False, True])
def test_a_revoked_node_vouches_for_nobody(tmp_path: Path, *, relayed_first: bool) -> None:
    """Nodes that only a removed node has kept are refused, whenever it said so, and whoever relays it."""
    n1, n2, n3, bad = make_cluster(tmp_path, "n1 n2 n3 bad", role=NodeRole.AUTHORITY)
    meet([n1, n2, n3, bad])
    hidden = sleeper(bad, tmp_path)
    for said in (stated(bad, 5, {}, hidden), stated(bad, 6, {9: 0}, hidden)):
        if relayed_first:
            assert merge(n2.trust, said)
    revoke(n1.trust, bad.node)
    tell(n1, n2, n3)
    for said in (stated(bad, 6, {9: 0}, hidden), stated(bad, 7, {}, hidden)):
        assert [merge(at.trust, said) for at in (n1, n2, n3)] == [False] * 3
    for at in (n1, n2, n3):
        assert "which was revoked" in refusal(at, hidden)
        assert at.revoked == {bad.node}
    assert n1.trust.digest == n2.trust.digest == n3.trust.digest


def test_no_statement_counts_of_who_hangs_below_a_revoked_node(tmp_path: Path) -> None:
    """A node that a removed one had hidden cannot vouch for itself, nor remove anybody, before or after."""
    n1, n2, bad = make_cluster(tmp_path, "n1 n2 bad", role=NodeRole.AUTHORITY)
    meet([n1, n2, bad])
    hidden = sleeper(bad, tmp_path)
    early = stated(hidden, 1, {bad.node: 0, n2.node: 0})
    assert merge(n2.trust, stated(hidden, 1, {77: 0}))
    revoke(n1.trust, bad.node)
    tell(n1, n2)
    assert n2.revoked == {bad.node}
    for at in (n1, n2):
        assert not merge(at.trust, early)
        assert not merge(at.trust, stated(hidden, 2, {bad.node: 0}))
        assert "which was revoked" in refusal(at, hidden)


def test_who_removes_its_admitter_first_is_judged_by_others(tmp_path: Path) -> None:
    """If a hidden node says at once that its admitter is removed, another member's word counts alone."""
    n1, n2, bad = make_cluster(tmp_path, "n1 n2 bad", role=NodeRole.AUTHORITY)
    meet([n1, n2, bad])
    hidden = sleeper(bad, tmp_path)
    assert merge(n2.trust, stated(hidden, 1, {bad.node: 0}))
    revoke(n1.trust, bad.node)
    tell(n1, n2)
    assert [bool(refusal(at, hidden)) for at in (n1, n2)] == [True, True]
    assert n1.trust.digest == n2.trust.digest


def test_removals_of_a_traitor_are_taken_back(tmp_path: Path) -> None:
    """Whoever only a traitor had removed is a member again, if the traitor's remover says so."""
    n1, n2, n3, n4, bad = make_cluster(tmp_path, "n1 n2 n3 n4 bad")
    meet([n1, n2, n3, n4, bad])
    for at in (n1, n2):
        assert merge(at.trust, stated(bad, 1, {n3.node: 0, n4.node: 0, 4_711: 0}))
    assert n1.revoked == n2.revoked == {n3.node, n4.node, 4_711}
    revoke(n1.trust, bad.node, restore=True)
    tell(n1, n2)
    assert n1.revoked == n2.revoked == {bad.node}
    assert [refusal(at, node) for at in (n1, n2) for node in (n3, n4)] == [""] * 4


def test_removals_of_a_removed_node_stay_unless_they_are_taken_back(tmp_path: Path) -> None:
    """What a removed node had removed stays removed, in its remover's name, and can be restored."""
    n1, n2, n3, old = make_cluster(tmp_path, "n1 n2 n3 old")
    meet([n1, n2, n3, old])
    revoke(old.trust, n3.node)
    tell(old, n1, n2)
    revoke(n1.trust, old.node)
    tell(n1, n2)
    assert n1.revoked == n2.revoked == {old.node, n3.node}
    assert refusal(n2, n3) == "n3 was revoked"
    revoke(n1.trust, old.node, restore=True)
    tell(n1, n2)
    assert n1.revoked == n2.revoked == {old.node}
    assert not refusal(n2, n3)


def test_a_member_that_a_traitor_removed_can_remove_it(tmp_path: Path) -> None:
    """On its own node an operator's word counts, whatever others say; and at every node that is asked."""
    n1, n2, n3, bad = make_cluster(tmp_path, "n1 n2 n3 bad")
    meet([n1, n2, n3, bad])
    strike = stated(bad, 1, {n1.node: 0, n2.node: 0})
    for at in (n1, n2, n3):
        merge(at.trust, strike)
    for at in (n1, n2):
        revoke(at.trust, bad.node, restore=True)
        assert at.revoked == {bad.node}
    # The third heard the traitor first: it believes neither, until its own operator speaks.
    assert tell(n1, n3) == [False]
    revoke(n3.trust, bad.node, restore=True)
    tell(n1, n2, n3)
    tell(n2, n1, n3)
    tell(n3, n1, n2)
    assert n1.trust.digest == n2.trust.digest == n3.trust.digest
    assert n1.revoked == {bad.node}


def test_members_that_remove_each_other_in_a_circle_do_not_change_a_mind_for_ever(tmp_path: Path) -> None:
    """Three statements of which each voids the next may arrive often: a node comes to rest, and goes on."""
    n1, n2, *circle = make_cluster(tmp_path, "n1 n2 b1 b2 b3")
    meet([n1, n2, *circle])
    said = [stated(author, 1, {circle[place - 2].node: 0}) for place, author in enumerate(circle)]
    # Each one that arrives voids the one that the node believes.
    changes = [merge(n1.trust, said[-place % 3]) for place in range(60)]
    assert any(changes)
    assert not any(changes[-12:])
    for member in circle:
        revoke(n1.trust, member.node)
    tell(n1, n2)
    assert n1.revoked == n2.revoked == {author.node for author in circle}


def test_one_member_fills_no_table_of_others(tmp_path: Path) -> None:
    """With as many made-up removals as a member may make, others remove all the same, and then none stays."""
    n1, n2, bad, old = make_cluster(tmp_path, "n1 n2 bad old")
    meet([n1, n2, bad, old])
    most = limits.NODES_REMOVED_BY_MEMBER_MAX
    made_up = stated(bad, 1, dict.fromkeys(range(1, most + 1), 0))
    for at in (n1, n2):
        assert merge(at.trust, made_up)
    revoke(n1.trust, old.node)
    assert tell(n1, n2) == [True]
    assert old.node in n2.revoked
    revoke(n1.trust, bad.node)
    assert tell(n1, n2) == [True]
    for at in (n1, n2):
        assert {old.node, bad.node} <= at.revoked
        # Ids that nobody knows take at most half of the room of the member that confirms them.
        assert len(at.revoked) <= most // 2 + 2
    revoke(n1.trust, bad.node, restore=True)
    tell(n1, n2)
    assert n2.revoked == {old.node, bad.node}


def test_removals_that_were_known_are_confirmed_before_made_up_ones(tmp_path: Path) -> None:
    """Among many made-up ids a node that was a member stays removed."""
    n1, n2, n3, bad = make_cluster(tmp_path, "n1 n2 n3 bad")
    meet([n1, n2, n3, bad])
    most = limits.NODES_REMOVED_BY_MEMBER_MAX
    merge(n1.trust, stated(bad, 1, dict.fromkeys((*range(1, most), n3.node), 0)))
    revoke(n1.trust, bad.node)
    assert refusal(n1, n3) == "n3 was revoked"


def test_a_member_removes_so_many_and_no_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At its bound a member is told to ask another one; nothing changes."""
    monkeypatch.setattr(limits, "NODES_REMOVED_BY_MEMBER_MAX", 3)
    n1, n2 = make_cluster(tmp_path)
    for node in (7, 8, 9):
        revoke(n1.trust, NodeId(node))
    before = n1.trust.statements
    with pytest.raises(LimitError, match="Ask another node"):
        revoke(n1.trust, n2.node)
    assert n1.trust.statements == before
    revoke(n1.trust, NodeId(7))


def test_two_statements_with_one_number_are_one_everywhere(tmp_path: Path) -> None:
    """A member that tells each node something else under the same number is understood alike by all."""
    n1, n2, bad = make_cluster(tmp_path, "n1 n2 bad")
    meet([n1, n2, bad])
    first, other = stated(bad, 3, {7: 0}), stated(bad, 3, {8: 0})
    for at, order in ((n1, (first, other)), (n2, (other, first))):
        for statement in order:
            merge(at.trust, statement)
        assert not merge(at.trust, stated(bad, 2, {9: 0}))
    assert n1.trust.digest == n2.trust.digest


def test_a_statement_of_this_node_comes_back_from_others(tmp_path: Path) -> None:
    """A node that was restored from a backup takes over what it said after the backup."""
    n1, n2, n3 = make_cluster(tmp_path, "n1 n2 n3")
    meet([n1, n2, n3])
    files = {path.name: path.read_bytes() for path in n1.folder.iterdir()}
    revoke(n1.trust, n3.node)
    tell(n1, n2)
    for name, data in files.items():
        (n1.folder / name).write_bytes(data)
    again = load(tmp_path / "n1")
    assert again is not None
    assert not again.revoked
    assert tell(n2, again) == [True]
    assert again.revoked == {n3.node}
    revoke(again.trust, NodeId(7))
    assert tell(again, n2) == [True]
    assert n2.revoked == {n3.node, 7}


# -- malformed and forged ---------------------------------------------------------------------------
def parts(data: bytes) -> list[object]:
    """The parts of a statement: content, signature, certificates."""
    return list(msgspec.msgpack.decode(data))


def test_a_forged_statement_changes_nothing(tmp_path: Path) -> None:
    """What no member has signed as it stands is refused whole."""
    n1, n2, n3 = make_cluster(tmp_path, "n1 n2 n3")
    (other,) = make_cluster(tmp_path / "other", "n2")
    good, encode = stated(n2, 1, {7: 0}), msgspec.msgpack.encode
    content, signature, chain = parts(good)
    longer = msgspec.msgpack.decode(good)[0]
    bad = {
        "nothing": b"",
        "rubbish": b"\xc1",
        "another's certificate": encode([content, signature, list(n3.chain[:-1])]),
        "another content": encode([parts(stated(n2, 1, {8: 0}))[0], signature, chain]),
        "no certificate": encode([content, signature, []]),
        "another cluster's": stated(other, 1, {7: 0}),
        "an old list": encode([1, [7], []]),
        "too long": bytes(limits.STATEMENT_BYTES_MAX + 1),
        "more than it may": stated(n2, 1, dict.fromkeys(range(1, limits.NODES_REMOVED_BY_MEMBER_MAX + 2), 0)),
        "id 0": stated(n2, 1, {0: 0}),
        "number 0": stated(n2, 0, {7: 0}),
        "its own end": stated(n2, 1, {n2.node: 0}),
        "not itself kept": statements.make(n2.chain, n2.key(), 1, {7: 0}, {}).data,
        "a surplus part": encode([content, signature, chain, longer]),
    }
    for kind, data in bad.items():
        with pytest.raises(ProtocolError):
            merge(n1.trust, data)
        assert n1.trust.statements == (), kind
    assert merge(n1.trust, good)


def test_a_tokens_key_states_nothing(tmp_path: Path) -> None:
    """A join certificate is no member's: what its holder signs is refused."""
    from dios.transport.identity import tokens

    (n1,) = make_cluster(tmp_path, "n1")
    token = tokens.read(tokens.issue(n1))
    chain = (token.certificate, *n1.chain)
    statement = statements.make(chain, token.key, 1, {}, {})
    with pytest.raises(ProtocolError, match="removes no nodes"):
        merge(n1.trust, statement.data)


def test_the_longest_statement_fits_its_bound(tmp_path: Path) -> None:
    """A statement with as many removed and kept nodes as there may be, by the last of the longest chain."""
    names = " ".join(f"{number:063}" for number in range(1, limits.CHAIN_CERTIFICATES_MAX))
    last = make_cluster(tmp_path, names, in_a_row=True)[-1]
    top = 2**63 - 1
    removed = {top - number: top for number in range(limits.NODES_REMOVED_BY_MEMBER_MAX)}
    kept = {2**62 + number: bytes(32) for number in range(limits.NODES_MAX - 1)}
    data = stated(last, 2**62, removed, extra=kept)
    assert len(data) <= limits.STATEMENT_BYTES_MAX
    assert merge(last.trust, data)


# -- known nodes ------------------------------------------------------------------------------------
def test_nodes_are_remembered_over_a_restart(tmp_path: Path) -> None:
    """Whom a node has met it knows after its next start; who was revoked does not come back by being met."""
    n1, n2 = make_cluster(tmp_path)
    new = Known(5, "n5", bytes(32), (6, 7))
    n2.trust.note(new)
    assert new in Trust(n2.folder, n2.chain).known
    revoke(n2.trust, n1.node)
    n2.trust.note(known_of(n1.cards))
    assert {known.name for known in Trust(n2.folder, n2.chain).known} == {"n2", "n5"}
    assert n2.trust.name_of(n1.node) == "n1"


def test_one_admitter_leaves_room_for_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nodes that one member admits, directly or through others, do not fill the table of known nodes."""
    monkeypatch.setattr(limits, "NODES_MAX", 12)
    monkeypatch.setattr(limits, "NODES_RESERVED", 4)
    n1, n2, bad = make_cluster(tmp_path, "n1 n2 bad", role=NodeRole.AUTHORITY)
    meet([n1, n2, bad])
    deep = sleeper(bad, tmp_path)
    n2.trust.note(known_of(deep.cards))
    for number in range(7):
        below = deep if number % 2 else bad
        n2.trust.note(Known(100 + number, f"s{number}", bytes(32), tuple(c.number for c in below.cards[:-1])))
    with pytest.raises(LimitError, match="bad and the nodes below it have admitted 8 nodes"):
        n2.trust.note(Known(200, "one-more", bytes(32), (deep.node, bad.node, n1.node)))
    n2.trust.note(Known(201, "honest", bytes(32), (n1.node,)))
    with pytest.raises(LimitError, match="at most 12"):
        n2.trust.note(Known(202, "over", bytes(32), (n1.node,)))
    revoke(n1.trust, bad.node)
    tell(n1, n2)
    assert {known.name for known in n2.trust.known} == {"n1", "n2", "honest"}


def test_a_statement_without_room_for_its_signer_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The statements that a node stores are at most those of nodes that it has room to know."""
    _, n2, n3 = make_cluster(tmp_path, "n1 n2 n3")
    monkeypatch.setattr(limits, "NODES_MAX", 1)
    assert not merge(n2.trust, stated(n3, 1, {7: 0}))
    assert not n2.revoked
    monkeypatch.setattr(limits, "NODES_MAX", 8)
    assert merge(n2.trust, stated(n3, 1, {7: 0}))


def test_forgetting_makes_room_to_admit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A member that has admitted as many as it may admits again after one of them is removed."""
    _, n2, n3 = make_cluster(tmp_path, "n1 n2 n3", role=NodeRole.AUTHORITY)
    monkeypatch.setattr(limits, "NODES_MAX", 6)
    monkeypatch.setattr(limits, "NODES_RESERVED", 5)
    admitted = admit_here(n2, tmp_path / "n4", name="n4")
    with pytest.raises(LimitError, match="n2 and the nodes below it"):
        sign_node(n2, "n5", Ed25519PrivateKey.generate().public_key())
    revoke(n2.trust, admitted.node)
    sign_node(n2, "n5", Ed25519PrivateKey.generate().public_key())
    assert not refusal(n3, n2)


# -- files ------------------------------------------------------------------------------------------
async def test_the_event_loop_goes_on_while_a_list_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A statement counts only once it is stored, and other tasks run while a slow disk stores it."""
    n1, n2, n3 = make_cluster(tmp_path, "n1 n2 n3")
    meet([n1, n2, n3])
    write, goes_on = durable_files.write, threading.Event()

    def slow(path: Path, data: bytes) -> None:
        assert goes_on.wait(60)
        write(path, data)

    removal, said = await n1.trust.remove(NodeId(7)), await n3.trust.remove(n2.node)
    monkeypatch.setattr(durable_files, "write", slow)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(n1.trust.accept, said)
        nursery.start_soon(n1.trust.remove, NodeId(8))
        nursery.start_soon(n3.trust.accept, removal)
        await trio.testing.wait_all_tasks_blocked()
        assert n1.revoked == {7}
        assert not refusal(n1, n2)
        goes_on.set()
    assert n1.revoked == {7, 8, n2.node}
    assert n3.revoked == {7, n2.node}
    for node in (n1, n3):
        again = load(node.folder.parent)
        assert again is not None
        assert again.revoked == node.revoked
        assert set(again.trust.known) == set(node.trust.known)


async def test_a_full_disk_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A statement that cannot be stored is not believed, and what counted before counts on."""
    n1, n2, n3 = make_cluster(tmp_path, "n1 n2 n3")
    meet([n1, n2, n3])

    def full(path: Path, data: bytes) -> None:
        raise OSError(28, f"no space for {len(data)} bytes at {path}")

    said = await n3.trust.remove(n2.node)
    monkeypatch.setattr(durable_files, "write", full)
    with pytest.raises(OSError, match="no space"):
        await n1.trust.remove(n2.node)
    with pytest.raises(OSError, match="no space"):
        await n1.trust.accept(said)
    assert not n1.revoked
    assert not refusal(n1, n2)
    monkeypatch.undo()
    assert await n1.trust.accept(said)


def test_lists_of_the_first_version_are_read(tmp_path: Path) -> None:
    """Removals of an earlier release become this node's own; of the kept it vouches for those it knows."""
    n1, n2, n3 = make_cluster(tmp_path, "n1 n2 n3", in_a_row=True)
    n1.trust.note(known_of(n3.cards))
    stranger = sleeper(n2, tmp_path)
    kept = [(node.node, node.card.key) for node in (n3, stranger)]
    (n1.folder / "revoked").write_bytes(msgspec.msgpack.encode((1, [n2.node], sorted(kept))))
    known = [(entry.node, entry.name, entry.key) for entry in n1.trust.known]
    (n1.folder / "known").write_bytes(msgspec.msgpack.encode((1, known)))
    again = load(tmp_path / "n1")
    assert again is not None
    assert again.revoked == {n2.node}
    assert not refusal(again, n3)
    assert "which was revoked" in refusal(again, stranger)
    far = admit_here(again, tmp_path / "far", name="far")
    assert far.revoked == {n2.node}


@pytest.mark.parametrize(
    "data",
    [
        b"",
        msgspec.msgpack.encode((3, [])),
        msgspec.msgpack.encode((2, [b"rubbish"])),
        msgspec.msgpack.encode((1, list(range(1, 4_097)), [])),
        b"\x93\x01\xdd\xff\xff\xff\xff",
    ],
)
def test_lists_that_cannot_be_read_are_refused(tmp_path: Path, data: bytes) -> None:
    """A node with damaged lists, or with more removals than a member may have made, does not start."""
    (n1,) = make_cluster(tmp_path, "n1")
    (n1.folder / "revoked").write_bytes(data)
    with pytest.raises(DamagedError, match="Restore the files 'revoked' and 'known'"):
        load(tmp_path / "n1")
    assert roster_of(n1.trust.known) == (n1.folder / "known").read_bytes()
