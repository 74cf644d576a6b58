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
    left = {place.thread: place for place in places if place.thread in usable}
    chosen = [left.pop(thread) for thread in dict.fromkeys(named) if thread in left][:count]
    missing = count - len(chosen)
    if missing <= 0 or not left:
        return tuple(sorted(place.thread for place in chosen))
    room = Counter(place.cache for place in left.values())
    anchor = (
        chosen[0] if chosen else min(left.values(), key=lambda place: _cache_rank(room[place.cache], missing))
    )
    begun = {place.core for place in chosen}
    sizes = Counter(place.core for place in places)
    cores = Counter(place.core for place in left.values())

    def rank(place: ThreadPlace) -> tuple[object, ...]:
        return (
            place.core not in begun,
            place.socket != anchor.socket,
            place.numa != anchor.numa,
            place.cache != anchor.cache,
            cores[place.core] < sizes[place.core],
            place.core,
            place.thread,
        )

    chosen += sorted(left.values(), key=rank)[:missing]
    return tuple(sorted(place.thread for place in chosen))


def _cache_rank(room: int, missing: int) -> tuple[bool, int]:
    """Return the order of caches: first those with room for all, the fullest of them first."""
    return (room < missing, room if room >= missing else -room)
