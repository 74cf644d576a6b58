"""Leases let a node answer repeated reads of another node's objects, and no such read misses a change."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from dios import limits
from dios.core import events
from dios.core.effects import Outcome
from dios.core.remote.lease_table import LeaseTable
from dios.errors import Code, ProtocolError
from dios.ids import Principal
from dios.wire import dcp, messages
from dios.wire.messages import Bound
from dios.wire.types import AcquireIov, Buffering, Flag, ObjectType, Permission, Resource, Semantics
from tests.support.core.cluster import MS, Citizen, Cluster, ClusterNode, Parcel
from tests.support.core.harness import OWNER

CONTENT = b"0123456789" * 10
NEWER = b"abcdefghij" * 10
OTHER = Principal("uid:1001")


def leases_of(node: ClusterNode) -> LeaseTable:
    """The leases that a node has granted and holds."""
    cluster = node.core.state.cluster
    assert cluster is not None
    return cluster.leases


class Scene:
    """Two nodes, an object on the second, a reader on the first, and the messages that matter."""

    def __init__(
        self,
        kind: ObjectType = ObjectType.SHMEM_BLOB,
        buffering: Buffering = Buffering.DOUBLE,
        racks: tuple[str, ...] = ("r1", "r1"),
        *,
        inline_bytes: int = 0,
    ) -> None:
        self.cluster = Cluster(racks)
        self.here, self.there = self.cluster.nodes[:2]
        for node in self.cluster.nodes:
            node.inline_bytes = inline_bytes
            cluster = node.core.state.cluster
            assert cluster is not None
            if not inline_bytes:
                cluster.versions.least = 10
        self.keeper = self.cluster.session(self.there)
        call = messages.Create(kind, (self.keeper.groups[0],), buffering=buffering, data=CONTENT)
        self.created = self.keeper.ask(messages.Created, call)
        self.own = self.created.reference.ref
        self.asked: list[dcp.RequestBody] = []
        self.stops: Callable[[Parcel], bool] = lambda parcel: False  # noqa: ARG005 - at first nothing is lost
        self.stopped: list[Parcel] = []
        self.cluster.drop = self._watch
        self.reader = self.session()
        self.ref = self.reader.lookup(self.created.name)[0].ref

    def _watch(self, parcel: Parcel) -> bool:
        if self.stops(parcel):
            self.stopped.append(parcel)
            return True
        if isinstance(parcel.message, dcp.Ask):
            self.asked.append(parcel.message.body)
        return False

    def session(self, principal: Principal = OWNER) -> Citizen:
        """One more task on the first node."""
        return self.here.session(principal)

    def read(self, who: Citizen | None = None, ref: int = 0, size: int = 0, offset: int = 0) -> bytes:
        """The bytes that a read gives."""
        return (who or self.reader).read(ref or self.ref, size, offset)

    def lease(self) -> None:
        """Let the reader get a lease: its reads bring the bytes, and then confirm them."""
        for _ in range(3 if self.here.inline_bytes else 2):
            assert self.read() == CONTENT
        assert self.is_served()

    def is_served(self) -> bool:
        """Whether one more read is answered without a call."""
        before = len(self.calls(messages.ReadOnce))
        self.read()
        return len(self.calls(messages.ReadOnce)) == before

    def calls(self, kind: type) -> list[messages.AnyCall]:
        """The calls of a kind that came from other nodes so far."""
        return [body.call for body in self.asked if isinstance(body, dcp.Forward) and type(body.call) is kind]

    def begin_write(self, content: bytes = NEWER) -> int:
        """Let the keeper begin to replace the content."""
        return self.keeper.send(messages.WriteOnce(self.own, content, flags=int(Flag.REPLACE)))

    def write(self, content: bytes = NEWER) -> None:
        """Let the keeper replace the content."""
        self.done(self.begin_write(content), messages.Committed)

    def done(self, seq: int, kind: type = messages.Done) -> None:
        """Wait until a call of the keeper is answered as it should."""
        assert isinstance(self.cluster.wait(self.keeper, seq), kind)

    def waits(self, seq: int) -> bool:
        """Whether a call of the keeper waits, whatever arrives now."""
        self.cluster.settle()
        return self.keeper.answer(seq) is None


@pytest.fixture
def scene() -> Scene:
    """Two nodes with an object on the second, on which a task of the first has a lease."""
    leased = Scene()
    leased.lease()
    return leased


def is_call_back(parcel: Parcel) -> bool:
    """Whether a message calls leases back."""
    return isinstance(parcel.message, dcp.Ask) and isinstance(parcel.message.body, dcp.CallBack)


# -- reads ----------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("inline_bytes", "calls"), [(0, 2), (1_000, 3)])
def test_repeated_reads_are_no_calls(inline_bytes: int, calls: int) -> None:
    """One read brings the bytes, the next one a lease, and further ones are answered here.

    Few bytes are not kept before they are read again.
    """
    scene = Scene(inline_bytes=inline_bytes)
    assert [scene.read() for _ in range(6)] == [CONTENT] * 6
    assert len(scene.calls(messages.ReadOnce)) == calls
    assert leases_of(scene.here).served == 6 - calls


@pytest.mark.parametrize(("size", "offset"), [(0, 0), (20, 0), (0, 30), (20, 30), (100, 0)])
def test_a_part_of_the_version_is_read_under_the_lease(scene: Scene, size: int, offset: int) -> None:
    """Each range within the kept bytes is answered from them."""
    before = len(scene.calls(messages.ReadOnce))
    assert scene.read(size=size, offset=offset) == CONTENT[offset:][: size or None]
    assert len(scene.calls(messages.ReadOnce)) == before


def test_a_small_range_is_leased_alone() -> None:
    """A range that is kept without the rest of the object is answered here, and the rest is not."""
    scene = Scene(inline_bytes=1_000)
    assert [scene.read(size=10, offset=20) for _ in range(4)] == [CONTENT[20:30]] * 4
    assert len(scene.calls(messages.ReadOnce)) == 3
    assert scene.read(size=10, offset=50) == CONTENT[50:60]
    assert len(scene.calls(messages.ReadOnce)) == 4


@pytest.mark.parametrize("level", [Semantics.EXCL, Semantics.SRMW])
def test_a_read_that_must_be_alone_is_a_call(scene: Scene, level: Semantics) -> None:
    """The object's node must look at the other readers."""
    scene.reader.ask(messages.Buffer, messages.ReadOnce(scene.ref, semantics=level))
    assert len(scene.calls(messages.ReadOnce)) == 3


def test_a_lease_ends(scene: Scene) -> None:
    """After its time a read is a call, which gives the next lease."""
    scene.cluster.advance(limits.LEASE_MS)
    assert not scene.is_served()
    assert scene.is_served()


def test_reads_are_counted_with_the_next_call(scene: Scene) -> None:
    """The object's node learns the number of reads late, and loses none."""
    for _ in range(10):
        scene.read()
    assert scene.keeper.counters(scene.own)[2] == 2
    scene.cluster.advance(limits.LEASE_MS)
    scene.read()
    assert scene.keeper.counters(scene.own)[2] == 14


def test_reads_under_one_lease_are_bounded(scene: Scene) -> None:
    """A read is a call when as many reads are not counted as fit in its message."""
    for _ in range(1_022):
        scene.read()
    assert not scene.is_served()
    assert scene.keeper.counters(scene.own)[2] == 2 + 1_024


# -- one reference only ---------------------------------------------------------------------------------
def test_a_lease_belongs_to_one_reference(scene: Scene) -> None:
    """Another reference of the same task, and one of another task, need a lease of their own."""
    (again,) = scene.reader.lookup(scene.created.name)
    scene.read(ref=again.ref)
    other = scene.session()
    (reference,) = other.lookup(scene.created.name)
    scene.read(other, reference.ref)
    assert len(scene.calls(messages.ReadOnce)) == 4


def test_a_reference_that_was_dropped_reads_nothing(scene: Scene) -> None:
    """The lease goes with the reference."""
    scene.reader.ask(messages.Done, messages.Delete(scene.ref, int(Flag.HANDLE_ONLY)))
    assert not leases_of(scene.here).held
    failure = scene.reader.ask(messages.Failure, messages.ReadOnce(scene.ref))
    assert failure.code == Code.EBADF


def test_a_reference_that_may_not_read_has_no_lease(scene: Scene) -> None:
    """The lease of another reference gives it nothing."""
    blind = messages.Copy(scene.ref, scene.reader.self_ref, int(Permission.WRITE))
    (narrow,) = scene.reader.ask(messages.References, blind).references
    assert scene.reader.ask(messages.Failure, messages.ReadOnce(narrow.ref)).code == Code.EPERM


def test_a_reference_with_a_lifetime_gets_no_lease() -> None:
    """Its end cannot wait for a call-back."""
    scene = Scene()
    call = messages.Copy(scene.ref, scene.reader.self_ref, lifetime_ns=60_000_000_000)
    (brief,) = scene.reader.ask(messages.References, call).references
    for _ in range(4):
        scene.read(ref=brief.ref)
    assert len(scene.calls(messages.ReadOnce)) == 4


# -- which objects --------------------------------------------------------------------------------------
def test_raw_objects_are_not_leased() -> None:
    """Their bytes change within a version."""
    scene = Scene(buffering=Buffering.RAW)
    for _ in range(4):
        scene.read()
    assert len(scene.calls(messages.ReadOnce)) == 4


@pytest.mark.parametrize(
    "call",
    [
        messages.AcquireWrite(0, 10),
        messages.AcquireRead(0, semantics=Semantics.EXCL),
        messages.AcquireRead(0, semantics=Semantics.SRMW),
    ],
)
def test_no_lease_while_a_request_could_notice(call: messages.AcquireWrite | messages.AcquireRead) -> None:
    """While a writer is active, or a reader that must be alone, each read is a call."""
    scene = Scene()
    scene.read()
    kind = type(call)
    scene.keeper.call(kind(scene.own, call.size, semantics=call.semantics))
    for _ in range(3):
        scene.read()
    assert len(scene.calls(messages.ReadOnce)) == 4


def test_leases_can_be_switched_off() -> None:
    """A node without leases grants none, and one that wants none gets none."""
    for place in (0, 1):
        scene = Scene()
        leases_of(scene.cluster.nodes[place]).enabled = False
        for _ in range(4):
            scene.read()
        assert len(scene.calls(messages.ReadOnce)) == 4
        assert not leases_of(scene.there).granted


# -- calls that wait ------------------------------------------------------------------------------------
def test_a_write_waits_for_the_call_back(scene: Scene) -> None:
    """A write is done after the lease was returned, and the next read sees it."""
    scene.stops = is_call_back
    seq = scene.begin_write()
    assert scene.waits(seq)
    assert scene.read() == CONTENT
    assert scene.is_served()
    scene.stops = lambda parcel: False  # noqa: ARG005 - everything arrives
    scene.done(seq, messages.Committed)
    assert scene.read() == NEWER


def test_every_kind_of_change_waits() -> None:
    """What a read under a lease must not miss is handled only when nobody has one."""
    for kind in ("acquire", "commit", "vector", "delete", "retire", "exclusive", "sole", "again"):
        scene = Scene()
        keeper, own = scene.keeper, scene.own
        late: messages.AnyCall = messages.AcquireWrite(own, 10)
        if kind == "commit":
            # A request that is over: its buffer may commit again, and meanwhile the object is leased.
            buffer = keeper.ask(messages.Buffer, messages.AcquireWrite(own, 10, semantics=Semantics.ANY))
            keeper.ask(messages.Committed, messages.CommitWrite(own, buffer.buffer))
            late = messages.CommitWrite(own, buffer.buffer)
        elif kind == "again":
            buffer = keeper.ask(messages.Buffer, messages.AcquireWrite(own, 10, semantics=Semantics.ANY))
            keeper.ask(messages.Committed, messages.CommitWrite(own, buffer.buffer))
            late = messages.AcquireWrite(own, 10, iov=AcquireIov.REUSE, buffer=buffer.buffer)
        elif kind == "vector":
            late = messages.Vector((messages.Stat(own), messages.WriteOnce(own, NEWER)))
        elif kind == "delete":
            late = messages.Delete(own, int(Flag.DESTROY))
        elif kind == "retire":
            late = messages.Retire(own, int(Flag.EVERYONE))
        elif kind in {"exclusive", "sole"}:
            level = Semantics.EXCL if kind == "exclusive" else Semantics.SRMW
            late = messages.AcquireRead(own, semantics=level)
        for _ in range(2):
            scene.read()
        assert scene.is_served(), kind
        scene.stops = is_call_back
        seq = keeper.send(late)
        assert scene.waits(seq), kind
        assert scene.is_served()
        scene.stops = lambda parcel: False  # noqa: ARG005 - everything arrives
        answer = scene.cluster.wait(keeper, seq)
        assert not isinstance(answer, messages.Failure), (kind, answer)
        assert all(not lease.ends for lease in leases_of(scene.here).held.values()), kind


def test_calls_that_no_read_can_miss_do_not_wait(scene: Scene) -> None:
    """Reads, requests of other readers, and calls about the reference alone are handled at once."""
    scene.stops = is_call_back
    scene.keeper.ask(messages.Buffer, messages.ReadOnce(scene.own))
    scene.keeper.ask(messages.Buffer, messages.AcquireRead(scene.own, semantics=Semantics.MRSW))
    scene.keeper.ask(messages.References, messages.Stat(scene.own))
    (more,) = scene.keeper.lookup(scene.created.name)
    scene.keeper.ask(messages.Done, messages.Delete(more.ref, int(Flag.HANDLE_ONLY)))
    assert scene.is_served()


def test_a_call_without_the_right_ends_no_lease(scene: Scene) -> None:
    """It is refused at once."""
    call = messages.Copy(scene.own, scene.keeper.self_ref, int(Permission.READ))
    (narrow,) = scene.keeper.ask(messages.References, call).references
    failure = scene.keeper.ask(messages.Failure, messages.WriteOnce(narrow.ref, NEWER))
    assert failure.code == Code.EPERM
    assert not any(isinstance(body, dcp.CallBack) for body in scene.asked)
    assert scene.is_served()


def test_a_write_of_the_reader_waits_as_well(scene: Scene) -> None:
    """The lease of its own node is called back, too; its next read sees what it wrote."""
    scene.reader.ask(messages.Committed, messages.WriteOnce(scene.ref, NEWER))
    assert scene.read() == NEWER


def test_a_vector_over_two_nodes_closes_its_local_objects(scene: Scene) -> None:
    """Its local calls run last, and no lease is granted on their objects until then."""
    elsewhere = scene.session().create(data=b"elsewhere")
    (far,) = scene.keeper.lookup(elsewhere.name)
    scene.cluster.advance(limits.LEASE_MS + limits.LEASE_PAUSE_MS)
    scene.stops = lambda parcel: (
        isinstance(parcel.message, dcp.Ask)
        and isinstance(parcel.message.body, dcp.Forward)
        and isinstance(parcel.message.body.call, messages.Vector)
    )
    calls = (messages.ReadOnce(far.ref), messages.AcquireWrite(scene.own, 10))
    seq = scene.keeper.send(messages.Vector(calls))
    for _ in range(4):
        assert not scene.is_served()
    scene.stops = lambda parcel: False  # noqa: ARG005 - everything arrives
    scene.cluster.wait(scene.keeper, seq)
    assert scene.keeper.counters(scene.own)[1] == 1
    assert not scene.there.core.state.pending


def test_waiting_calls_are_all_done_when_the_lease_is_returned(scene: Scene) -> None:
    """One call-back serves all calls that wait."""
    scene.stops = is_call_back
    begun = [scene.begin_write(bytes([number]) * 10) for number in range(5)]
    assert all(scene.waits(seq) for seq in begun)
    scene.stops = lambda parcel: False  # noqa: ARG005 - everything arrives
    for seq in begun:
        scene.done(seq, messages.Committed)
    assert sum(isinstance(body, dcp.CallBack) for body in scene.asked) == 1
    assert not scene.there.core.state.pending


def test_a_call_that_has_waited_is_alone_in_its_step(scene: Scene) -> None:
    """Its bytes would wait for the disk with the write of another call, while later steps may change them."""
    scene.stops = is_call_back
    begun = {scene.begin_write(bytes([number]) * 10) for number in range(3)}
    assert all(scene.waits(seq) for seq in begun)
    answered: list[set[int]] = []
    honest = scene.there.step

    def watched(event: events.Event) -> Outcome:
        outcome = honest(event)
        answered.append({getattr(effect, "seq", 0) for effect in outcome.after} & begun)
        return outcome

    scene.there.step = watched  # type: ignore[method-assign]
    scene.stops = lambda parcel: False  # noqa: ARG005 - everything arrives
    scene.cluster.advance(2 * limits.DCP_REPEAT_MS_MIN)
    assert set().union(*answered) == begun
    assert max(map(len, answered)) == 1


# -- call-backs that are lost, late or repeated ---------------------------------------------------------
def test_a_silent_node_delays_a_write_until_its_lease_has_ended(scene: Scene) -> None:
    """A partition costs the time of a lease, and the reader stops before the writer goes on."""
    scene.cluster.part(scene.here, scene.there)
    seq = scene.begin_write()
    for _ in range(limits.LEASE_MS // 20 - 1):
        assert scene.keeper.answer(seq) is None
        assert scene.read() == CONTENT
        scene.cluster.advance(20)
    scene.cluster.advance(40)
    late = scene.reader.send(messages.ReadOnce(scene.ref))
    assert scene.keeper.answer(seq) is None
    scene.cluster.advance(limits.LEASE_GRANTED_MS - limits.LEASE_MS)
    scene.done(seq, messages.Committed)
    answer = scene.cluster.wait(scene.reader, late, 60_000)
    assert isinstance(answer, messages.Failure)


def test_a_node_that_returns_no_lease_gets_none_for_a_while(scene: Scene) -> None:
    """The next writes do not wait for it."""
    scene.stops = is_call_back
    scene.write()
    scene.stops = lambda parcel: False  # noqa: ARG005 - everything arrives
    scene.cluster.advance(limits.LEASE_PAUSE_MS + 1_000)
    for _ in range(3):
        assert not scene.is_served()
    scene.cluster.advance(limits.LEASE_UNRETURNED_MS, 1_000)
    scene.read()
    scene.read()
    assert scene.is_served()


def test_a_node_that_returns_its_lease_late_gets_none_for_a_while(scene: Scene) -> None:
    """A node that keeps each lease until just before its end delays one write, and not all of them."""
    scene.stops = is_call_back
    begun, seq = scene.cluster.now, scene.begin_write()
    scene.cluster.advance(limits.LEASE_RETURN_MS)
    assert scene.keeper.answer(seq) is None
    scene.stops = lambda parcel: False  # noqa: ARG005 - everything arrives
    scene.here.take(scene.stopped[0])
    scene.done(seq, messages.Committed)
    assert scene.cluster.now < begun + limits.LEASE_MS * MS
    scene.cluster.advance(limits.LEASE_PAUSE_MS + 1_000)
    for _ in range(3):
        assert not scene.is_served()


def test_a_lost_call_back_is_repeated(scene: Scene) -> None:
    """A call-back that was lost once costs the time until its repeat."""
    lost: list[Parcel] = []

    def once(parcel: Parcel) -> bool:
        if not is_call_back(parcel) or lost:
            return False
        lost.append(parcel)
        return True

    scene.stops = once
    seq = scene.begin_write()
    assert scene.waits(seq)
    scene.cluster.advance(2 * limits.DCP_REPEAT_MS_MIN)
    assert scene.keeper.answer(seq) is not None


def test_a_repeated_call_back_is_one(scene: Scene) -> None:
    """The second copy, however late, ends no later lease."""
    seen: list[Parcel] = []

    def note(parcel: Parcel) -> bool:
        if is_call_back(parcel):
            seen.append(parcel)
        return False

    scene.stops = note
    scene.write()
    scene.cluster.advance(limits.LEASE_PAUSE_MS)
    for _ in range(3):
        scene.read()
    assert scene.is_served()
    scene.here.take(seen[0])
    assert scene.is_served()


def test_no_lease_follows_a_call_back_at_once(scene: Scene) -> None:
    """Writers that follow each other do not wait for a call-back each."""
    scene.write()
    for _ in range(4):
        assert not scene.is_served()
    scene.write(CONTENT)
    assert sum(isinstance(body, dcp.CallBack) for body in scene.asked) == 1


def test_an_answer_to_an_earlier_call_back_returns_no_later_lease(scene: Scene) -> None:
    """The answer to the first call-back comes when the node has another lease."""
    held_back: list[Parcel] = []

    def answers(parcel: Parcel) -> bool:
        is_done = isinstance(parcel.message, dcp.PeerReply) and parcel.message.result == messages.Done(1)
        if is_done and parcel.sender == scene.here.node:
            held_back.append(parcel)
            return True
        return False

    scene.stops = answers
    scene.write()
    leases_of(scene.there).distrusted.clear()
    scene.cluster.advance(limits.LEASE_PAUSE_MS)
    for _ in range(3):
        scene.read()
    assert scene.is_served()
    first = held_back[0]
    scene.stops = is_call_back
    seq = scene.begin_write(CONTENT)
    assert scene.waits(seq)
    scene.there.take(first)
    assert scene.waits(seq)
    assert scene.read() == NEWER


# -- late grants ----------------------------------------------------------------------------------------
@pytest.mark.parametrize("carrier", ["notice", "answer"])
def test_a_grant_that_a_call_back_overtakes_gives_nothing(carrier: str) -> None:
    """A lease whose notice or answer comes after the call-back for it is none."""
    scene = Scene()
    scene.read()
    kind = dcp.Leased if carrier == "notice" else dcp.PeerReply
    scene.stops = lambda parcel: type(parcel.message) is kind and parcel.sender == scene.there.node
    seq = scene.reader.send(messages.ReadOnce(scene.ref))
    scene.cluster.settle()
    late, scene.stopped = scene.stopped, []
    assert late
    scene.stops = lambda parcel: False  # noqa: ARG005 - everything arrives
    scene.write()
    for parcel in late:
        scene.here.take(parcel)
    scene.cluster.wait(scene.reader, seq)
    assert not leases_of(scene.here).taken
    assert scene.read() == NEWER


def test_a_grant_that_is_too_late_gives_nothing() -> None:
    """The time of a lease counts from the time before the request."""
    scene = Scene()
    scene.read()
    scene.stops = lambda parcel: parcel.sender == scene.there.node
    seq = scene.reader.send(messages.ReadOnce(scene.ref))
    scene.cluster.settle()
    late, scene.stopped = scene.stopped, []
    scene.cluster.advance(limits.LEASE_MS)
    scene.stops = lambda parcel: False  # noqa: ARG005 - everything arrives
    for parcel in late:
        scene.here.take(parcel)
    scene.cluster.wait(scene.reader, seq)
    assert not leases_of(scene.here).taken


def test_a_lease_of_a_request_that_was_never_made_is_refused(scene: Scene) -> None:
    """It costs the other node the connection."""
    late = Parcel(scene.there.node, scene.here.node, scene.there.epoch, dcp.Leased(2**50), b"")
    with pytest.raises(ProtocolError):
        scene.here.take(late)


def test_a_lease_of_a_request_without_a_read_gives_nothing(scene: Scene) -> None:
    """A node that grants what nobody wanted has granted nothing."""
    other = scene.session()
    (reference,) = other.lookup(scene.created.name)
    scene.stops = lambda parcel: parcel.sender == scene.there.node
    other.send(messages.Stat(reference.ref))
    scene.cluster.settle()
    number = next(iter(scene.here.core.state.cluster.peers[scene.there.node].asked))  # type: ignore[union-attr]
    scene.here.take(Parcel(scene.there.node, scene.here.node, scene.there.epoch, dcp.Leased(number), b""))
    assert leases_of(scene.here).taken == 1


# -- restarts -------------------------------------------------------------------------------------------
def test_a_restarted_node_lets_writes_wait_for_leases_that_it_forgot() -> None:
    """A durable object may be read under a lease of the start before."""
    scene = Scene(ObjectType.DURABLE_BLOB)
    scene.lease()
    scene.there.crash()
    keeper = scene.cluster.session(scene.there)
    (own,) = keeper.lookup(scene.created.name)
    seq = keeper.send(messages.WriteOnce(own.ref, NEWER, flags=int(Flag.REPLACE)))
    scene.cluster.settle()
    assert keeper.answer(seq) is None
    assert scene.is_served()
    scene.cluster.advance(limits.LEASE_GRANTED_MS)
    assert isinstance(keeper.answer(seq), messages.Committed)


def test_the_first_start_of_a_node_waits_for_nothing() -> None:
    """Nobody can have a lease of a start before."""
    scene = Scene(ObjectType.DURABLE_BLOB)
    assert not leases_of(scene.there).restart_ends
    assert not scene.waits(scene.begin_write())


def test_leases_end_with_the_objects_node(scene: Scene) -> None:
    """A node that has restarted has other versions with the same numbers."""
    scene.there.crash()
    scene.cluster.connect(scene.here, scene.there)
    scene.cluster.connect(scene.there, scene.here)
    scene.cluster.settle()
    assert not leases_of(scene.here).held


# -- calls that end while they wait ---------------------------------------------------------------------
def test_a_waiting_call_can_be_cancelled(scene: Scene) -> None:
    """Nothing of it has happened, and nothing of it is left."""
    scene.stops = is_call_back
    before = scene.there.core.state.account_of(OWNER).used[Resource.VOLATILE_BYTES]
    seq = scene.begin_write()
    assert scene.there.core.state.account_of(OWNER).used[Resource.VOLATILE_BYTES] == before + len(NEWER)
    scene.keeper.ask(messages.Done, messages.Cancel(seq))
    answer = scene.keeper.answer(seq)
    assert isinstance(answer, messages.Failure)
    assert answer.code == Code.ECANCELED
    assert scene.there.core.state.account_of(OWNER).used[Resource.VOLATILE_BYTES] == before
    scene.cluster.advance(limits.LEASE_GRANTED_MS)
    assert scene.read() == CONTENT


def test_a_waiting_delete_is_made_although_it_is_cancelled(scene: Scene) -> None:
    """Nobody would repeat a call that gives something back."""
    scene.stops = is_call_back
    seq = scene.keeper.send(messages.Delete(scene.own, int(Flag.DESTROY)))
    assert scene.waits(seq)
    assert scene.keeper.ask(messages.Done, messages.Cancel(seq)) == messages.Done(0)
    scene.stops = lambda parcel: False  # noqa: ARG005 - everything arrives
    scene.done(seq)
    assert scene.reader.ask(messages.Failure, messages.ReadOnce(scene.ref)).code == Code.ESTALE


def test_the_end_of_a_task_ends_its_waiting_calls(scene: Scene) -> None:
    """The others that wait go on."""
    scene.stops = is_call_back
    other = scene.there.session()
    (reference,) = other.lookup(scene.created.name)
    mine = other.send(messages.WriteOnce(reference.ref, b"of a task that ends"))
    seq = scene.begin_write()
    assert scene.waits(seq)
    assert other.answer(mine) is None
    scene.cluster.end(other)
    scene.stops = lambda parcel: False  # noqa: ARG005 - everything arrives
    scene.done(seq, messages.Committed)
    assert scene.read() == NEWER
    assert not scene.there.core.state.pending


def test_a_waiting_call_without_room_is_refused(scene: Scene) -> None:
    """Its bytes count with the task, and so does the call."""
    scene.stops = is_call_back
    account = scene.there.core.state.account_of(OWNER)
    account.bind((Bound(Resource.VOLATILE_BYTES, account.used[Resource.VOLATILE_BYTES] + 50),))
    failure = scene.keeper.ask(
        messages.Failure, messages.WriteOnce(scene.own, NEWER, flags=int(Flag.REPLACE))
    )
    assert failure.code == Code.EDQUOT
    assert not scene.there.core.state.pending


# -- bounds ---------------------------------------------------------------------------------------------
def test_granted_leases_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Objects, nodes for each object, and objects for each node have bounds of their own."""
    for name, most in (("LEASE_OBJECTS_MAX", 0), ("LEASE_NODES_MAX", 1), ("LEASES_PER_NODE_MAX", 0)):
        with monkeypatch.context() as patch:
            patch.setattr(limits, name, most)
            scene = Scene(racks=("r1", "r1", "r1"))
            if name == "LEASE_NODES_MAX":
                far = scene.cluster.session(scene.cluster.nodes[2])
                (reference,) = far.lookup(scene.created.name)
                for _ in range(3):
                    far.read(reference.ref)
                assert len(leases_of(scene.cluster.nodes[2]).held) == 1
            for _ in range(4):
                scene.read()
            assert not leases_of(scene.here).taken, name


def test_held_leases_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """The oldest one goes."""
    monkeypatch.setattr(limits, "LEASES_HELD_MAX", 1)
    scene = Scene()
    scene.lease()
    (again,) = scene.reader.lookup(scene.created.name)
    scene.read(ref=again.ref)
    assert len(leases_of(scene.here).held) == 1
    assert not scene.is_served()


def test_nothing_is_left_of_leases_that_are_over(scene: Scene) -> None:
    """An object without leases is forgotten."""
    scene.write()
    scene.cluster.advance(limits.LEASE_PAUSE_MS)
    assert not leases_of(scene.there).granted
    assert not leases_of(scene.there).of_nodes
    scene.cluster.end(scene.reader)
    assert not leases_of(scene.here).held


def test_small_versions_count_with_their_reader() -> None:
    """Few bytes are charged as many are, until they go."""
    scene = Scene(inline_bytes=1_000)
    account = scene.here.core.state.account_of(OWNER)
    before = account.used[Resource.VOLATILE_BYTES]
    scene.lease()
    assert account.used[Resource.VOLATILE_BYTES] == before + len(CONTENT)
    scene.write()
    scene.cluster.advance(100)
    assert account.used[Resource.VOLATILE_BYTES] == before
