"""What one task of a node has read of another node's object, the next one reads without its bytes coming."""

from __future__ import annotations

import pytest

from dios.core.calls import io_steps
from dios.core.remote.version_cache import VersionCache
from dios.errors import Code
from dios.ids import Principal
from dios.wire import dcp, messages
from dios.wire.messages import Bound
from dios.wire.types import Buffering, Flag, ObjectType, Permission, Resource, Semantics
from tests.support.core.cluster import CACHE_BYTES, Citizen, Cluster, ClusterNode, Parcel
from tests.support.core.harness import OWNER

CONTENT = b"0123456789" * 10
NEWER = b"abcdefghij" * 10
OTHER = Principal("uid:1001")


def cache_of(node: ClusterNode) -> VersionCache:
    """The cache of a node."""
    cluster = node.core.state.cluster
    assert cluster is not None
    return cluster.versions


class Reader:
    """A task of the first node with a reference to an object of the second."""

    def __init__(self, who: Citizen, ref: int) -> None:
        self.who = who
        self.ref = ref

    def begin(self, size: int = 0, offset: int = 0) -> int:
        """Send a read, and do not wait for its answer."""
        return self.who.send(messages.ReadOnce(self.ref, size, offset))

    def end(self, seq: int) -> bytes:
        """The bytes that such a read gives."""
        answer = self.who.node.cluster.wait(self.who, seq)
        assert isinstance(answer, messages.Buffer), answer
        return self.who.node.received[self.who.task, seq]

    def read(self, size: int = 0, offset: int = 0) -> bytes:
        """The bytes of the object."""
        return self.end(self.begin(size, offset))


class Scene:
    """Two nodes, an object on the second, and the transfers of its bytes to the first."""

    def __init__(self, buffering: Buffering = Buffering.DOUBLE) -> None:
        self.cluster = Cluster(("r1", "r1"))
        self.here, self.there = self.cluster.nodes
        for node in self.cluster.nodes:
            cache_of(node).least = 10
        self.keeper = self.cluster.session(self.there)
        self.created = self.object(CONTENT, buffering)
        self.transfers: list[Parcel] = []
        self.cluster.drop = self._watch

    def _watch(self, parcel: Parcel) -> bool:
        if parcel.beside and isinstance(parcel.message, dcp.PeerReply):
            self.transfers.append(parcel)
        return False

    def object(self, content: bytes, buffering: Buffering = Buffering.DOUBLE) -> messages.Created:
        """One more object over there."""
        groups = (self.keeper.groups[0],)
        call = messages.Create(ObjectType.SHMEM_BLOB, groups, buffering=buffering, data=content)
        return self.keeper.ask(messages.Created, call)

    def reader(self, principal: Principal = OWNER, created: messages.Created | None = None) -> Reader:
        """One more task here with a reference: it looked the object up, or was given it."""
        who = self.here.session()
        (reference,) = who.lookup((created or self.created).name)
        if principal == OWNER:
            return Reader(who, reference.ref)
        other, tasks = self.here.session(principal), self.here.core.state.tasks
        itself = tasks[other.task].table.get(other.self_ref)
        to = self.here.core.state.add_reference(
            tasks[who.task], itself.object, itself.permissions, itself.provenance
        )
        who.ask(messages.Done, messages.Copy(reference.ref, to.id))
        return Reader(other, other.given().ref)

    def write(self, content: bytes) -> None:
        """The keeper replaces the content."""
        call = messages.WriteOnce(self.created.reference.ref, content, flags=int(Flag.REPLACE))
        self.keeper.ask(messages.Committed, call)

    def used(self, principal: Principal = OWNER, resource: Resource = Resource.VOLATILE_BYTES) -> int:
        """What is counted with a principal here."""
        return self.here.core.state.account_of(principal).used[resource]


@pytest.fixture
def scene() -> Scene:
    """Two nodes with an object on the second."""
    return Scene()


# -- one transfer ---------------------------------------------------------------------------------------
def test_ten_readers_cost_one_transfer(scene: Scene) -> None:
    """The bytes come with the first read; the others are counted and answered, and bring none."""
    readers = [scene.reader() for _ in range(10)]
    assert [reader.read() for reader in readers] == [CONTENT] * 10
    assert len(scene.transfers) == 1
    assert scene.keeper.counters(scene.created.reference.ref)[2] == 10


def test_ten_readers_at_once_cost_one_transfer(scene: Scene) -> None:
    """Readers that come while the bytes are on their way wait for them."""
    readers = [scene.reader() for _ in range(10)]
    begun = [reader.begin() for reader in readers]
    assert [reader.end(seq) for reader, seq in zip(readers, begun, strict=True)] == [CONTENT] * 10
    assert len(scene.transfers) == 1
    assert not cache_of(scene.here).fetches


def test_the_bytes_stay_when_their_reader_has_ended(scene: Scene) -> None:
    """The next task finds them, although no reference from here was left in between."""
    first = scene.reader()
    assert first.read() == CONTENT
    scene.cluster.end(first.who)
    scene.cluster.advance(100)
    assert scene.reader().read() == CONTENT
    assert len(scene.transfers) == 1


@pytest.mark.parametrize(("size", "offset"), [(0, 0), (20, 0), (0, 30), (20, 30), (100, 50)])
def test_a_part_of_kept_bytes_is_that_part(scene: Scene, size: int, offset: int) -> None:
    """A range of an object that is here whole does not come again."""
    assert scene.reader().read() == CONTENT
    assert scene.reader().read(size, offset) == CONTENT[offset:][: size or None]
    end = offset + size if size else len(CONTENT)
    assert len(scene.transfers) == (1 if end <= len(CONTENT) else 2)


def test_requests_with_a_buffer_use_the_same_bytes(scene: Scene) -> None:
    """An acquire is counted and checked there, and its commit fails there if the object was written."""
    assert scene.reader().read() == CONTENT
    reader = scene.reader()
    call = messages.AcquireRead(reader.ref, semantics=Semantics.MRSW)
    seq = reader.who.send(call)
    answer = scene.cluster.wait(reader.who, seq)
    assert isinstance(answer, messages.Buffer)
    assert reader.who.node.received[reader.who.task, seq] == CONTENT
    assert len(scene.transfers) == 1
    assert scene.keeper.counters(scene.created.reference.ref)[0] == 1
    scene.write(NEWER)
    failed = reader.who.call(messages.CommitRead(reader.ref, answer.buffer))
    assert isinstance(failed, messages.Failure)
    assert failed.code == Code.ECANCELED


# -- who takes over -------------------------------------------------------------------------------------
def test_a_cancelled_read_hands_over_to_the_next(scene: Scene) -> None:
    """If the reader that fetches gives up, the next one fetches, and the rest waits for it."""
    readers = [scene.reader() for _ in range(4)]
    begun = [reader.begin() for reader in readers]
    readers[0].who.ask(messages.Done, messages.Cancel(begun[0]))
    for reader, seq in zip(readers[1:], begun[1:], strict=True):
        assert reader.end(seq) == CONTENT
    assert len(scene.transfers) <= 2  # the answer to the cancelled read may be on its way


def test_the_end_of_the_fetching_task_hands_over_to_the_next(scene: Scene) -> None:
    """A task that ends while it fetches leaves nobody waiting."""
    readers = [scene.reader() for _ in range(3)]
    begun = [reader.begin() for reader in readers]
    scene.cluster.end(readers[0].who)
    for reader, seq in zip(readers[1:], begun[1:], strict=True):
        assert reader.end(seq) == CONTENT
    assert not cache_of(scene.here).fetches


def test_a_refused_read_hands_over_to_the_next(scene: Scene) -> None:
    """A reader that may not read is refused, and the next one gets the bytes by its own reference."""
    first, second = scene.reader(), scene.reader()
    giver = scene.reader().who
    (narrow,) = giver.ask(
        messages.References,
        messages.Copy(giver.lookup(scene.created.name)[0].ref, giver.self_ref, int(Permission.WRITE)),
    ).references
    blind = Reader(giver, narrow.ref)
    begun = [(reader, reader.begin()) for reader in (blind, first, second)]
    refused = scene.cluster.wait(giver, begun[0][1])
    assert isinstance(refused, messages.Failure)
    assert refused.code == Code.EPERM
    assert [reader.end(seq) for reader, seq in begun[1:]] == [CONTENT] * 2
    assert len(scene.transfers) == 1


def test_a_dead_node_leaves_nobody_waiting(scene: Scene) -> None:
    """When the object's node does not answer, each waiting reader is told so."""
    readers = [scene.reader() for _ in range(3)]
    scene.cluster.part(scene.here, scene.there)
    begun = [reader.begin() for reader in readers]
    for reader, seq in zip(readers, begun, strict=True):
        answer = scene.cluster.wait(reader.who, seq, 60_000)
        assert isinstance(answer, messages.Failure)
        assert answer.code == Code.EHOSTUNREACH
    assert not cache_of(scene.here).fetches


def test_principals_do_not_wait_for_each_other(scene: Scene) -> None:
    """A reader whose bytes come slowly, because of its rate, keeps only its own principal waiting."""
    mine, other = scene.reader(), scene.reader(OTHER)
    first, second = mine.begin(), other.begin()
    assert mine.end(first) == other.end(second) == CONTENT
    assert len(scene.transfers) == 2


# -- never the wrong bytes ------------------------------------------------------------------------------
def test_a_newer_version_replaces_the_kept_one(scene: Scene) -> None:
    """A read after a write gives what was written, and the former bytes are not kept."""
    assert scene.reader().read() == CONTENT
    reader = scene.reader()
    scene.write(NEWER)
    assert reader.read() == NEWER
    assert scene.reader().read() == NEWER
    assert len(scene.transfers) == 2
    assert cache_of(scene.here).bytes == len(NEWER)


def test_a_published_version_drops_the_kept_one(scene: Scene) -> None:
    """A node that hears of a newer version, or of the object's end, keeps its bytes no longer."""
    reader = scene.reader()
    assert reader.read() == CONTENT
    payload = next(iter(cache_of(scene.here).kept))
    scene.write(NEWER)
    scene.cluster.advance(100)
    assert not cache_of(scene.here).kept
    assert payload not in scene.here.payloads
    assert reader.read() == NEWER
    scene.keeper.ask(messages.Done, messages.Delete(scene.created.reference.ref, int(Flag.DESTROY)))
    assert not cache_of(scene.here).kept
    assert scene.used() == 0


def test_kept_bytes_need_a_reference(scene: Scene) -> None:
    """A reference that was taken back, or that does not permit reading, gives nothing of the cache."""
    assert scene.reader().read() == CONTENT
    reader = scene.reader()
    (narrow,) = reader.who.ask(
        messages.References, messages.Copy(reader.ref, reader.who.self_ref, int(Permission.READ))
    ).references
    given = Reader(reader.who, narrow.ref)
    assert given.read() == CONTENT
    scene.keeper.ask(messages.Done, messages.Retire(scene.created.reference.ref, int(Flag.EVERYONE)))
    answer = given.who.call(messages.ReadOnce(given.ref))
    assert isinstance(answer, messages.Failure)
    assert answer.code == Code.EBADF


def test_raw_objects_are_not_kept() -> None:
    """The bytes of a raw object change within a version, so they come with each read."""
    scene = Scene(Buffering.RAW)
    assert scene.reader().read() == scene.reader().read() == CONTENT
    assert len(scene.transfers) == 2
    assert not cache_of(scene.here).kept


def test_a_restart_of_the_objects_node_drops_its_versions(scene: Scene) -> None:
    """Numbers of versions belong to one start of a node."""
    assert scene.reader().read() == CONTENT
    scene.there.crash()
    scene.cluster.connect(scene.here, scene.there)
    scene.cluster.connect(scene.there, scene.here)
    scene.cluster.settle()
    assert not cache_of(scene.here).kept
    assert scene.used() == 0


def test_a_wrong_confirmation_is_refused(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """An answer without bytes that confirms another version gives no bytes at all."""
    assert scene.reader().read() == CONTENT
    reader = scene.reader()
    monkeypatch.setattr(io_steps, "is_known", lambda step, target: step.known is not None)  # noqa: ARG005
    monkeypatch.setattr(VersionCache, "note_version", lambda *_, **__: [])
    scene.write(NEWER)
    answer = reader.who.call(messages.ReadOnce(reader.ref))
    assert isinstance(answer, messages.Failure)


def test_a_node_that_does_not_confirm_sends_the_bytes(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """A node of an earlier release ignores the version in a call."""
    monkeypatch.setattr(io_steps, "is_known", lambda step, target: False)  # noqa: ARG005
    readers = [scene.reader() for _ in range(3)]
    begun = [reader.begin() for reader in readers]
    assert [reader.end(seq) for reader, seq in zip(readers, begun, strict=True)] == [CONTENT] * 3
    assert len(scene.transfers) == 3


# -- bounds ---------------------------------------------------------------------------------------------
def test_the_first_reader_is_charged(scene: Scene) -> None:
    """Kept bytes count with the principal who brought them, until they are dropped."""
    assert scene.reader().read() == scene.reader(OTHER).read() == CONTENT
    assert (scene.used(), scene.used(OTHER)) == (len(CONTENT), 0)
    scene.cluster.advance(700_000, 5_000)
    assert scene.used() == 0
    assert not scene.here.payloads.keys() & cache_of(scene.here).kept.keys()


def test_the_least_recently_used_version_goes_first(scene: Scene) -> None:
    """The cache has room for ten objects of this size; the one that was used last stays."""
    assert 10 * len(CONTENT) == CACHE_BYTES
    objects = [scene.created, *(scene.object(bytes([index]) * len(CONTENT)) for index in range(10))]
    readers = [scene.reader(created=created) for created in objects]
    for reader in readers[:10]:
        reader.read()
    readers[0].read()
    readers[10].read()
    assert len(scene.transfers) == 11
    readers[0].read()
    assert len(scene.transfers) == 11
    readers[1].read()
    assert len(scene.transfers) == 12
    assert scene.used() <= CACHE_BYTES


def test_a_principal_with_few_bytes_keeps_them(scene: Scene) -> None:
    """The principal with the most bytes gives way."""
    other = scene.reader(OTHER)
    assert other.read() == CONTENT
    for index in range(15):
        scene.reader(created=scene.object(bytes([index]) * len(CONTENT))).read()
    assert scene.used(OTHER) == len(CONTENT)
    assert len(scene.transfers) == 16
    other.read()
    assert len(scene.transfers) == 16


def test_kept_bytes_give_way_to_their_owners_objects(scene: Scene) -> None:
    """A limit that kept bytes would exceed is there for the principal's objects: the bytes go."""
    reader = scene.reader()
    assert reader.read() == CONTENT
    scene.here.core.state.account_of(OWNER).bind((Bound(Resource.VOLATILE_BYTES, 150),))
    reader.who.ask(messages.Created, messages.Create(ObjectType.SHMEM_BLOB, data=NEWER))
    assert not cache_of(scene.here).kept
    assert reader.read() == CONTENT  # which is not kept: there is no room
    assert not cache_of(scene.here).kept


def test_a_node_may_keep_nothing(scene: Scene) -> None:
    """With a cache of no bytes every read brings them."""
    cache_of(scene.here).bytes_max = 0
    assert scene.reader().read() == scene.reader().read() == CONTENT
    assert len(scene.transfers) == 2
