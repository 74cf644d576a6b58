"""The raw system calls (Table 4.4, appendix B): integers and records, with every option and flag.

The first argument is the node; references and buffers are their ids. The results are records of
``dios.wire.messages``, and for buffers a descriptor, which the caller maps and closes. A refusal is raised
as its exception. Only the blocking client has these calls; programs normally use its handles.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar, cast

from dios.client.session import Operation, expect, expect_attached, expect_buffer
from dios.client.session import vector as _vector
from dios.wire import messages
from dios.wire.messages import AnyCall, Limits, PlainCall
from dios.wire.types import (
    AcquireIov,
    Brand,
    Buffering,
    CommitIov,
    Deletion,
    Mode,
    NameKind,
    ObjectType,
    Permission,
    Persistence,
    Proximity,
    Semantics,
)

if TYPE_CHECKING:
    from dios.client.session import Answer
    from dios.client.sync.connection import Connection
    from dios.client.sync.node import Node
    from dios.errors import DiosError

T = TypeVar("T")


def _call(node: Node, kind: type[T], call: AnyCall) -> T:
    return expect(kind, cast("Connection", node.link).call(call))


def _buffer(node: Node, call: AnyCall) -> tuple[messages.Buffer, int | None]:
    return expect_buffer(cast("Connection", node.link).call(call))


def _run(node: Node, operation: Operation[T]) -> T:
    return cast("Connection", node.link).run(operation)


# -- the thirteen -----------------------------------------------------------------------------------
def create(
    node: Node,
    object_type: ObjectType,
    groups: tuple[int, ...] = (),
    name_kind: NameKind = NameKind.RANDOM,
    deletion: Deletion | None = None,
    size: int = 0,
    buffering: Buffering = Buffering.DOUBLE,
    host: str = "",
    flags: int = 0,
    data: bytes | None = None,
) -> messages.Created:
    """dios_create (B.1.1)."""
    call = messages.Create(object_type, groups, name_kind, deletion, size, buffering, host, flags, data)
    return _call(node, messages.Created, call)


def lookup(node: Node, name: bytes, group: int = 0, limit: int = 64, flags: int = 0) -> messages.References:
    """dios_lookup (B.1.2)."""
    return _call(node, messages.References, messages.Lookup(name, group, limit, flags))


def copy(
    node: Node,
    ref: int,
    task: int,
    permissions: int = int(Permission.ALL),
    persistence: Persistence | None = None,
    proximity: Proximity | None = None,
    buffering: Buffering | None = None,
    flags: int = 0,
    lifetime_ns: int = 0,
) -> messages.Done | messages.References:
    """dios_copy (B.1.3): returns references if the receiver is the caller itself."""
    call = messages.Copy(ref, task, permissions, persistence, proximity, buffering, flags, lifetime_ns)
    result = _call(node, object, call)
    return cast("messages.Done | messages.References", result)


def delete(node: Node, ref: int, flags: int = 0) -> messages.Done:
    """dios_delete (B.1.4)."""
    return _call(node, messages.Done, messages.Delete(ref, flags))


def run(
    node: Node,
    executable: int,
    groups: tuple[int, ...] = (),
    inputs: tuple[messages.Handed, ...] = (),
    outputs: tuple[messages.Handed, ...] = (),
    arguments: tuple[str, ...] = (),
    label: str = "",
    brand: Brand = Brand.PURE,
    host: str = "",
    limits: Limits | None = None,
    flags: int = 0,
    like: int = 0,
) -> messages.Created:
    """dios_run (B.1.5)."""
    limits = Limits() if limits is None else limits
    call = messages.Run(
        executable, groups, inputs, outputs, arguments, label, brand, host, limits, flags, like
    )
    return _call(node, messages.Created, call)


def pause(node: Node, task: int, flags: int = 0) -> messages.Done:
    """dios_pause (B.1.6)."""
    return _call(node, messages.Done, messages.Pause(task, flags))


def resume(node: Node, task: int, flags: int = 0) -> messages.Done:
    """dios_resume (B.1.6)."""
    return _call(node, messages.Done, messages.Resume(task, flags))


def acquire_read(
    node: Node,
    ref: int,
    size: int = 0,
    offset: int = 0,
    semantics: Semantics = Semantics.ANY,
    iov: AcquireIov = AcquireIov.CREATE,
    buffer: int = 0,
    flags: int = 0,
) -> tuple[messages.Buffer, int | None]:
    """dios_acquire_read (B.1.7)."""
    return _buffer(node, messages.AcquireRead(ref, size, offset, semantics, iov, buffer, flags))


def commit_read(
    node: Node, ref: int, buffer: int, iov: CommitIov = CommitIov.USE, flags: int = 0
) -> messages.Committed:
    """dios_commit_read (B.1.8)."""
    return _call(node, messages.Committed, messages.CommitRead(ref, buffer, iov, flags))


def release_read(node: Node, ref: int, buffer: int, flags: int = 0) -> messages.Done:
    """dios_release_read (B.1.9)."""
    return _call(node, messages.Done, messages.ReleaseRead(ref, buffer, flags))


def acquire_write(
    node: Node,
    ref: int,
    size: int = 0,
    offset: int = 0,
    semantics: Semantics = Semantics.ANY,
    iov: AcquireIov = AcquireIov.CREATE,
    buffer: int = 0,
    flags: int = 0,
) -> tuple[messages.Buffer, int | None]:
    """dios_acquire_write (B.1.10)."""
    return _buffer(node, messages.AcquireWrite(ref, size, offset, semantics, iov, buffer, flags))


def commit_write(
    node: Node,
    ref: int,
    buffer: int,
    size: int = 0,
    iov: CommitIov = CommitIov.USE,
    flags: int = 0,
    data: bytes | None = None,
) -> messages.Committed:
    """dios_commit_write (B.1.11)."""
    return _call(node, messages.Committed, messages.CommitWrite(ref, buffer, size, iov, flags, data))


def release_write(node: Node, ref: int, buffer: int, flags: int = 0) -> messages.Done:
    """dios_release_write (B.1.12)."""
    return _call(node, messages.Done, messages.ReleaseWrite(ref, buffer, flags))


def select(
    node: Node, refs: tuple[int, ...], mode: Mode = Mode.READ, timeout_ns: int | None = None, flags: int = 0
) -> int:
    """dios_select (B.1.13): return the index of a ready reference, -1 after the timeout.

    The node does not know the content of streams: ``Node.select`` checks their rings.
    """
    return _call(node, messages.Selected, messages.Select(refs, mode, timeout_ns, flags)).index


# -- compounds and vectors (§5.2.3) -----------------------------------------------------------------
def read_once(
    node: Node, ref: int, size: int = 0, offset: int = 0, semantics: Semantics = Semantics.ANY, flags: int = 0
) -> tuple[messages.Buffer, int | None]:
    """Acquire, commit and release a read in one message."""
    return _buffer(node, messages.ReadOnce(ref, size, offset, semantics, flags))


def write_once(
    node: Node, ref: int, data: bytes, offset: int = 0, semantics: Semantics = Semantics.ANY, flags: int = 0
) -> messages.Committed:
    """Acquire, fill, commit and release a write in one message."""
    return _call(node, messages.Committed, messages.WriteOnce(ref, data, offset, semantics, flags))


def commit_acquire_read(
    node: Node, ref: int, buffer: int, semantics: Semantics = Semantics.ANY, flags: int = 0
) -> tuple[messages.Buffer, int | None]:
    """Commit a read and start the next on the same buffer."""
    return _buffer(node, messages.CommitAcquireRead(ref, buffer, semantics, flags))


def commit_acquire_write(
    node: Node,
    ref: int,
    buffer: int,
    size: int = 0,
    semantics: Semantics = Semantics.ANY,
    flags: int = 0,
    data: bytes | None = None,
) -> tuple[messages.Buffer | messages.Committed, int | None]:
    """Commit a write and start the next on the same buffer; only Committed if that is not admitted."""
    call = messages.CommitAcquireWrite(ref, buffer, size, semantics, flags, data)
    answer = cast("Connection", node.link).call(call)
    if isinstance(answer[0], messages.Committed):
        return expect(messages.Committed, answer), None
    return expect_buffer(answer)


def attach(node: Node, ref: int, mode: Mode) -> tuple[messages.Attached, tuple[int, int, int]]:
    """Attach one end of a stream: returns own memory, peer's memory, and the socket of the wake-ups."""
    return expect_attached(cast("Connection", node.link).call(messages.Attach(ref, mode)))


def retire(node: Node, ref: int, flags: int = 0) -> messages.Done:
    """Take back everything that was delegated from a reference; the answer has the number."""
    return _call(node, messages.Done, messages.Retire(ref, flags))


def stat(node: Node, ref: int) -> messages.Reference:
    """Return the public attributes of a reference."""
    return _call(node, messages.References, messages.Stat(ref)).references[0]


def vector(node: Node, calls: tuple[PlainCall, ...]) -> list[Answer | DiosError]:
    """Make independent calls in one message; return for each its result and descriptors, or its refusal."""
    return _run(node, _vector(calls))
