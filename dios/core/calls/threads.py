"""The choice of hardware threads for a task: free ones that are close to each other, in whole cores.

A thread counts as one processor, also if its core has two (thesis Table C.1).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable

from dios.wire.messages import ThreadPlace


def flat(processors: Iterable[int]) -> tuple[ThreadPlace, ...]:
    """Return the places of threads on a machine with unknown parts: a core for each, in one socket."""
    return tuple(ThreadPlace(thread, thread, 0, 0, 0) for thread in processors)


def choose_threads(
    places: Collection[ThreadPlace], free: Collection[int], count: int, named: Iterable[int] = ()
) -> tuple[int, ...]:
    """Return ``count`` of the ``free`` threads, fewer if there are not enough, in ascending order.

    Threads that were ``named`` come first. The others come from the cache, the NUMA node and the socket
    of the first of them, or else of the cache with the least sufficient room. Among these, whole cores come
    first, and the threads of a core are not divided without need.
    """
    usable = frozenset(free)
    left = {one.thread: one for one in places if one.thread in usable}
    chosen = [left.pop(thread) for thread in dict.fromkeys(named) if thread in left][:count]
    missing = count - len(chosen)
    if missing <= 0 or not left:
        return tuple(sorted(one.thread for one in chosen))
    room = Counter(one.cache for one in left.values())
    anchor = (
        chosen[0] if chosen else min(left.values(), key=lambda one: _cache_rank(room[one.cache], missing))
    )
    begun = {one.core for one in chosen}
    sizes = Counter(one.core for one in places)
    cores = Counter(one.core for one in left.values())

    def rank(one: ThreadPlace) -> tuple[object, ...]:
        return (
            one.core not in begun,
            one.socket != anchor.socket,
            one.numa != anchor.numa,
            one.cache != anchor.cache,
            cores[one.core] < sizes[one.core],
            one.core,
            one.thread,
        )

    chosen += sorted(left.values(), key=rank)[:missing]
    return tuple(sorted(one.thread for one in chosen))


def _cache_rank(room: int, missing: int) -> tuple[bool, int]:
    """Return the order of caches: first those with room for all, the fullest of them first."""
    return (room < missing, room if room >= missing else -room)
