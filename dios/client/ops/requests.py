"""I/O requests: acquire, commit and release on one buffer, in the order of Figure 4.8 (thesis §4.7).

``dios.client.sync.node`` and ``dios.client.aio.node`` run the operations. Streams have no requests: their
bytes never pass the node (``dios.client.ops.streams``).
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from dios.client.buffers import MappedMemory, memory_of
from dios.client.session import Answer, Operation, all_held, expect, expect_buffer, vector
from dios.errors import Busy, Conflict, DiosError, InvalidError, OutOfMemoryError
from dios.wire import messages
from dios.wire.messages import PlainCall
from dios.wire.types import AcquireIov, Buffering, Flag, Proximity, Semantics

if TYPE_CHECKING:
    from dios.client.ops.attributes import Handle
    from dios.client.page import KeptBytes


class RequestOps(ABC):
    """The common part of reads and writes: the buffer and the state of the request.

    ``v_r`` and ``v_w`` are the object's versions at the last acquire or commit.
    """

    __slots__ = (
        "_active",
        "_buffer",
        "_memory",
        "_released",
        "link",
        "offset",
        "reference",
        "semantics",
        "size",
        "v_r",
        "v_w",
    )

    def __init__(self, reference: Handle, size: int, offset: int, semantics: Semantics) -> None:
        self.reference: Final = reference
        self.link: Final = reference.link
        self.size = size
        self.offset: Final = offset
        self.semantics = semantics
        self.v_r = 0
        self.v_w = 0
        self._buffer = 0
        self._memory: MappedMemory | None = None
        self._active = False
        self._released = False

    def __repr__(self) -> str:
        state = "released" if self._released else "active" if self._active else "idle"
        return f"<{type(self).__name__} of {self.size} bytes on {self.reference.fingerprint}, {state}>"

    @property
    def view(self) -> memoryview:
        """Return the bytes of the request without a copy; they are invalid after the release."""
        return self._held().view()

    def _held(self) -> MappedMemory:
        if self._memory is None:
            raise InvalidError("the request was released, or never acquired. Acquire a new one.")
        return self._memory

    def _took(self, result: messages.Buffer, fd: int | None, *, writable: bool) -> None:
        self._buffer = result.buffer
        self.size = result.size
        self.v_r, self.v_w = result.v_r, result.v_w
        # A read of an object without content (a timer, a console) needs no buffer.
        self._active = bool(result.buffer)
        former, self._memory = self._memory, None
        self._memory = memory_of(result, fd, writable=writable, former=former)

    def _committed(self, result: messages.Committed) -> None:
        self.v_r, self.v_w = result.v_r, result.v_w

    def _drop(self) -> None:
        """Forget the buffer, which is released."""
        memory, self._memory = self._memory, None
        self._active = False
        self._released = True
        if memory is not None:
            memory.close()

    @abstractmethod
    def acquire_op(self) -> Operation[None]:
        """Register the request and get its buffer; Busy if it is not admitted (B.1.7, B.1.10)."""

    def release_op(self) -> Operation[None]:
        """Release the buffer without a commit; does nothing if it was released (B.1.9, B.1.12)."""
        if self._released:
            return
        self._drop()
        if self._buffer:
            expect(messages.Done, (yield self._release_call()))

    @abstractmethod
    def _release_call(self, flags: Flag = Flag.NONE) -> PlainCall:
        """Return the call that releases the buffer."""

    @abstractmethod
    def finish_op(self) -> Operation[None]:
        """Commit if necessary, and release, in one message: the regular end of a ``with``."""


class ReadOps(RequestOps):
    """A request to read.

    If this process has the present bytes, the request takes no call: the node does not know of it, and its
    commit looks whether these bytes are the present ones still. Then a read at the moment of the commit would
    have returned the same, so that the order of all requests is one that the node could have admitted.
    """

    __slots__ = ("_kept", "_mapped", "_wanted")

    def __init__(self, reference: Handle, size: int, offset: int, semantics: Semantics) -> None:
        super().__init__(reference, size, offset, semantics)
        self._wanted: Final = size
        self._kept: KeptBytes | None = None
        self._mapped = False
        """True from the answer with shared memory until its mapping is kept for further reads."""

    @property
    def view(self) -> memoryview:
        memory = self._held()
        try:
            view = memory.view()
        except OutOfMemoryError:
            # Bytes that are kept for further reads may fill the address space.
            if self.link.page is None:
                raise
            self.link.page.drop_kept()
            view = memory.view()
        if self._mapped:
            self._mapped = False
            self.reference.has_read(self.v_w, view[:], self.offset)
        return view

    def _took(self, result: messages.Buffer, fd: int | None, *, writable: bool) -> None:
        super()._took(result, fd, writable=writable)
        self._mapped = fd is not None and self._active

    def acquire_op(self) -> Operation[None]:
        if self._took_kept():
            return
        yield from self._acquire(AcquireIov.CREATE)

    def _took_kept(self) -> bool:
        kept = self.reference.kept(self.semantics)
        part = None if kept is None else kept.part(self._wanted, self.offset)
        if kept is None or part is None or not kept.room:
            return False
        self._kept, self._buffer, self._active = kept, 0, True
        self._memory = MappedMemory(len(part), data=part, writable=False)
        self.size, self.v_r, self.v_w = len(part), kept.v_r, kept.v_w
        return True

    def _check_kept(self, kept: KeptBytes) -> Operation[None]:
        """Commit a request that took no call: look at the page, or ask the node if that does not decide."""
        self._active = False
        if kept.current and kept.count():
            return
        counted = self.reference.uncounted()
        call = messages.ReadOnce(self.reference.ref, 1, 0, self.semantics, counted=counted)
        try:
            result, fd = expect_buffer((yield call))
        except Busy:
            raise self._outdated() from None
        self.reference.has_reported(counted)
        if fd is not None:
            os.close(fd)
        if self.semantics is not Semantics.ANY and result.v_w != kept.v_w:
            raise self._outdated()
        self.v_r, self.v_w = result.v_r, result.v_w

    def _outdated(self) -> Conflict:
        return Conflict(
            "another request came between acquire and commit; acquire again and retry",
            call="commitread",
            fingerprint=self.reference.fingerprint,
        )

    def _acquire(self, iov: AcquireIov) -> Operation[None]:
        ref = self.reference.ref
        size = self.size if iov is AcquireIov.CREATE else 0
        counted = self.reference.uncounted()
        call = messages.AcquireRead(
            ref, size, self.offset, self.semantics, iov, self._buffer, counted=counted
        )
        result, fd = expect_buffer((yield call))
        self._kept = None
        self._took(result, fd, writable=False)
        self.reference.has_reported(counted)
        if result.data is not None and self._buffer:
            self.reference.has_read(result.v_w, result.data, self.offset)

    def commit_op(self) -> Operation[None]:
        """Check that the bytes were valid until now; Conflict if they were not (B.1.8)."""
        self._held()
        if self._kept is not None:
            yield from self._check_kept(self._kept)
            return
        if not self._buffer:
            return
        self._active = False
        self._committed(
            expect(messages.Committed, (yield messages.CommitRead(self.reference.ref, self._buffer)))
        )

    def reacquire_op(self, semantics: Semantics | None = None) -> Operation[None]:
        """Start the next request on the same buffer and range, to read newer bytes.

        A request that is not committed yet is committed by the same message; Conflict if that fails.
        """
        self._held()
        kept, active = self._kept, self._active
        if kept is not None and active:
            yield from self._check_kept(kept)
        self.semantics = self.semantics if semantics is None else semantics
        if not self._buffer:
            self.size = self._wanted
            yield from self.acquire_op()
        elif active:
            self._active = False
            call = messages.CommitAcquireRead(self.reference.ref, self._buffer, self.semantics)
            result, fd = expect_buffer((yield call))
            self._took(result, fd, writable=False)
        else:
            yield from self._acquire(AcquireIov.REUSE)

    def _release_call(self, flags: Flag = Flag.NONE) -> PlainCall:
        return messages.ReleaseRead(self.reference.ref, self._buffer, int(flags))

    def finish_op(self) -> Operation[None]:
        """Commit if necessary, and release; Conflict if the bytes were not valid until now."""
        if self._active and self._kept is not None:
            self._drop()
            yield from self._check_kept(self._kept)
        elif self._active:
            self._drop()
            expect(messages.Done, (yield self._release_call(Flag.RELEASE_COMMIT)))
        else:
            yield from self.release_op()


class WriteOps(RequestOps):
    """A request to write. With ``blank`` the buffer is not filled; with ``replace`` the object ends where the
    written range ends.
    """

    __slots__ = ("_blank", "_replace")

    def __init__(
        self,
        reference: Handle,
        size: int,
        offset: int,
        semantics: Semantics,
        *,
        blank: bool,
        replace: bool,
    ) -> None:
        super().__init__(reference, size, offset, semantics)
        self._blank: Final = blank
        self._replace: Final = replace

    def acquire_op(self) -> Operation[None]:
        yield from self._acquire(AcquireIov.CREATE)

    def _acquire(self, iov: AcquireIov) -> Operation[None]:
        flags = int(Flag.BLANK) if self._blank else 0
        ref = self.reference.ref
        call = messages.AcquireWrite(ref, self.size, self.offset, self.semantics, iov, self._buffer, flags)
        result, fd = expect_buffer((yield call))
        self._took(result, fd, writable=True)

    def fill(self, data: memoryview, at: int = 0) -> None:
        """Copy ``data`` to the buffer, from the place ``at`` on, without mapping the buffer for that."""
        memory = self._held()
        if self.reference.buffering is Buffering.RAW:
            # Another writer of raw memory can hold up every write through a descriptor, but no mapping.
            memory.view()
        memory.fill(data, at)

    def commit_op(self, size: int = 0, *, last: bool = False) -> Operation[None]:
        """Make the first ``size`` bytes of the buffer (0: all) the object's content (B.1.11).

        Raises Conflict if another request came between; then nothing was changed. ``last`` invalidates the
        view first, so that the node can keep large memory without copying it.
        """
        call = self._commit_call(size, last=last)
        self._active = False
        self._committed(expect(messages.Committed, (yield call)))

    def _commit_call(self, size: int, *, last: bool) -> messages.CommitWrite:
        memory = self._held()
        flags = int(Flag.REPLACE) if self._replace else 0
        data = self._inline(memory, size)
        if last and data is None:
            memory.unmap()
        return messages.CommitWrite(
            self.reference.ref, self._buffer, 0 if data is not None else size, flags=flags, data=data
        )

    def _inline(self, memory: MappedMemory, size: int) -> bytes | None:
        """Return the bytes to send with the commit; None if the node has the memory."""
        if not 0 <= size <= self.size:
            raise InvalidError(f"the buffer has {self.size} bytes, not {size}")
        return bytes(memory.view()[: size or self.size]) if memory.inline else None

    def reacquire_op(self, semantics: Semantics | None = None) -> Operation[None]:
        """Start the next request on the same buffer; it is filled again unless the request is ``blank``.

        A request that is not committed yet is committed completely by the same message. Raises Conflict if
        that fails, Busy if it succeeded and the next request is not admitted.
        """
        memory = self._held()
        self.semantics = self.semantics if semantics is None else semantics
        if not self._active:
            yield from self._acquire(AcquireIov.REUSE)
            return
        flags = (Flag.REPLACE if self._replace else Flag.NONE) | (Flag.BLANK if self._blank else Flag.NONE)
        call = messages.CommitAcquireWrite(
            self.reference.ref,
            self._buffer,
            semantics=self.semantics,
            flags=int(flags),
            data=self._inline(memory, 0),
        )
        self._active = False
        answer = yield call
        if isinstance(answer[0], messages.Committed):
            self._committed(expect(messages.Committed, answer))
            raise _not_admitted(self)
        result, fd = expect_buffer(answer)
        self._took(result, fd, writable=True)

    def _release_call(self, flags: Flag = Flag.NONE) -> PlainCall:
        return messages.ReleaseWrite(self.reference.ref, self._buffer, int(flags))

    def finish_op(self, size: int = 0) -> Operation[None]:
        """Commit the first ``size`` bytes (0: all) if necessary, and release; Conflict if that fails."""
        if not self._active:
            yield from self.release_op()
            return
        commit = self._commit_call(size, last=True)
        self._drop()
        if commit.data is None and not commit.size and not commit.flags:
            expect(messages.Done, (yield self._release_call(Flag.RELEASE_COMMIT)))
            return
        outcomes = yield from vector((commit, self._release_call()))
        # The commit decides: a buffer that cannot be released any more does not undo it.
        self._committed(expect(messages.Committed, all_held(outcomes[:1])[0]))

    def last_calls(self, size: int) -> tuple[PlainCall, PlainCall]:
        """Return the calls that commit the first ``size`` bytes and release, for ``finish_together``."""
        commit = self._commit_call(size, last=True)
        self._drop()
        return commit, self._release_call()

    def finished(self, answer: Answer) -> None:
        """Note the answer to the commit of ``last_calls``."""
        self._committed(expect(messages.Committed, answer))


def finish_together(sizes: Mapping[WriteOps, int]) -> Operation[dict[WriteOps, DiosError | None]]:
    """Commit the first bytes of several requests, this number of each, and release them, in few messages.

    Returns the error of each commit, or None.
    """
    errors: dict[WriteOps, DiosError | None] = {}
    # Bytes for other nodes and bytes for this one are not sent in the same message.
    for remote in (True, False):
        group = [write for write in sizes if (write.reference.proximity > Proximity.NODE) is remote]
        outcomes = yield from vector([call for write in group for call in write.last_calls(sizes[write])])
        for request, answer in zip(group, outcomes[::2], strict=True):
            if isinstance(answer, DiosError):
                errors[request] = answer
            else:
                request.finished(answer)
                errors[request] = None
    return errors


def _not_admitted(request: WriteOps) -> Busy:
    return Busy(
        "the commit succeeded, but the next request is not admitted. Reacquire later.",
        call="commitacquirewrite",
        fingerprint=request.reference.fingerprint,
    )
