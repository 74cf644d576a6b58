"""A binary heap of vertices by distance, for kernels. A vertex is in it once and may come nearer."""

from __future__ import annotations

from dios.firmament.solvers.columns import Ints
from dios.kernels import no_refcount_kernel


@no_refcount_kernel
def push_or_raise(heap: Ints, position: Ints, size: int, distance: Ints, vertex: int) -> int:
    """Insert ``vertex``, or move it up after its distance fell; return the new size.

    ``position`` (V,) is the place of each vertex in the heap, or -1.
    """
    place = position[vertex]
    if place < 0:
        place = size
        size += 1
    key = distance[vertex]
    while place > 0:
        above = (place - 1) >> 1
        other = heap[above]
        if distance[other] <= key:
            break
        heap[place] = other
        position[other] = place
        place = above
    heap[place] = vertex
    position[vertex] = place
    return size


@no_refcount_kernel
def pop(heap: Ints, position: Ints, size: int, distance: Ints) -> int:
    """Remove ``heap[0]``, the nearest vertex, which the caller has read; return the new size."""
    position[heap[0]] = -1
    size -= 1
    if size == 0:
        return size
    vertex = heap[size]
    key = distance[vertex]
    place = 0
    while True:
        below = 2 * place + 1
        if below >= size:
            break
        if below + 1 < size and distance[heap[below + 1]] < distance[heap[below]]:
            below += 1
        other = heap[below]
        if key <= distance[other]:
            break
        heap[place] = other
        position[other] = place
        place = below
    heap[place] = vertex
    position[vertex] = place
    return size
