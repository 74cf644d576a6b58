"""The records of supervised services, and the decisions about their replicas."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, cast

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from dios import limits
from dios.client.ops.cluster import Gathered, Member
from dios.errors import (
    Busy,
    DamagedError,
    InvalidError,
    LimitError,
    NoSpaceError,
    TooLargeError,
    UnreachableError,
)
from dios.lib.kept import records as kept_records
from dios.lib.supervised import kept_state, records, services
from dios.lib.supervised.decisions import Replica, Start, next_steps
from dios.lib.supervised.pauses import StartPause
from dios.lib.supervised.records import ServiceGeneration, ServiceRecord
from dios.lib.supervised.supervisor import _no_place, node_order
from dios.lib.user_records import records as user_records
from dios.wire.types import Cause, Fitness, NodeStatus, ObjectType

if TYPE_CHECKING:
    from dios.client.sync.node import Node

ONE, TWO, THREE = (ServiceGeneration(bytes([number]) * 32, f"v{number}") for number in (1, 2, 3))


def service(name: str = "web", replicas: int = 3) -> ServiceRecord:
    """A new service."""
    return records.created({}, name, ONE, replicas)


def replica(slot: int, generation: int = 1, number: int = 0) -> Replica:
    """A living replica; ``number`` distinguishes those of one place, the first of which is the oldest."""
    return Replica(slot, generation, f"{slot}-{generation}-{number}", "n1", number, None)


def advance(record: ServiceRecord, living: Iterable[Replica], healthy: set[int]) -> tuple[set[Replica], bool]:
    """Take all next steps; replicas of the ``healthy`` generations are healthy at once."""
    there = set(living)
    steps = next_steps(record, there, lambda member: member.generation in healthy)
    there -= set(steps.stop)
    there |= {replica(start.slot, start.generation) for start in steps.start}
    return there, steps.complete


def test_replicas_are_spread_over_racks_then_nodes_then_by_load() -> None:
    """A drained node gets none; of two nodes alike the one with fewer tasks for each processor is first."""
    racks = {"n1": "r1", "n2": "r1", "n3": "r2", "n4": "r3", "n5": "r3"}
    nodes = [
        Member(number, name, rack, "", NodeStatus.ALIVE, name == "n5", 1, 0, 9 - number, 2, 0, here=False)
        for number, (name, rack) in enumerate(racks.items())
    ]
    assert node_order(nodes, [], {}, service()) == ["n4", "n3", "n2", "n1"]
    starting = {("web", Start(1, 1)): "n4", ("other", Start(0, 1)): "n3"}
    assert node_order(nodes, [replica(0)], starting, service()) == ["n3", "n2", "n4", "n1"]


def test_a_replica_waits_for_a_node_that_is_fit() -> None:
    """Nodes that are not known to be fit get none, and if no node is left the owner learns why."""
    nodes = [
        Member(1, "n1", "", "", NodeStatus.ALIVE, False, 1, 0, 0, 2, 0, here=True, fitness=Fitness.UNKNOWN),
        Member(2, "n2", "", "", NodeStatus.ALIVE, False, 1, 0, 0, 2, 0, here=False, fitness=Fitness.UNFIT),
    ]
    fit = Member(3, "n3", "", "", NodeStatus.ALIVE, False, 1, 0, 9, 2, 0, here=False)
    assert node_order([*nodes, fit], [], {}, service()) == ["n3"]
    assert node_order(nodes, [], {}, service()) == []
    assert _no_place(nodes) == "no node takes it: n1 is alive, fitness unknown, n2 is alive, unfit"


def test_missing_replicas_are_started_and_surplus_ones_stopped() -> None:
    """To three replicas, or to one; all are stopped when the service is removed."""
    record = service()
    three = {replica(0), replica(1), replica(2)}
    assert advance(record, {replica(1)}, {1}) == (three, False)
    assert advance(record, three, {1}) == (three, False)
    assert advance(records.scaled(record, 1), three, {1}) == ({replica(0)}, False)
    assert advance(records.removed(record), three, {1}) == (set(), False)


def test_of_two_replicas_in_one_place_the_older_stays() -> None:
    """After a partition both sides have started one."""
    steps = next_steps(service(replicas=1), [replica(0, 1, 2), replica(0, 1, 1)], lambda _: True)
    assert steps.start == []
    assert steps.stop == [replica(0, 1, 2)]


def test_a_replica_leaves_a_draining_node_when_its_successor_is_healthy() -> None:
    """Nothing else is stopped; with no other node the replica stays, and an undrained node keeps its own."""
    record, old, new = service(replicas=1), replica(0, 1, 1), replica(0, 1, 2)
    steps = [
        next_steps(record, there, healthy.__contains__, leaving.__contains__)
        for there, healthy, leaving in (
            ([old], [old], [old]),
            ([old, new], [old], [old]),
            ([old, new], [old, new], [old]),
            ([old, new], [old, new], []),
            ([old, new], [old, new], [old, new]),
        )
    ]
    assert [(step.start, step.stop) for step in steps] == [
        ([Start(0, 1)], []),
        ([], []),
        ([], [old]),
        ([], [new]),
        ([Start(0, 1)], [new]),
    ]


def test_an_update_goes_from_slot_to_slot() -> None:
    """A new replica is started next to the present one, which stops when the new one is healthy."""
    record = records.updated(service(), TWO)
    there = {replica(0), replica(1), replica(2)}
    seen = []
    for _ in range(10):
        there, complete = advance(record, there, {1, 2})
        seen.append(sorted((member.slot, member.generation) for member in there))
        if complete:
            break
    assert seen == [
        [(0, 1), (0, 2), (1, 1), (2, 1)],
        [(0, 2), (1, 1), (1, 2), (2, 1)],
        [(0, 2), (1, 2), (2, 1), (2, 2)],
        [(0, 2), (1, 2), (2, 2)],
    ]
    done = records.verified(record)
    assert not done.updating
    assert advance(done, there, {2}) == (there, False)


def test_a_bad_update_costs_no_replica() -> None:
    """While no new replica is healthy the old ones stay, and one that ends is started again."""
    record = records.updated(service(), TWO)
    there, _ = advance(record, {replica(0), replica(1), replica(2)}, {1})
    for _ in range(3):
        there, complete = advance(record, there - {replica(1), replica(0, 2)}, {1})
        assert not complete
        assert {replica(0), replica(1), replica(2)} <= there
    back = records.rolled_back(record)
    assert (back.generation, back.updating) == (1, False)
    assert advance(back, there, {1})[0] == {replica(0), replica(1), replica(2)}


def test_a_rollback_of_a_complete_update_is_an_update() -> None:
    """It goes from slot to slot as well, and can be undone in the same way."""
    record = records.verified(records.updated(service(), TWO))
    back = records.rolled_back(record)
    assert (back.generation, back.previous_generation, back.updating) == (1, 2, True)
    assert back.spec == ONE
    again = records.rolled_back(records.verified(back))
    assert (again.generation, again.spec, again.updating) == (2, TWO, True)
    assert records.updated(again, THREE).generation == 3
    with pytest.raises(InvalidError, match="never updated"):
        records.rolled_back(service())


def test_objects_are_deleted_when_no_generation_needs_them() -> None:
    """Those of this program and of the one before stay for a rollback."""
    record = records.verified(records.updated(service(), TWO))
    assert set(record.objects()) == {*ONE.objects(), *TWO.objects()}
    record = records.verified(records.updated(record, THREE))
    assert record.dropped == ONE.objects()
    gone = records.removed(record)
    assert gone.objects() == ()
    assert set(gone.dropped) == {*ONE.objects(), *TWO.objects(), *THREE.objects()}
    fresh = records.created({"web": gone}, "web", ONE, 1)
    assert fresh.version > gone.version
    assert fresh.token != gone.token


@given(st.permutations(range(4)), st.data())
def test_copies_agree_in_every_order(order: list[int], data: st.DataObject) -> None:
    """The later version of each service wins, whichever copies meet first."""
    base = service()
    changes = [base, records.scaled(base, 1), records.scaled(base, 5), service("other")]
    versions = data.draw(st.lists(st.integers(1, 3), min_size=4, max_size=4))
    copies = [
        {change.name: replace(change, version=version)}
        for change, version in zip(changes, versions, strict=True)
    ]
    straight = records.merged(copies)
    assert records.merged(copies[number] for number in order) == straight
    assert straight["web"].version == max(versions[:3])


def test_the_stored_form_keeps_everything_and_is_bounded() -> None:
    """What is written is read again; damage and too many services are refused."""
    record, other = records.removed(records.updated(service(), TWO)), service("b")
    assert records.decode(records.encode([record, other])) == {"web": record, "b": other}
    assert records.decode(b"") == {}
    for damaged in (b"x", b"\x92\x04\x90", records.encode([record])[:-1]):
        with pytest.raises(DamagedError):
            records.decode(damaged)
    many = [service(f"s{number}") for number in range(limits.SERVICES_MAX + 1)]
    with pytest.raises(LimitError, match="the maximum"):
        records.encode(many)
    gone = [records.removed(entry) for entry in many * 2]
    assert len(records.decode(records.encode(gone))) <= limits.SERVICE_REMOVED_KEPT
    for bad in ("", "A", "-a", "a-", "a" * 41, "a.b"):
        with pytest.raises(InvalidError, match="name of a service"):
            records.checked_name(bad)


def kept_job(attempts: int = 2) -> ServiceRecord:
    """A new kept job."""
    state = records.JobState(attempts, 5, b"s" * 32, b"g" * 32)
    return records.created({}, "count", ONE, 1, state)


def end(status: int) -> records.JobEnd:
    """The end of an attempt on n1."""
    return records.JobEnd(Cause.EXITED, status, 9, "n1", output=b"o" * 32)


def test_a_job_ends_with_success_or_after_its_attempts() -> None:
    """A failed attempt is followed by the next one in the same slot; after the end nothing is started."""
    record = kept_job()
    assert advance(records.ended(record, end(0)), set(), set()) == (set(), False)
    second = records.ended(record, end(3))
    assert second.job == record.job
    assert advance(second, {replica(0, 1)}, set()) == ({replica(0, 2)}, False)
    last = records.ended(second, end(4))
    assert last.job is not None
    assert last.job.end == end(4)
    assert advance(last, {replica(0, 2)}, set()) == (set(), False)
    assert {b"s" * 32, b"o" * 32} <= set(last.objects())
    assert set(last.objects()) == set(records.removed(last).dropped)


def test_a_users_order_wins_over_the_end_of_an_attempt() -> None:
    """Both change the same record at one moment; the job that was stopped or removed stays so."""
    record = replace(kept_job(), version=7)
    ended = {"count": records.ended(record, end(0))}
    for order in (records.stopped(record, 9), records.removed(record)):
        assert records.merged([ended, {"count": order}])["count"] == order
    done = records.ended(record, end(0))
    assert records.stopped(done, 9) is done


def test_jobs_and_services_are_not_taken_for_each_other() -> None:
    """Neither is found under the name of the other, which is taken."""
    known = {"count": kept_job(), "web": service()}
    assert [record.name for record in records.living(known, jobs=True)] == ["count"]
    assert [record.name for record in records.living(known)] == ["web"]
    with pytest.raises(InvalidError, match="no service"):
        records.service_named(known, "count")
    with pytest.raises(InvalidError, match="no kept job"):
        records.found_job(known, "web")
    with pytest.raises(InvalidError, match="dios job rm count"):
        records.created(known, "count", ONE, 1)


STORED_BEFORE = (
    "9202929da5636f756e7408a463643334009cc420707070707070707070707070707070707070707070707070"
    "7070707070707070a770726f6772616d91a1619090dc001dcd01f40000000000a001c2c200000000909000a0"
    "c2c20000000090900000a261629c000000000000000000000000c2a0cd03e8c0cd1388010101c000c2909503"
    "05c4207373737373737373737373737373737373737373737373737373737373737373c42067676767676767"
    "6767676767676767676767676767676767676767676767676796010009a26e31a0c09da377656207a4616231"
    "32029cc4207070707070707070707070707070707070707070707070707070707070707070a770726f677261"
    "6d91a1619090dc001dcd01f40000000000a001c2c200000000909000a0c2c20000000090900000a261629c00"
    "0000000000000000000000c2a0cd03e8c0cd1388010101c000c290c0"
)
"""A service and a kept job that has ended, as the release before bounds of times stored them."""
STORED = (
    "9202929da5636f756e7408a4636433340096c420707070707070707070707070707070707070707070707070"
    "7070707070707070a770726f6772616d91a1619090dc001dcd01f40000000000a001c2c200000000909000a0"
    "c2c20000000090900000a26162010101c000c290950305c42073737373737373737373737373737373737373"
    "73737373737373737373737373c4206767676767676767676767676767676767676767676767676767676767"
    "67676794010009a26e3195a377656207a4616231320296c42070707070707070707070707070707070707070"
    "70707070707070707070707070a770726f6772616d91a1619090dc001dcd01f40000000000a001c2c2000000"
    "00909000a0c2c20000000090900000a26162"
)
"""The same as this release stores them: without fields at the ends that have their defaults."""


def test_records_have_the_form_that_earlier_releases_read() -> None:
    """Their bytes are frozen, and no part has more fields than that release knows."""
    known = records.decode(bytes.fromhex(STORED_BEFORE))
    assert (known["web"].spec.work.copy_of, known["count"].spec.work.time_ms) == ("ab", 0)
    assert records.encode(known.values()).hex() == STORED
    assert records.decode(bytes.fromhex(STORED)) == known
    assert msgspec.msgpack.decode(records.encode([known["web"]]))[0] == 1
    assert_no_longer(
        msgspec.msgpack.decode(bytes.fromhex(STORED)), msgspec.msgpack.decode(bytes.fromhex(STORED_BEFORE))
    )


def assert_no_longer(value: object, before: object) -> None:
    """Each array has at most as many elements as before, and they have the same values."""
    if isinstance(value, list) and isinstance(before, list):
        assert len(value) <= len(before)
        for element, other in zip(value, before, strict=False):
            assert_no_longer(element, other)
    else:
        assert value == before


def test_records_with_a_bound_of_time_have_the_newest_form() -> None:
    """So have those of jobs that ended by it: an earlier release says that it cannot read them."""
    timed = replace(ONE, work=replace(ONE.work, time_ms=500))
    late = replace(end(124), cause=Cause.TIME)
    for record in (
        replace(service(), spec=timed),
        replace(service(), previous=timed),
        records.ended(kept_job(attempts=1), late),
    ):
        stored = records.encode([record])
        assert msgspec.msgpack.decode(stored)[0] == 3
        assert records.decode(stored) == {record.name: record}


def test_the_state_of_a_job_is_bounded_and_damage_is_refused() -> None:
    """An empty copy is an empty state."""
    assert kept_state.decode_state(b"").number == 0
    content = kept_state.StateContent(1, 3, b"data", (b"n" * 32,))
    assert kept_state.encode_state(content).hex() == "940103c40464617461" + "91c420" + "6e" * 32
    assert kept_state.decode_state(kept_state.encode_state(content)) == content
    for damaged in (b"x", b"\x91\x02", kept_state.encode_state(content)[:-1]):
        with pytest.raises(DamagedError):
            kept_state.decode_state(damaged)
    with pytest.raises(TooLargeError):
        kept_state.encode_state(replace(content, data=bytes(limits.KEPT_JOB_STATE_BYTES_MAX + 1)))


def test_sections_of_a_state_are_in_its_second_version() -> None:
    """Each has bytes and objects of its own. Their bytes count together; their objects end with the job."""
    section = kept_state.SectionContent(b"more", (b"m" * 32,))
    content = kept_state.StateContent(2, 3, b"data", (b"n" * 32,), {"job": section})
    stored = kept_state.encode_state(content)
    assert stored.hex() == "950203c40464617461" + "91c420" + "6e" * 32 + (
        "81a36a6f6292c4046d6f726591c420" + "6d" * 32
    )
    assert kept_state.decode_state(stored) == content
    assert content.all_objects() == (b"n" * 32, b"m" * 32)
    half = bytes(limits.KEPT_JOB_STATE_BYTES_MAX // 2 + 1)
    with pytest.raises(TooLargeError):
        kept_state.encode_state(replace(content, data=half, sections={"job": replace(section, data=half)}))


def test_only_labels_with_the_token_are_replicas() -> None:
    """A task of the same user with another label is never taken for a replica."""
    record = service()
    assert record.place(record.label(7, 12)) == (7, 12)
    assert service().place(record.label(7, 12)) is None
    for other in ("web.1", f"web.1/1/{record.token}x", f"other.1/1/{record.token}", "web.-1/1/ab"):
        assert record.place(other) is None


def test_pauses_double_and_are_reset_by_a_stable_run() -> None:
    """The first restart comes soon; after ends in quick succession they come later and later, to a bound."""
    pause, now, waits = StartPause(), 0.0, []
    for _ in range(12):
        pause.note_end(now, 1.0, "it ended")
        waits.append(pause.not_before - now)
        now = pause.not_before
    assert waits[:4] == pytest.approx([0.5, 1, 2, 4])
    assert waits[-1] == pytest.approx(limits.SERVICE_RESTART_MS_MAX / 1000)
    pause.note_end(now, limits.SERVICE_STABLE_MS / 1000, "it ended")
    assert pause.not_before - now == pytest.approx(limits.SERVICE_RESTART_MS_MIN / 1000)
    before = pause.not_before
    pause.note_end(before, 1.0, "lost with n2", lost=True)
    assert pause.not_before == before
    assert (pause.restarts, pause.reason) == (14, "lost with n2")


def test_a_start_sorts_by_slot() -> None:
    """Reports list replicas by slot, then by generation."""
    assert sorted([Start(1, 1), Start(0, 2), Start(0, 1)]) == [Start(0, 1), Start(0, 2), Start(1, 1)]


class CopyOnFullDisk:
    """A copy of the records whose node can store nothing, or everything."""

    type = ObjectType.DURABLE_BLOB

    def __init__(self, node: str, *, full: bool) -> None:
        self.node = node
        self.full = full
        self.data = records.encode([service()])

    def close(self) -> None:
        """Close nothing."""


class StoredCopy:
    """In place of a catalogue in an object."""

    def __init__(self, copy: CopyOnFullDisk) -> None:
        self.copy = copy

    def read(self) -> tuple[bytes, int]:
        """The content and its version."""
        return self.copy.data, 1

    def replace(self, data: bytes, version: int) -> int:
        """Write, if there is room."""
        if self.copy.full:
            raise NoSpaceError("the disk is full")
        self.copy.data = data
        return version + 1


class NodeOfCopies:
    """A node that finds these copies."""

    def __init__(self, *copies: CopyOnFullDisk) -> None:
        self.copies = copies

    def lookup(self, name: bytes) -> list[CopyOnFullDisk]:
        """All copies."""
        return list(self.copies)

    def nodes(self) -> list[object]:
        """No node without a copy."""
        return []


@pytest.mark.parametrize("full", [(True, False), (False, True)])
def test_a_change_that_one_node_could_store_is_made(
    monkeypatch: pytest.MonkeyPatch, full: tuple[bool, bool]
) -> None:
    """The full disk of another node does not refuse it."""
    copies = [CopyOnFullDisk(f"n{number}", full=is_full) for number, is_full in enumerate(full)]
    monkeypatch.setattr(user_records, "StoredCatalogue", StoredCopy)
    services.Services(cast("Node", NodeOfCopies(*copies))).scale("web", 2)
    (stored,) = [disk for disk in copies if not disk.full]
    assert records.decode(stored.data)["web"].replicas == 2


def test_a_change_that_no_node_could_store_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """The caller learns the reason, also if there are several copies."""
    copies = [CopyOnFullDisk(f"n{number}", full=True) for number in range(3)]
    monkeypatch.setattr(user_records, "StoredCatalogue", StoredCopy)
    with pytest.raises(NoSpaceError):
        services.Services(cast("Node", NodeOfCopies(*copies))).scale("web", 2)


class WrittenCopy(StoredCopy):
    """A copy that is being written: it is busy when it is read for the first times."""

    left = 0

    def read(self) -> tuple[bytes, int]:
        """The content, when nobody writes any more."""
        if self.copy.full and WrittenCopy.left:
            WrittenCopy.left -= 1
            raise Busy("other requests are active")
        return super().read()


@pytest.mark.parametrize("busy", [1, 3])
def test_records_that_are_being_written_are_not_missing(monkeypatch: pytest.MonkeyPatch, busy: int) -> None:
    """The copy of this node is read in another moment, or those of the others are."""

    class NearNode(NodeOfCopies):
        def lookup(self, name: bytes, *, local_only: bool = False) -> list[CopyOnFullDisk]:
            return super().lookup(name)[: 1 if local_only else 2]

    monkeypatch.setattr(user_records, "StoredCatalogue", WrittenCopy)
    monkeypatch.setattr(WrittenCopy, "left", busy)
    copies = [CopyOnFullDisk(f"n{number}", full=True) for number in range(2)]
    known = user_records.UserRecords(cast("Node", NearNode(*copies)), records.SERVICE_RECORDS)
    assert known.read_near()["web"].replicas == 3


def test_records_on_a_node_that_does_not_answer_are_not_known() -> None:
    """A caller that destroys something without a record gets an error in place of none."""

    class SilentNode(NodeOfCopies):
        def lookup(self, name: bytes) -> list[CopyOnFullDisk]:
            return Gathered([], incomplete=True)

    known = user_records.UserRecords(cast("Node", SilentNode()), kept_records.KEPT_RECORDS)
    assert not known.read().living()
    with pytest.raises(UnreachableError):
        known.read_known()
