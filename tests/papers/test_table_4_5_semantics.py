"""Table 4.5, Figure 4.7 and the admission and commit table of docs/semantics.md, as a full matrix."""

from __future__ import annotations

import itertools

import pytest

from dios.core import events
from dios.errors import Code
from dios.wire import messages
from dios.wire.types import Buffering, Mode, ObjectType, Semantics
from tests.support.core.harness import Client, Node

EXCL, MRSW, SRMW, ANY = Semantics
READ, WRITE = Mode
EVERYTHING = list(itertools.product(Semantics, Mode))
OTHERS = ("acquired", "committed", "came and went", "came and committed", "stays", "read once", "wrote once")


def acquire(client: Client, ref: int, mode: Mode, level: Semantics) -> object:
    """Acquire in a mode."""
    kind = messages.AcquireRead if mode is READ else messages.AcquireWrite
    return client.call(kind(ref, semantics=level))


def acquired(client: Client, ref: int, mode: Mode, level: Semantics) -> int:
    """The buffer of an acquire that must be admitted."""
    answer = acquire(client, ref, mode, level)
    assert isinstance(answer, messages.Buffer), answer
    return answer.buffer


def commit(client: Client, ref: int, mode: Mode, buffer: int) -> bool:
    """Whether a commit held."""
    call = messages.CommitRead(ref, buffer) if mode is READ else messages.CommitWrite(ref, buffer)
    answer = client.call(call)
    if isinstance(answer, messages.Committed):
        return True
    assert isinstance(answer, messages.Failure)
    assert answer.code == Code.ECANCELED
    return False


def release(client: Client, ref: int, mode: Mode, buffer: int) -> None:
    """Give a buffer back."""
    kind = messages.ReleaseRead if mode is READ else messages.ReleaseWrite
    client.ask(messages.Done, kind(ref, buffer))


class Two:
    """Two sessions and one shared object."""

    def __init__(self, node: Node, buffering: Buffering = Buffering.DOUBLE) -> None:
        self.a, self.b = node.session(), node.session()
        call = messages.Create(
            ObjectType.SHMEM_BLOB, (self.a.groups[0],), buffering=buffering, data=b"0123456789"
        )
        created = self.a.ask(messages.Created, call)
        self.ref_a = created.reference.ref
        self.ref_b = self.b.lookup(created.name)[0].ref


def admitted(level: Semantics, readers: int, writers: int) -> bool:
    """The acquire columns of the table: the same for reads and writes."""
    return {
        EXCL: readers == 0 and writers == 0,
        MRSW: writers == 0,
        SRMW: readers == 0,
        ANY: True,
    }[level]


@pytest.mark.parametrize(("level", "mode"), EVERYTHING)
@pytest.mark.parametrize(("readers", "writers"), [(0, 0), (1, 0), (0, 1), (2, 0), (0, 2), (1, 1)])
def test_cell_acquire(node: Node, level: Semantics, mode: Mode, readers: int, writers: int) -> None:
    """Each acquire cell: admitted exactly as the table says beside so many active requests."""
    two = Two(node)
    for _ in range(readers):
        acquired(two.a, two.ref_a, READ, ANY)
    for _ in range(writers):
        acquired(two.a, two.ref_a, WRITE, ANY)
    kind = messages.AcquireRead if mode is READ else messages.AcquireWrite
    call = kind(two.ref_b, semantics=level)
    if admitted(level, readers, writers):
        two.b.ask(messages.Buffer, call)
        expected = (readers + (mode is READ), writers + (mode is WRITE))
        assert two.a.counters(two.ref_a)[:2] == expected
    else:
        assert two.b.refused(call) == Code.EBUSY
        assert two.a.counters(two.ref_a)[:2] == (readers, writers)


def _meddle(two: Two, how: str, mode: Mode) -> bool:
    """What another task does, at ANY, between acquire and commit; False where it needs no mode."""
    if how == "read once":
        two.b.ask(messages.Buffer, messages.ReadOnce(two.ref_b))
        return True
    if how == "wrote once":
        two.b.ask(messages.Committed, messages.WriteOnce(two.ref_b, b"x"))
        return True
    buffer = acquired(two.b, two.ref_b, mode, ANY)
    if how in {"came and committed", "committed"}:
        assert commit(two.b, two.ref_b, mode, buffer)
    if how in {"came and went", "came and committed"}:
        release(two.b, two.ref_b, mode, buffer)
    return True


def holds(level: Semantics, mode: Mode, how: str, other: Mode) -> bool:
    """The commit columns of the table, said anew: what an outsider saw happening in between."""
    if how == "read once":
        how, other = "came and committed", READ
    elif how == "wrote once":
        how, other = "came and committed", WRITE
    active = how in {"acquired", "stays"}
    succeeded = how in {"committed", "came and committed"}
    if level is EXCL:
        return False
    if level is MRSW:
        # v_w unchanged, and no other writer active now
        return not (other is WRITE and (active or succeeded))
    if level is SRMW:
        return not (other is READ and (active or succeeded))
    del mode
    return True


@pytest.mark.parametrize(("level", "mode"), EVERYTHING)
@pytest.mark.parametrize("other", list(Mode))
@pytest.mark.parametrize("how", OTHERS)
def test_cell_commit(node: Node, level: Semantics, mode: Mode, other: Mode, how: str) -> None:
    """Each commit cell, beside every way in which another request can overlap."""
    two = Two(node)
    buffer = acquired(two.a, two.ref_a, mode, level)
    _meddle(two, how, other)
    before = two.a.counters(two.ref_a)
    held = commit(two.a, two.ref_a, mode, buffer)
    assert held is holds(level, mode, how, other)
    a_r, a_w, v_r, v_w = before
    after = (
        a_r - (mode is READ),
        a_w - (mode is WRITE),
        v_r + (held and mode is READ),
        v_w + (held and mode is WRITE),
    )
    assert two.a.counters(two.ref_a) == after


@pytest.mark.parametrize(("level", "mode"), EVERYTHING)
def test_undisturbed_commit_holds(node: Node, level: Semantics, mode: Mode) -> None:
    """A request that was alone commits at every level, and again as long as it stays alone."""
    two = Two(node)
    buffer = acquired(two.a, two.ref_a, mode, level)
    assert commit(two.a, two.ref_a, mode, buffer)
    assert commit(two.a, two.ref_a, mode, buffer)
    assert two.a.counters(two.ref_a)[:2] == (0, 0)
    assert two.a.counters(two.ref_a)[2:] == ((2, 0) if mode is READ else (0, 2))


@pytest.mark.parametrize(("level", "mode"), EVERYTHING)
@pytest.mark.parametrize("other", list(Mode))
def test_request_before_the_acquire_disturbs_nothing(
    node: Node, level: Semantics, mode: Mode, other: Mode
) -> None:
    """What ended before the acquire has no influence on the commit."""
    two = Two(node)
    _meddle(two, "came and committed", other)
    _meddle(two, "came and went", other)
    buffer = acquired(two.a, two.ref_a, mode, level)
    assert commit(two.a, two.ref_a, mode, buffer)


# -- Figure 4.7 ------------------------------------------------------------------------------------
def test_schedule_disjoint(node: Node) -> None:
    """Figure 4.7a: one after the other, an EXCL and an MRSW read both hold."""
    two = Two(node)
    buffer = acquired(two.a, two.ref_a, READ, EXCL)
    assert commit(two.a, two.ref_a, READ, buffer)
    buffer = acquired(two.b, two.ref_b, READ, MRSW)
    assert commit(two.b, two.ref_b, READ, buffer)


def test_schedule_other_starts_within(node: Node) -> None:
    """Figure 4.7: T_B's MRSW read begins within T_A's EXCL read; T_A fails at commit, T_B holds."""
    two = Two(node)
    mine = acquired(two.a, two.ref_a, READ, EXCL)
    other = acquired(two.b, two.ref_b, READ, MRSW)
    assert not commit(two.a, two.ref_a, READ, mine)
    assert commit(two.b, two.ref_b, READ, other)


def test_schedule_other_is_within(node: Node) -> None:
    """Figure 4.7: T_B's read lies wholly within T_A's; T_A fails at commit, T_B holds."""
    two = Two(node)
    mine = acquired(two.a, two.ref_a, READ, EXCL)
    other = acquired(two.b, two.ref_b, READ, MRSW)
    assert commit(two.b, two.ref_b, READ, other)
    assert not commit(two.a, two.ref_a, READ, mine)


def test_schedule_other_is_first(node: Node) -> None:
    """Figure 4.7: T_A asks while T_B reads; T_A fails at acquire, T_B holds."""
    two = Two(node)
    other = acquired(two.b, two.ref_b, READ, MRSW)
    assert two.a.refused(messages.AcquireRead(two.ref_a, semantics=EXCL)) == Code.EBUSY
    assert commit(two.b, two.ref_b, READ, other)


def test_schedule_with_a_write(node: Node) -> None:
    """§4.7, Examples: were T_A's request a write, T_B would fail on acquire within it."""
    two = Two(node)
    acquired(two.a, two.ref_a, WRITE, EXCL)
    assert two.b.refused(messages.AcquireRead(two.ref_b, semantics=MRSW)) == Code.EBUSY


# -- failed writes, by buffering -------------------------------------------------------------------
def test_failed_write_on_double_buffering_changes_nothing(node: Node) -> None:
    """Semantics, I/O requests: a failed write commit leaves content, versions and others' requests."""
    two = Two(node)
    mine = acquired(two.a, two.ref_a, WRITE, MRSW)
    reader = acquired(two.b, two.ref_b, READ, ANY)
    acquired(two.b, two.ref_b, WRITE, ANY)
    assert not commit(two.a, two.ref_a, WRITE, mine)
    assert not any(type(effect).__name__ == "ApplyWrite" for effect in node.outcome.after)
    assert commit(two.b, two.ref_b, READ, reader)


@pytest.mark.parametrize("end", ["failed commit", "release", "death"])
@pytest.mark.parametrize("level", list(Semantics))
def test_failed_write_on_raw_memory_is_felt(node: Node, end: str, level: Semantics) -> None:
    """Semantics, I/O requests: raw bytes are there already, so every request active over it fails."""
    two = Two(node, Buffering.RAW)
    reader = acquired(two.b, two.ref_b, READ, level)
    if level in {EXCL, SRMW}:
        call = messages.AcquireWrite(two.ref_a, semantics=SRMW)
        assert two.a.refused(call) == Code.EBUSY
    mine = acquired(two.a, two.ref_a, WRITE, MRSW)
    if end == "failed commit":
        acquired(two.b, two.ref_b, WRITE, ANY)
        assert not commit(two.a, two.ref_a, WRITE, mine)
    elif end == "release":
        release(two.a, two.ref_a, WRITE, mine)
    else:
        two.a.call(messages.Delete(two.ref_a))
    assert not commit(two.b, two.ref_b, READ, reader)


def test_counters_are_exact_whatever_ends_a_request(node: Node) -> None:
    """Semantics, I/O requests: however a request ends, a_r and a_w stay exact."""
    two = Two(node)
    acquired(two.a, two.ref_a, READ, ANY)
    acquired(two.a, two.ref_a, WRITE, ANY)
    kept = acquired(two.b, two.ref_b, READ, ANY)
    assert two.b.counters(two.ref_b)[:2] == (2, 1)
    two.a.call(messages.Delete(two.ref_a))
    assert two.b.counters(two.ref_b)[:2] == (1, 0)
    release(two.b, two.ref_b, READ, kept)
    assert two.b.counters(two.ref_b)[:2] == (0, 0)


@pytest.mark.parametrize("level", list(Semantics))
def test_request_over_a_failed_store_operation(node: Node, level: Semantics) -> None:
    """§4.7: when the store takes a write back, no version number makes a request on it look undisturbed."""
    client = node.session()
    ref = client.create(ObjectType.DURABLE_BLOB, data=b"old").reference.ref
    node.step(events.Persisted(node.now, node.outcome.ticket))
    client.call(messages.WriteOnce(ref, b"lost"))
    ticket = node.outcome.ticket
    buffer = acquired(client, ref, READ, level)
    node.step(events.PersistFailed(node.now, ticket, ticket, int(Code.ENOSPC), "disk full"))
    client.call(messages.WriteOnce(ref, b"kept"))  # the same version number as the lost one
    assert not commit(client, ref, READ, buffer)
    assert client.counters(ref) == (0, 0, 0, 1)
