"""The protocol of a replicated record, on replicas whose messages are late, lost or answered to nobody."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from random import Random
from types import SimpleNamespace
from typing import TypeVar

import pytest
from blake3 import blake3

from dios.errors import Busy, Conflict, DamagedError, DiosError, StaleError, UnreachableError
from dios.lib.replicated_record import frame, protocol
from dios.lib.replicated_record.frame import ZERO, Ballot, Member, ReplicaState, Value
from dios.lib.replicated_record.steps import (
    CommitReplicas,
    Committed,
    Held,
    HoldReplicas,
    Look,
    ReadReplicas,
    ReleaseReplicas,
    Sighting,
    Step,
    Steps,
    Wait,
)

T = TypeVar("T")

LONG = 1 << 40


@dataclass(eq=False)
class Replica:
    """A durable object on a node: its bytes, their version, and the client that holds it."""

    member: Member
    data: bytes
    v_w: int = 0
    holder: object = None
    damaged: bool = False


@dataclass
class Cluster:
    """Nodes with at most one replica each; ``cut`` pairs of client and node do not reach each other."""

    random: Random
    replicas: dict[str, Replica] = field(default_factory=dict)
    down: set[str] = field(default_factory=set)
    gone: set[str] = field(default_factory=set)
    cut: set[tuple[str, str]] = field(default_factory=set)
    ids: count[int] = field(default_factory=lambda: count(1))
    loss: float = 0.0

    def store(self, node: str, data: bytes) -> Member:
        """Store a replica on a node."""
        member = Member(next(self.ids), node)
        self.replicas[node] = Replica(member, data)
        return member

    def reaches(self, client: str, node: str) -> bool:
        """Return True if messages of a client arrive at a node."""
        return node not in self.down and node not in self.gone and (client, node) not in self.cut

    def restart(self, node: str) -> None:
        """Start a node, which has ended all requests."""
        self.down.discard(node)
        if node in self.replicas:
            self.replicas[node].holder = None


class Client:
    """A program on a node; its steps are made one by one, in between those of others."""

    def __init__(self, cluster: Cluster, name: str, number: int) -> None:
        self.cluster = cluster
        self.name = name
        self.writer = number
        self.sighting = Sighting((), {}, complete=False)
        self.held: dict[int, int] = {}

    def _replica(self, object_id: int) -> Replica:
        for node, replica in self.cluster.replicas.items():
            if replica.member.object_id == object_id:
                if (
                    self.cluster.reaches(self.name, node)
                    and self.cluster.random.random() >= self.cluster.loss
                ):
                    return replica
                raise UnreachableError(f"{node} does not answer")
        raise StaleError("the object was destroyed")

    def operations(self, step: Step) -> list[tuple[int, Callable[[], object]]]:
        """Return the operations of a step by object id; each takes effect at a moment of its own."""
        match step:
            case ReadReplicas(sizes):
                return [
                    (object_id, partial(self._read, object_id, size)) for object_id, size in sizes.items()
                ]
            case HoldReplicas(ids, size, blank):
                return [(object_id, partial(self._hold, object_id, size, blank=blank)) for object_id in ids]
            case CommitReplicas(data, hold):
                return [
                    (object_id, partial(self._commit, object_id, data[object_id], hold=hold))
                    for object_id in data
                ]
            case ReleaseReplicas(ids):
                return [(object_id, partial(self.release, object_id)) for object_id in ids]
        return []

    def look(self, *, fresh: bool) -> Sighting:
        """Return the replicas that answer."""
        if fresh or not self.sighting.replicas:
            nodes = [node for node in self.cluster.replicas if self.cluster.reaches(self.name, node)]
            nodes.sort(key=lambda node: (node != self.name, node))
            replicas = [self.cluster.replicas[node] for node in nodes]
            known = [node for node in self.cluster.replicas if node not in self.cluster.gone]
            self.sighting = Sighting(
                tuple(replica.member for replica in replicas),
                {replica.member.object_id: replica.v_w for replica in replicas},
                complete=len(nodes) == len(known),
            )
            return self.sighting
        return self.sighting._replace(complete=False)

    def _read(self, object_id: int, size: int) -> bytes:
        replica = self._replica(object_id)
        if replica.damaged:
            raise DamagedError("the disk has other bytes than were written")
        return replica.data[: size or None]

    def _hold(self, object_id: int, size: int, *, blank: bool) -> Held:
        replica = self._replica(object_id)
        if replica.holder is not None:
            raise Busy("another request holds the object")
        if replica.damaged and not blank:
            raise DamagedError("the disk has other bytes than were written")
        replica.holder, self.held[object_id] = self, replica.v_w
        return Held(replica.v_w, b"" if blank else replica.data[:size].ljust(size, b"\0"))

    def _commit(self, object_id: int, data: bytes, *, hold: bool) -> Committed:
        v_w = self.held.pop(object_id)
        try:
            replica = self._replica(object_id)
        except DiosError:
            # Its node ends the request when it notices.
            self._end(object_id)
            raise
        if replica.holder is not self or replica.v_w != v_w:
            raise Conflict("another request came between")
        replica.holder, replica.data, replica.v_w = None, data, v_w + 1
        if self.cluster.random.random() < self.cluster.loss:
            raise UnreachableError("the answer was lost")
        is_held = hold and self.cluster.random.random() < 0.8
        if is_held:
            replica.holder, self.held[object_id] = self, replica.v_w
        return Committed(replica.v_w, is_held)

    def release(self, object_id: int) -> None:
        """End a request without a change."""
        if self.held.pop(object_id, None) is not None:
            self._end(object_id)

    def _end(self, object_id: int) -> None:
        for replica in self.cluster.replicas.values():
            if replica.member.object_id == object_id and replica.holder is self:
                replica.holder = None

    def run(self, steps: Steps[T], *, now: Callable[[], float] | None = None) -> Steps[T]:
        """Make the steps, with a pause before each operation; the pauses are what is yielded."""
        result: object = None
        try:
            while True:
                step = steps.send(result)
                if isinstance(step, Look):
                    yield Wait(Busy(""))
                    result = self.look(fresh=step.fresh)
                    continue
                if isinstance(step, Wait):
                    for _ in range(self.cluster.random.randint(1, 20)):
                        yield step
                    result = None
                    continue
                results: dict[int, object] = {}
                operations = self.operations(step)
                self.cluster.random.shuffle(operations)
                for object_id, operation in operations:
                    yield Wait(Busy(""))
                    try:
                        results[object_id] = operation()
                    except DiosError as error:
                        results[object_id] = error
                result = results
        except StopIteration as end:
            value: T = end.value
            return value
        finally:
            for object_id in list(self.held):
                self.release(object_id)


def finish(client: Client, steps: Steps[T]) -> T:
    """Make all steps of one client while nobody else does anything."""
    running = client.run(steps)
    try:
        while True:
            next(running)
    except StopIteration as end:
        value: T = end.value
        return value


def record_on(cluster: Cluster, nodes: list[str]) -> None:
    """Make a record with a first value on these nodes, as copies of one that is plain."""
    cluster.store(nodes[0], b"")
    client = Client(cluster, nodes[0], 99)
    for node in nodes:
        copied = cluster.replicas[nodes[0]].data
        member = cluster.replicas[node].member if node == nodes[0] else cluster.store(node, copied)

        def with_new(members: tuple[Member, ...], new: Member = member) -> set[Member]:
            return {*members, new}

        finish(client, protocol.change_members(with_new))


def appended(value: Value, word: bytes) -> bytes:
    """Return the content of a value with one word more."""
    return (value.content or b"") + word + b" "


# -- one history ------------------------------------------------------------------------------------
class History:
    """The contents that were decided, in the order in which clients were told."""

    def __init__(self) -> None:
        self.longest = b""
        self.acknowledged: set[bytes] = set()

    def see(self, content: bytes, must_have: set[bytes]) -> None:
        """Check a content that was decided against all that were seen before."""
        shorter, longer = sorted((content, self.longest), key=len)
        assert longer.startswith(shorter), "two histories"
        self.longest = longer
        words = content.split()
        assert len(words) == len(set(words)), "a change was made twice"
        assert must_have <= set(words), "an acknowledged change is missing"


def writing(client: Client, history: History, changes: int) -> Steps[None]:
    """Append words, one after the other; stop at an outcome that is not known."""
    for number in range(changes):
        word = f"{client.name}.{client.writer}.{number}".encode()
        for _ in range(60):
            before = set(history.acknowledged)
            try:
                reading = yield from client.run(protocol.read_record())
                if reading.decided:
                    history.see(reading.value.content or b"", before)
                steps = protocol.replace(reading.value, appended(reading.value, word))
                outcome = yield from client.run(steps)
            except (Busy, Conflict) as conflict:
                yield Wait(conflict)
                continue
            except UnreachableError as error:
                # It may have happened: the word is not used again, and no later word depends on it.
                yield Wait(Busy(error.message))
                break
            history.see(outcome.value.content or b"", {*before, word})
            history.acknowledged.add(word)
            break


def moving(client: Client, cluster: Cluster, history: History, moves: int) -> Steps[None]:
    """Replace members by copies on other nodes, as the keeper does."""
    nodes = ["a", "b", "c", "d", "e"]
    for _ in range(moves):
        for _ in range(cluster.random.randint(1, 60)):
            yield Wait(Busy(""))
        free = [node for node in nodes if node not in cluster.replicas and node not in cluster.gone]
        sources = [
            source for source in cluster.replicas.values() if cluster.reaches(client.name, source.member.node)
        ]
        if not free or not sources:
            continue
        member = cluster.store(cluster.random.choice(free), cluster.random.choice(sources).data)
        leaver: list[Member] = []

        def with_other(
            members: tuple[Member, ...], new: Member = member, gone: list[Member] = leaver
        ) -> set[Member]:
            gone[:] = [cluster.random.choice(members)] if len(members) > 2 else []
            return {*members, new} - set(gone)

        try:
            outcome = yield from client.run(protocol.change_members(with_other))
        except DiosError:
            continue
        for node, replica in list(cluster.replicas.items()):
            if replica.member not in outcome.value.members and replica.member in leaver:
                del cluster.replicas[node]


def troubling(cluster: Cluster, troubles: int) -> Steps[None]:
    """Stop and start nodes, and cut clients off."""
    random = cluster.random
    for _ in range(troubles):
        for _ in range(random.randint(5, 80)):
            yield Wait(Busy(""))
        kind = random.randint(0, 3)
        if kind == 0 and cluster.replicas:
            cluster.down.add(random.choice(sorted(cluster.replicas)))
        elif kind == 1:
            for node in list(cluster.down):
                cluster.restart(node)
        elif kind == 2 and cluster.replicas:
            cluster.cut.add((random.choice("abc"), random.choice(sorted(cluster.replicas))))
        else:
            cluster.cut.clear()
        if random.random() < 0.5 and cluster.replicas:
            # A request that its node ended, as after a restart.
            random.choice(sorted(cluster.replicas.values(), key=lambda replica: replica.member)).holder = None
    cluster.cut.clear()
    cluster.loss = 0.0
    for node in list(cluster.down):
        cluster.restart(node)


def play(seed: int) -> History:
    """Run clients, a keeper and faults in the order of a seed, and check the history."""
    random = Random(seed)  # noqa: S311 - repeatable on purpose
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(protocol, "secrets", SimpleNamespace(randbits=random.getrandbits))
        return play_with(random)


def play_with(random: Random) -> History:
    """Play with these random numbers."""
    cluster = Cluster(random, loss=random.choice((0.0, 0.02, 0.1)))
    history = History()
    loss, cluster.loss = cluster.loss, 0.0
    record_on(cluster, ["a", "b", "c", "d", "e"][: random.choice((2, 3, 3, 4))])
    cluster.loss = loss
    clients = [
        Client(cluster, random.choice("abc"), number + 1) for number in range(random.choice((2, 3, 5)))
    ]
    running: list[Steps[None]] = [writing(client, history, 6) for client in clients]
    if random.random() < 0.6:
        running.append(moving(Client(cluster, "a", 50), cluster, history, 4))
    if random.random() < 0.8:
        running.append(troubling(cluster, 8))
    queue = [(random.random(), number) for number in range(len(running))]
    heapq.heapify(queue)
    while queue:
        at, number = heapq.heappop(queue)
        try:
            next(running[number])
        except StopIteration:
            continue
        heapq.heappush(queue, (at + random.expovariate(1.0), number))
    cluster.cut.clear()
    cluster.loss = 0.0
    for node in list(cluster.down):
        cluster.restart(node)
    last = finish(Client(cluster, "a", 77), protocol.read_record())
    history.see(last.value.content or b"", history.acknowledged)
    return history


def play_all(seeds: int) -> None:
    """Play this number of seeds."""
    for seed in range(seeds):
        play(seed)


@pytest.mark.parametrize("seed", range(50))
def test_a_record_has_one_history(seed: int) -> None:
    """No acknowledged change is lost or made twice, whatever is late, lost or stopped."""
    play(seed)


class Cutting(Client):
    """A client that loses nodes before its second commit, the one that accepts a proposal."""

    def __init__(self, cluster: Cluster, nodes: str) -> None:
        super().__init__(cluster, "a", 7)
        self.nodes = nodes
        self.commits = 0

    def operations(self, step: Step) -> list[tuple[int, Callable[[], object]]]:
        """Cut the nodes off before the second commit."""
        self.commits += isinstance(step, CommitReplicas)
        if self.commits == 2:
            self.cluster.cut.update((self.name, node) for node in self.nodes)
        return super().operations(step)


@pytest.mark.parametrize("lost", ["ab", "de"])
def test_a_change_of_the_members_needs_a_majority_of_the_former_and_of_the_new_ones(lost: str) -> None:
    """A client that knows either set of members must find the change."""
    cluster = Cluster(Random(1))  # noqa: S311 - repeatable on purpose
    record_on(cluster, ["a", "b", "c"])
    new = [cluster.store(node, cluster.replicas["a"].data) for node in "de"]
    wanted = {cluster.replicas["c"].member, *new}
    with pytest.raises(UnreachableError):
        finish(Cutting(cluster, lost), protocol.change_members(lambda _: wanted))
    cluster.cut.clear()
    whole = finish(Client(cluster, "b", 8), protocol.read_record())
    assert set(whole.value.members) in (wanted, {cluster.replicas[node].member for node in "abc"})


def test_a_base_that_is_long_out_of_date_is_a_conflict() -> None:
    """A change that was never proposed was not made, whatever the number of changes of others since."""
    cluster = Cluster(Random(1))  # noqa: S311 - repeatable on purpose
    record_on(cluster, ["a", "b", "c"])
    base = finish(Client(cluster, "a", 7), protocol.read_record()).value
    for number in range(frame.CHANGES_KEPT + 2):
        present = finish(Client(cluster, "b", 8), protocol.read_record()).value
        finish(Client(cluster, "b", 8), protocol.replace(present, b"%d" % number))
    cluster.down.add("c")
    with pytest.raises(Conflict):
        finish(Client(cluster, "a", 7), protocol.replace(base, b"late"))


# -- broken variants --------------------------------------------------------------------------------
def no_promises(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let replicas forget what they have promised."""
    encode = frame.encode
    monkeypatch.setattr(frame, "encode", lambda state: encode(state._replace(promised=ZERO)))


def no_look_at_what_is_held(monkeypatch: pytest.MonkeyPatch) -> None:
    """Write to members that are held, whatever they have."""
    monkeypatch.setattr(protocol, "_differs", lambda *_: False)


def half_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    """Decide with one replica less than a majority."""

    def is_decided(value: Value, accepted: Collection[int], _: object) -> bool:
        return all(
            len({member.object_id for member in group} & set(accepted)) >= max(len(group) // 2, 1)
            for group in value.groups
        )

    monkeypatch.setattr(protocol, "is_decided", is_decided)


def no_marks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forget which changes a value has."""
    with_content = Value.with_content

    def without_mark(value: Value, content: bytes, ballot: Ballot, mark: int) -> Value:
        return with_content(value, content, ballot, mark)._replace(changes=())

    monkeypatch.setattr(Value, "with_content", without_mark)


@pytest.mark.long
@pytest.mark.parametrize(
    "variant",
    [no_promises, no_look_at_what_is_held, half_is_enough, no_marks],
)
def test_a_broken_variant_is_found(
    monkeypatch: pytest.MonkeyPatch, variant: Callable[[pytest.MonkeyPatch], None]
) -> None:
    """Each rule of the protocol is necessary: without it some order of messages breaks the history."""
    variant(monkeypatch)
    with pytest.raises(AssertionError):
        play_all(500)


def test_a_replica_whose_header_was_damaged_accepts_nothing() -> None:
    """A replica whose header was damaged accepts nothing: its promises are lost."""
    here = Member(1, "a")
    value = Value(ZERO, (here,), (), 0, 1, blake3(b"x").digest(), b"x")
    data = bytearray(frame.encode(ReplicaState((3, 1), value)))
    assert protocol._may_accept(Held(1, bytes(data)), here, (3, 2))
    assert not protocol._may_accept(Held(1, bytes(data)), here, (3, 1))
    data[8] ^= 0x55
    assert not protocol._may_accept(Held(1, bytes(data)), here, (9, 9))
