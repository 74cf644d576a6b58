"""The index of names: a lookup asks a few nodes and is right, whatever the members do (decision 0040)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest

from dios import limits
from dios.core import events, work
from dios.core.model.name_table import PARTS, NameTable
from dios.core.model.work_items import NameHandover
from dios.core.remote import registration
from dios.core.remote.name_index import pack_digests
from dios.core.remote.peers import Cluster as ClusterState
from dios.errors import Code
from dios.ids import InternalName
from dios.wire import dcp, gossip, messages
from dios.wire.types import Flag, NameKind, NodeStatus, NodeWish, ObjectType
from tests.support.core.cluster import Citizen, Cluster, ClusterNode, Parcel

UNKNOWN = bytes(range(32))
SETTLED_MS = limits.INDEX_SETTLE_MS + 100


def state_of(node: ClusterNode) -> ClusterState:
    """What a node knows about the cluster."""
    cluster = node.core.state.cluster
    assert cluster is not None
    return cluster


class Town:
    """Some nodes with a session on each, and the requests that they made."""

    def __init__(self, size: int) -> None:
        self.cluster = Cluster(("r1",) * size)
        self.asked: list[dcp.Ask] = []
        self.lost: Callable[[Parcel], bool] = lambda parcel: False  # noqa: ARG005 - by default nothing is
        self.cluster.drop = self._listen
        self.people = [self.cluster.session(node) for node in self.cluster.nodes]
        self.cluster.advance(SETTLED_MS)
        self.asked.clear()

    def _listen(self, parcel: Parcel) -> bool:
        if self.lost(parcel):
            return True
        if isinstance(parcel.message, dcp.Ask):
            self.asked.append(parcel.message)
        return False

    def requests(self) -> Counter[str]:
        """Count the requests since this was called last, by their kind."""
        asked, self.asked = self.asked, []
        return Counter(type(request.body).__name__ for request in asked)

    def settled(self) -> list[bool]:
        """Tell for each node if all others have registered their names there."""
        return [registration.is_settled(state_of(node)) for node in self.cluster.nodes]

    def index_nodes(self, name: bytes) -> list[int]:
        """The places of a name's index nodes in the list of nodes."""
        state = state_of(self.cluster.nodes[0])
        ring = state.index.current
        assert ring is not None
        return [node - 1 for node in ring.nodes_of(state.index.place(name))]  # type: ignore[arg-type]

    def no_index_node(self, name: bytes, *others: int) -> int:
        """The place of a node that is neither an index node of a name nor one of the others."""
        known = {*self.index_nodes(name), *others}
        return next(place for place in range(len(self.cluster.nodes)) if place not in known)


@pytest.fixture
def town() -> Town:
    """Eight nodes."""
    return Town(8)


def holders_of(who: Citizen, name: bytes) -> list[str]:
    """The nodes on which a lookup finds a name; nothing may have been out of reach."""
    answer = who.ask(messages.References, messages.Lookup(name))
    assert not answer.incomplete
    return [reference.node for reference in answer.references]


# -- how many are asked -------------------------------------------------------------------------------
@pytest.mark.parametrize("size", [6, 12, 24])
def test_a_lookup_asks_as_many_nodes_in_a_large_cluster(size: int) -> None:
    """A name that exists costs its index nodes and one node that has it; an absent one the index nodes."""
    town = Town(size)
    created = town.people[0].create(data=b"here")
    name = created.name or b""
    town.requests()
    asker = town.people[town.no_index_node(name, 0)]
    assert holders_of(asker, name) == ["n1"]
    here = 0 in town.index_nodes(name)
    assert town.requests() == {"FindNames": limits.INDEX_COPIES, "Resolve": 1}, here
    absent = town.people[town.no_index_node(UNKNOWN)]
    assert holders_of(absent, UNKNOWN) == []
    assert town.requests() == {"FindNames": limits.INDEX_COPIES}


def test_a_lookup_of_too_many_names_asks_everybody(monkeypatch: pytest.MonkeyPatch) -> None:
    """Comparing them with the names of all nodes would take an index node too long."""
    town = Town(6)
    created = town.people[0].create(data=b"here")
    assert created.name is not None
    town.requests()
    asker = town.people[town.no_index_node(created.name, 0)]
    usual = limits.INDEX_COMPARED_MAX
    monkeypatch.setattr(limits, "INDEX_COMPARED_MAX", 5)
    assert holders_of(asker, created.name) == ["n1"]
    assert town.requests() == {"Resolve": 5}
    monkeypatch.setattr(limits, "INDEX_COMPARED_MAX", usual)
    assert holders_of(asker, UNKNOWN) == []
    assert town.requests() == {"FindNames": limits.INDEX_COPIES}


def test_a_few_nodes_have_no_index() -> None:
    """In a cluster in which the index would save nothing, nothing is registered."""
    town = Town(limits.INDEX_COPIES + 1)
    created = town.people[0].create(data=b"here")
    assert holders_of(town.people[1], created.name or b"") == ["n1"]
    assert town.requests() == {"Resolve": limits.INDEX_COPIES}


def test_a_name_is_found_from_everywhere_until_it_is_deleted(town: Town) -> None:
    """As soon as a create is answered, each node finds the object; after its deletion none does."""
    created = town.people[2].create(data=b"here")
    name = created.name or b""
    assert [holders_of(person, name) for person in town.people] == [["n3"]] * 8
    town.people[2].ask(messages.Done, messages.Delete(created.reference.ref, int(Flag.DESTROY)))
    town.cluster.settle()
    town.requests()
    assert [holders_of(person, name) for person in town.people] == [[]] * 8
    assert town.requests()["Resolve"] <= 8  # of those that had found it, at the node where it was


def test_every_group_of_a_caller_costs_the_same(town: Town) -> None:
    """A caller in many groups asks as few nodes as a caller in one."""
    person = town.people[0]
    groups = [
        person.ask(messages.Created, messages.Create(ObjectType.GROUP, (person.groups[0],))).name
        for _ in range(20)
    ]
    many = town.cluster.session(town.cluster.nodes[4], tuple(name for name in groups if name is not None))
    town.requests()
    assert holders_of(many, UNKNOWN) == []
    asked = town.requests()
    del asked["Register"]  # of the new session's own name
    assert set(asked) == {"FindNames"}
    assert asked["FindNames"] <= limits.INDEX_COPIES


def test_a_name_in_a_foreign_group_costs_what_an_absent_one_does(town: Town) -> None:
    """A caller that is no member sends the same requests for a name that exists and for one that does not."""
    person, other = town.people[0], town.people[5]
    group = person.ask(messages.Created, messages.Create(ObjectType.GROUP, (person.groups[0],)))
    created = person.ask(
        messages.Created, messages.Create(ObjectType.SHMEM_BLOB, (group.reference.ref,), NameKind.RANDOM)
    )
    town.requests()
    assert holders_of(other, created.name or b"") == []
    of_foreign = town.requests()
    assert set(of_foreign) == {"FindNames"}
    assert holders_of(other, UNKNOWN) == []
    assert set(town.requests()) == set(of_foreign)


# -- creates ------------------------------------------------------------------------------------------
def test_a_create_waits_for_two_index_nodes(town: Town) -> None:
    """A create is not answered before two index nodes have the name; the third need not have it."""
    person = town.people[0]
    held: list[Parcel] = []

    def delays(parcel: Parcel) -> bool:
        is_register = isinstance(parcel.message, dcp.Ask) and isinstance(parcel.message.body, dcp.Register)
        if is_register and parcel.sender == person.node.node:
            held.append(parcel)
        return is_register and parcel.sender == person.node.node

    town.lost = delays
    seq = person.send(messages.Create(ObjectType.SHMEM_BLOB, (person.groups[0],), NameKind.RANDOM, data=b"x"))
    town.cluster.settle()
    assert person.answer(seq) is None
    needed = limits.INDEX_CONFIRMED_MIN - (len(held) < limits.INDEX_COPIES)
    town.lost = lambda parcel: False  # noqa: ARG005 - from now on, all arrive
    for place in range(needed):
        assert person.answer(seq) is None, f"answered after {place}"
        town.cluster.by_id(held[place].to).take(held[place])
        town.cluster.settle()
    assert isinstance(person.answer(seq), messages.Created)


def test_a_create_waits_for_no_node_for_long(town: Town) -> None:
    """If no other node answers, a create is answered all the same: the cluster stays available."""
    person = town.people[0]
    town.lost = lambda parcel: isinstance(parcel.message, dcp.PeerReply)
    seq = person.send(messages.Create(ObjectType.SHMEM_BLOB, (person.groups[0],), NameKind.RANDOM, data=b"x"))
    answer = town.cluster.wait(person, seq, 3 * limits.INDEX_PATIENCE_MS)
    assert isinstance(answer, messages.Created)


def test_a_repeated_create_of_another_node_is_not_answered_early(town: Town) -> None:
    """The repeat of a request whose answer is held back gets no answer from memory."""
    person = town.people[0]
    town.lost = lambda parcel: (
        isinstance(parcel.message, dcp.Ask)
        and isinstance(parcel.message.body, dcp.Register)
        and parcel.sender == town.cluster.nodes[1].node
    )
    call = messages.Create(ObjectType.SHMEM_BLOB, (person.groups[0],), NameKind.RANDOM, data=b"x", host="n2")
    seq = person.send(call)
    town.cluster.settle()
    town.cluster.advance(limits.DCP_REPEAT_MS_MIN + 100)
    assert person.answer(seq) is None
    town.lost = lambda parcel: False  # noqa: ARG005 - from now on, all arrive
    created = town.cluster.wait(person, seq)
    assert isinstance(created, messages.Created)
    assert holders_of(town.people[6], created.name or b"") == ["n2"]


# -- the members --------------------------------------------------------------------------------------
def test_names_are_registered_again_for_other_members(town: Town) -> None:
    """When a node is removed, everything is still found, at first by asking all nodes, then by the index."""
    names = [person.create(data=b"x").name or b"" for person in town.people[:7]]
    town.people[0].ask(messages.Nodes, messages.SetNode("n8", NodeWish.FORGET))
    assert not any(town.settled()[:7])
    for place, name in enumerate(names):
        assert holders_of(town.people[(place + 3) % 7], name) == [f"n{place + 1}"]
    town.cluster.advance(SETTLED_MS)
    assert all(town.settled()[:7])
    town.requests()
    for place, name in enumerate(names):
        assert holders_of(town.people[(place + 4) % 7], name) == [f"n{place + 1}"]
    assert "Resolve" in town.requests()


@pytest.mark.parametrize("restarted", [False, True])
def test_a_node_that_is_reached_late_gets_its_names(town: Town, restarted: bool) -> None:  # noqa: FBT001 - a case
    """A node that is dead, alive by gossip, and then reached, is registered at; creates do not wait forever.

    Either its death was the first news of it, or it is reached only after its restart.
    """
    here, late = town.cluster.nodes[0], town.cluster.nodes[7]
    town.cluster.part(here, late)
    started = late if restarted else here
    started.crash()
    for other in town.cluster.nodes[1:7]:
        town.cluster.connect(started, other)
        town.cluster.connect(other, started)
    town.cluster.wire.clear()
    teller = town.cluster.nodes[1]
    told = gossip.MemberRow(teller.node, "n2", "r1", "10.0.0.2:7117", teller.epoch)
    dead = gossip.MemberRow(late.node, "n8", "r1", "10.0.0.8:7117", 1, status=NodeStatus.DEAD)
    alive = gossip.MemberRow(late.node, "n8", "r1", "10.0.0.8:7117", late.epoch, incarnation=1)
    for row in (dead, alive):
        news = dcp.Gossip(gossip.encode(gossip.News(told, (row,))))
        here.take(Parcel(teller.node, here.node, teller.epoch, news, b""))
    town.cluster.advance(SETTLED_MS)
    town.cluster.heal()
    town.cluster.advance(limits.INDEX_RETRY_MS + SETTLED_MS)
    assert state_of(here).peer(late.node).link.complete
    session = town.cluster.session(here)
    names = [session.create(data=b"x").name or b"" for _ in range(8)]
    assert [holders_of(town.people[4], name) for name in names] == [["n1"]] * 8


def test_an_index_node_answers_only_for_its_own_view(town: Town) -> None:
    """A node that is asked for another view, or lacks the names of one node, does not know."""
    created = town.people[0].create(data=b"x")
    state = state_of(town.cluster.nodes[0])
    ring = state.index.current
    assert ring is not None
    assert ring.view == state_of(town.cluster.nodes[5]).index.current.view  # type: ignore[union-attr]
    home = town.cluster.nodes[1]

    def ask(view: bytes) -> dcp.Answer:
        peer = state_of(home).peer(town.cluster.nodes[0].node)
        number = max(peer.settled.below, *peer.answers, 0) + 1
        body = dcp.FindNames(view, pack_digests((1, 2)))
        message = dcp.Ask(number, number, body)
        home.take(Parcel(town.cluster.nodes[0].node, home.node, 1, message, b""))
        (reply,) = [parcel for parcel in town.cluster.wire if parcel.sender == home.node]
        town.cluster.wire.clear()
        assert isinstance(reply.message, dcp.PeerReply)
        return reply.message.result

    assert created.name is not None
    assert ask(ring.view) == dcp.NameNodes(known=True)
    assert ask(bytes(16)) == dcp.NameNodes(known=False)
    share = state_of(home).peer(town.cluster.nodes[3].node).share
    share.complete, state_of(home).index.settled = False, None
    assert ask(ring.view) == dcp.NameNodes(known=False)


def test_a_message_that_comes_late_changes_nothing(town: Town) -> None:
    """A registration that was overtaken by a newer one does not bring back what was removed."""
    home, peer = town.cluster.nodes[1], state_of(town.cluster.nodes[1]).peer(town.cluster.nodes[0].node)
    before = set(peer.share.digests)
    number = max(peer.settled.below, *peer.answers, 0) + 1
    late = dcp.Register(
        peer.share.order, peer.share.view, restart=True, complete=True, always=False, added=pack_digests((7,))
    )
    home.take(Parcel(peer.node, home.node, 1, dcp.Ask(number, number, late), b""))
    assert peer.share.digests == before


# -- defects ------------------------------------------------------------------------------------------
@pytest.fixture
def brief(monkeypatch: pytest.MonkeyPatch) -> int:
    """Milliseconds after which a request counts as lost."""
    monkeypatch.setattr(limits, "INDEX_LOST_MS", 3 * limits.INDEX_PATIENCE_MS)
    return limits.INDEX_LOST_MS


def test_a_lost_registration_is_made_again(brief: int, town: Town) -> None:
    """A request that has disappeared, without an answer or a failure, does not end the use of the index."""
    person = town.people[0]
    town.lost = lambda parcel: isinstance(parcel.message, dcp.Ask) and parcel.sender == person.node.node
    seq = person.send(messages.Create(ObjectType.SHMEM_BLOB, (person.groups[0],), NameKind.RANDOM, data=b"x"))
    town.cluster.settle()
    silent = [peer for peer in state_of(person.node).peers.values() if peer.link.sent is not None]
    assert silent
    for peer in silent:
        peer.asked.clear()
    town.lost = lambda parcel: False  # noqa: ARG005 - from now on, all arrive
    created = town.cluster.wait(person, seq, 2 * limits.INDEX_PATIENCE_MS)
    assert isinstance(created, messages.Created)
    assert all(peer.link.sent is not None for peer in silent), "the requests have not disappeared"
    town.cluster.advance(brief + limits.INDEX_RETRY_MS + SETTLED_MS)
    assert all(peer.link.sent is None and peer.link.complete for peer in silent)
    assert all(town.settled())
    town.requests()
    asker = town.people[town.no_index_node(created.name or b"", 0)]
    assert holders_of(asker, created.name or b"") == ["n1"]
    assert town.requests() == {"FindNames": limits.INDEX_COPIES, "Resolve": 1}


def test_a_lost_handover_is_begun_again(brief: int, town: Town, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the work that registers all names has disappeared, it is begun again without a change of members."""
    created = town.people[0].create(data=b"x")
    with monkeypatch.context() as lost:
        lost.setitem(work._HANDLERS, NameHandover, lambda step, item: True)  # noqa: ARG005 - it does nothing
        town.people[0].ask(messages.Nodes, messages.SetNode("n8", NodeWish.FORGET))
        town.cluster.advance(SETTLED_MS)
    assert not any(town.settled()[:7])
    town.cluster.advance(2 * brief + SETTLED_MS)
    assert all(town.settled()[:7])
    assert holders_of(town.people[3], created.name or b"") == ["n1"]


def test_a_registration_in_order_is_not_repeated(brief: int, town: Town) -> None:
    """While nothing is lost, the check sends nothing, and it ends."""
    town.people[0].create(data=b"x")
    town.requests()
    town.cluster.advance(2 * brief)
    assert not town.requests()["Register"]
    assert [state_of(node).index.check_at for node in town.cluster.nodes] == [None] * 8


# -- steps --------------------------------------------------------------------------------------------
def test_no_step_reads_all_names_for_other_members(town: Town, monkeypatch: pytest.MonkeyPatch) -> None:
    """The names are read a part of the table at a time, and each name is registered."""
    person = town.people[0]
    created_names = [person.create(data=b"x").name or b"" for _ in range(100)]
    read: list[int] = []

    usual: Callable[[NameTable, int], list[InternalName]] = NameTable.keys

    def keys(names: NameTable, part: int) -> list[InternalName]:
        listed = usual(names, part)
        if names is person.node.core.state.names:
            read.append(len(listed))
        return listed

    monkeypatch.setattr(NameTable, "keys", keys)
    person.ask(messages.Nodes, messages.SetNode("n8", NodeWish.FORGET))
    town.cluster.advance(SETTLED_MS)
    assert len(read) == PARTS
    assert sum(read) == len(person.node.core.state.names)
    assert max(read) <= 100 // 10
    assert all(town.settled()[:7])
    assert all(holders_of(town.people[2], name) == ["n1"] for name in created_names[::20])


# -- limits -------------------------------------------------------------------------------------------
def test_a_node_with_very_many_names_is_always_asked(town: Town, monkeypatch: pytest.MonkeyPatch) -> None:
    """A node with more names than others accept registers none, and is found all the same."""
    monkeypatch.setattr(limits, "INDEX_NAMES_PER_NODE_MAX", 6)
    person = town.people[0]
    names = [person.create(data=b"x").name or b"" for _ in range(40)]
    town.cluster.advance(limits.INDEX_RETRY_MS + SETTLED_MS)
    state = state_of(person.node)
    assert state.index.always
    shares = [state_of(node).peer(person.node.node).share for node in town.cluster.nodes[1:]]
    assert all(share.always and not share.digests for share in shares)
    assert all(town.settled())
    assert [holders_of(town.people[4], name) for name in names] == [["n1"]] * 40
    town.requests()
    assert holders_of(town.people[4], UNKNOWN) == []
    assert town.requests()["Resolve"] == 1


def test_a_hostile_node_registers_no_more_than_the_limit(town: Town, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a node registers beyond its limit is dropped, and it gets a refusal."""
    monkeypatch.setattr(limits, "INDEX_NAMES_PER_NODE_MAX", 100)
    home, peer = town.cluster.nodes[1], state_of(town.cluster.nodes[1]).peer(town.cluster.nodes[0].node)
    number = max(peer.settled.below, *peer.answers, 0) + 1
    much = dcp.Register(
        peer.share.order + 1,
        peer.share.view,
        restart=False,
        complete=True,
        always=False,
        added=pack_digests(range(1_000)),
    )
    home.take(Parcel(peer.node, home.node, 1, dcp.Ask(number, number, much), b""))
    (reply,) = [parcel for parcel in town.cluster.wire if parcel.sender == home.node]
    assert isinstance(reply.message, dcp.PeerReply)
    assert isinstance(reply.message.result, messages.Failure)
    assert reply.message.result.code == Code.ENOSPC
    assert not peer.share.digests
    assert not registration.is_settled(state_of(home))


def test_a_hostile_index_node_hides_nothing(town: Town) -> None:
    """An index node that drops all names costs no answer, because the other ones are asked, too."""
    created = town.people[0].create(data=b"x")
    name = created.name or b""
    liar = next(place for place in town.index_nodes(name) if place)
    for peer in state_of(town.cluster.nodes[liar]).peers.values():
        peer.share.digests.clear()
    asker = town.no_index_node(name, 0)
    assert holders_of(town.people[asker], name) == ["n1"]


def test_digests_reveal_no_names(town: Town) -> None:
    """What an index node stores is neither a name nor enough to resolve one."""
    created = town.people[0].create(data=b"x")
    name = created.name or b""
    sent = [request.body for request in town.asked if isinstance(request.body, dcp.Register)]
    assert sent
    for body in sent:
        assert name[:8] not in body.added
    town.people[0].node.step(events.Disconnected(town.cluster.now, town.people[0].task))
