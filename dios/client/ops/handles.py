"""Handles: a program's references to objects, and the operations on them, written once for both clients.

The name of an operation ends in ``_op``; the clients drop the ending. ``dios.client.sync.node`` and
``dios.client.aio.node`` wait for the answers; ``dios.client.ops.nodes`` has the calls that return handles.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Generic, TypeAlias, TypeVar, cast

from dios.client.buffers import memory_of
from dios.client.ops import traced_tasks
from dios.client.ops.attributes import Handle, Rights, lifetime_ns, rights_of
from dios.client.ops.requests import WriteOps
from dios.client.ops.status import Status, status_of
from dios.client.plain_text import plain
from dios.client.session import Operation, expect, expect_buffer
from dios.errors import DiosError, InvalidError, TimeLimitError, WouldBlockError
from dios.limits import INLINE_BYTES_MAX, MIB, RECORDED_PROGRAM_CHARS_MAX
from dios.wire import messages
from dios.wire.codec import decode_status
from dios.wire.types import (
    Buffering,
    Flag,
    Mode,
    ObjectType,
    Persistence,
    Proximity,
    SandboxUse,
    Semantics,
    TaskState,
)

if TYPE_CHECKING:
    from dios.client.tracing.started_tasks import StartedTask

R = TypeVar("R")
C = TypeVar("C")

KEPT_COPY_BYTES_MAX: Final = MIB
"""Larger copies are not kept: ``view_bytes`` reads them in place."""

Data: TypeAlias = "bytes | bytearray | memoryview"


class ReferenceOps(Handle, Generic[R]):
    """The operations on any object; ``R`` is the client's class of references."""

    __slots__ = ()

    # -- bytes ------------------------------------------------------------------------------------
    def read_bytes_op(
        self, size: int = 0, offset: int = 0, semantics: Semantics = Semantics.ANY
    ) -> Operation[bytes]:
        """Return a copy of ``size`` bytes (0: all) from ``offset`` on; fewer at the end of the object.

        It takes one message, or none if this process still has the object's present bytes. On a task, timer
        or console it waits until there is something to read.
        """
        here = self.direct(size, offset, semantics)
        if here is not None:
            return here if type(here) is bytes else bytes(here)
        counted = self.uncounted()
        call = messages.ReadOnce(self._info.ref, size, offset, semantics, counted=counted)
        result, fd = expect_buffer((yield call))
        self.has_reported(counted)
        data = result.data
        if fd is not None or data is None:
            memory = memory_of(result, fd, writable=False)
            try:
                data = memory.read()
            finally:
                memory.close()
        if len(data) <= KEPT_COPY_BYTES_MAX:
            self.has_read(result.v_w, data, offset)
        return data

    def write_bytes_op(
        self,
        data: Data,
        offset: int = 0,
        semantics: Semantics = Semantics.ANY,
        *,
        replace: bool | None = None,
    ) -> Operation[int]:
        """Write ``data`` at ``offset``; return the object's write version after it.

        With ``replace`` the object ends where the data end: the default for an offset of 0.
        """
        view = memoryview(data).cast("B")
        whole = offset == 0 if replace is None else replace
        if view.nbytes <= INLINE_BYTES_MAX:
            console = self._info.type is ObjectType.CONSOLE_STREAM
            flags = int(Flag.REPLACE) if whole and not console else 0
            call = messages.WriteOnce(self._info.ref, bytes(view), offset, semantics, flags)
            return expect(messages.Committed, (yield call)).v_w
        request = WriteOps(self, view.nbytes, offset, semantics, blank=True, replace=whole)
        return (yield from write_whole(request, view))

    # -- the reference itself ---------------------------------------------------------------------
    def stat_op(self) -> Operation[messages.Reference]:
        """Return the public attributes, from the node."""
        answer = expect(messages.References, (yield messages.Stat(self._info.ref)))
        return answer.references[0]

    def close_op(self) -> Operation[None]:
        """Close this handle, if it is open. The object stays as long as its other references and its
        deletion mode keep it.
        """
        if self._closed:
            return
        counted = self.uncounted()
        self._give_up()
        expect(messages.Done, (yield messages.Delete(self._info.ref, int(Flag.HANDLE_ONLY), counted)))

    def delete_op(self) -> Operation[None]:
        """Close this handle and delete the object as its deletion mode says (B.1.4).

        One with immediate deletion is gone for all tasks, a reference-counted one with its last reference.
        """
        counted = self.uncounted()
        self._give_up()
        expect(messages.Done, (yield messages.Delete(self._info.ref, counted=counted)))

    def destroy_op(self) -> Operation[None]:
        """Destroy the object now, whatever its deletion mode; needs the right to delete.

        A task is ended, and this handle stays open for its status.
        """
        if self._info.type is not ObjectType.TASK:
            self._give_up()
        expect(messages.Done, (yield messages.Delete(self._info.ref, int(Flag.DESTROY))))

    def delegate_op(self, task: Handle, *rights: Rights, expires: float | None = None) -> Operation[None]:
        """Delegate a reference with at most these rights, by default all, to ``task`` (§4.5.3).

        The task gets an event on its self-reference. With ``expires`` the node takes the reference back
        after that number of seconds, with everything that was delegated from it.
        """
        call = messages.Copy(
            self._info.ref, task.ref, int(rights_of(rights)), lifetime_ns=lifetime_ns(expires)
        )
        result, fds = yield call
        expect(object, (result, fds))

    def move_op(self, task: Handle, *rights: Rights, expires: float | None = None) -> Operation[None]:
        """Delegate this reference to ``task`` as ``delegate`` does, then close it (B.1.3).

        If the delegation is refused, this reference stays. The mover can no longer take the new reference
        back; a task from which it had its own still can.
        """
        yield from self.delegate_op(task, *rights, expires=expires)
        yield from self.close_op()

    def retire_op(self, *, everyone: bool = False, holder: str = "") -> Operation[int]:
        """Take back every reference that was delegated from this one, directly and further on; return their
        number. This reference stays.

        ``everyone`` takes back every delegated reference to the object; needs the right to delete.
        With ``everyone``, ``holder`` is the fingerprint of a task or session: only the references that it
        holds are taken back, with those delegated from them.
        """
        flags = int(Flag.EVERYONE) if everyone else 0
        return expect(messages.Done, (yield messages.Retire(self._info.ref, flags, holder))).value

    def copy_op(
        self,
        *,
        persistence: Persistence | None = None,
        proximity: Proximity | None = None,
        buffering: Buffering | None = None,
        host: str = "",
    ) -> Operation[R]:
        """Return a second reference of this task (B.1.3).

        If an attribute differs from the object's, or ``host`` names another node, it refers to a new object
        there with the same name and bytes.
        """
        own = self._node.self_info.ref
        call = messages.Copy(
            self._info.ref,
            own,
            persistence=persistence,
            proximity=proximity,
            buffering=buffering,
            host=host,
        )
        answer = expect(messages.References, (yield call))
        return cast("R", self._node.handle(answer.references[0], self.name))


class TaskOps(Handle, Generic[C]):
    """The operations on a task; ``C`` is the client's class of consoles."""

    __slots__ = ()

    @property
    def traced(self) -> StartedTask | None:
        """Return the span of the task, if this session has started it and is traced."""
        return self._node.traced_tasks.get(self.fingerprint)

    def wait_op(self, timeout: float | None = None) -> Operation[Status]:
        """Wait until the task has ended, and return its status; TimeLimitError after ``timeout`` seconds."""
        if timeout is not None:
            call = messages.Select((self._info.ref,), Mode.READ, nanoseconds(timeout))
            if expect(messages.Selected, (yield call)).index < 0:
                raise TimeLimitError(
                    f"the task still runs after {timeout:g} s", call="wait", fingerprint=self.fingerprint
                )
        return (yield from self._read_status(Flag.NONE))

    def status_op(self) -> Operation[Status]:
        """Return the present status without waiting. About itself a task learns only that it runs."""
        try:
            return (yield from self._read_status(Flag.NON_BLOCKING))
        except WouldBlockError:
            return Status(self.fingerprint, self.label, TaskState.RUNNING)

    def _read_status(self, flags: Flag) -> Operation[Status]:
        result, fd = expect_buffer((yield messages.ReadOnce(self._info.ref, flags=int(flags))))
        status = status_of(decode_status(memory_of(result, fd, writable=False).read()))
        if status.ended and self._node.traced_tasks:
            yield from traced_tasks.end_op(self._node.traced_tasks, status)
        return status

    def pause_op(self) -> Operation[bool]:
        """Suspend the task; return True if it is paused now, False if it has ended (B.1.6)."""
        return bool(expect(messages.Done, (yield messages.Pause(self._info.ref))).value)

    def resume_op(self) -> Operation[bool]:
        """Resume a paused task; return True if it was paused (B.1.6)."""
        return bool(expect(messages.Done, (yield messages.Resume(self._info.ref))).value)

    def record_use_op(
        self, use: SandboxUse, number: int, program: str = "", value: int | None = None
    ) -> Operation[None]:
        """Record in the audit log that this program uses something in the sandbox whose session is this task.

        ``value`` is the number of arguments, the exit status of an end, or the port.
        """
        text = plain(program)[:RECORDED_PROGRAM_CHARS_MAX]
        expect(messages.Done, (yield messages.RecordUse(self._info.ref, use, number, text, value)))

    def kill_op(self) -> Operation[None]:
        """End the task now. Its status and its console stay readable; needs the right to delete."""
        # For a task this call keeps the reference, so that its end can be read.
        expect(messages.Done, (yield messages.Delete(self._info.ref, int(Flag.DESTROY))))

    def console_op(self) -> Operation[C]:
        """Return the task's console, with the part of its output that the node keeps."""
        answer = expect(messages.References, (yield messages.ConsoleOf(self._info.ref)))
        return cast("C", self._node.handle(answer.references[0]))


class ConsoleOps(Handle):
    """The operations on a console: bytes in order, written at once, read as they come."""

    __slots__ = ()

    def receive_op(self, timeout: float | None = None) -> Operation[bytes]:
        """Wait for more bytes and return them; TimeLimitError after ``timeout`` seconds.

        Raises EndOfStreamError if the task has ended and everything was read.
        """
        if timeout is not None:
            call = messages.Select((self._info.ref,), Mode.READ, nanoseconds(timeout))
            if expect(messages.Selected, (yield call)).index < 0:
                raise TimeLimitError("nothing was printed in time", fingerprint=self.fingerprint)
        result, fd = expect_buffer((yield messages.ReadOnce(self._info.ref)))
        return memory_of(result, fd, writable=False).read()

    def send_op(self, data: Data) -> Operation[None]:
        """Write ``data`` to the console."""
        view = memoryview(data).cast("B")
        for start in range(0, view.nbytes, INLINE_BYTES_MAX):
            part = bytes(view[start : start + INLINE_BYTES_MAX])
            expect(messages.Committed, (yield messages.WriteOnce(self._info.ref, part)))


class GroupOps(Handle):
    """The operations on a group, in addition to its use in other calls."""

    __slots__ = ()

    def read_name_op(self) -> Operation[bytes]:
        """Return the group's name, for tasks that may read it; with it, the group can be looked up again."""
        if self.name is not None:
            return self.name
        result, fd = expect_buffer((yield messages.ReadOnce(self._info.ref)))
        return memory_of(result, fd, writable=False).read()


def write_whole(request: WriteOps, view: memoryview) -> Operation[int]:
    """Acquire, fill, commit and release: a write of more bytes than fit one message."""
    try:
        yield from request.acquire_op()
        request.fill(view)
        yield from request.finish_op(view.nbytes)
    except (DiosError, OSError):
        yield from request.release_op()
        raise
    return request.v_w


def nanoseconds(timeout: float | None) -> int | None:
    """Return a timeout in seconds as nanoseconds for the wire; InvalidError if it is negative."""
    if timeout is None:
        return None
    if timeout < 0:
        raise InvalidError(f"a timeout must be 0 s or more, not {timeout:g} s")
    return min(int(timeout * 1e9), 2**62)
