"""Names and groups over several nodes: found everywhere by who may, and nothing told to others (§4.3.3)."""

from __future__ import annotations

import pytest

from dios import limits
from dios.errors import Code
from dios.ids import Name, Principal
from dios.wire import dcp, messages
from dios.wire.types import Flag, NodeWish, ObjectType
from tests.support.core.cluster import Citizen, Cluster, Parcel, record_of

STRANGER = Principal("uid:2000")
UNKNOWN = bytes(range(32))


class Town:
    """Three nodes with a session on each, and everything that was asked of others by name."""

    def __init__(self) -> None:
        self.cluster = Cluster()
        self.first, self.second, self.third = (self.cluster.session(node) for node in self.cluster.nodes)
        self.said: list[Parcel] = []
        self.deaf: set[int] = set()
        self.cluster.drop = self._listen

    def _listen(self, parcel: Parcel) -> bool:
        message = parcel.message
        if isinstance(message, dcp.PeerReply | dcp.Ask) and not isinstance(
            getattr(message, "body", None), dcp.Release | dcp.TasksEnded
        ):
            self.said.append(parcel)
        return parcel.to in self.deaf

    def asked(self) -> list[int]:
        """The nodes that were asked for a name since this was called last."""
        said, self.said = self.said, []
        asks = [parcel for parcel in said if isinstance(parcel.message, dcp.Ask)]
        return [parcel.to for parcel in asks if isinstance(parcel.message.body, dcp.Resolve)]  # type: ignore[union-attr]

    def replicate(self, name: bytes, source: Citizen, host: str) -> None:
        """A copy of an object on another node."""
        (reference,) = source.ask(messages.References, messages.Lookup(name, limit=1)).references
        source.ask(messages.References, messages.Copy(reference.ref, source.self_ref, host=host))


@pytest.fixture
def town() -> Town:
    """Three nodes."""
    return Town()


# -- lookup -------------------------------------------------------------------------------------------
def test_the_local_table_comes_first(town: Town) -> None:
    """Where as many are here as were asked for, nobody else is asked."""
    created = town.first.create(data=b"here")
    town.said.clear()
    reply = town.first.ask(messages.References, messages.Lookup(created.name or b"", limit=1))
    assert [reference.object for reference in reply.references] == [created.reference.object]
    assert not reply.incomplete
    assert town.asked() == []


def test_every_node_is_asked(town: Town) -> None:
    """Replicas on all nodes are found from each, the near one first; each is asked once."""
    created = town.first.create(data=b"everywhere")
    name = created.name or b""
    for host in ("n2", "n3"):
        town.replicate(name, town.first, host)
    for place in range(3):
        town.asked()
        references = town.cluster.session(town.cluster.nodes[place]).lookup(name)
        assert sorted(reference.node for reference in references) == ["n1", "n2", "n3"]
        assert references[0].node == f"n{place + 1}"
        assert sorted(town.asked()) == [node for node in (1, 2, 3) if node != place + 1]


def test_no_more_than_were_asked_for(town: Town) -> None:
    """The limit holds over all nodes, and what was too much is let go over there."""
    created = town.second.create(data=b"everywhere")
    name = created.name or b""
    town.replicate(name, town.second, "n3")
    town.cluster.settle()
    session = town.cluster.session(town.cluster.nodes[0])
    reply = session.ask(messages.References, messages.Lookup(name, limit=1))
    assert len(reply.references) == 1
    town.cluster.settle()
    tables = [
        deputy.table for node in town.cluster.nodes[1:] for deputy in node.core.state.remote_tasks.values()
    ]
    held = [reference for table in tables for reference in table if reference.task.home_id == session.task]
    assert len(held) == 1


def test_what_is_over_the_limit_is_let_go(town: Town) -> None:
    """Where the last answer has more than were still missing, the rest of it counts over there no more."""
    created = town.second.create(data=b"everywhere")
    name = created.name or b""
    for _ in range(2):
        town.replicate(name, town.second, "n3")
    session = town.cluster.session(town.cluster.nodes[0])
    reply = session.ask(messages.References, messages.Lookup(name, limit=2))
    assert [reference.node for reference in reply.references] == ["n2", "n3"]
    town.cluster.settle()
    deputies = [record_of(session, node) for node in town.cluster.nodes[1:]]
    assert [len(deputy.table) for deputy in deputies] == [1, 1]


def test_a_silent_node_makes_it_incomplete(town: Town) -> None:
    """A node that does not answer costs a bounded time, and the reply says that it may be incomplete."""
    created = town.second.create(data=b"there")
    town.deaf = {3}
    seq = town.first.send(messages.Lookup(created.name or b""))
    reply = town.cluster.wait(town.first, seq, limits.LOOKUP_UNCONFIRMED_MS + 2_600)
    assert isinstance(reply, messages.References)
    assert [reference.node for reference in reply.references] == ["n2"]
    assert reply.incomplete


def test_a_dead_node_makes_it_incomplete_at_once(town: Town) -> None:
    """A node that is known to be dead is not waited for, and is missed all the same."""
    created = town.second.create(data=b"there")
    for node in town.cluster.nodes[:2]:
        town.cluster.part(node, town.cluster.nodes[2])
    town.cluster.advance(6_000, 100)
    seq = town.first.send(messages.Lookup(created.name or b""))
    town.cluster.settle()
    reply = town.first.answer(seq)
    assert isinstance(reply, messages.References)
    assert reply.incomplete
    assert [reference.node for reference in reply.references] == ["n2"]


def test_a_dead_node_that_was_forgotten_is_missed_no_more(town: Town) -> None:
    """Once a dead node is removed from the cluster, answers are complete again, on every node."""
    created = town.second.create(data=b"there")
    for node in town.cluster.nodes[:2]:
        town.cluster.part(node, town.cluster.nodes[2])
    town.cluster.advance(6_000, 100)
    town.first.call(messages.SetNode("n3", NodeWish.FORGET))
    town.cluster.advance(1_000, 100)
    for asker in (town.first, town.second):
        reply = asker.ask(messages.References, messages.Lookup(created.name or b""))
        assert [reference.node for reference in reply.references] == ["n2"]
        assert not reply.incomplete
        assert not asker.ask(messages.Tasks, messages.ListTasks()).incomplete


@pytest.mark.parametrize("how", ["local only", "vector", "non-blocking"])
def test_who_does_not_wait_asks_nobody(town: Town, how: str) -> None:
    """With LOCAL_ONLY others do not count; in a vector or without waiting the answer may be incomplete."""
    created = town.second.create(data=b"there")
    town.said.clear()
    flag = {"local only": Flag.LOCAL_ONLY, "non-blocking": Flag.NON_BLOCKING}.get(how, Flag.NONE)
    call = messages.Lookup(created.name or b"", flags=int(flag))
    answer = town.first.many(call)[0][0] if how == "vector" else town.first.call(call)
    assert answer == messages.References((), how != "local only")
    assert town.asked() == []


def test_the_cache_is_wrong_for_one_use_at_most(town: Town) -> None:
    """The second lookup asks where the first one found it; once it is not there, all are asked at once."""
    created = town.second.create(data=b"moves")
    name = created.name or b""
    call = messages.Lookup(name, limit=1)
    assert len(town.first.ask(messages.References, call).references) == 1
    town.asked()
    assert len(town.first.ask(messages.References, call).references) == 1
    assert town.asked() == [2]
    town.replicate(name, town.second, "n3")
    town.second.ask(messages.Done, messages.Delete(created.reference.ref, int(Flag.DESTROY)))
    town.asked()
    (reference,) = town.first.ask(messages.References, call).references
    assert reference.node == "n3"
    assert town.asked() == [2, 2, 3]
    town.first.ask(messages.References, call)
    assert town.asked() == [3]
    town.third.ask(messages.Done, messages.Delete(town.third.lookup(name)[0].ref, int(Flag.DESTROY)))
    town.asked()
    for asked in ([3, 2, 3], [2, 3]):
        assert town.first.ask(messages.References, call) == messages.References(())
        assert town.asked() == asked


def test_private_memory_is_nobody_elses(town: Town) -> None:
    """An object in private memory is found by no other node."""
    created = town.second.create(ObjectType.PRIVMEM_BLOB, data=b"mine")
    assert town.first.lookup(created.name) == ()


# -- deniability --------------------------------------------------------------------------------------
def messages_of(town: Town, who: Citizen, name: bytes, group: int = 0) -> list[tuple[object, ...]]:
    """What is said over the wire for one lookup, without what is random: numbers and hashes."""
    town.cluster.settle()
    town.said.clear()
    assert who.ask(messages.References, messages.Lookup(name, group)) == messages.References(())
    traffic: list[tuple[object, ...]] = []
    for parcel in town.said:
        message = parcel.message
        if isinstance(message, dcp.Ask) and isinstance(message.body, dcp.Resolve):
            names = tuple(len(asked_name) for asked_name in message.body.names)
            traffic.append((parcel.to, names, message.body.limit, message.body.caller))
        elif isinstance(message, dcp.PeerReply):
            traffic.append((parcel.sender, message.result))
    return traffic


def test_what_one_may_not_have_does_not_seem_to_exist(town: Town) -> None:
    """The same messages go between nodes for a name that is nowhere, and for one in a foreign group."""
    group = town.second.create(ObjectType.GROUP, groups=())
    secret = town.second.create(groups=(group.reference.ref,), data=b"secret")
    stranger = town.cluster.session(town.cluster.nodes[0])
    resolved = town.cluster.nodes[0].session(STRANGER)
    nowhere = messages_of(town, resolved, UNKNOWN)
    hidden = messages_of(town, resolved, secret.name or b"")
    assert nowhere == hidden != []
    assert messages_of(town, stranger, UNKNOWN) == messages_of(town, stranger, secret.name or b"")


def test_who_resolved_a_group_learns_nothing_of_it(town: Town) -> None:
    """Looking in a group whose name one merely knows gives the same messages as looking for nothing."""
    home = town.second.groups[0]
    group = town.second.create(ObjectType.GROUP, groups=(home,))
    secret = town.second.create(groups=(group.reference.ref,), data=b"secret")
    (reference,) = town.first.lookup(group.name)
    assert messages_of(town, town.first, UNKNOWN, reference.ref) == messages_of(
        town, town.first, secret.name or b"", reference.ref
    )


# -- groups -------------------------------------------------------------------------------------------
def test_a_home_group_is_one_everywhere(town: Town) -> None:
    """A principal's home group has the same name on every node, and another principal's another."""
    homes = {session.stat(session.groups[0]).fingerprint for session in (town.first, town.second, town.third)}
    assert len(homes) == 1
    strangers = {
        session.stat(session.groups[0]).fingerprint
        for session in (node.session(STRANGER) for node in town.cluster.nodes)
    }
    assert len(strangers) == 1
    assert strangers != homes


def test_a_keyring_works_on_every_node(town: Town) -> None:
    """Who presents a group's name on another node than it was made on is its member there."""
    group = town.second.create(ObjectType.GROUP, groups=())
    inside = town.second.create(groups=(group.reference.ref,), data=b"inside")
    without = town.cluster.session(town.cluster.nodes[0])
    assert without.lookup(inside.name) == ()
    with_it = town.cluster.session(town.cluster.nodes[0], (group.name or b"",))
    (reference,) = with_it.lookup(inside.name)
    assert with_it.read(reference.ref) == b"inside"
    mine = with_it.create(groups=(with_it.groups[1],), data=b"from here")
    member = town.cluster.session(town.cluster.nodes[2], (group.name or b"",))
    assert len(member.lookup(mine.name)) == 1


@pytest.mark.parametrize("place", [0, 15, 16, 31])
def test_a_forged_name_is_no_group(town: Town, place: int) -> None:
    """A group's name of which one byte is wrong, in either half, gives no membership; nor another's name."""
    group_name = town.second.create(ObjectType.GROUP, groups=()).name or b""
    forged = group_name[:place] + bytes([group_name[place] ^ 1]) + group_name[place + 1 :]
    node = town.cluster.nodes[0]
    assert len(node.session(groups=(forged,)).groups) == 1
    assert len(node.session(STRANGER, (group_name,)).groups) == 1
    assert len(node.session(groups=(group_name,)).groups) == 2


@pytest.mark.parametrize("away", [False, True])
def test_a_destroyed_group_is_gone_everywhere(town: Town, away: bool) -> None:  # noqa: FBT001 - two cases
    """Destroying a group is told to all nodes, to one that was out of reach when it is back."""
    group = town.second.create(ObjectType.GROUP, groups=())
    member = town.cluster.session(town.cluster.nodes[2], (group.name or b"",))
    inside = member.create(groups=(member.groups[1],), data=b"inside")
    town.cluster.settle()
    if away:
        town.cluster.part(town.cluster.nodes[1], town.cluster.nodes[2])
    town.second.ask(messages.Done, messages.Delete(group.reference.ref, int(Flag.DESTROY)))
    town.cluster.settle()
    if away:
        assert len(member.lookup(inside.name)) == 1
        town.cluster.heal()
        town.cluster.advance(1_000, 100)
    assert member.lookup(inside.name) == ()
    name = Name(group.name or b"")
    assert all(name not in node.core.state.groups for node in town.cluster.nodes)
    again = town.cluster.session(town.cluster.nodes[0], (name,))
    assert len(again.groups) == 1


def test_nothing_is_created_in_a_destroyed_group(town: Town) -> None:
    """Creation on a node that knows of the group's end is refused there, by who has not heard of it."""
    group = town.first.create(ObjectType.GROUP, groups=())
    second = town.cluster.session(town.cluster.nodes[1], (group.name or b"",))
    town.deaf = {1}
    second.send(messages.Delete(second.groups[1], int(Flag.DESTROY)))
    town.cluster.settle()
    town.deaf = set()
    call = messages.Create(ObjectType.SHMEM_BLOB, (group.reference.ref,), host="n2")
    failure = town.first.ask(messages.Failure, call)
    assert failure.code == Code.ESTALE
