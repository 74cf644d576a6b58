"""A lock that tasks of any node share: one small object, taken by exclusive I/O requests (thesis §4.7).

Not for: replicas of a lock, which are several locks; or waiting in order: whoever comes first gets it.

To take it: an EXCL read sees that it is free and notes v_r and v_w; an EXCL write whose acquire shows the
same v_r and v_w says who has it now; the commit holds only if nobody else was active. Who waits looks at the
object's live v_w, which costs no call, and tries again when that has changed.

A holder has the lock for a *lease*, and for longer by ``renew``. Who has seen v_w stand still for a whole
lease by their own clock takes it over: nobody compares clocks, they only must run about equally fast. A
holder that was paused for longer than its lease may not know yet that it lost the lock. So each holder has a
*fencing token*, the v_w of its own taking, higher than that of every holder before: what the lock protects
must refuse lower tokens than it has seen, as ``Guarded`` does. Without that, the lock alone promises one
holder at a time only as long as holders look at ``remaining`` before they act.
"""

from __future__ import annotations

import secrets
import struct
import time
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import Final, Self

from dios.client.ops.attributes import ClientLink, Handle
from dios.client.ops.requests import ReadOps, RequestOps, WriteOps
from dios.client.session import Operation
from dios.client.sync.node import Reference
from dios.errors import Busy, Code, Conflict, DamagedError, DiosError, InvalidError, TimeLimitError
from dios.lib.retrying import insist
from dios.limits import LOCK_LEASE_MS_MAX
from dios.wire.types import Semantics

_RECORD: Final = struct.Struct("<QQ16s")
"""Format version, lease in nanoseconds (0: free), and who has it. An empty object is a free lock."""

_VERSION: Final = 1
_TOKEN_BYTES: Final = 8


class LockLostError(DiosError):
    """The lock is no longer this holder's: its lease was over and somebody took it, or never was."""

    code = Code.ECANCELED


class MutexOps:
    """The attempts on a lock, written once for both faces; each raises Conflict when it is to be repeated."""

    def __init__(
        self,
        lock: Handle,
        *,
        lease: float = 30.0,
        timeout: float | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if not 0 < lease <= LOCK_LEASE_MS_MAX / 1000:
            raise InvalidError(f"a lease of {lease:g} s; more than 0, at most {LOCK_LEASE_MS_MAX / 1000:g} s")
        self.lock: Final = lock
        self.lease: Final = lease
        self.timeout: Final = timeout
        self.token = 0
        """The fencing token of the last time it was taken."""
        self._clock: Final = clock
        self._owner: Final = secrets.token_bytes(16)
        self._until = 0.0
        self._v_r = 0
        self._seen: tuple[int, float, float] | None = None
        self._yields = False

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.lock.fingerprint}, {self.remaining:.3g} s left>"

    @property
    def link(self) -> ClientLink:
        """The connection of the lock's handle."""
        return self.lock.link

    @property
    def remaining(self) -> float:
        """For how many seconds the lock is certainly this holder's; 0 when it is not, or no more."""
        return max(0.0, self._until - self._clock()) if self._until else 0.0

    # -- attempts ---------------------------------------------------------------------------------
    def take_op(self) -> Operation[int]:
        """Take the lock if it is free, or its holder's lease is over; answers the fencing token."""
        if self._until:
            raise InvalidError("this holder has taken the lock already, and it is not for taking twice")
        if self._yields:
            # Others wait, and who has just let go is the quickest: they get a chance first.
            self._yields = False
            raise self._held()
        if self._seen is not None and self.lock.v_w == self._seen[0] and not self._over():
            raise self._held()
        v_r, v_w = yield from self._look_op()
        began = self._clock()
        request = WriteOps(self.lock, _RECORD.size, 0, Semantics.EXCL, blank=True, replace=True)
        try:
            yield from request.acquire_op()
            if (request.v_r, request.v_w) != (v_r, v_w):
                raise self._held()
            yield from self._put_op(request, self.lease)
        finally:
            yield from _let_go_op(request)
        self._seen = None
        self._until, self.token, self._v_r = began + self.lease, request.v_w, request.v_r
        return self.token

    def _look_op(self) -> Operation[tuple[int, int]]:
        """The versions at which the lock was seen free; Busy when it is held."""
        request = ReadOps(self.lock, 0, 0, Semantics.EXCL)
        try:
            yield from request.acquire_op()
            _, lease = _parsed(request)
            yield from request.commit_op()
        finally:
            yield from _let_go_op(request)
        if lease:
            if self._seen is None or self._seen[0] != request.v_w:
                self._seen = (request.v_w, self._clock(), lease)
            if not self._over():
                raise self._held()
        return request.v_r, request.v_w

    def _over(self) -> bool:
        """Whether the holder that was seen has not been heard of for its whole lease."""
        return self._seen is not None and self._clock() - self._seen[1] >= self._seen[2]

    def renew_op(self) -> Operation[None]:
        """Begin the lease anew, for a holder that has it still; LockLostError when it has not."""
        began = self._clock()
        yield from self._change_op(self.lease)
        self._until = began + self.lease

    def release_op(self) -> Operation[None]:
        """Let go of the lock; LockLostError when it was lost before."""
        yield from self._change_op(0.0)
        self._until = 0.0
        # Each of those who wait has looked once since the lock was taken.
        self._yields = self.lock.v_r != self._v_r

    def _change_op(self, lease: float) -> Operation[None]:
        if not self._until:
            raise LockLostError("the lock was not taken", fingerprint=self.lock.fingerprint)
        # Beside readers: who waits and looks does not keep the holder from letting go.
        request = WriteOps(self.lock, _RECORD.size, 0, Semantics.MRSW, blank=False, replace=True)
        try:
            yield from request.acquire_op()
            owner, held = _parsed(request)
            if owner != self._owner or not held:
                self._until = 0.0
                raise LockLostError("somebody else took the lock over", fingerprint=self.lock.fingerprint)
            yield from self._put_op(request, lease)
        finally:
            yield from _let_go_op(request)

    def _put_op(self, request: WriteOps, lease: float) -> Operation[None]:
        request.view[:] = _RECORD.pack(_VERSION, int(lease * 1e9), self._owner)
        yield from request.finish_op()

    def _held(self) -> Busy:
        return Busy("another holder has the lock", call="take", fingerprint=self.lock.fingerprint)


class Mutex(MutexOps):
    """A lock on the blocking face: ``with Mutex(reference) as mutex: ... mutex.token ...``.

    ``lock`` is a reference, with the rights to read and write, to a blob of its own, empty at first; a
    durable one outlives its node. ``lease`` is for how many seconds a holder that does not say anything any
    more keeps others waiting; ``timeout`` bounds the wait for the lock, in seconds.
    """

    def __init__(self, lock: Reference, *, lease: float = 30.0, timeout: float | None = None) -> None:
        super().__init__(lock, lease=lease, timeout=timeout)

    def acquire(self) -> int:
        """Wait for the lock and take it; answers the fencing token. TimeLimitError after ``timeout``."""
        return insist(self, self.take_op, self.timeout)

    def try_acquire(self) -> bool:
        """Take the lock if that is possible now."""
        try:
            insist(self, self.take_op, 0)
        except TimeLimitError:
            return False
        return True

    def renew(self) -> None:
        """Begin the lease anew; LockLostError when somebody else has the lock."""
        insist(self, self.renew_op, self.lease)

    def release(self) -> None:
        """Let go; LockLostError when it was lost before, and what was done since may have been overtaken."""
        insist(self, self.release_op, self.lease)

    def __enter__(self) -> Self:
        self.acquire()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.release()
            return
        # The body's own error is the one to be told.
        with suppress(DiosError):
            self.release()


class GuardedOps:
    """A blob that refuses writers whose lock was taken over since: their token is older than its last."""

    def __init__(self, reference: Handle, timeout: float | None = None) -> None:
        self.reference: Final = reference
        self.timeout: Final = timeout

    @property
    def link(self) -> ClientLink:
        """The connection of the blob's handle."""
        return self.reference.link

    def write_op(self, data: bytes, token: int) -> Operation[None]:
        """Replace the content; LockLostError for a token that is older than the last writer's."""
        size = _TOKEN_BYTES + len(data)
        request = WriteOps(self.reference, size, 0, Semantics.MRSW, blank=False, replace=True)
        try:
            yield from request.acquire_op()
            last = int.from_bytes(request.view[:_TOKEN_BYTES], "little")
            if token < last:
                raise LockLostError(
                    f"token {token} was overtaken by {last}", fingerprint=self.reference.fingerprint
                )
            request.view[:] = token.to_bytes(_TOKEN_BYTES, "little") + data
            yield from request.finish_op()
        finally:
            yield from _let_go_op(request)

    def read_op(self) -> Operation[bytes]:
        """The content as its last writer left it."""
        request = ReadOps(self.reference, 0, 0, Semantics.MRSW)
        try:
            yield from request.acquire_op()
            data = bytes(request.view[_TOKEN_BYTES:])
            yield from request.finish_op()
        finally:
            yield from _let_go_op(request)
        return data


class Guarded(GuardedOps):
    """A guarded blob on the blocking face; attempts that conflict are repeated for ``timeout`` seconds."""

    def write(self, data: bytes, token: int) -> None:
        """Replace the content; LockLostError for a token that is older than the last writer's."""
        insist(self, lambda: self.write_op(data, token), self.timeout)

    def read(self) -> bytes:
        """The content as its last writer left it."""
        return insist(self, self.read_op, self.timeout)


def _parsed(request: RequestOps) -> tuple[bytes, float]:
    """Who has the lock, and the lease in seconds: 0 for a free one."""
    data = bytes(request.view)
    if not any(data):
        return b"", 0.0
    if len(data) == _RECORD.size:
        version, lease_ns, owner = _RECORD.unpack(data)
        if version == _VERSION:
            return owner, lease_ns / 1e9
    raise DamagedError("the object holds no lock", fingerprint=request.reference.fingerprint)


def _let_go_op(request: RequestOps) -> Operation[None]:
    """Give the buffer back whatever happened; what went wrong before is the one to be told."""
    with suppress(Conflict):
        yield from request.release_op()
