"""One contract for the calls beside I/O on objects of this node and of another: rights, ends, select, tasks.

What is claimed of ``here`` is claimed of ``away`` word for word; this is what "one name space" means.
"""

from __future__ import annotations

import pytest

from dios.errors import Code
from dios.wire import messages
from dios.wire.types import (
    Buffering,
    Flag,
    Mode,
    ObjectType,
    Permission,
)
from tests.support.core.local_or_remote import CONTENT, Site

READ, WRITE = Mode


# -- rights -------------------------------------------------------------------------------------------
def calls_that_need(right: Permission, ref: int, to: int) -> list[messages.PlainCall]:
    """The calls on a blob for which a reference must have the right."""
    calls: dict[Permission, list[messages.PlainCall]] = {
        Permission.READ: [messages.ReadOnce(ref), messages.AcquireRead(ref), messages.Select((ref,))],
        Permission.WRITE: [messages.WriteOnce(ref, b"x"), messages.AcquireWrite(ref)],
        Permission.DELEGATE: [messages.Copy(ref, to)],
        Permission.DELETE: [
            messages.Delete(ref, int(Flag.DESTROY)),
            messages.Retire(ref, int(Flag.EVERYONE)),
        ],
    }
    return calls[right]


@pytest.mark.parametrize("right", [Permission.READ, Permission.WRITE, Permission.DELEGATE, Permission.DELETE])
def test_without_a_right_its_calls_are_refused(site: Site, right: Permission) -> None:
    """Of a reference without a right every call that needs it is EPERM, and nothing changes anywhere."""
    copy = messages.Copy(site.ref, site.me.self_ref, int(Permission.ALL & ~right))
    (narrow,) = site.me.ask(messages.References, copy).references
    for call in calls_that_need(right, narrow.ref, site.me.self_ref):
        assert site.me.refused(call) == Code.EPERM, call


def test_a_copy_is_never_wider(site: Site) -> None:
    """Whatever rights are asked for, a copy has those of what it is made from at most."""
    for wanted in (Permission.READ | Permission.DELEGATE, Permission.ALL, Permission.NONE):
        copy = messages.Copy(site.ref, site.me.self_ref, int(wanted))
        (first,) = site.me.ask(messages.References, copy).references
        assert first.permissions == wanted
        if wanted & Permission.DELEGATE:
            again = messages.Copy(first.ref, site.me.self_ref, int(Permission.ALL))
            (second,) = site.me.ask(messages.References, again).references
            assert second.permissions == wanted


# -- ends ---------------------------------------------------------------------------------------------
def test_what_was_destroyed_is_stale(site: Site) -> None:
    """After its destruction every use of an object is ESTALE, and dropping the handle is all that is left."""
    buffer = site.acquire(READ)
    site.other.ask(messages.Done, messages.Delete(site.ref_of_other, int(Flag.DESTROY)))
    site.cluster.settle()
    for call in (
        messages.ReadOnce(site.ref),
        messages.WriteOnce(site.ref, b"x"),
        messages.AcquireRead(site.ref),
    ):
        assert site.me.refused(call) == Code.ESTALE
    failure = site.me.ask(messages.Failure, messages.CommitRead(site.ref, buffer))
    assert failure.code == Code.ESTALE
    assert site.me.ask(messages.Done, messages.ReleaseRead(site.ref, buffer)).value == 1
    assert site.me.refused(messages.ReleaseRead(site.ref, buffer)) == Code.EBADF
    assert site.me.ask(messages.Done, messages.Delete(site.ref)).value == 0
    assert site.me.refused(messages.ReadOnce(site.ref)) == Code.EBADF


def test_the_last_reference_of_a_counted_object(site: Site) -> None:
    """A reference-counted object lives as long as somebody refers to it, wherever that is."""
    ref, ref_of_other = site.object(ObjectType.SHMEM_BLOB, b"counted")
    site.other.ask(messages.Done, messages.Delete(ref_of_other))
    assert site.me.read(ref) == b"counted"
    number = site.me.stat(ref).object
    site.me.ask(messages.Done, messages.Delete(ref))
    site.cluster.settle()
    assert number not in site.home.core.state.objects


def test_a_handle_is_dropped_alone(site: Site) -> None:
    """HANDLE_ONLY drops the reference and its buffers, and leaves the object to others."""
    site.acquire(WRITE)
    site.me.ask(messages.Done, messages.Delete(site.ref, int(Flag.HANDLE_ONLY)))
    site.cluster.settle()
    assert site.counters()[:2] == (0, 0)
    assert site.content() == CONTENT
    assert site.me.refused(messages.ReadOnce(site.ref)) == Code.EBADF


# -- attributes and select ----------------------------------------------------------------------------
def test_attributes_are_live(site: Site) -> None:
    """Without a call, the counters of a reference are soon as the object's own node has them."""
    site.acquire(READ, who=site.other)
    site.other.ask(messages.Committed, messages.WriteOnce(site.ref_of_other, b"longer than before"))
    site.cluster.advance(40)
    reference = site.me.node.core.state.tasks[site.me.task].table.get(site.ref).public()
    assert (reference.a_r, reference.a_w, reference.v_w) == (1, 0, 1)
    assert reference.size == len("longer than before")


def test_stat_tells_the_truth_at_once(site: Site) -> None:
    """Stat gives the counters as they are now, with no delay."""
    site.acquire(WRITE, who=site.other)
    assert site.me.counters(site.ref) == site.counters() == (0, 1, 0, 0)


def test_select_finds_what_is_ready(site: Site) -> None:
    """A blob is ready at once, for both directions; the index is of the list that was given."""
    for mode in Mode:
        assert site.me.ask(messages.Selected, messages.Select((site.ref,), mode)).index == 0


def test_select_waits_for_the_end_of_a_task(site: Site) -> None:
    """A task that runs is not ready; the call waits and is answered when it ends."""
    job = site.other.run()
    (reference,) = site.me.lookup(job.welcome.name)
    call = messages.Select((reference.ref,), timeout_ns=0)
    assert site.me.ask(messages.Selected, call).index == -1
    seq = site.me.send(messages.Select((reference.ref,)))
    site.cluster.settle()
    assert site.me.answer(seq) is None
    site.cluster.end(job)
    assert site.cluster.wait(site.me, seq) == messages.Selected(0)


def test_select_gives_up_in_time(site: Site) -> None:
    """With a timeout the call is answered with -1 when it is over, and nothing is left waiting."""
    job = site.other.run()
    (reference,) = site.me.lookup(job.welcome.name)
    seq = site.me.send(messages.Select((reference.ref,), timeout_ns=1_000_000_000))
    assert site.cluster.wait(site.me, seq) == messages.Selected(-1)
    site.cluster.settle()
    assert all(
        not task.pending for node in site.cluster.nodes for task in node.core.state.remote_tasks.values()
    )


def test_a_waiting_call_is_cancelled(site: Site) -> None:
    """Cancel answers the waiting call with ECANCELED, and nothing is left waiting anywhere."""
    job = site.other.run()
    (reference,) = site.me.lookup(job.welcome.name)
    seq = site.me.send(messages.Select((reference.ref,)))
    site.cluster.settle()
    assert site.me.ask(messages.Done, messages.Cancel(seq)).value == 1
    failure = site.me.answer(seq)
    assert isinstance(failure, messages.Failure)
    assert failure.code == Code.ECANCELED
    site.cluster.settle()
    assert all(
        not task.pending for node in site.cluster.nodes for task in node.core.state.remote_tasks.values()
    )


# -- tasks --------------------------------------------------------------------------------------------
def test_a_task_is_suspended_and_goes_on(site: Site) -> None:
    """Pause and resume say whether the task is, and again say the same."""
    job = site.other.run()
    (reference,) = site.me.lookup(job.welcome.name)
    for kind, values in ((messages.Pause, (1, 1)), (messages.Resume, (1, 0))):
        for value in values:
            assert site.me.ask(messages.Done, kind(reference.ref)).value == value


def test_a_task_is_ended_and_its_end_read(site: Site) -> None:
    """DESTROY ends a task and keeps the reference, at which its end can be read."""
    job = site.other.run()
    (reference,) = site.me.lookup(job.welcome.name)
    site.me.ask(messages.Done, messages.Delete(reference.ref, int(Flag.DESTROY)))
    site.cluster.end(job)
    assert site.me.read(reference.ref)
    again = messages.Select((reference.ref,), timeout_ns=0)
    assert site.me.ask(messages.Selected, again).index == 0


# -- vectors ------------------------------------------------------------------------------------------
def test_a_vector_answers_each_of_its_calls(site: Site) -> None:
    """Reads, refusals and attributes of objects everywhere in one message, each answered in its place."""
    mine = site.me.create(data=b"mine").reference.ref
    ref, _ = site.object(ObjectType.SHMEM_BLOB, b"second")
    answers = site.me.many(
        messages.ReadOnce(site.ref),
        messages.ReadOnce(mine),
        messages.ReadOnce(ref, 3, 2),
        messages.ReadOnce(12345),
        messages.Stat(site.ref),
    )
    assert [data for _, data in answers] == [CONTENT, b"mine", b"con", b"", b""]
    codes = [answer.code for answer, _ in answers if isinstance(answer, messages.Failure)]
    assert codes == [Code.EBADF]


def test_a_vector_of_requests(site: Site) -> None:
    """Acquires in one vector and commits in another are those requests, one by one."""
    ref, ref_of_other = site.object(ObjectType.SHMEM_BLOB, b"second")
    acquired = site.me.many(messages.AcquireWrite(site.ref), messages.AcquireWrite(ref))
    buffers = [answer.buffer for answer, _ in acquired if isinstance(answer, messages.Buffer)]
    assert [data for _, data in acquired] == [CONTENT, b"second"]
    committed = site.me.many(
        messages.CommitWrite(site.ref, buffers[0], data=b"A"),
        messages.CommitWrite(ref, buffers[1], data=b"B"),
    )
    assert all(isinstance(answer, messages.Committed) for answer, _ in committed)
    assert site.content()[:1] == b"A"
    assert site.other.read(ref_of_other) == b"Becond"


def test_a_vector_with_a_buffer_of_many_bytes(site: Site) -> None:
    """Two commits of buffers in one vector each bring their own bytes."""
    ref, ref_of_other = site.object(ObjectType.SHMEM_BLOB, b"second")
    acquired = site.me.many(messages.AcquireWrite(site.ref), messages.AcquireWrite(ref))
    buffers = [answer.buffer for answer, _ in acquired if isinstance(answer, messages.Buffer)]
    site.me.node.buffers[buffers[0]] = b"abcdefghij"
    site.me.node.buffers[buffers[1]] = b"SECOND"
    site.me.many(messages.CommitWrite(site.ref, buffers[0]), messages.CommitWrite(ref, buffers[1]))
    assert (site.content(), site.other.read(ref_of_other)) == (b"abcdefghij", b"SECOND")


# -- raw blobs, logs ----------------------------------------------------------------------------------
@pytest.mark.parametrize("place", ["here", "away"])
def test_a_raw_blob_is_written(place: str) -> None:
    """A raw blob can be written and read, whichever node has it."""
    site = Site(place, Buffering.RAW)
    site.me.ask(messages.Committed, messages.WriteOnce(site.ref, b"raw"))
    assert site.content() == b"raw3456789"
