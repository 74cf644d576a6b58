"""Which of two statements about a node counts; nonsense; what is remembered of the removed."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest
from msgspec.structs import replace

from dios import limits
from dios.core.membership.swim import Change, Decision, Membership
from dios.ids import NodeId
from dios.wire import gossip
from dios.wire.gossip import Load, MemberRow, News
from dios.wire.types import NodeStatus

A, B, C = NodeId(1), NodeId(2), NodeId(3)
NOW = 10**12
MS = 1_000_000
ALIVE, SUSPECT, DEAD, LEFT = NodeStatus.ALIVE, NodeStatus.SUSPECT, NodeStatus.DEAD, NodeStatus.LEFT


@pytest.fixture(autouse=True)
def _small_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tables that are full sooner."""
    monkeypatch.setattr(limits, "NODES_MAX", 256)


def entropy(seed: int) -> Callable[[int], bytes]:
    """Bytes that are the same in every run."""
    return Random(seed).randbytes  # noqa: S311 - a test repeats itself


def row(node: NodeId, epoch: int = 1, incarnation: int = 0, status: NodeStatus = ALIVE) -> MemberRow:
    """A row of a node."""
    return MemberRow(node, f"n{node}", "r", f"host{node}:1", epoch, incarnation, status)


def view() -> Membership:
    """A's view, which knows nobody."""
    return Membership(row(A), entropy(1))


def tell(membership: Membership, *rows: MemberRow, sender: NodeId = C, now: int = NOW) -> Decision:
    """C, which is alive, tells rows."""
    return membership.received(now, sender, News(row(sender), rows))


def statuses(decision: Decision, node: NodeId) -> list[tuple[NodeStatus | None, NodeStatus]]:
    """The changes of one node."""
    return [(c.former, c.member.status) for c in decision.changed if c.member.node == node]


def test_a_node_that_was_never_seen_is_a_change_without_a_former_status() -> None:
    """Who is told of for the first time comes as a change from None."""
    assert tell(view(), row(B)).changed == [Change(row(C), None), Change(row(B), None)]


@pytest.mark.parametrize(
    ("held", "told", "becomes"),
    [
        ((1, 0, ALIVE), (1, 0, ALIVE), None),
        ((1, 0, ALIVE), (1, 0, SUSPECT), (1, 0, SUSPECT)),
        ((1, 1, ALIVE), (1, 0, SUSPECT), None),
        ((1, 0, SUSPECT), (1, 0, ALIVE), None),
        ((1, 0, SUSPECT), (1, 1, ALIVE), (1, 1, ALIVE)),
        ((1, 0, DEAD), (1, 0, ALIVE), None),
        ((1, 0, DEAD), (1, 0, SUSPECT), None),
        ((1, 0, DEAD), (1, 1, ALIVE), (1, 1, ALIVE)),
        ((1, 0, ALIVE), (1, 0, DEAD), (1, 0, SUSPECT)),
        ((1, 5, ALIVE), (1, 0, DEAD), None),
        ((1, 0, ALIVE), (1, 0, LEFT), (1, 0, SUSPECT)),
        ((1, 0, SUSPECT), (1, 0, LEFT), (1, 0, SUSPECT)),
        ((1, 0, DEAD), (1, 0, LEFT), (1, 0, LEFT)),
        ((1, 0, LEFT), (1, 0, ALIVE), None),
        ((1, 0, LEFT), (1, 1, ALIVE), (1, 1, ALIVE)),
        ((1, 0, LEFT), (1, 1, DEAD), (1, 1, DEAD)),
        ((1, 9, DEAD), (2, 0, ALIVE), (2, 0, ALIVE)),
        ((1, 9, LEFT), (2, 0, DEAD), (2, 0, DEAD)),
        ((2, 0, ALIVE), (1, 9, DEAD), None),
        ((2, 0, DEAD), (1, 9, ALIVE), None),
    ],
)
def test_of_two_statements_one_counts(
    held: tuple[int, int, NodeStatus],
    told: tuple[int, int, NodeStatus],
    becomes: tuple[int, int, NodeStatus] | None,
) -> None:
    """Epoch, then incarnation, then the worse status; another's word of death makes suspect only."""
    membership = view()
    tell(membership, row(B, *held))
    tell(membership, row(B, *told))
    member = membership.members[B]
    assert (member.epoch, member.incarnation, member.status) == (becomes or held)


def test_a_new_epoch_is_a_change_although_the_status_is_the_same() -> None:
    """A restart is told as a change from alive to alive that says so."""
    membership = view()
    tell(membership, row(B))
    changed = tell(membership, row(B, epoch=2)).changed
    assert changed == [Change(row(B, epoch=2), ALIVE, restarted=True)]


def test_a_suspect_that_was_not_heard_is_dead_by_the_word_of_another() -> None:
    """After half a second of suspicion here, another's word is believed at once; before it is not."""
    membership = view()
    tell(membership, row(B), row(B, status=SUSPECT))
    early = tell(membership, row(B, status=DEAD), now=NOW + limits.GOSSIP_BROKEN_SUSPICION_MS * MS - 1)
    assert statuses(early, B) == []
    late = tell(membership, row(B, status=DEAD), now=NOW + limits.GOSSIP_BROKEN_SUSPICION_MS * MS)
    assert statuses(late, B) == [(SUSPECT, DEAD)]


def test_a_suspect_that_was_heard_is_not_dead_by_the_word_of_another() -> None:
    """Own evidence after the suspicion began outweighs what is told."""
    membership = view()
    tell(membership, row(B), row(B, status=SUSPECT))
    membership.heard(NOW + MS, B)
    decision = tell(membership, row(B, status=DEAD), now=NOW + limits.GOSSIP_BROKEN_SUSPICION_MS * MS)
    assert statuses(decision, B) == []


def test_a_lie_about_the_epoch_of_a_connected_node_changes_nothing() -> None:
    """Nobody else is believed about another epoch of a node that is connected and alive."""
    membership = view()
    membership.connected(NOW, row(B))
    assert tell(membership, row(B, epoch=1000, status=DEAD)).changed == [Change(row(C), None)]
    assert membership.members[B] == row(B)


def test_what_a_node_says_of_itself_wins_over_a_lie_about_its_epoch() -> None:
    """A node that others gave a false epoch is right when it speaks itself."""
    membership = view()
    tell(membership, row(B, epoch=1000, status=DEAD))
    tell(membership, row(C), sender=B)
    assert membership.members[B] == row(B)


def test_an_old_message_of_an_earlier_life_changes_nothing() -> None:
    """After a node spoke in a new epoch, its late messages of the old one are void."""
    membership = view()
    membership.connected(NOW, row(B, epoch=3))
    membership.received(NOW, B, News(row(B, epoch=2)))
    assert membership.members[B].epoch == 3


@pytest.mark.parametrize(
    "lie",
    [
        row(A, incarnation=7, status=DEAD),
        row(A, status=SUSPECT),
        row(A, status=LEFT),
        row(A, incarnation=3),
        replace(row(A), version=9, draining=True),
    ],
)
def test_what_was_never_said_of_oneself_is_denied_at_once(lie: MemberRow) -> None:
    """A false row about this node is answered with a newer one, which wins wherever the lie was believed."""
    membership, other = view(), Membership(row(C), entropy(2))
    other.connected(NOW, row(A))
    tell(other, lie, sender=B)
    tell(membership, row(B))
    decision = tell(membership, lie)
    assert membership.own.status is ALIVE
    answers = [message for to, message in decision.send if to == C]
    for message in answers:
        other.received(NOW, A, message)
    assert other.members[A] == membership.own
    assert (membership.own.address, membership.own.draining) == (row(A).address, False)


def test_the_one_who_told_a_lie_is_among_those_who_get_the_denial() -> None:
    """However many others there are, the sender of a false row is told at once."""
    membership = view()
    for n in range(100, 140):
        membership.connected(NOW, row(NodeId(n)))
    decision = tell(membership, row(A, status=SUSPECT))
    assert C in [to for to, _ in decision.send]


def test_what_others_made_up_without_a_new_version_ends_with_the_nodes_own_word() -> None:
    """A false address that came first is replaced by what the node itself says in the same version."""
    membership = view()
    tell(membership, replace(row(B), address="elsewhere:1"))
    membership.received(NOW, B, News(row(B)))
    assert membership.members[B] == row(B)


def test_a_restart_is_learned_from_others_once_the_connection_is_gone() -> None:
    """A node that denied after its connection broke may be told to have started anew."""
    membership = view()
    membership.connected(NOW, row(B))
    membership.disconnected(NOW, B)
    tell(membership, row(B, incarnation=1))
    assert statuses(tell(membership, row(B, epoch=2)), B) == [(ALIVE, ALIVE)]


def test_a_lie_about_the_own_epoch_is_answered() -> None:
    """A row about this node in an epoch that it never had changes nothing here, and the sender is told."""
    membership = view()
    false = row(A, epoch=99, status=DEAD)
    decision = membership.received(NOW, C, gossip.Table(row(C), (false,)))
    assert membership.own == row(A)
    assert [to for to, _ in decision.send] == [C]


@pytest.mark.parametrize("field", ["incarnation", "version"])
def test_numbers_that_leave_no_room_for_a_denial_are_nonsense(field: str) -> None:
    """A number that jumps too far is not believed of others, and raises the own one by one jump at most."""
    membership = view()
    tell(membership, row(B))
    huge = replace(row(B, status=DEAD), **{field: 2**63 - 1})
    tell(membership, huge, replace(huge, node=A), replace(huge, node=NodeId(9)), replace(huge, epoch=5))
    assert membership.members == {B: row(B), C: row(C)}
    assert membership.own.epoch == row(A).epoch
    assert membership.own.status is ALIVE
    assert getattr(membership.own, field) == getattr(row(A), field) + limits.GOSSIP_VERSION_JUMP_MAX + 1


def test_a_lie_that_was_raised_in_steps_elsewhere_is_outdone_in_as_many() -> None:
    """However high others hold this node's numbers, it exceeds them after some of their messages."""
    membership = view()
    high = row(A, status=DEAD, incarnation=3 * limits.GOSSIP_VERSION_JUMP_MAX)
    for _ in range(3):
        tell(membership, high)
    assert membership.own.incarnation > high.incarnation


@pytest.mark.parametrize("epoch", [1, 2])
def test_a_node_that_had_to_deny_very_often_is_believed_about_itself(epoch: int) -> None:
    """A node's own numbers count however high they are, against a lie about it, and where it is new."""
    truth = replace(row(B), incarnation=2**33, version=2**34)
    membership = view()
    membership.connected(NOW, row(B))
    membership.disconnected(NOW, B)
    tell(membership, replace(row(B, epoch=epoch), address="elsewhere:1"))
    membership.received(NOW, B, News(truth))
    assert membership.members[B] == truth
    late = replace(truth, node=NodeId(9))
    membership.connected(NOW, late)
    assert membership.members[NodeId(9)] == late


def test_a_node_that_calls_itself_dead_is_not_believed() -> None:
    """The own row of a sender can be alive or have left; anything else changes nothing."""
    membership = view()
    membership.connected(NOW, row(B))
    membership.received(NOW, B, News(row(B, incarnation=4, status=DEAD)))
    assert membership.members[B] == row(B)


def test_a_message_with_the_row_of_another_is_no_statement_of_that_other() -> None:
    """Who sends another's row as its own gains nothing by it."""
    membership = view()
    tell(membership, row(B))
    membership.received(NOW, C, News(row(B, epoch=9, status=LEFT)))
    assert membership.members[B] == row(B)


def test_the_table_is_bounded_and_the_dead_make_room() -> None:
    """There are never NODES_MAX rows; a new live node takes the place of a dead one, a dead one none."""
    membership = view()
    for start in range(3, 3 + 2 * limits.NODES_MAX, 10):
        tell(membership, *(row(NodeId(n), status=DEAD) for n in range(start + 1, start + 11)))
    assert len(membership.members) == limits.NODES_MAX - 1
    tell(membership, row(B))
    assert membership.members[B].status is ALIVE
    late = NodeId(10_000)
    tell(membership, row(late, status=DEAD))
    assert late not in membership.members
    assert len(membership.members) == limits.NODES_MAX - 1


def test_made_up_rows_keep_no_node_out_that_connects() -> None:
    """In a table full of nodes that others told of, each node that connects finds a place."""
    membership = view()
    membership.connected(NOW, row(B))
    for n in range(100, 100 + limits.NODES_MAX):
        tell(membership, row(NodeId(n)))
    for late in (NodeId(7_001), NodeId(7_002)):
        assert late not in membership.members
        membership.connected(NOW, row(late))
        assert late in membership.members
    assert len(membership.members) == limits.NODES_MAX - 1
    assert {B, C, NodeId(7_001), NodeId(7_002)} <= set(membership.members)


def test_made_up_rows_take_no_place_of_a_node_that_was_met() -> None:
    """A node that was met and is dead stays in a full table until a node connects in its place."""
    membership = view()
    membership.connected(NOW, row(B))
    membership.received(NOW, B, gossip.Ping(row(B, status=LEFT), 1))
    for n in range(100, 100 + 2 * limits.NODES_MAX):
        tell(membership, row(NodeId(n)))
    assert membership.members[B].status is LEFT
    membership.connected(NOW, row(NodeId(7_001)))
    assert B not in membership.members


def test_a_full_table_of_live_nodes_takes_nobody_more() -> None:
    """Whoever was met and is alive is not put out for a newcomer, even one that connects."""
    membership = view()
    for n in range(100, 100 + limits.NODES_MAX):
        membership.connected(NOW, row(NodeId(n)))
    assert len(membership.members) == limits.NODES_MAX - 1
    membership.connected(NOW, row(B))
    assert B not in membership.members
    assert len(membership.members) == limits.NODES_MAX - 1


def test_a_removed_node_is_believed_no_more() -> None:
    """A removal drops the row, is reported once and sent to nobody, and no row of the node counts again."""
    membership = view()
    tell(membership, row(B))
    decision = membership.remove(NOW, [B])
    assert (decision.forgotten, decision.send) == ([B], [])
    assert B not in membership.members
    for quiet in (
        tell(membership, row(B, epoch=7)),
        membership.connected(NOW, row(B, epoch=8)),
        membership.received(NOW, B, gossip.Ping(row(B), 1)),
        membership.remove(NOW, [B]),
    ):
        assert (quiet.send, quiet.changed, quiet.forgotten) == ([], [], [])
    assert membership.forgotten == {B}


def test_a_removal_that_became_void_is_taken_back() -> None:
    """A node that is not among the removed any more is a member as soon as it is heard of."""
    membership = view()
    tell(membership, row(B))
    membership.remove(NOW, [B])
    assert membership.remove(NOW, []).forgotten == []
    assert not membership.is_forgotten(B)
    assert [change.member for change in tell(membership, row(B)).changed] == [row(B)]


def test_a_node_that_was_removed_itself_is_told() -> None:
    """The own id among the removed is reported, and the own row stays."""
    membership = view()
    assert membership.remove(NOW, [A]).forgotten == [A]
    assert membership.own == row(A)


def test_the_removed_of_earlier_lives_stay_removed() -> None:
    """What the host kept of removals holds from the start."""
    membership = Membership(row(A), entropy(1), [B])
    assert tell(membership, row(B)).changed == [Change(row(C), None)]


def test_load_comes_with_the_nodes_own_messages_and_is_no_change() -> None:
    """A newer load is in the table and nobody is told of a change."""
    membership = view()
    tell(membership, row(B))
    busy = replace(row(C), version=1, load=Load(4, 8, 10))
    assert membership.received(NOW, C, News(busy)).changed == []
    assert membership.members[C].load == Load(4, 8, 10)


def test_news_of_load_is_no_denial() -> None:
    """A suspect stays suspect when another tells its newer load."""
    membership = view()
    tell(membership, row(B), row(B, status=SUSPECT))
    tell(membership, replace(row(B), version=5, load=Load(1)))
    assert membership.members[B] == replace(row(B, status=SUSPECT), version=5, load=Load(1))


def test_draining_is_a_change() -> None:
    """That a node wants no new tasks is told as a change with the same status."""
    membership = view()
    tell(membership, row(B))
    full = replace(row(B), version=1, draining=True)
    assert tell(membership, full).changed == [Change(full, ALIVE)]


def test_numbers_end_where_other_nodes_refuse_them() -> None:
    """A node that was driven to the last incarnation and version states nothing that others would refuse."""
    last = limits.COUNTER_MAX
    own = replace(row(A, incarnation=last - 1), version=last - 1)
    membership = Membership(own, entropy(1))
    for _ in range(3):
        lie = replace(membership.own, status=SUSPECT, version=min(membership.own.version + 1, last))
        said = tell(membership, lie)
        membership.drain(NOW, on=not membership.own.draining)
        assert all(gossip.decode(gossip.encode(message)) == message for _, message in said.send)
    assert (membership.own.incarnation, membership.own.version) == (last, last)
