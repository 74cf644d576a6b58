"""Digests decide about replicas, and former files go when their replacements are kept.

The keepers are the real ones, on model nodes in virtual time.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from random import Random

import msgspec
import pytest
import trio
import trio.testing
from blake3 import blake3

from dios import limits
from dios.client.aio.node import AsyncReference
from dios.errors import ClosedError
from dios.ids import Name
from dios.lib import catalogue
from dios.lib.catalogue import CatalogueEntry, Listed, Note, Part, pack_parts
from dios.lib.kept import comparisons, notes
from dios.lib.kept.keeper import Keeper
from dios.lib.kept.lists import edit_list
from dios.lib.kept.notes import waiting_notes
from dios.lib.kept.promises import Promises
from dios.lib.kept.records import KEPT_NAME, KeptPromise
from dios.lib.replicated_record.frame import Member, decode, has_header
from dios.wire.nametext import fingerprint
from dios.wire.types import ObjectType
from labs.sim.kept.calls import ModelSession
from labs.sim.kept.history import History
from labs.sim.kept.links import ModelProgram, async_node
from labs.sim.kept.nodes import ModelCluster, StoredReplica, object_name
from labs.sim.kept.surroundings import tier_store
from labs.sim.kept.users import Users

GROUP = object_name("group")
OLD, NEW = object_name("old"), object_name("new")
BYTES = {OLD: b"the first version", NEW: b"the second version"}
FALSE = b"not the thesis"


def entry(name: Name, file: str = "thesis") -> CatalogueEntry:
    """The entry of a file with these bytes."""
    return CatalogueEntry(file, name, len(BYTES[name]), 0, blake3(BYTES[name]).digest())


def parts(*names: Name) -> bytes:
    """Objects for which a note waits."""
    return pack_parts(Part(name, blake3(BYTES[name]).digest()) for name in names)


class ShownPromise(msgspec.Struct):
    """A promise in the report of a keeper."""

    unverified: int
    short: int


class ShownObject(msgspec.Struct):
    """An object in the report of a keeper."""

    reason: str


class Report(msgspec.Struct):
    """The report of a leading keeper."""

    promises: dict[str, ShownPromise]
    objects: dict[str, ShownObject]


class Room:
    """Three nodes with keepers, and a group with a promise."""

    def __init__(self, cluster: ModelCluster, users: Users, nursery: trio.Nursery) -> None:
        self.cluster = cluster
        self.users = users
        self.nursery = nursery

    async def lists(self, *entries: CatalogueEntry, notes: Iterable[Note] = ()) -> None:
        """Write the list."""
        session = async_node(ModelSession(self.cluster, 0, GROUP, keeps=True))
        group = await session.group(GROUP)
        assert group is not None
        await edit_list(session, group, self.promise(2), lambda _: Listed(entries, (), tuple(notes)))

    def promise(self, replicas: int) -> KeptPromise:
        """The promise for the group."""
        return KeptPromise(0, GROUP, self.users.list_name, "papers", replicas)

    async def take_back(self) -> None:
        """End the promise for the group."""

        def work(program: ModelProgram) -> None:
            Promises(program.node(ModelSession(self.cluster, 0, GROUP))).end(self.promise(0).key)

        await ModelProgram(work).run()

    def listed(self) -> Listed:
        """The content of the latest list."""
        lists = self.cluster.living(self.users.list_name)
        return catalogue.decode_all(max(lists, key=lambda replica: replica.v_w).data)

    def store(self, name: Name, node: int, data: bytes | None = None, *, v_w: int = 0) -> StoredReplica:
        """Make a replica, by default with the bytes that were put."""
        write = self.cluster.history.begin()
        return self.cluster.store(name, node, BYTES[name] if data is None else data, write, v_w=v_w)

    def there(self, name: Name) -> list[tuple[int, bytes]]:
        """The nodes and the bytes of the replicas of an object."""
        return sorted((replica.node, replica.data) for replica in self.cluster.living(name))

    def sound(self, name: Name, *nodes: int) -> bool:
        """True if these nodes and no others have replicas, all with the bytes that were put."""
        return self.there(name) == [(node, BYTES[name]) for node in nodes]

    def start(self, *, rate: int = 1 << 20) -> None:
        """Start a keeper on each node."""
        for node in self.cluster.nodes:
            session = async_node(ModelSession(self.cluster, node.number, GROUP, keeps=True))
            self.nursery.start_soon(until_closed, Keeper(session, lambda _: None, grace_ms=1_000, rate=rate))

    async def until(self, holds: Callable[[], bool]) -> None:
        """Wait for a condition, in virtual time."""
        with trio.fail_after(120):
            while not holds():  # noqa: ASYNC110 - a model has no events
                await trio.sleep(0.25)

    async def remains(self, holds: Callable[[], bool], span: float = 60) -> None:
        """Assert that a condition holds all the time."""
        end = trio.current_time() + span
        while trio.current_time() < end:
            assert holds()
            await trio.sleep(0.25)

    def board(self) -> Report:
        """The report of the leading keeper."""
        boards = [
            replica
            for node in self.cluster.nodes
            for replica in node.replicas.values()
            if replica.name == KEPT_NAME and replica.type is ObjectType.SHMEM_BLOB and replica.data
        ]
        return msgspec.json.decode(boards[0].data, type=Report) if boards else Report({}, {})

    def reason(self, name: Name) -> str:
        """Why an object is shown as short of its promise."""
        shown = self.board().objects.get(fingerprint(name))
        return "" if shown is None else shown.reason

    def short(self) -> int | None:
        """The number of objects that are shown as short of the promise."""
        return next((promise.short for promise in self.board().promises.values()), None)

    def unverified(self) -> int | None:
        """The number of objects that are shown as not compared yet."""
        return next((promise.unverified for promise in self.board().promises.values()), None)


async def until_closed(kept: Keeper) -> None:
    """Run a keeper until its node ends."""
    try:
        await kept.run()
    except* ClosedError:
        pass


def keeps(scenario: Callable[[Room], Awaitable[None]], replicas: int = 2) -> None:
    """Run a scenario in a room whose group has a promise."""
    random = Random(1)  # noqa: S311 - repeatable on purpose

    async def run() -> None:
        async with trio.open_nursery() as nursery:
            cluster = ModelCluster(random, 3, 0, History(), nursery)
            users = Users(cluster, GROUP, tier_store(random))
            await users.set_up(replicas, apart=False)
            await scenario(Room(cluster, users, nursery))
            nursery.cancel_scope.cancel()

    trio.run(run, clock=trio.testing.MockClock(autojump_threshold=0))


# -- the list ---------------------------------------------------------------------------------------
def test_copies_of_the_list_that_are_no_members_go_and_those_of_an_earlier_release_stay() -> None:
    """The list has three replicas. A copy that nobody has added goes; plain content may have other files."""

    async def scenario(room: Room) -> None:
        name = room.users.list_name
        await room.lists(entry(NEW))
        room.store(NEW, 0)
        room.start()

        def members() -> set[int]:
            headed = [replica for replica in room.cluster.living(name) if has_header(replica.data)]
            latest = max(headed, key=lambda replica: replica.v_w, default=None)
            if latest is None:
                return set()
            value = decode(latest.data, Member(latest.object_id, "")).value
            return {member.object_id for member in value.members} if not value.former else set()

        await room.until(lambda: len(members()) == 3)
        original = room.cluster.living(name)[0]
        copied = room.cluster.store(name, 1, original.data, original.write)
        plain = room.cluster.store(name, 2, catalogue.encode([entry(OLD, "forgotten")]), original.write)

        def ids() -> set[int]:
            return {replica.object_id for replica in room.cluster.living(name)}

        await room.until(lambda: copied.object_id not in ids())
        await room.remains(lambda: {plain.object_id, *members()} <= ids())

    keeps(scenario)


# -- digests ----------------------------------------------------------------------------------------
def test_a_replica_that_was_written_directly_replaces_nothing_and_is_replaced() -> None:
    """Its version is the highest. The others stay, and it is shown with its node, also when it is gone."""

    async def scenario(room: Room) -> None:
        await room.lists(entry(NEW))
        for node in range(3):
            room.store(NEW, node)
        room.start()
        await room.until(lambda: room.unverified() == 0)
        room.cluster.living(NEW)[2].data, room.cluster.living(NEW)[2].v_w = FALSE, 1
        room.cluster.nodes[2].full = True  # a new replica cannot be made there
        await room.until(lambda: room.reason(NEW).startswith("the replica on n2 has other bytes"))
        assert room.there(NEW) == [(0, BYTES[NEW]), (1, BYTES[NEW]), (2, FALSE)]
        room.cluster.nodes[2].full = False
        await room.until(lambda: room.sound(NEW, 0, 1, 2))
        await room.until(lambda: room.reason(NEW).startswith("the replica on n2 had other bytes"))
        assert room.short() == 0

    keeps(scenario, replicas=3)


def test_a_damaged_replica_is_replaced_on_its_own_node() -> None:
    """There is no further node, and nothing can repair it."""

    async def scenario(room: Room) -> None:
        await room.lists(msgspec.structs.replace(entry(NEW), digest=b""))
        for node in range(2):
            room.store(NEW, node, v_w=1)
        room.store(NEW, 2, FALSE).damaged = True
        room.start()
        await room.until(lambda: room.sound(NEW, 0, 1, 2))

    keeps(scenario, replicas=3)


@pytest.mark.parametrize(("v_w", "stays"), [(0, False), (1, True), (2, True)])
def test_a_damaged_replica_that_nothing_can_repair_is_dropped(v_w: int, *, stays: bool) -> None:
    """No other one has the bytes of an earlier version. Those of the present one can be repaired."""

    async def scenario(room: Room) -> None:
        await room.lists(msgspec.structs.replace(entry(NEW), digest=b""))
        for node in range(2):
            room.store(NEW, node, v_w=1)
        damaged = room.store(NEW, 2, FALSE, v_w=v_w)
        damaged.damaged = True
        room.start()
        if stays:
            await room.remains(lambda: damaged.object_id in room.cluster.nodes[2].replicas)
        else:
            await room.until(lambda: room.sound(NEW, 0, 1))

    keeps(scenario)


@pytest.mark.parametrize("v_w", [0, 7])
def test_false_bytes_are_no_reason_to_drop_the_true_ones(v_w: int) -> None:
    """Also with the version of what was put, and in the replicas that stay by the order of dropping."""

    async def scenario(room: Room) -> None:
        await room.lists(entry(NEW))
        room.store(NEW, 0, FALSE, v_w=v_w)
        room.store(NEW, 1, FALSE, v_w=v_w)
        room.store(NEW, 2)
        room.start()
        await room.until(lambda: [data for _, data in room.there(NEW)] == [BYTES[NEW]] * 2)
        await room.remains(lambda: len(room.there(NEW)) == 2)

    keeps(scenario)


def test_without_a_sound_replica_everything_stays_and_is_shown() -> None:
    """Nothing is copied and nothing is dropped: a person may have use for the bytes."""

    async def scenario(room: Room) -> None:
        await room.lists(entry(NEW))
        for node, data in enumerate((FALSE, b"other bytes", b"others still")):
            room.store(NEW, node, data, v_w=node)
        before = room.there(NEW)
        room.start()
        await room.until(lambda: room.reason(NEW) != "")
        assert all(f"the replica on n{node} has other bytes" in room.reason(NEW) for node in range(3))
        await room.remains(lambda: room.there(NEW) == before)

    keeps(scenario)


def test_a_replica_is_compared_before_it_is_copied() -> None:
    """Its version is that of what was put, and it is the only one."""

    async def scenario(room: Room) -> None:
        await room.lists(entry(NEW))
        room.store(NEW, 0, FALSE)
        room.start()
        await room.until(lambda: "other bytes" in room.reason(NEW))
        await room.remains(lambda: room.there(NEW) == [(0, FALSE)])

    keeps(scenario)


def test_the_bytes_of_a_replica_are_read_once_for_each_version(monkeypatch: pytest.MonkeyPatch) -> None:
    """And again before another replica is dropped for its sake, if that was long ago."""
    monkeypatch.setattr(limits, "KEPT_COMPARED_MS", 90_000)
    compared: list[int] = []
    compare = comparisons.Comparisons.compare

    async def counted(
        self: comparisons.Comparisons,
        part: Part,
        reference: AsyncReference,
        pace: Callable[[int], Awaitable[None]],
    ) -> bool:
        compared.append(reference.object_id)
        return await compare(self, part, reference, pace)

    monkeypatch.setattr(comparisons.Comparisons, "compare", counted)

    async def scenario(room: Room) -> None:
        await room.lists(entry(NEW))
        two = sorted(room.store(NEW, node).object_id for node in range(2))
        room.start()
        await room.until(lambda: room.unverified() == 0)
        await room.remains(lambda: sorted(compared) == two, 100)
        room.store(NEW, 2)
        await room.until(lambda: room.sound(NEW, 0, 1))
        assert sorted(compared)[:4] == [two[0], two[0], two[1], two[1]]

    keeps(scenario)


def test_comparing_keeps_to_the_rate() -> None:
    """The report says how many objects are not compared yet. A version that no put leaves goes first."""
    names = [object_name(f"file {number}") for number in range(20)]
    data = bytes(10_000)

    async def scenario(room: Room) -> None:
        await room.lists(*(CatalogueEntry(n.hex(), n, 10_000, 0, blake3(data).digest()) for n in names))
        for name in names:
            for node in range(2):
                room.cluster.store(name, node, data, 0)
        written = room.cluster.living(names[10])[1]
        written.data, written.v_w = FALSE, 2
        began = trio.current_time()
        room.start(rate=10_000)
        await room.until(lambda: "on n1 has other bytes" in room.reason(names[10]))
        assert (room.unverified() or 0) > 14
        await room.until(lambda: room.unverified() == 0)
        assert trio.current_time() - began >= 2 * len(names), "in virtual time"

    keeps(scenario)


# -- former files -----------------------------------------------------------------------------------
def test_a_former_file_goes_when_its_replacement_is_kept() -> None:
    """Not while a replica of it is missing; and the note goes with the former objects."""

    async def scenario(room: Room) -> None:
        room.store(OLD, 0)
        room.store(OLD, 1)
        room.store(NEW, 0)
        await room.lists(entry(NEW), notes=[Note(entry(OLD), parts(NEW), 0)])
        for node in (1, 2):
            room.cluster.nodes[node].full = True
        room.start()
        await room.until(lambda: room.reason(NEW) != "")
        await room.remains(lambda: room.sound(OLD, 0, 1))
        room.cluster.nodes[2].full = False
        await room.until(lambda: not room.there(OLD))
        assert room.sound(NEW, 0, 2)
        await room.until(lambda: room.listed() == Listed((entry(NEW),)))

    keeps(scenario)


def test_a_replacement_with_other_bytes_does_not_end_the_former_file() -> None:
    """Although two nodes have it in the version of what was put."""

    async def scenario(room: Room) -> None:
        room.store(OLD, 0)
        room.store(OLD, 1)
        room.store(NEW, 0, FALSE)
        room.store(NEW, 1, FALSE)
        await room.lists(entry(NEW), notes=[Note(entry(OLD), parts(NEW), 0)])
        room.start()
        await room.until(lambda: "other bytes" in room.reason(NEW))
        await room.remains(lambda: room.sound(OLD, 0, 1))
        assert room.listed().notes

    keeps(scenario)


def test_a_former_file_waits_for_a_node_that_is_away() -> None:
    """The node may have a replica of it. The note stays, until that replica is destroyed, too."""

    async def scenario(room: Room) -> None:
        for node in range(3):
            room.store(OLD, node)
        for node in range(2):
            room.store(NEW, node)
        await room.lists(entry(NEW), notes=[Note(entry(OLD), parts(NEW), 0)])
        room.cluster.crash(room.cluster.nodes[2], for_ever=False)
        room.start()
        await room.until(lambda: room.unverified() == 0)
        await room.remains(lambda: bool(room.listed().notes) and {0, 1} <= {n for n, _ in room.there(OLD)})
        room.cluster.start(room.cluster.nodes[2])
        await room.until(lambda: not room.there(OLD))
        await room.until(lambda: not room.listed().notes)
        await room.until(lambda: room.sound(NEW, 0, 1))

    keeps(scenario)


def test_objects_that_a_present_file_has_are_not_destroyed() -> None:
    """Its note goes alone, as does one whose objects were destroyed by a keeper that ended then."""

    async def scenario(room: Room) -> None:
        for name in (OLD, NEW):
            room.store(name, 0)
            room.store(name, 1)
        gone = CatalogueEntry("gone", object_name("gone"), 1, 0, b"d" * 32)
        await room.lists(
            entry(NEW),
            entry(OLD, "kept under another path"),
            notes=[Note(entry(OLD), parts(NEW), 0), Note(gone, b"", 0)],
        )
        room.start()
        await room.until(lambda: not room.listed().notes)
        await room.remains(lambda: room.sound(OLD, 0, 1), 10)

    keeps(scenario)


def test_a_promise_that_was_taken_back_strands_no_note() -> None:
    """One replica with the bytes that were put is enough then, and without one the former file stays."""

    async def scenario(room: Room) -> None:
        replica = room.store(NEW, 0, FALSE)
        room.store(OLD, 1)
        await room.lists(entry(NEW), notes=[Note(entry(OLD), parts(NEW), 0)])
        await room.take_back()
        room.start()
        await room.remains(lambda: room.sound(OLD, 1), limits.KEPT_ENDED_LOOK_MS / 1000 * 3)
        replica.data = BYTES[NEW]
        await room.until(lambda: not room.there(OLD))
        await room.until(lambda: not room.listed().notes)
        assert room.sound(NEW, 0)

    keeps(scenario)


# -- notes ------------------------------------------------------------------------------------------
THIRD = object_name("third")


def note(former: Name, *until: Name) -> Note:
    """A note of a file of which only the names matter."""
    return Note(CatalogueEntry("f", former, 1, 0), pack_parts(Part(name, b"d" * 32) for name in until), 0)


def waits(listed: set[bytes], *several: Note) -> list[set[bytes] | None]:
    """The names for which each note waits."""
    waiting = waiting_notes(several, listed)
    return [
        None if waiting_note.waits_for is None else {part.name for part in waiting_note.waits_for}
        for waiting_note in waiting
    ]


def test_a_note_waits_for_the_objects_that_replaced_those_it_names() -> None:
    """Through other notes. With nothing to wait for it is due, and without a trace of a later file never."""
    assert waits({NEW}, note(OLD, NEW)) == [{NEW}]
    assert waits({THIRD}, note(OLD, NEW), note(NEW, THIRD)) == [{THIRD}, {THIRD}]
    assert waits({THIRD}, note(OLD, NEW, THIRD), note(NEW)) == [{THIRD}, set()]
    assert waits({THIRD}, note(OLD, NEW)) == [None]
    assert waits({THIRD}, note(OLD, NEW), note(NEW, OLD)) == [None, None]


def test_files_and_unfinished_files_need_their_objects() -> None:
    """Also the objects that a tiered file had before, which its entry still names."""
    begun = catalogue.UnfinishedFile("u", b"r" * 32, 0, 0, 1, pack_parts([Part(THIRD, b"")]))
    content = Listed((entry(NEW),), (begun,), (note(OLD, NEW),))
    assert notes.needed_names(content) == {NEW, THIRD}
    assert notes.without(content, {note(OLD, NEW)}).notes == ()
