"""Replicas that differ and have no history, and copies of a record that has no member any more."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from random import Random

import pytest

from dios import limits
from dios.errors import DamagedError, InvalidError, UnreachableError
from dios.lib.replicated_record import frame, protocol
from dios.lib.replicated_record.frame import CHANGES_KEPT, HEADER_BYTES_MAX, ZERO, ReplicaState, Value
from dios.lib.replicated_record.protocol import Outcome, Reading
from dios.lib.replicated_record.quorums import is_decided
from tests.unit.lib.replicated_record.test_protocol import Client, Cluster, appended, finish, record_on

SEEDS = range(40)


def merged(contents: Sequence[bytes]) -> bytes:
    """Return all words of these contents."""
    return b" ".join(sorted({word for content in contents for word in content.split()})) + b" "


def keep(present: Value) -> Value:
    """Return the present value."""
    return present


def divided(*contents: bytes) -> Cluster:
    """Return nodes a, b, c with these contents, as an earlier release wrote them."""
    cluster = Cluster(Random(1))  # noqa: S311 - a seed is wanted
    for node, content in zip("abcde", contents, strict=False):
        cluster.store(node, content)
    return cluster


def read(cluster: Cluster, name: str = "a") -> Reading:
    """Read the record from a node."""
    return finish(Client(cluster, name, 7), protocol.read_record())


def unite(cluster: Cluster, name: str = "a") -> Outcome:
    """Unite the contents, from a node."""
    return finish(Client(cluster, name, 8), protocol.propose(keep, merged))


def write(cluster: Cluster, word: bytes, name: str = "a") -> Outcome:
    """Append a word, from a node."""
    client = Client(cluster, name, 9)
    present = finish(client, protocol.read_record()).value
    return finish(client, protocol.replace(present, appended(present, word)))


# -- replicas that differ ---------------------------------------------------------------------------
def test_a_divided_record_is_read_with_all_its_contents_and_not_changed() -> None:
    """A divided record is read with all its contents and not changed."""
    cluster = divided(b"x y ", b"x z ", b"x z ")
    for name in "abc":
        assert set(read(cluster, name).divided) == {b"x y ", b"x z "}
        with pytest.raises(InvalidError, match="`dios group repair`"):
            write(cluster, b"w", name)
    assert [replica.data for replica in cluster.replicas.values()] == [b"x y ", b"x z ", b"x z "]


def test_united_contents_begin_a_history_that_all_nodes_read() -> None:
    """United contents begin a history that all nodes read."""
    cluster = divided(b"x y ", b"x z ", b"v ")
    assert len(unite(cluster).holders) == 3
    for name in "abc":
        reading = read(cluster, name)
        assert (reading.value.content, reading.divided, reading.decided) == (b"v x y z ", (), True)
    assert write(cluster, b"w", "c").value.content == b"v x y z w "
    assert unite(cluster).value.content == b"v x y z w ", "there is nothing to unite"


@pytest.mark.parametrize("headers", ["a", "ab", "bc", "abc"])
def test_a_record_stays_divided_after_an_interrupted_attempt(headers: str) -> None:
    """Replicas with a header that have accepted nothing still have different contents."""
    contents = {"a": b"x y ", "b": b"x z ", "c": b"x z "}
    cluster = divided(*contents.values())
    members = tuple(stored.member for stored in cluster.replicas.values())
    for node in headers:
        replica = cluster.replicas[node]
        value = frame.decode(replica.data, replica.member).value._replace(members=members)
        replica.data, replica.v_w = frame.encode(ReplicaState((1, 5), value)), 1
    for name in "abc":
        assert set(read(cluster, name).divided) == set(contents.values())
        with pytest.raises(InvalidError, match="`dios group repair`"):
            write(cluster, b"w", name)
    unite(cluster)
    assert {read(cluster, name).value.content for name in "abc"} == {b"x y z "}


@pytest.mark.parametrize("begun", [False, True])
def test_a_divided_record_is_united_with_every_replica_that_there_is(begun: bool) -> None:  # noqa: FBT001
    """A divided record is united with every replica that there is."""
    cluster = divided(b"x ", b"x ", b"y ")
    if begun:
        members = tuple(stored.member for stored in cluster.replicas.values())
        for replica in cluster.replicas.values():
            value = frame.decode(replica.data, replica.member).value._replace(members=members)
            replica.data = frame.encode(ReplicaState((1, 5), value))
    cluster.down.add("c")
    with pytest.raises(UnreachableError):
        unite(cluster)
    with pytest.raises(UnreachableError):
        write(cluster, b"w")
    cluster.restart("c")
    assert unite(cluster).value.content == b"x y "


def test_a_replica_that_is_lost_or_damaged_does_not_prevent_uniting() -> None:
    """A replica that is lost or damaged does not prevent uniting."""
    cluster = divided(b"x ", b"y ", b"z ", b"v ")
    cluster.gone.add("c")
    cluster.replicas["b"].damaged = True
    assert unite(cluster).value.content == b"v x "


def test_replicas_without_a_history_that_are_equal_are_not_divided() -> None:
    """Replicas without a history that are equal are not divided."""
    cluster = divided(b"x ", b"x ", b"x ")
    assert read(cluster).divided == ()
    assert write(cluster, b"w").value.content == b"x w "


@pytest.mark.parametrize("seed", SEEDS)
def test_uniting_that_is_cut_off_anywhere_drops_nothing(seed: int) -> None:
    """Clients unite and write at the same time, and each may end at any step."""
    random = Random(seed)  # noqa: S311 - a seed is wanted
    words = [b"x y ", b"x z ", b"v "][: random.choice((2, 3))]
    cluster = divided(*words)
    cluster.random = random
    clients = [
        Client(cluster, random.choice("ab"), number).run(protocol.propose(keep, merged)) for number in (1, 2)
    ]
    for _ in range(random.randint(1, 60)):
        if clients:
            running = random.choice(clients)
            try:
                next(running)
            except (StopIteration, UnreachableError):
                clients.remove(running)
    for running in clients:
        running.close()
    reading = read(cluster, random.choice("ab"))
    if reading.divided:
        unite(cluster)
    content = read(cluster, random.choice("ab")).value.content
    assert content is not None
    assert set(content.split()) == {word for text in words for word in text.split()}


# -- a record without members -----------------------------------------------------------------------
def lost_record(stray_of: str = "a") -> Cluster:
    """Return a record on a, b and c with copies on d and e; the members are lost for ever."""
    cluster = Cluster(Random(1))  # noqa: S311 - a seed is wanted
    record_on(cluster, ["a", "b", "c"])
    write(cluster, b"x")
    cluster.store("d", cluster.replicas[stray_of].data)
    write(cluster, b"y")
    cluster.store("e", cluster.replicas[stray_of].data)
    cluster.gone |= {"a", "b", "c"}
    return cluster


def restore(cluster: Cluster) -> Outcome:
    """Make a record again, from d."""
    return finish(Client(cluster, "d", 8), protocol.restore(merged))


def test_copies_of_a_record_that_is_lost_are_not_read_as_the_record() -> None:
    """Copies of a record that is lost are not read as the record."""
    cluster = lost_record()
    with pytest.raises(DamagedError, match=r"copies of it on d, e, .* `dios group repair`"):
        read(cluster, "d")
    with pytest.raises(DamagedError, match="`dios group repair`"):
        unite(cluster, "d")


def test_a_record_that_is_lost_is_made_again_from_its_latest_copy() -> None:
    """A record that is lost is made again from its latest copy."""
    cluster = lost_record()
    assert restore(cluster).value.content == b"x y "
    reading = read(cluster, "e")
    assert (reading.value.content, reading.decided) == (b"x y ", True)
    assert {member.node for member in reading.value.members} == {"d", "e"}
    assert write(cluster, b"z", "e").value.content == b"x y z "


def test_a_lost_member_that_comes_back_is_no_later_than_the_record_made_again() -> None:
    """A lost member that comes back is no later than the record made again."""
    cluster = lost_record()
    cluster.gone.clear()
    for number in range(5):
        write(cluster, b"%d" % number)
    cluster.gone |= {"a", "b", "c"}
    restore(cluster)
    write(cluster, b"z", "d")
    cluster.gone.remove("a")
    assert read(cluster, "d").value.content == b"x y z "


def overtaken() -> Cluster:
    """Return a record whose members are lost, with a former member on c, and a copy on d that is later."""
    cluster = Cluster(Random(1))  # noqa: S311 - a seed is wanted
    record_on(cluster, ["a", "b", "c"])
    write(cluster, b"x")
    former = cluster.replicas["c"].data
    members = read(cluster).value.members
    finish(Client(cluster, "a", 9), protocol.change_members(lambda _: set(members[:2])))
    write(cluster, b"y")
    cluster.store("d", cluster.replicas["a"].data)
    cluster.replicas["c"].data = former
    return cluster


@pytest.mark.parametrize("name", ["c", "d"])
def test_a_former_member_does_not_decide_when_a_copy_is_later(name: str) -> None:
    """It is the last of its members; what the later ones decided without it must not be undone."""
    cluster = overtaken()
    cluster.gone |= {"a", "b"}
    with pytest.raises(DamagedError, match=r"copies of it on c, d, .* `dios group repair`"):
        read(cluster, name)
    with pytest.raises(DamagedError, match="`dios group repair`"):
        unite(cluster, name)
    assert restore(cluster).value.content == b"x y "


def test_a_later_copy_does_not_stop_a_majority() -> None:
    """What a majority does not have was never decided."""
    cluster = overtaken()
    cluster.store("e", frame.encode(ReplicaState((99, 1), read(cluster).value._replace(ballot=(99, 1)))))
    assert read(cluster, "d").value.content == b"x y "
    assert write(cluster, b"z").value.content == b"x y z "


def test_a_removed_replica_is_a_copy_like_any_other() -> None:
    """Its value still has it as a former member, and the present members are lost."""
    cluster = Cluster(Random(1))  # noqa: S311 - a seed is wanted
    record_on(cluster, ["a", "b", "c"])
    write(cluster, b"x")
    new = cluster.store("d", cluster.replicas["a"].data)
    finish(Client(cluster, "a", 9), protocol.change_members(lambda _: {new}))
    cluster.gone.add("d")
    with pytest.raises(DamagedError, match="`dios group repair`"):
        read(cluster)
    assert restore(cluster).value.content == b"x "
    assert read(cluster, "b").value.content == b"x "


def test_the_only_former_member_is_lost_during_the_first_change() -> None:
    """The copy that it had accepted as the second member has all that is left, and goes on alone."""
    cluster = Cluster(Random(1))  # noqa: S311 - a seed is wanted
    record_on(cluster, ["a"])
    write(cluster, b"x")
    new = cluster.store("b", cluster.replicas["a"].data)
    value = frame.decode(cluster.replicas["a"].data, new).value
    both = value._replace(ballot=(9, 9), members=tuple(sorted({*value.members, new})), former=value.members)
    cluster.replicas["b"].data = frame.encode(ReplicaState((9, 9), both))
    cluster.gone.add("a")
    assert read(cluster, "b").value.content == b"x "
    assert write(cluster, b"y", "b").value.content == b"x y "


def test_a_record_is_made_again_only_if_every_node_answers() -> None:
    """A record is made again only if every node answers."""
    cluster = lost_record()
    cluster.gone.remove("c")
    cluster.down.add("c")
    with pytest.raises(UnreachableError, match="`dios node forget`"):
        restore(cluster)
    with pytest.raises(UnreachableError):
        read(cluster, "d")


def test_a_record_with_a_member_is_not_made_again() -> None:
    """A record with a member is not made again."""
    cluster = lost_record()
    cluster.gone.remove("b")
    before = {node: replica.data for node, replica in cluster.replicas.items()}
    with pytest.raises(InvalidError, match="has members"):
        restore(cluster)
    assert {node: replica.data for node, replica in cluster.replicas.items()} == before
    assert read(cluster, "d").value.content == b"x y "


def test_damaged_members_and_damaged_copies_are_passed_over() -> None:
    """Damaged members and damaged copies are passed over."""
    cluster = lost_record()
    cluster.gone.clear()
    for node in "abce":
        cluster.replicas[node].damaged = True
    assert restore(cluster).value.content == b"x "
    for node in "de":
        cluster.replicas[node].damaged = True
    with pytest.raises(DamagedError, match="no replica of the record is sound"):
        restore(cluster)


def test_copies_without_a_header_are_united_with_the_others() -> None:
    """Copies without a header are united with the others."""
    cluster = lost_record()
    cluster.gone.remove("c")
    cluster.replicas["c"].data = b"v "
    with pytest.raises(DamagedError, match="`dios group repair`"):
        read(cluster, "d")
    assert restore(cluster).value.content == b"v x y "
    assert read(cluster, "c").value.content == b"v x y "


@pytest.mark.parametrize("seed", SEEDS)
def test_a_record_made_again_by_several_at_once_has_one_history(seed: int) -> None:
    """A record made again by several at once has one history."""
    random = Random(seed)  # noqa: S311 - a seed is wanted
    cluster = lost_record()
    cluster.random = random
    clients = [Client(cluster, "de"[number], number).run(protocol.restore(merged)) for number in (0, 1)]
    for _ in range(random.randint(1, 60)):
        if clients:
            running = random.choice(clients)
            try:
                next(running)
            except (StopIteration, InvalidError):
                clients.remove(running)
    for running in clients:
        running.close()
    with suppress(InvalidError):
        restore(cluster)
    for name in "de":
        assert read(cluster, name).value.content == b"x y "
    assert write(cluster, b"z", "d").value.content == b"x y z "


# -- minorities -------------------------------------------------------------------------------------
def test_a_minority_is_refused_with_the_nodes_that_are_missing() -> None:
    """A minority is refused with the nodes that are missing."""
    cluster = Cluster(Random(1))  # noqa: S311 - a seed is wanted
    record_on(cluster, ["a", "b", "c"])
    write(cluster, b"x")
    base = read(cluster).value
    cluster.down |= {"b", "c"}
    for steps in (protocol.read_record(), protocol.replace(base, b"y ")):
        with pytest.raises(UnreachableError, match=r"not enough without b, c\. .*`dios node forget`"):
            finish(Client(cluster, "a", 7), steps)
    cluster.restart("b")
    assert write(cluster, b"y").value.content == b"x y "
    cluster.down |= {"b"}
    cluster.gone |= {"b", "c"}
    assert write(cluster, b"z").value.content == b"x y z ", "nodes that were forgotten are not asked"


def test_a_damaged_member_neither_counts_nor_prevents_a_decision() -> None:
    """A damaged member neither counts nor prevents a decision."""
    cluster = Cluster(Random(1))  # noqa: S311 - a seed is wanted
    record_on(cluster, ["a", "b", "c"])
    write(cluster, b"x")
    cluster.replicas["a"].damaged = True
    reading = read(cluster)
    assert (reading.value.content, [member.node for member in reading.sound]) == (b"x ", ["b", "c"])
    assert isinstance(reading.unread["a"], DamagedError)
    outcome = write(cluster, b"y")
    assert {member.node for member in outcome.holders} == {"b", "c"}
    assert is_decided(outcome.value, outcome.accepted, None)


@pytest.mark.parametrize(("silent", "error"), [({"b"}, UnreachableError), (set[str](), DamagedError)])
def test_a_record_is_damaged_only_if_all_nodes_say_so(silent: set[str], error: type[Exception]) -> None:
    """A node that does not answer may have a sound replica, so that the record is out of reach."""
    cluster = Cluster(Random(1))  # noqa: S311 - a seed is wanted
    record_on(cluster, ["a", "b"])
    write(cluster, b"x")
    cluster.replicas["a"].damaged = cluster.replicas["b"].damaged = True
    cluster.down |= silent
    with pytest.raises(error, match="no replica of the record"):
        read(cluster)


def test_a_replica_that_a_program_wrote_to_is_reported_and_not_read() -> None:
    """A replica that a program wrote to is reported and not read."""
    cluster = Cluster(Random(1))  # noqa: S311 - a seed is wanted
    record_on(cluster, ["a", "b", "c"])
    write(cluster, b"x")
    cluster.replicas["a"].data = b"forged "
    reading = read(cluster)
    assert (reading.value.content, reading.divided) == (b"x ", ())
    assert "directly" in reading.unread["a"].message


def test_all_headers_fit_their_bound() -> None:
    """All headers fit their bound."""
    members = tuple(frame.Member((1 << 63) - 1, "n" * 63) for _ in range(limits.KEPT_REPLICAS_MAX))
    state = frame.decode(b"", members[0])
    value = state.value._replace(members=members, former=members, changes=((1 << 62) - 1,) * CHANGES_KEPT)
    value = value._replace(signature=bytes(limits.RECORD_SIGNATURE_BYTES_MAX))
    assert len(frame.encode(ReplicaState(ZERO, value))) < HEADER_BYTES_MAX
