"""Tetris and slots with no more checks than published, to measure the time of a decision (Figure 6).

The policies of ``dios.packer.baselines`` all pass Packer's own check of whole paths at every instant, so that
Figures 3 to 5 show the choice of servers alone; they also take Packer's time for it. The rules here examine
as much as the Packer paper describes (section III-B). Tetris compares the peaks of a task, at one instant,
with the four resources of each server, and lowers the score for remote data. Slots are a count for each
server. Neither examines a link.
"""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable
from typing import Final, NamedTuple, TypeVar

import numpy as np

from dios.kernels import kernel
from dios.packer.datacenter import Capacity
from dios.packer.job.ti_mra import Floats, Ints, TiMra
from labs.simulate.packing.simulate import JobSource

_Reserved = TypeVar("_Reserved")

REMOTE: Final = 0.1
"""The fraction of its score that a server loses if all data of a task is on other servers."""
SLOTS: Final = 4
"""The number of slots of a server."""


class PublishedTimes(NamedTuple):
    """The decisions of one rule."""

    job_s: list[float]
    """CPU seconds for each job."""
    admitted: list[bool]
    """True for each admitted job."""


@kernel
def _place_by_alignment(
    free: Floats, peaks: Floats, order: Ints, ends: Ints, volume: Floats, place: Ints
) -> bool:
    """Place all tasks by alignment (scalar product of peaks and free amounts); False if one has no room.

    Args:
        free: (servers, 4) free fractions of each server, which become less by what the job takes.
        peaks: (tasks, 4) fractions of a server.
        order: (tasks,) the order of placing.
        ends: (edges, 2) the source and target of each edge.
        volume: (edges,) the bandwidth of each edge, summed over time.
        place: (tasks,) becomes the server of each task; -1 for tasks without a place yet.
    """
    near = np.zeros(free.shape[0])
    for task in order:
        near[:] = 0.0
        whole = 0.0
        for edge in range(ends.shape[0]):
            for side in range(2):
                if ends[edge, side] == task:
                    whole += volume[edge]
                    other = place[ends[edge, 1 - side]]
                    if other >= 0:
                        near[other] += volume[edge]
        best, highest = -1, -1.0
        for server in range(free.shape[0]):
            score, fits = 0.0, True
            for r in range(4):
                fits = fits and free[server, r] >= peaks[task, r]
                score += free[server, r] * peaks[task, r]
            if fits:
                if whole > 0.0:
                    score *= 1.0 - REMOTE * (1.0 - near[server] / whole)
                if score > highest:
                    best, highest = server, score
        if best < 0:
            _return_amounts(free, peaks, place)
            return False
        place[task] = best
        for r in range(4):
            free[best, r] -= peaks[task, r]
    return True


@kernel
def _return_amounts(free: Floats, peaks: Floats, place: Ints) -> None:
    """Return the amounts of all tasks that have a place, and forget their places."""
    for task in range(place.size):
        if place[task] >= 0:
            for r in range(4):
                free[place[task], r] += peaks[task, r]
            place[task] = -1


@kernel
def _place_in_slots(free: Ints, place: Ints) -> bool:
    """Give each task a slot of the first server that has one; give none and return False if one gets none."""
    server = 0
    for task in range(place.size):
        while server < free.size and free[server] == 0:
            server += 1
        if server == free.size:
            for earlier in range(task):
                free[place[earlier]] += 1
                place[earlier] = -1
            return False
        free[server] -= 1
        place[task] = server
    return True


def tetris_as_published(source: JobSource, servers: int, instants: int) -> PublishedTimes:
    """Offer the jobs of ``source`` to Tetris without links, and return the time for each.

    Its reservations are constant and only end, so a free amount now is free for as long as it is held.
    """
    free = np.ones((servers, 4))
    whole = np.array(Capacity())

    def decide(job: TiMra) -> tuple[Floats, Ints] | None:
        peaks = job.demand.max(axis=1) / whole
        place = np.full(len(job.nodes), -1, np.int64)
        volume = job.bandwidth.sum(axis=1)
        placed = _place_by_alignment(free, peaks, np.asarray(job.order), np.asarray(job.ends), volume, place)
        return (peaks, place) if placed else None

    def end(reserved: tuple[Floats, Ints]) -> None:
        _return_amounts(free, *reserved)

    return _offer_all(source, instants, decide, end)


def slots_as_published(source: JobSource, servers: int, instants: int) -> PublishedTimes:
    """Offer the jobs of ``source`` to servers of four equal slots, and return the time for each.

    No task of the workload needs more than a slot, as in the paper.
    """
    free = np.full(servers, SLOTS, np.int64)

    def decide(job: TiMra) -> Ints | None:
        place = np.full(len(job.nodes), -1, np.int64)
        return place if _place_in_slots(free, place) else None

    def end(place: Ints) -> None:
        np.add.at(free, place, 1)

    return _offer_all(source, instants, decide, end)


def _offer_all(
    source: JobSource,
    instants: int,
    decide: Callable[[TiMra], _Reserved | None],
    end: Callable[[_Reserved], None],
) -> PublishedTimes:
    """Offer every job at its instant; each admitted one ends after its own instants."""
    times, admitted = [], []
    running: list[tuple[int, int, _Reserved]] = []
    for instant in range(instants):
        while running and running[0][0] <= instant:
            end(heapq.heappop(running)[2])
        for job in source(instant):
            begun = time.process_time()
            reserved = decide(job)
            times.append(time.process_time() - begun)
            admitted.append(reserved is not None)
            if reserved is not None:
                # The number makes entries of one instant comparable.
                heapq.heappush(running, (instant + job.instants, len(times), reserved))
    return PublishedTimes(times, admitted)
