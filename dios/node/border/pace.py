"""Two bounds of a border: the handshakes that strangers can cause, and the slowness of a caller."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

import trio

from dios import limits
from dios.host.bandwidth.token_bucket import TokenBucket

_S: Final = 1_000_000_000
T = TypeVar("T")


class HandshakePace:
    """A bound of the handshakes with each address, and of those with all addresses that are not known.

    An address is known after a node of a trusted cluster has come from it. A handshake costs about 1 ms.
    """

    def __init__(self) -> None:
        self._known: Final[dict[str, None]] = {}
        self._buckets: Final[dict[str, TokenBucket]] = {}
        self._strangers: Final = _full_bucket(limits.BORDER_HANDSHAKES_S, 2 * limits.BORDER_HANDSHAKES_S)

    def admits(self, address: str) -> bool:
        """Return True if a handshake with this address may begin now, and count it."""
        is_known = address in self._known
        bucket = self._buckets.pop(address, None) or (_of_known() if is_known else _of_stranger())
        self._buckets[address] = bucket
        if len(self._buckets) > limits.BORDER_ADDRESSES_MAX:
            del self._buckets[next(iter(self._buckets))]
        now = _now()
        wanted = (bucket,) if is_known else (bucket, self._strangers)
        if any(limited.wait_ns(now) for limited in wanted):
            return False
        for limited in wanted:
            limited.take(1, now)
        return True

    def passed(self, address: str) -> None:
        """Note that a node of a trusted cluster has come from this address."""
        if address not in self._known:
            self._buckets.pop(address, None)  # the next one has the rate of a known address
        self._known.pop(address, None)
        self._known[address] = None
        if len(self._known) > limits.BORDER_ADDRESSES_MAX:
            del self._known[next(iter(self._known))]


def _now() -> int:
    return int(trio.current_time() * _S)


def _full_bucket(per_second: int, burst: int) -> TokenBucket:
    burst_ns = burst * _S // per_second
    return TokenBucket(per_second, _now() - burst_ns, burst_ns)


def _of_stranger() -> TokenBucket:
    return _full_bucket(limits.BORDER_HANDSHAKES_EACH_S, 2 * limits.BORDER_HANDSHAKES_EACH_S)


def _of_known() -> TokenBucket:
    """Return a bucket with a handshake for each call that a cluster may make."""
    return _full_bucket(limits.BORDER_REQUESTS_S, limits.BORDER_REQUESTS_BURST)


class MinimumRate:
    """The time for which a caller may keep this node waiting in one call.

    It is BORDER_SLOW_MS_MAX, and more for each byte that was moved, at BORDER_RATE_BYTES_S_MIN.
    """

    def __init__(self) -> None:
        self._left_s = limits.BORDER_SLOW_MS_MAX / 1000

    async def wait(self, action: Callable[[], Awaitable[T]], size_of: Callable[[T], int]) -> T:
        """Return the result of an action for which the caller is waited for.

        Raise BrokenPipeError if that takes too long.
        """
        began = trio.current_time()
        with trio.move_on_after(max(0, min(self._left_s, limits.BORDER_IDLE_MS_MAX / 1000))):
            result = await action()
            self._left_s += size_of(result) / limits.BORDER_RATE_BYTES_S_MIN - (trio.current_time() - began)
            return result
        raise BrokenPipeError(
            f"the other end is too slow: it must move {limits.BORDER_RATE_BYTES_S_MIN // limits.KIB} KiB/s"
        )
