"""Files and keepers in virtual time: seeds keep each claim, repeat themselves, and find broken rules."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import pairwise
from random import Random
from typing import NamedTuple

import pytest
import trio
import trio.testing

from dios.client.aio.node import AsyncReference
from dios.client.sync.node import Group, Node, Reference
from dios.errors import ClosedError, DiosError, UnreachableError
from dios.lib.catalogue import CatalogueEntry, Part, Tiered, encode, pack_parts
from dios.lib.files.group_files import GroupFiles
from dios.lib.files.staging import StagedFiles
from dios.lib.kept import decisions, keeper, replicas
from dios.lib.kept.comparisons import Comparison, Comparisons
from dios.lib.kept.decisions import KeptSteps
from dios.lib.kept.objects import LookOrder, PromisedObject
from dios.lib.kept.versions import Seen, VersionState
from dios.wire.types import ObjectType, Semantics
from labs.sim.kept import world
from labs.sim.kept.calls import Killed, ModelSession
from labs.sim.kept.file_history import FileHistory
from labs.sim.kept.history import History
from labs.sim.kept.links import ModelProgram, async_node
from labs.sim.kept.nodes import ModelCluster, object_name
from labs.sim.kept.safety import Safety, digest_of
from labs.sim.kept.surroundings import tier_store
from labs.sim.kept.users import Users
from labs.sim.kept.world import GROUP, BrokenClaimsError, simulate_kept
from labs.sim.node.checker import BrokenPromiseError

SEEDS_TO_FIND = 60


@pytest.mark.extended(keep=1)
@pytest.mark.parametrize("seed", range(4))
def test_seed_keeps_every_claim(seed: int) -> None:
    """Faults of nodes, disks and the network lose nothing, and all replicas are as promised at last."""
    report = simulate_kept(seed)
    assert report.faults
    assert report.restored


def outcome(seed: int) -> str:
    """Return the report of a seed, or the claims that do not hold."""
    try:
        return repr(simulate_kept(seed))
    except BrokenPromiseError as error:
        return str(error)


@pytest.mark.extended
def test_a_seed_repeats_itself() -> None:
    """The same seed makes the same decisions at the same times."""
    assert outcome(5) == outcome(5)


# -- broken rules -----------------------------------------------------------------------------------
def highest_wins(states: Iterable[VersionState], seen: Collection[Seen]) -> list[VersionState]:
    """Break the rule of conflicts: the highest version counts."""
    del seen
    return [max(states)]


def what_was_put(self: replicas.Digests, replica: AsyncReference, *, written: bool) -> object:
    """Break the rule of large objects that programs edit: their version 1 counts as what was put."""
    del written
    return _state(self, replica, written=False)


_state = replicas.Digests.state


def no_copies(*args: object, **keywords: object) -> KeptSteps:
    """Break the promise: nothing is copied."""
    return _next_steps(*args, **keywords)._replace(targets=())  # type: ignore[arg-type]


_next_steps = decisions.next_steps


class Broken(NamedTuple):
    """A rule that is broken by other functions, by their places, and claims that do not all hold then."""

    functions: Mapping[str, object]
    claims: frozenset[str]


def broken(target: str, value: object, *claims: str) -> Broken:
    """Return a rule that is broken by the replacement of ``target``."""
    return Broken({target: value}, frozenset(claims))


async def same_bytes(self: object, part: Part, replica: AsyncReference, pace: object) -> bool:
    """Break the rule of content: whatever the bytes are, they count as those of the digest."""
    del pace
    assert isinstance(self, Comparisons)
    self._note(part, replica.object_id, Comparison(replica.v_w, sound=True, at=trio.current_time()))
    return True


def all_kept(files: GroupFiles, several: Iterable[CatalogueEntry]) -> list[CatalogueEntry]:
    """Break the rule of files that come back: each leaves its store at once."""
    del files
    return list(several)


def copy_nothing(node: Node, group: Group, stored: Sequence[Reference], disks: int) -> None:
    """Break the acknowledgement by several disks: one has to suffice."""


BROKEN: dict[str, Broken] = {
    "the highest version wins": broken(
        "dios.lib.kept.decisions.latest", highest_wins, "written", "conflict", "bytes"
    ),
    "a large version 1 is what was put": broken(
        "dios.lib.kept.replicas.Digests.state", what_was_put, "written", "conflict", "bytes"
    ),
    "nothing is copied": broken("dios.lib.kept.keeper.next_steps", no_copies, "number", "list"),
    "one disk acknowledges for all": broken("dios.lib.files.staging.copy_all", copy_nothing, "acknowledged"),
    "other bytes are sound": broken(
        "dios.lib.kept.comparisons.Comparisons.compare",
        same_bytes,
        "last copy",
        "readable",
        "bytes",
        "number",
    ),
    "a replaced file is destroyed at once": broken(
        "dios.lib.files.group_files.GroupFiles.is_replicated", property(lambda _: False), "last copy"
    ),
    "a file that comes back to one disk leaves its store": Broken(
        {
            "dios.lib.files.tier.inward.kept_ones": all_kept,
            "dios.lib.files.tier.inward.StagedFiles": partial(StagedFiles, disks=1),
        },
        frozenset({"last copy", "safe"}),
    ),
    "a minority decides about the list": Broken(
        {
            f"dios.lib.replicated_record.protocol.{name}": lambda *_: True
            for name in ("is_decided", "is_majority")
        },
        frozenset({"acknowledged", "list", "listed", "read", "current", "removed"}),
    ),
}


@pytest.mark.extended(keep=1)
@pytest.mark.parametrize("rule", BROKEN)
def test_a_broken_rule_is_found(rule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A library that breaks one rule breaks a claim of it within a few seeds."""
    for place, function in BROKEN[rule].functions.items():
        monkeypatch.setattr(place, function)
    claims: set[str] = set()
    for seed in range(SEEDS_TO_FIND):
        try:
            simulate_kept(seed)
        except BrokenClaimsError as error:
            claims.update(error.claims)
        except BrokenPromiseError:
            return  # a keeper dropped the last replica of a write
        if claims & BROKEN[rule].claims:
            return
    pytest.fail(f"{SEEDS_TO_FIND} seeds found nothing but {sorted(claims)}")


# -- keepers ----------------------------------------------------------------------------------------
NAMES = [object_name(f"part {number}") for number in range(3)]


async def until(cluster: ModelCluster, holds: Callable[[set[int]], bool]) -> None:
    """Wait until the nodes of each part are as they should be, in virtual time."""
    with trio.fail_after(300):
        while not all(holds({replica.node for replica in cluster.living(name)}) for name in NAMES):  # noqa: ASYNC110 - a model has no events
            await trio.sleep(1)


async def until_closed(kept: keeper.Keeper) -> None:
    """Run a keeper until its node ends."""
    try:
        await kept.run()
    except* ClosedError:
        pass


def test_every_part_of_a_large_file_has_the_promised_replicas() -> None:
    """A file in parts is several objects. After the loss of a node each is on two nodes again."""
    random = Random(1)  # noqa: S311 - repeatable on purpose

    async def keep() -> None:
        async with trio.open_nursery() as nursery:
            cluster = ModelCluster(random, 3, 0, History(), nursery)
            users = Users(cluster, GROUP, tier_store(random))
            await users.set_up(2, apart=False)
            packed = pack_parts(Part(name, digest_of(b"x")) for name in NAMES)
            entry = CatalogueEntry("large", NAMES[0], 3, 0, b"", 1, packed)
            cluster.living(users.list_name)[0].data = encode([entry])
            for name in NAMES:
                cluster.store(name, 0, b"x", 0)
            for node in cluster.nodes:
                session = async_node(ModelSession(cluster, node.number, GROUP, keeps=True))
                kept = keeper.Keeper(session, lambda _: None, grace_ms=1_000, rate=1 << 20)
                nursery.start_soon(until_closed, kept)
            await until(cluster, lambda nodes: len(nodes) == 2)
            while len(cluster.living(users.list_name)) < 2:  # noqa: ASYNC110 - a model has no events
                await trio.sleep(1)
            cluster.crash(cluster.nodes[0], for_ever=True)
            await until(cluster, lambda nodes: nodes == {1, 2})
            nursery.cancel_scope.cancel()

    trio.run(keep, clock=trio.testing.MockClock(autojump_threshold=0))


def test_a_write_is_lost_only_with_all_its_disks() -> None:
    """The history tells a loss with the last disk, which is excused, from a loss while another disk lives."""
    history = History()
    first = history.begin()
    second = history.after(first, b"a")
    assert history.after(first, b"a") == second
    other = history.after(first, b"b")
    assert history.heads([first, second, other]) == {second, other}
    history.acknowledge(b"x", first)
    assert not history.missing(b"x", [second])
    assert history.missing(b"x", []) == [first]
    history.forget_lost(b"x", [])
    assert not history.missing(b"x", [])
    assert history.lost == 1
    assert world.REST_S > world.GRACE_MS / 1000


def test_a_new_file_does_not_make_the_keeper_look_at_all_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a change of the list alone no object is hurried but the new ones: writers cost no more looks."""
    done: dict[LookOrder, list[str]] = defaultdict(list)
    replace, hurry = LookOrder.replace, LookOrder.hurry

    def replaced(self: LookOrder, covered: dict[bytes, PromisedObject]) -> Iterator[None]:
        done[self].append("replace")
        return replace(self, covered)

    def hurried(self: LookOrder) -> None:
        done[self].append("hurry")
        hurry(self)

    monkeypatch.setattr(LookOrder, "replace", replaced)
    monkeypatch.setattr(LookOrder, "hurry", hurried)
    outcome(3)
    pairs = Counter(pair for steps in done.values() for pair in pairwise(steps))
    assert pairs["replace", "hurry"], "a promise was new"
    assert pairs["replace", "replace"], "lists changed without a new promise or node"


# -- programs ---------------------------------------------------------------------------------------
async def pass_time(seconds: int) -> None:
    """Let a number of seconds pass in virtual time."""
    for _ in range(seconds):
        await trio.sleep(1)


def in_cluster(work: Callable[[ModelCluster, trio.Nursery], object]) -> None:
    """Run async work on three nodes in virtual time."""

    async def run() -> None:
        async with trio.open_nursery() as nursery:
            cluster = ModelCluster(Random(1), 3, 0, History(), nursery)  # noqa: S311 - repeatable on purpose
            await work(cluster, nursery)  # type: ignore[misc]
            nursery.cancel_scope.cancel()

    trio.run(run, clock=trio.testing.MockClock(autojump_threshold=0))


@pytest.mark.parametrize("kill_at", [1, 2, 3])
def test_a_program_ends_at_the_change_at_which_it_is_killed(kill_at: int) -> None:
    """The changes before it were made, the one at which it is killed may be, and none after it is."""
    changes: list[int] = []

    def create(program: ModelProgram, session: ModelSession) -> None:
        node = program.node(session)
        try:
            for number in range(5):
                node.create(ObjectType.DURABLE_BLOB, groups=node.groups, data=b"x")
                changes.append(number)
        finally:
            with pytest.raises(Killed):
                node.nodes()

    async def work(cluster: ModelCluster, nursery: trio.Nursery) -> None:
        del nursery
        session = ModelSession(cluster, 0, GROUP, kill_at=kill_at)
        await ModelProgram(lambda program: create(program, session)).run()
        await pass_time(1)
        assert len(changes) == kill_at - 1
        assert len(cluster.nodes[0].replicas) in {kill_at - 1, kill_at}

    in_cluster(work)


def test_programs_and_nodes_see_each_other_in_virtual_time() -> None:
    """Two programs write alternately to one object, and a node that ends closes their sessions."""
    written: list[int] = []
    errors: list[str] = []

    def write(program: ModelProgram, session: ModelSession, name: bytes, number: int) -> None:
        node = program.node(session)
        try:
            while True:
                handles = node.lookup(name)
                if not handles and handles.incomplete:
                    raise UnreachableError("the node of the object does not answer")
                handles[0].write_bytes(bytes([number]))
                written.append(number)
                program.sleep(1)
        except DiosError as error:
            errors.append(type(error).__name__)

    async def work(cluster: ModelCluster, nursery: trio.Nursery) -> None:
        name = object_name("shared")
        cluster.store(name, 0, b"", cluster.history.begin())
        for number in (1, 2):
            session = ModelSession(cluster, number, GROUP)

            def program(running: ModelProgram, session: ModelSession = session, number: int = number) -> None:
                write(running, session, name, number)

            nursery.start_soon(ModelProgram(program).run)
        await pass_time(10)
        cluster.crash(cluster.nodes[0], for_ever=False)
        await pass_time(10)

    in_cluster(work)
    assert {1, 2} == set(written[:2]) == set(written[4:6])
    assert errors == ["UnreachableError", "UnreachableError"]


def test_a_promise_that_is_learned_late_acknowledges_all_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files that were stored while one disk was enough are on as many as promised when they are visible."""

    async def work(cluster: ModelCluster, nursery: trio.Nursery) -> None:
        del nursery
        users = Users(cluster, GROUP, tier_store(cluster.random))
        await users.set_up(2, apart=False)
        names: list[bytes] = []

        def put(program: ModelProgram) -> None:
            _, files = users.open(program, ModelSession(cluster, 0, GROUP))
            monkeypatch.setattr(GroupFiles, "default_disks", lambda _: 1)
            staged = StagedFiles(files)
            for path in ("a", "b"):
                staged.add_bytes(path, b"x")
            staged.stored()
            monkeypatch.undo()
            names.extend(name for entry in staged.publish() for name in entry.names)

        await ModelProgram(put).run()
        assert [len({replica.node for replica in cluster.living(name)}) for name in names] == [2, 2]

    in_cluster(work)


def test_a_keeper_that_is_cancelled_leaves_no_request_open() -> None:
    """At whichever moment it is cancelled: others can write to what it was reading."""

    async def work(cluster: ModelCluster, nursery: trio.Nursery) -> None:
        del nursery
        read = cluster.store(object_name("read"), 1, b"x", cluster.history.begin())
        node = async_node(ModelSession(cluster, 0, GROUP, keeps=True))
        group = await node.group(GROUP)
        assert group is not None
        (reference,) = await node.lookup(read.name, group=group)
        for number in range(60):
            with trio.move_on_after(cluster.delay_s * number / 20):
                async with reference.read(Semantics.MRSW):
                    pass
            await pass_time(1)
            assert not read.buffers

    in_cluster(work)


# -- the truth --------------------------------------------------------------------------------------
def test_a_read_finds_a_content_that_nothing_has_replaced_before() -> None:
    """A change that is open may become visible at any time, and one that was replaced never."""
    files = FileHistory()
    assert files.allowed("a", 0, 1) == {None}
    first = files.begin({"a": b"1"}, 1)
    assert files.allowed("a", 2, 2) == {None, b"1"}
    first.acknowledge(3)
    assert files.allowed("a", 4, 4) == {b"1"}
    assert files.allowed("a", 2, 4) == {None, b"1"}
    second = files.begin({"a": b"2"}, 5)
    files.begin({"a": None}, 6).refuse()
    assert files.allowed("a", 7, 7) == {b"1", b"2"}
    third = files.begin({"a": b"3"}, 8)
    third.acknowledge(9)
    assert files.allowed("a", 10, 10) == {b"2", b"3"}, "the second one is still open"
    second.acknowledge(11)
    assert files.allowed("a", 12, 12) == {b"2", b"3"}, "they overlap"


def listed(cluster: ModelCluster, content: bytes, disks: Collection[int]) -> Safety:
    """Return the safety of a file that is on these disks, with its list on all, and that 2 acknowledged."""
    files = FileHistory()
    safety = Safety(cluster, files)
    safety.list_name = object_name("list")
    name, digest = object_name("file"), digest_of(content)
    data = encode([CatalogueEntry("a", name, len(content), 0, digest)])
    write = cluster.history.begin()
    for node in range(3):
        cluster.store(safety.list_name, node, data, -1)
        if node in disks:
            cluster.store(name, node, content, write)
    safety.note_list(data)
    change = files.begin({"a": content}, -2)
    change.disks = 2
    change.acknowledge(-1)
    safety.note_acknowledged(change)
    return safety


def test_a_content_may_be_lost_with_as_many_disks_as_acknowledged_it() -> None:
    """It is excused after two losses; if one suffices, something else has taken the other copy away."""

    async def work(cluster: ModelCluster, nursery: trio.Nursery) -> None:
        del nursery
        safety = listed(cluster, b"x", (0, 1))
        for node in cluster.nodes[:2]:
            with safety.fault():
                cluster.crash(node, for_ever=True)
        assert (safety.lost, safety.faults) == (1, [])

    async def with_one_copy(cluster: ModelCluster, nursery: trio.Nursery) -> None:
        del nursery
        safety = listed(cluster, b"x", (0, 1))
        cluster.nodes[1].replicas.clear()
        with safety.fault():
            cluster.crash(cluster.nodes[0], for_ever=True)
        assert [fault.claim for fault in safety.faults] == ["safe"]

    in_cluster(work)
    in_cluster(with_one_copy)


def test_an_acknowledgement_counts_the_disks_with_the_bytes() -> None:
    """Two disks that acknowledge a file have it."""

    async def work(cluster: ModelCluster, nursery: trio.Nursery) -> None:
        del nursery
        assert [fault.claim for fault in listed(cluster, b"x", (0,)).faults] == ["acknowledged"]

    in_cluster(work)


def test_the_last_copy_of_a_file_is_not_destroyed() -> None:
    """The destruction of one copy of two is no fault, that of the second one is."""

    async def work(cluster: ModelCluster, nursery: trio.Nursery) -> None:
        del nursery
        safety = listed(cluster, b"x", (0, 1))
        for count, replica in enumerate(cluster.living(object_name("file"))):
            del cluster.nodes[replica.node].replicas[replica.object_id]
            safety.note_destroyed(replica, "a test")
            assert [fault.claim for fault in safety.faults] == ["last copy"] * count

    in_cluster(work)


@pytest.mark.parametrize("disks", [(0, 1), (0,)])
def test_a_file_leaves_its_store_when_its_list_does_not_need_it(disks: Collection[int]) -> None:
    """That is checked when the list says so; what becomes of the bytes then, and when, is of no use."""
    tier = Tiered("memory://tier", bytes(32), stored=False, left=True)

    async def work(cluster: ModelCluster, nursery: trio.Nursery) -> None:
        del nursery
        safety = listed(cluster, b"x", (0, 1))
        if len(disks) < 2:
            cluster.nodes[1].replicas.clear()
        safety.note_list(encode([CatalogueEntry("a", object_name("file"), 1, 0, digest_of(b"x"), tier=tier)]))
        expected = [] if len(disks) > 1 else ["last copy"]
        assert [fault.claim for fault in safety.faults] == expected
        cluster.nodes[0].replicas.clear()
        safety.note_removed(tier.mark)
        assert [fault.claim for fault in safety.faults] == expected

    in_cluster(work)
