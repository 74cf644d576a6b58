"""Who is asked when, what silence leads to, and what a node says of itself."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest
from msgspec.structs import replace

from dios import limits
from dios.core.membership.dissemination import Dissemination
from dios.core.membership.swim import Decision, Membership
from dios.ids import NodeId
from dios.wire import gossip
from dios.wire.gossip import Ack, Digests, GossipMessage, Load, MemberRow, News, Ping, PingRequest, Table
from dios.wire.types import NodeStatus

A, B, C, D = NodeId(1), NodeId(2), NodeId(3), NodeId(4)
NOW = 10**12
MS = 1_000_000
PING, ACK = limits.GOSSIP_PERIOD_MS * MS, limits.GOSSIP_ACK_TIMEOUT_MS * MS
SUSPECTED, CUT_OFF = limits.GOSSIP_SUSPICION_MS * MS, limits.GOSSIP_BROKEN_SUSPICION_MS * MS
ALIVE, SUSPECT, DEAD, LEFT = NodeStatus.ALIVE, NodeStatus.SUSPECT, NodeStatus.DEAD, NodeStatus.LEFT


def entropy(seed: int) -> Callable[[int], bytes]:
    """Bytes that are the same in every run."""
    return Random(seed).randbytes  # noqa: S311 - a test repeats itself


def row(node: NodeId, status: NodeStatus = ALIVE, incarnation: int = 0) -> MemberRow:
    """A row of a node."""
    return MemberRow(node, f"n{node}", "r", f"host{node}:1", 1, incarnation, status)


def view(*others: NodeId) -> Membership:
    """A's view, connected to others."""
    membership = Membership(row(A), entropy(1))
    for other in others:
        membership.connected(NOW, row(other))
    return membership


def to(decision: Decision, node: NodeId) -> list[GossipMessage]:
    """What is sent to one node."""
    return [message for receiver, message in decision.send if receiver == node]


def settle(membership: Membership, others: list[NodeId], end: int) -> None:
    """Let time pass in which everybody is heard, so that all news is told and old."""
    while (moment := membership.next_tick) is not None and moment < end:
        for other in others:
            membership.heard(moment, other)
        membership.tick(moment)


def tick_until(membership: Membership, end: int) -> list[tuple[int, Decision]]:
    """Every tick it wants up to a moment, with what came of it."""
    decisions: list[tuple[int, Decision]] = []
    while (moment := membership.next_tick) is not None and moment <= end:
        decisions.append((moment, membership.tick(moment)))
    return decisions


def becomes(decisions: list[tuple[int, Decision]], node: NodeId, status: NodeStatus) -> int:
    """How long after NOW a node came to a status."""
    return next(
        at - NOW
        for at, decision in decisions
        for change in decision.changed
        if (change.member.node, change.member.status) == (node, status)
    )


def test_an_announced_silence_is_no_evidence() -> None:
    """Nothing that is seen or said makes the node dead before its time is over; afterwards silence does."""
    membership = view(B, C)
    until = NOW + 10 * (SUSPECTED + PING)
    membership.excuse(B, until)
    membership.disconnected(NOW, B)
    for number in range(9):
        moment = NOW + number * (SUSPECTED + PING)
        settle(membership, [C], moment)
        statement = DEAD if number % 2 else SUSPECT
        membership.received(moment, C, News(row(C), (row(B, statement, number),)))
        assert membership.members[B].status in {ALIVE, SUSPECT}
    decisions = tick_until(membership, until + 3 * (SUSPECTED + PING + ACK))
    assert becomes(decisions, B, DEAD) + NOW >= until


@pytest.mark.parametrize("returns", ["connects", "continues"])
def test_an_announced_silence_ends_with_the_next_sign(returns: str) -> None:
    """A node that is back, or goes on after all, is judged as any other."""
    membership = view(B)
    membership.excuse(B, NOW + 60 * SUSPECTED)
    if returns == "connects":
        membership.connected(NOW, row(B))
    else:
        membership.excuse(B, NOW)
    decisions = tick_until(membership, NOW + 3 * (SUSPECTED + PING + ACK))
    assert becomes(decisions, B, DEAD) <= SUSPECTED + 2 * (PING + ACK)


def test_an_excuse_of_a_stranger_changes_nothing() -> None:
    """A node that is not in the table has no record to note it in."""
    membership = view(B)
    membership.excuse(C, NOW + SUSPECTED)
    assert C not in membership.members


def test_a_node_alone_wants_no_tick() -> None:
    """There is nobody to ask: an idle machine is left asleep."""
    assert view().next_tick is None
    assert view(B).next_tick == NOW


@pytest.mark.parametrize("size", [3, 8, 9])
def test_everybody_is_asked_once_before_anybody_is_asked_again(size: int) -> None:
    """The order is random, and a round of it has each other node once; the successor is asked in between."""
    others = [NodeId(n) for n in range(2, 2 + size)]
    pinged = pings_of(view(*others), others, 40 * len(others))
    assert set(pinged[::2]) == {others[0]}
    asked = pinged[1::2]
    rounds = [asked[start : start + len(others)] for start in range(0, len(asked), len(others))]
    assert all(sorted(part) == others for part in rounds)
    assert len({tuple(part) for part in rounds}) > 2


def pings_of(membership: Membership, others: list[NodeId], periods: int) -> list[NodeId]:
    """The nodes that are pinged in these periods, in which everybody is heard."""
    asked: list[NodeId] = []
    for period in range(periods):
        now = NOW + period * PING
        decision = membership.tick(now)
        pinged = [node for node, message in decision.send if isinstance(message, Ping)]
        assert len(set(pinged)) == limits.GOSSIP_PINGS_PER_PERIOD
        asked += pinged
        for node in others:
            membership.heard(now, node)
    return asked


@pytest.mark.parametrize("size", [10, 40, 300])
def test_in_a_large_cluster_each_node_asks_few_and_is_asked_by_its_predecessor(size: int) -> None:
    """However many there are, a node asks its successor and its partners, and all of them again soon."""
    ids = [NodeId(Random(n).randrange(2**63)) for n in range(size)]  # noqa: S311 - a test repeats itself
    others = sorted(node for node in ids if node != A)
    membership = view(*others)
    pinged = pings_of(membership, others, 80)
    assert set(pinged[::2]) == {others[0]}
    asked = pinged[1::2]
    assert len(set(asked)) in {limits.GOSSIP_PARTNERS, limits.GOSSIP_PARTNERS + 1}
    assert all(set(asked[start : start + 18]) == set(asked) for start in range(0, 20, 5))


def test_a_death_changes_few_partners() -> None:
    """When one node of many dies, those that had it as a partner find one other, and the rest keep theirs."""
    others = [NodeId(n) for n in range(2, 200)]
    membership = view(*others)
    before = set(pings_of(membership, others, 80))
    rest = [node for node in others if node != max(before)]
    later = Membership(row(A), entropy(3))
    for node in rest:
        later.connected(NOW, row(node))
    assert len(before - set(pings_of(later, rest, 80))) == 1


def test_a_ping_is_answered_with_its_number() -> None:
    """Who is asked says that it lives, in one message."""
    decision = view(B).received(NOW, B, Ping(row(B), 77))
    answers = [(m.row, m.number, m.subject) for m in to(decision, B) if isinstance(m, Ack)]
    assert answers == [(row(A), 77, A)]
    assert len(decision.send) == 1


def test_who_is_silent_is_asked_through_others_then_suspect_then_dead() -> None:
    """The times are those of the limits, within one round."""
    membership = view(B, C, D)
    decisions: list[tuple[int, Decision]] = []
    while (moment := membership.next_tick) is not None and moment < NOW + 4 * SUSPECTED:
        for node in (C, D):
            membership.heard(moment, node)
        decisions.append((moment, membership.tick(moment)))
    asked = next(at - NOW for at, d in decisions if any(isinstance(m, Ping) for m in to(d, B)))
    relayed = next(
        (at - NOW, {node for node, m in d.send if isinstance(m, PingRequest)})
        for at, d in decisions
        if any(isinstance(m, PingRequest) for _, m in d.send)
    )
    assert relayed == (asked + ACK, {C, D})
    assert becomes(decisions, B, SUSPECT) == asked + 2 * ACK
    assert becomes(decisions, B, DEAD) == asked + 2 * ACK + SUSPECTED
    assert asked <= 4 * PING


def test_anything_heard_of_a_node_is_an_answer() -> None:
    """A node of which any message comes is never suspect, though it answers no ping."""
    membership = view(B)
    now = NOW
    while now < NOW + 10 * SUSPECTED:
        now = membership.next_tick or now
        membership.heard(now, B)
        assert membership.tick(now).changed == []


def test_a_broken_connection_is_suspicion_at_once_and_death_soon() -> None:
    """Others are asked at the same moment, and half a second of silence is enough."""
    membership = view(B, C)
    decision = membership.disconnected(NOW, B)
    assert [(c.former, c.member.status) for c in decision.changed] == [(ALIVE, SUSPECT)]
    assert [m.target for m in to(decision, C) if isinstance(m, PingRequest)] == [B]
    assert [type(m) for m in to(decision, B)] == [Ping]
    assert becomes(tick_until(membership, NOW + SUSPECTED), B, DEAD) == CUT_OFF


def test_a_suspect_that_others_have_heard_of_gets_its_whole_time() -> None:
    """An answer that comes through another prolongs the short suspicion of a broken connection."""
    membership = view(B, C)
    decision = membership.disconnected(NOW, B)
    request = next(m for m in to(decision, C) if isinstance(m, PingRequest))
    membership.received(NOW + CUT_OFF - 1, C, Ack(row(C), request.number, B))
    decisions = tick_until(membership, NOW + CUT_OFF)
    assert all(change.member.node != B for _, d in decisions for change in d.changed)


@pytest.mark.parametrize("number", [0, 2**62])
def test_an_answer_that_was_not_asked_for_proves_nothing(number: int) -> None:
    """Old or invented words of another about a suspect prolong nothing."""
    membership = view(B, C)
    membership.disconnected(NOW, B)
    membership.received(NOW, C, Ack(row(C), number, B))
    assert becomes(tick_until(membership, NOW + SUSPECTED), B, DEAD) == CUT_OFF


def test_a_connection_that_comes_back_ends_the_suspicion() -> None:
    """A new connection is proof: alive at once, and the node is told what was said of it."""
    membership = view(B, C)
    membership.disconnected(NOW, B)
    decision = membership.connected(NOW + MS, row(B))
    assert [(c.former, c.member.status) for c in decision.changed] == [(SUSPECT, ALIVE)]
    said = [m for m in to(decision, B) if isinstance(m, Digests)]
    assert [r.status for r in said[0].updates if r.node == B] == [SUSPECT]


def test_a_broken_connection_shortens_a_suspicion_that_has_begun() -> None:
    """A suspect whose connection breaks does not get its whole second any more."""
    membership = view(B, C)
    membership.received(NOW, C, News(row(C), (row(B, SUSPECT),)))
    membership.disconnected(NOW, B)
    assert becomes(tick_until(membership, NOW + SUSPECTED), B, DEAD) == CUT_OFF


def test_whoever_vouched_for_a_node_is_asked_again() -> None:
    """Among many others the one that has a way to the node is not left to luck."""
    others = [NodeId(n) for n in range(2, 42)]
    membership = view(*others)
    relays: list[set[NodeId]] = []
    helper = A
    for _ in range(8):
        membership.connected(NOW, row(B))
        decision = membership.disconnected(NOW, B)
        asked = {node: m for node, m in decision.send if isinstance(m, PingRequest)}
        relays.append(set(asked))
        if len(relays) == 1:
            helper = max(asked)
            membership.received(NOW, helper, Ack(row(helper), asked[helper].number, B))
    assert all(helper in chosen for chosen in relays)
    assert len(set.union(*relays)) > limits.GOSSIP_RELAYS + 1


def test_those_that_answered_lately_are_asked_first() -> None:
    """Of many live nodes those whose answers come are the relays, not those that are merely heard."""
    others = [NodeId(n) for n in range(2, 42)]
    membership = view(*others)
    later = NOW + 3 * SUSPECTED
    settle(membership, others, later)
    good = {NodeId(n) for n in (20, 30, 40)}
    for node in good:
        membership.received(later, node, Ack(row(node), 0, node))
    decision = membership.disconnected(later, B)
    assert {node for node, m in decision.send if isinstance(m, PingRequest)} == good


def test_questions_and_answers_about_a_node_carry_its_row() -> None:
    """A relay gets to know what is said of the target, and its answer what the target says, also if old."""
    membership = view(B, C)
    later = NOW + 60 * SUSPECTED
    settle(membership, [B, C], later)
    ping = to(membership.received(later, C, PingRequest(row(C), 5, B)), B)[0]
    assert isinstance(ping, Ping)
    vouched = to(membership.received(later, B, Ack(row(B), ping.number, B)), C)[0]
    assert vouched.updates == (row(B),)


def test_relayed_probes_are_bounded() -> None:
    """A peer that asks for pings without end and without answers fills a table of fixed size."""
    membership = view(B, C)
    for number in range(2 * limits.GOSSIP_RELAYED_MAX):
        membership.received(NOW, C, PingRequest(row(C), number, B))
    assert len(membership._probes._relayed) == limits.GOSSIP_RELAYED_MAX


def test_life_and_death_are_passed_on_at_once_and_once() -> None:
    """Who learns of a suspicion, a denial or a good-bye tells some others in the same step, and not again."""
    others = [NodeId(n) for n in range(2, 42)]
    membership = view(*others)
    good_bye = row(B, LEFT, 1)
    by_another = [(told, C, News(row(C), (told,))) for told in (row(B, SUSPECT), row(B, incarnation=1))]
    for told, sender, news in (*by_another, (good_bye, B, News(good_bye))):
        first = membership.received(NOW, sender, news)
        passed = [node for node, m in first.send if isinstance(m, News) and told in m.updates]
        assert len(passed) == limits.GOSSIP_RELAYS
        again = membership.received(NOW, sender, news)
        assert [node for node, m in again.send if isinstance(m, News)] == []


def test_much_news_at_once_is_no_message_out_of_bounds() -> None:
    """A table full of suspicions makes messages that every receiver accepts."""
    others = [NodeId(n) for n in range(2, 102)]
    membership = view(*others)
    rows = tuple(row(other, SUSPECT) for other in others if other != C)
    decision = membership.received(NOW, C, Table(row(C), rows))
    assert len(decision.send) > len(rows)
    assert all(gossip.decode(gossip.encode(m)) == m for _, m in decision.send)


def test_load_is_not_passed_on() -> None:
    """When all news is told, a newer load of another brings no new row into messages."""
    membership = view(B, C)
    later = NOW + 60 * SUSPECTED
    settle(membership, [B, C], later)
    membership.received(later, B, News(replace(row(B), version=1, load=Load(9))))
    membership.heard(later, C)
    sent = [m for _, m in membership.tick(later + PING).send if not isinstance(m, Table)]
    assert {m.updates for m in sent} == {()}


def test_what_was_told_least_is_told_first() -> None:
    """With more news than fits into a message the newest goes first."""
    spreading = Dissemination()
    for node in (B, C, D):
        spreading.add(node, 3)
    assert spreading.take(2) == [B, C]
    assert spreading.take(2) == [D, B]
    spreading.add(C, 3)
    assert spreading.take(1) == [C]


def test_a_question_for_another_is_asked_and_its_answer_passed_on() -> None:
    """The relay pings with a number of its own and answers with the asker's."""
    membership = view(B, C)
    pings = to(membership.received(NOW, C, PingRequest(row(C), 5, B)), B)
    assert [type(m) for m in pings] == [Ping]
    assert isinstance(pings[0], Ping)
    decision = membership.received(NOW + MS, B, Ack(row(B), pings[0].number, B))
    assert [(m.number, m.subject) for m in to(decision, C) if isinstance(m, Ack)] == [(5, B)]
    again = membership.received(NOW + MS, B, Ack(row(B), pings[0].number, B))
    assert again.send == []


def test_an_answer_to_a_relay_must_come_in_time_and_from_the_right_node() -> None:
    """Too late, or from somebody else, it is not passed on."""
    membership = view(B, C, D)
    for sender, when in ((B, NOW + ACK + 1), (D, NOW)):
        ping = to(membership.received(NOW, C, PingRequest(row(C), 5, B)), B)[0]
        assert isinstance(ping, Ping)
        decision = membership.received(when, sender, Ack(row(sender), ping.number, sender))
        assert to(decision, C) == []


def test_who_asks_about_strangers_or_itself_gets_nothing() -> None:
    """A relay serves for known nodes only; for itself it is an ordinary ping."""
    membership = view(B)
    assert membership.received(NOW, B, PingRequest(row(B), 5, NodeId(99))).send == []
    assert membership.received(NOW, B, PingRequest(row(B), 5, B)).send == []
    answer = to(membership.received(NOW, B, PingRequest(row(B), 6, A)), B)[0]
    assert isinstance(answer, Ack)
    assert (answer.number, answer.subject) == (6, A)


def test_a_suspect_hears_of_it_and_its_denial_ends_it() -> None:
    """Every message to a suspect says so, and its answer brings a row that wins everywhere."""
    ours, two = view(B, C), Membership(row(B), entropy(2))
    two.connected(NOW, row(A))
    decision = ours.received(NOW, C, News(row(C), (row(B, SUSPECT),)))
    for message in to(decision, B):
        answer = two.received(NOW, A, message)
        for back in to(answer, A):
            ours.received(NOW, B, back)
    assert ours.members[B] == two.own
    assert (two.own.status, two.own.incarnation) == (ALIVE, 1)


def test_a_dead_node_that_speaks_is_told_that_it_is_dead() -> None:
    """One exchange after a frozen node goes on it is alive again here."""
    ours, two = view(B), Membership(row(B), entropy(2))
    two.connected(NOW, row(A))
    tick_until(ours, NOW + 4 * SUSPECTED)
    assert ours.members[B].status is DEAD
    later = NOW + 5 * SUSPECTED
    decision = ours.received(later, B, Ping(two.own, 1))
    for message in to(decision, B):
        for back in to(two.received(later, A, message), A):
            ours.received(later, B, back)
    assert ours.members[B] == two.own
    assert ours.members[B].status is ALIVE


def test_two_nodes_that_cannot_convince_each_other_do_not_talk_for_ever() -> None:
    """A node that came back with a lower epoch than it had is not believed, and each word has few answers."""
    ours, two = view(), Membership(row(B), entropy(2))
    ours.connected(NOW, replace(row(B), epoch=99))
    ours.disconnected(NOW, B)
    two.connected(NOW, row(A))
    waiting: list[tuple[NodeId, GossipMessage]] = [(A, Ping(two.own, 1)), (A, News(two.own))]
    for _ in range(10):
        said, waiting = waiting, []
        for receiver, message in said:
            here, sender = (ours, B) if receiver == A else (two, A)
            waiting += here.received(NOW, sender, message).send
    assert ours.members[B].epoch == 99
    assert waiting == []


def test_the_dead_are_asked_now_and_then() -> None:
    """Both sides of a healed partition find each other: a dead node is pinged, rarely."""
    membership = view(B)
    tick_until(membership, NOW + 4 * SUSPECTED)
    decisions = tick_until(membership, NOW + 64 * SUSPECTED)
    pings = sum(isinstance(m, Ping) for _, d in decisions for m in to(d, B))
    assert pings == 60_000 // limits.GOSSIP_DEAD_PERIOD_MS


def test_a_node_that_was_frozen_itself_gives_the_others_a_fresh_chance() -> None:
    """The first tick after a long sleep declares nobody dead, although all deadlines are long over."""
    membership = view(B, C, D)
    tick_until(membership, NOW + PING)
    membership.disconnected(NOW + PING, B)
    awake = NOW + 10 * SUSPECTED
    decision = membership.tick(awake)
    assert decision.changed == []
    # Its own questions to C and D are over, too: the answers may stand in its sockets.
    asked = [m for _, m in decision.send if isinstance(m, PingRequest)]
    assert {m.target for m in asked} <= {B}
    assert membership.next_tick is not None
    decisions = tick_until(membership, awake + SUSPECTED - 1)
    assert all(change.member.status is not DEAD for _, d in decisions for change in d.changed)


def test_a_node_that_was_frozen_itself_is_slow_to_believe_broken_connections() -> None:
    """Those that closed the connection meanwhile have the time to come back."""
    membership = view(B)
    awake = NOW + 10 * SUSPECTED
    membership.disconnected(awake, B)
    decisions = tick_until(membership, awake + SUSPECTED)
    assert becomes(decisions, B, DEAD) == awake + SUSPECTED - NOW


def test_news_rides_on_a_bounded_number_of_messages() -> None:
    """What was told often enough is told no more, and no message has more than its share."""
    others = [NodeId(n) for n in range(2, 42)]
    membership = view(*others)
    sent = 0
    now = NOW
    for _ in range(2_000):
        decision = membership.tick(now)
        for _, message in decision.send:
            if not isinstance(message, Table):
                assert len(message.updates) <= limits.GOSSIP_UPDATES_MAX
                sent += len(message.updates)
        for node in others:
            membership.heard(now, node)
        now += PING
    known = range(1, len(others) + 1)
    assert sent == limits.GOSSIP_RETRANSMIT_FACTOR * sum(count.bit_length() for count in known)


def test_tables_are_compared_now_and_then() -> None:
    """A node sends digests, and gets digests and rows back if the tables differ, and nothing otherwise."""
    membership = view(B)
    asked = [m for m in to(membership.tick(NOW), B) if isinstance(m, Digests)]
    assert [digests.answer for digests in asked] == [True]
    same, other = Membership(row(B), entropy(2)), Membership(row(B), entropy(2))
    for node in (same, other):
        node.connected(NOW, row(A))
    other.received(NOW, A, News(row(A), (row(C),)))
    assert same.received(NOW, A, asked[0]).send == []
    back = to(other.received(NOW, A, asked[0]), A)
    assert [(type(m), getattr(m, "answer", None)) for m in back] == [(Digests, False), (Table, None)]
    for message in back:
        membership.received(NOW, B, message)
    assert membership.view == replace(other.view, version=membership.view.version)
