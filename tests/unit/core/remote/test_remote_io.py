"""One contract for I/O on objects of this node and of another, with one body of checks (thesis §4.7, §4.8).

What is claimed of ``here`` is claimed of ``away`` word for word; this is what "one name space" means.
"""

from __future__ import annotations

import itertools

import pytest

from dios.errors import Code
from dios.wire import messages
from dios.wire.types import (
    AcquireIov,
    Flag,
    Mode,
    Semantics,
)
from tests.support.core.local_or_remote import CONTENT, Site

READ, WRITE = Mode
LEVELS = list(itertools.product(Semantics, Mode))


# -- I/O ----------------------------------------------------------------------------------------------
def admitted(level: Semantics, readers: int, writers: int) -> bool:
    """The acquire columns of the table in docs/semantics.md."""
    return {
        Semantics.EXCL: readers == 0 and writers == 0,
        Semantics.MRSW: writers == 0,
        Semantics.SRMW: readers == 0,
        Semantics.ANY: True,
    }[level]


@pytest.mark.parametrize(("level", "mode"), LEVELS)
@pytest.mark.parametrize(("readers", "writers"), [(0, 0), (1, 0), (0, 1), (1, 1)])
def test_an_acquire_is_admitted_by_the_table(
    site: Site, level: Semantics, mode: Mode, readers: int, writers: int
) -> None:
    """At each level a request is admitted beside so many active ones, or refused with nothing changed."""
    for wanted, count in ((READ, readers), (WRITE, writers)):
        for _ in range(count):
            site.acquire(wanted, who=site.other)
    kind = messages.AcquireRead if mode is READ else messages.AcquireWrite
    call = kind(site.ref, semantics=level)
    if admitted(level, readers, writers):
        site.me.ask(messages.Buffer, call)
        assert site.counters()[:2] == (readers + (mode is READ), writers + (mode is WRITE))
    else:
        assert site.me.refused(call) == Code.EBUSY
        assert site.counters()[:2] == (readers, writers)


@pytest.mark.parametrize(("level", "mode"), LEVELS)
@pytest.mark.parametrize("meddling", list(Mode))
def test_a_commit_holds_by_the_table(site: Site, level: Semantics, mode: Mode, meddling: Mode) -> None:
    """At each level a commit holds, or is void, after another request came, committed and went."""
    buffer = site.acquire(mode, level)
    if meddling is READ:
        site.other.read(site.ref_of_other)
    else:
        site.other.ask(messages.Committed, messages.WriteOnce(site.ref_of_other, b"X"))
    before = site.counters()
    kind = messages.CommitRead if mode is READ else messages.CommitWrite
    answer = site.me.call(kind(site.ref, buffer))
    void = {Semantics.MRSW: WRITE, Semantics.SRMW: READ, Semantics.ANY: None}.get(level, meddling) is meddling
    if void:
        assert isinstance(answer, messages.Failure)
        assert answer.code == Code.ECANCELED
        assert site.counters()[2:] == before[2:]
    else:
        versions = (before[2] + (mode is READ), before[3] + (mode is WRITE))
        assert answer == messages.Committed(*versions)
        assert site.counters()[2:] == versions
    assert site.counters()[:2] == (0, 0)


def test_a_buffer_shows_the_bytes_and_brings_them_back(site: Site) -> None:
    """What is acquired is what stands there; what is committed stands there then, for everybody."""
    seq = site.me.send(messages.AcquireWrite(site.ref))
    answer = site.cluster.wait(site.me, seq)
    assert isinstance(answer, messages.Buffer)
    node = site.me.node
    assert node.buffers[answer.buffer] == CONTENT
    node.buffers[answer.buffer] = b"ABCDEFGHIJ"
    site.me.ask(messages.Committed, messages.CommitWrite(site.ref, answer.buffer))
    assert site.content() == b"ABCDEFGHIJ"
    site.me.ask(messages.Done, messages.ReleaseWrite(site.ref, answer.buffer))
    assert site.counters()[:2] == (0, 0)


@pytest.mark.parametrize(("offset", "size"), [(0, 0), (3, 0), (0, 4), (3, 4), (10, 0), (8, 100)])
def test_a_range_is_what_was_asked_for(site: Site, offset: int, size: int) -> None:
    """A read gives the bytes from the offset on, at most as many as asked for."""
    expected = CONTENT[offset:][: size or None]
    assert site.me.read(site.ref, size, offset) == expected


@pytest.mark.parametrize("offset", [0, 4, 10])
@pytest.mark.parametrize("replace", [False, True])
def test_a_write_changes_its_range(site: Site, offset: int, replace: bool) -> None:  # noqa: FBT001 - a case
    """A write changes its range, and what is behind it stays or goes as asked; the size is told at once."""
    flags = int(Flag.REPLACE) if replace else 0
    site.me.ask(messages.Committed, messages.WriteOnce(site.ref, b"abc", offset, flags=flags))
    expected = CONTENT[:offset] + b"abc" + (b"" if replace else CONTENT[offset + 3 :])
    seen = site.me.node.core.state.tasks[site.me.task].table.get(site.ref).public()
    assert seen.size == site.me.stat(site.ref).size == len(expected)
    assert site.content() == expected
    assert site.me.read(site.ref) == expected


def test_a_buffer_is_used_again(site: Site) -> None:
    """REUSE begins another request on the same buffer, with the bytes as they are then."""
    buffer = site.acquire(READ)
    site.me.ask(messages.Committed, messages.CommitRead(site.ref, buffer))
    site.other.ask(messages.Committed, messages.WriteOnce(site.ref_of_other, b"again"))
    call = messages.AcquireRead(site.ref, iov=AcquireIov.REUSE, buffer=buffer)
    assert site.me.ask(messages.Buffer, call).buffer == buffer
    assert site.me.node.buffers[buffer] == b"again56789"
    site.me.ask(messages.Committed, messages.CommitRead(site.ref, buffer))
    site.me.ask(messages.Done, messages.ReleaseRead(site.ref, buffer))
    assert site.counters()[:2] == (0, 0)


def test_a_buffer_is_taken_over(site: Site) -> None:
    """TAKE makes of a read's buffer a write's, with its bytes, and the read's reference lets it go."""
    buffer = site.acquire(READ)
    site.me.ask(messages.Committed, messages.CommitRead(site.ref, buffer))
    call = messages.AcquireWrite(site.ref, iov=AcquireIov.TAKE, buffer=buffer)
    site.me.ask(messages.Buffer, call)
    assert site.me.node.buffers[buffer] == CONTENT
    site.me.node.buffers[buffer] = b"9876543210"
    site.me.ask(messages.Committed, messages.CommitWrite(site.ref, buffer))
    assert site.content() == b"9876543210"
    assert site.me.refused(messages.ReleaseRead(site.ref, buffer)) == Code.EINVAL
    site.me.ask(messages.Done, messages.ReleaseWrite(site.ref, buffer))


def test_a_lock_needs_no_bytes(site: Site) -> None:
    """NONE is a request without a buffer: it excludes, and is released."""
    call = messages.AcquireWrite(site.ref, semantics=Semantics.EXCL, iov=AcquireIov.NONE)
    lock = site.me.ask(messages.Buffer, call)
    assert site.other.refused(messages.AcquireRead(site.ref_of_other, semantics=Semantics.EXCL)) == Code.EBUSY
    site.me.ask(messages.Done, messages.ReleaseWrite(site.ref, lock.buffer))
    assert site.counters() == (0, 0, 0, 0)


def test_a_release_may_commit(site: Site) -> None:
    """RELEASE_COMMIT commits what stands in the buffer and gives it back."""
    buffer = site.acquire(WRITE)
    site.me.node.buffers[buffer] = b"abcdefghij"
    site.me.ask(messages.Done, messages.ReleaseWrite(site.ref, buffer, int(Flag.RELEASE_COMMIT)))
    assert site.content() == b"abcdefghij"
    assert site.me.refused(messages.ReleaseWrite(site.ref, buffer)) == Code.EBADF


@pytest.mark.parametrize("mode", list(Mode))
def test_a_commit_begins_the_next_request(site: Site, mode: Mode) -> None:
    """The compound commits and acquires: one request is active after it, and one version more."""
    buffer = site.acquire(mode)
    if mode is READ:
        site.me.ask(messages.Buffer, messages.CommitAcquireRead(site.ref, buffer))
    else:
        site.me.ask(messages.Buffer, messages.CommitAcquireWrite(site.ref, buffer, data=b"Z"))
        assert site.content()[:1] == b"Z"
    assert site.counters()[:2] == (int(mode is READ), int(mode is WRITE))


ORDERS = (
    *("commit first", "release twice", "read as write", "read as write and go on", "released with a commit"),
    *("reuse active", "unknown buffer", "past the end"),
)


@pytest.mark.parametrize("wrong", ORDERS)
def test_wrong_orders_change_nothing(site: Site, wrong: str) -> None:
    """A request in an order not in Figure 4.8 gets the same error, and nothing changes anywhere."""
    buffer = site.acquire(READ)
    ref = site.ref
    if wrong == "release twice":
        site.me.ask(messages.Done, messages.ReleaseRead(ref, buffer))
    calls: dict[str, tuple[messages.PlainCall, Code]] = {
        "commit first": (messages.CommitRead(ref, buffer + 1), Code.EBADF),
        "release twice": (messages.ReleaseRead(ref, buffer), Code.EBADF),
        "read as write": (messages.CommitWrite(ref, buffer), Code.EINVAL),
        "read as write and go on": (messages.CommitAcquireWrite(ref, buffer), Code.EINVAL),
        "released with a commit": (
            messages.ReleaseWrite(ref, buffer, int(Flag.RELEASE_COMMIT)),
            Code.EINVAL,
        ),
        "reuse active": (messages.AcquireRead(ref, iov=AcquireIov.REUSE, buffer=buffer), Code.EINVAL),
        "unknown buffer": (messages.CommitAcquireRead(ref, 77_777), Code.EBADF),
        "past the end": (messages.ReadOnce(ref, 1, len(CONTENT) + 1), Code.EINVAL),
    }
    call, code = calls[wrong]
    assert site.me.refused(call) == code
