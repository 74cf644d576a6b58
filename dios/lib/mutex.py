"""A lock that tasks of any node share: one small object, taken by exclusive I/O requests (thesis §4.7).

Replicas of a lock are several locks. Waiting tasks have no order: the first to try gets the lock.

To take it, a task reads under EXCL that it is free, with v_r and v_w. An EXCL write whose acquire shows the
same v_r and v_w stores the new holder; the commit succeeds only if nobody else was active. Waiting tasks
watch the object's live v_w, which costs no call, and try again when it has changed.

A holder has the lock for a *lease*, and longer by ``renew``. A task that has seen v_w unchanged for a whole
lease by its own clock takes the lock over: clocks are never compared, they must only run about equally fast.
A holder that was paused for longer than its lease may not know that it lost the lock. So each holder has a
*fencing token*, the v_w of its taking, higher than that of every holder before: the data that the lock
protects must refuse lower tokens than they have seen, as ``Guarded`` does. A holder may assume that about its
token, and no more: two tasks can believe to have the lock at one moment, even if both look at ``remaining``
before they act, because any pause may come between the look and the act.
"""

from __future__ import annotations

import secrets
import struct
import time
from collections.abc import Callable
from contextlib import suppress
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
"""Format version, lease in nanoseconds (0: free), and the holder. An empty object is a free lock."""

_VERSION: Final = 1
_TOKEN_BYTES: Final = 8


class LockLostError(DiosError):
    """The lock does not belong to this holder any more: its lease ended, or it was never taken.

    Treat everything since the last renewal as possibly overtaken, and acquire the lock again.
    """

    code = Code.ECANCELED


class MutexOps:
    """The attempts on a lock, written once for both clients; Conflict or Busy if one must be repeated."""

    def __init__(
        self,
        lock: Handle,
        *,
        lease: float = 30.0,
        timeout: float | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if not 0 < lease <= LOCK_LEASE_MS_MAX / 1000:
            raise InvalidError(
                f"a lease of {lease:g} s is out of range: above 0, at most {LOCK_LEASE_MS_MAX / 1000:g} s"
            )
        self.lock: Final = lock
        self.lease: Final = lease
        self.timeout: Final = timeout
        self.token = 0
        """The fencing token of the last time when it was taken."""
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
        """Return the connection of the lock's handle."""
        return self.lock.link

    @property
    def remaining(self) -> float:
        """Return the seconds that are left of the lease; 0 without the lock.

        Until then no other task takes the lock. A pause after this call may be longer.
        """
        return max(0.0, self._until - self._clock()) if self._until else 0.0

    # -- attempts ---------------------------------------------------------------------------------
    def take_op(self) -> Operation[int]:
        """Take the lock if it is free or its holder's lease has ended; return the fencing token."""
        if self._until:
            raise InvalidError("this holder has the lock already, and a lock cannot be taken twice")
        if self._yields:
            # Others wait, and the task that just released the lock is the fastest: they get a chance first.
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
        """Return the versions at which the lock was free; Busy if it is taken."""
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
        """Return True if the known holder has not renewed the lock for its whole lease."""
        return self._seen is not None and self._clock() - self._seen[1] >= self._seen[2]

    def renew_op(self) -> Operation[None]:
        """Start the lease again for the present holder; LockLostError for any other."""
        began = self._clock()
        yield from self._change_op(self.lease)
        self._until = began + self.lease

    def release_op(self) -> Operation[None]:
        """Release the lock; LockLostError if it was lost before."""
        yield from self._change_op(0.0)
        self._until = 0.0
        # Every waiting task has read the lock once since it was taken.
        self._yields = self.lock.v_r != self._v_r

    def _change_op(self, lease: float) -> Operation[None]:
        if not self._until:
            raise LockLostError("the lock was not taken", fingerprint=self.lock.fingerprint)
        # Together with readers: waiting tasks that read do not prevent the release.
        request = WriteOps(self.lock, _RECORD.size, 0, Semantics.MRSW, blank=False, replace=True)
        try:
            yield from request.acquire_op()
            owner, held = _parsed(request)
            if owner != self._owner or not held:
                self._until = 0.0
                raise LockLostError("another task took the lock over", fingerprint=self.lock.fingerprint)
            yield from self._put_op(request, lease)
        finally:
            yield from _let_go_op(request)

    def _put_op(self, request: WriteOps, lease: float) -> Operation[None]:
        request.view[:] = _RECORD.pack(_VERSION, int(lease * 1e9), self._owner)
        yield from request.finish_op()

    def _held(self) -> Busy:
        return Busy("another holder has the lock", call="take", fingerprint=self.lock.fingerprint)


class Mutex(MutexOps):
    """A lock of the blocking client: ``with Mutex(reference) as mutex: ... mutex.token ...``.

    ``lock`` is a reference, with the rights to read and write, to a blob of its own, empty at first; a
    durable blob outlives its node. ``lease`` is the time in seconds after which a silent holder loses the
    lock; ``timeout`` bounds the wait for the lock, in seconds. UnreachableError leaves open whether the lock
    was taken, renewed or released.
    """

    def __init__(self, lock: Reference, *, lease: float = 30.0, timeout: float | None = None) -> None:
        super().__init__(lock, lease=lease, timeout=timeout)

    def acquire(self) -> int:
        """Wait for the lock and take it; return the fencing token. TimeLimitError after ``timeout``."""
        return insist(self, self.take_op, self.timeout)

    def try_acquire(self) -> bool:
        """Take the lock if it is free now; return True if it was taken."""
        try:
            insist(self, self.take_op, 0)
        except TimeLimitError:
            return False
        return True

    def renew(self) -> None:
        """Start the lease again; LockLostError if another task has the lock."""
        insist(self, self.renew_op, self.lease)

    def release(self) -> None:
        """Release the lock; LockLostError if it was lost before: later work may have been overtaken."""
        insist(self, self.release_op, self.lease)

    def __enter__(self) -> Self:
        self.acquire()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.release()
            return
        # The error of the body is the one to report.
        with suppress(DiosError):
            self.release()


class GuardedOps:
    """A blob that refuses writers whose lock was taken over: their token is older than its last one."""

    def __init__(self, reference: Handle, timeout: float | None = None) -> None:
        self.reference: Final = reference
        self.timeout: Final = timeout

    @property
    def link(self) -> ClientLink:
        """Return the connection of the blob's handle."""
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
        """Return the content of the last writer."""
        request = ReadOps(self.reference, 0, 0, Semantics.MRSW)
        try:
            yield from request.acquire_op()
            data = bytes(request.view[_TOKEN_BYTES:])
            yield from request.finish_op()
        finally:
            yield from _let_go_op(request)
        return data


class Guarded(GuardedOps):
    """A guarded blob of the blocking client; attempts that conflict are repeated for ``timeout`` seconds."""

    def write(self, data: bytes, token: int) -> None:
        """Replace the content; LockLostError for a token that is older than the last writer's."""
        insist(self, lambda: self.write_op(data, token), self.timeout)

    def read(self) -> bytes:
        """Return the content of the last writer."""
        return insist(self, self.read_op, self.timeout)


def _parsed(request: RequestOps) -> tuple[bytes, float]:
    """Return the holder, and the lease in seconds: 0 for a free lock."""
    data = bytes(request.view)
    if not any(data):
        return b"", 0.0
    if len(data) == _RECORD.size:
        version, lease_ns, owner = _RECORD.unpack(data)
        if version == _VERSION:
            return owner, lease_ns / 1e9
    raise DamagedError("the object is not a lock", fingerprint=request.reference.fingerprint)


def _let_go_op(request: RequestOps) -> Operation[None]:
    """Release the buffer in any case; an earlier error is the one to report."""
    with suppress(Conflict):
        yield from request.release_op()
