"""The core's part in reads without a call: when they are allowed, and how they are counted."""

from __future__ import annotations

import pytest

from dios.core.effects import PublishCounters
from dios.wire import messages
from dios.wire.types import AcquireIov, Buffering, Flag, ObjectType, Permission, Semantics
from tests.support.core.harness import Client, Node


class Blob:
    """A session and an object of it."""

    def __init__(self, node: Node, buffering: Buffering = Buffering.DOUBLE) -> None:
        self.node = node
        self.client: Client = node.session()
        call = messages.Create(
            ObjectType.SHMEM_BLOB, (self.client.groups[0],), buffering=buffering, data=b"0123456789"
        )
        self.ref = self.client.ask(messages.Created, call).reference.ref

    @property
    def direct(self) -> bool:
        """Whether the page permits reads without a call after the last call."""
        shown = [effect for effect in self.node.effects if isinstance(effect, PublishCounters)]
        return shown[-1].direct

    def read(self, counted: int = 0) -> int:
        """Read once; the committed reads after it."""
        return self.client.ask(messages.Buffer, messages.ReadOnce(self.ref, counted=counted)).v_r

    def acquire(self, level: Semantics, *, writing: bool) -> int:
        """Begin a request."""
        kind = messages.AcquireWrite if writing else messages.AcquireRead
        return self.client.ask(messages.Buffer, kind(self.ref, semantics=level)).buffer


@pytest.fixture
def blob() -> Blob:
    """An object that can be read without a call."""
    prepared = Blob(Node())
    prepared.read()
    assert prepared.direct
    return prepared


@pytest.mark.parametrize("level", list(Semantics))
@pytest.mark.parametrize("writing", [False, True])
def test_requests_that_exclude_reads_close_the_page(blob: Blob, level: Semantics, writing: bool) -> None:  # noqa: FBT001 - a parameter
    """Writers exclude reads while they are active, those that count on no readers until their release."""
    sole = level in {Semantics.EXCL, Semantics.SRMW}
    buffer = blob.acquire(level, writing=writing)
    assert blob.direct is not (writing or sole)
    commit = messages.CommitWrite if writing else messages.CommitRead
    blob.client.ask(messages.Committed, commit(blob.ref, buffer))
    assert blob.direct is not sole, "a further commit covers the time since the last one"
    release = messages.ReleaseWrite if writing else messages.ReleaseRead
    blob.client.ask(messages.Done, release(blob.ref, buffer))
    assert blob.direct


def test_a_buffer_that_goes_to_another_object_opens_the_first(blob: Blob) -> None:
    """The request on the first object is over, so its page may permit reads again."""
    buffer = blob.acquire(Semantics.EXCL, writing=True)
    blob.client.ask(messages.Committed, messages.CommitWrite(blob.ref, buffer))
    other = blob.client.ask(
        messages.Created, messages.Create(ObjectType.SHMEM_BLOB, (blob.client.groups[0],), data=b"x")
    )
    blob.node.effects.clear()
    blob.client.ask(
        messages.Buffer, messages.AcquireWrite(other.reference.ref, iov=AcquireIov.TAKE, buffer=buffer)
    )
    shown = {e.object: e.direct for e in blob.node.effects if isinstance(e, PublishCounters)}
    assert sorted(shown.values()) == [False, True]


def test_raw_and_deleted_objects_are_never_open(blob: Blob) -> None:
    """Raw bytes change under a reader, and a zombie must not be read."""
    raw = Blob(Node(), Buffering.RAW)
    raw.read()
    assert not raw.direct
    blob.client.ask(messages.Done, messages.Delete(blob.ref, int(Flag.DESTROY)))
    assert not blob.direct


def test_reported_reads_are_counted_once(blob: Blob) -> None:
    """Each message that reports reads adds them to the committed reads."""
    assert blob.read(counted=10) == 12
    again = blob.client.ask(messages.Buffer, messages.AcquireRead(blob.ref, counted=5))
    assert again.v_r == 17
    blob.client.ask(messages.Done, messages.ReleaseRead(blob.ref, again.buffer))
    copy = messages.Copy(blob.ref, blob.client.self_ref)
    second = blob.client.ask(messages.References, copy).references[0].ref
    blob.client.ask(messages.Done, messages.Delete(second, int(Flag.HANDLE_ONLY), counted=3))
    assert blob.read() == 21


def test_a_reference_without_the_right_reports_nothing(blob: Blob) -> None:
    """Reads that cannot have been made are not counted."""
    copy = messages.Copy(blob.ref, blob.client.self_ref, int(Permission.WRITE))
    blind = blob.client.ask(messages.References, copy).references[0].ref
    blob.client.ask(messages.Done, messages.Delete(blind, int(Flag.HANDLE_ONLY), counted=9))
    assert blob.read() == 2


@pytest.mark.parametrize("level", [Semantics.EXCL, Semantics.SRMW])
def test_late_reports_do_not_make_requests_fail(blob: Blob, level: Semantics) -> None:
    """Reads that were made before a request began are reported during it: it holds, and they are counted."""
    copy = messages.Copy(blob.ref, blob.client.self_ref)
    second = blob.client.ask(messages.References, copy).references[0].ref
    buffer = blob.acquire(level, writing=True)
    blob.client.ask(messages.Done, messages.Delete(second, int(Flag.HANDLE_ONLY), counted=7))
    committed = blob.client.ask(messages.Committed, messages.CommitWrite(blob.ref, buffer))
    assert committed.v_r == 1
    blob.client.ask(messages.Done, messages.ReleaseWrite(blob.ref, buffer))
    assert blob.read() == 9
