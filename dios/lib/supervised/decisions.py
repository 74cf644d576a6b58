"""The next steps for a service: a function of its record and of the replicas that run."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import NamedTuple

from dios.lib.supervised.records import ServiceRecord


class Replica(NamedTuple):
    """A living task that is a replica of a service."""

    slot: int
    generation: int
    fingerprint: str
    node: str
    started_ns: int
    name: bytes | None


class Start(NamedTuple):
    """A replica to start: its slot, and the generation of its program."""

    slot: int
    generation: int


class ServiceDecision(NamedTuple):
    """The replicas to start and to stop now; ``complete`` if an update has just become complete."""

    start: list[Start]
    stop: list[Replica]
    complete: bool


def next_steps(
    record: ServiceRecord,
    living: Iterable[Replica],
    is_healthy: Callable[[Replica], bool],
    leaves: Callable[[Replica], bool] = lambda _: False,
) -> ServiceDecision:
    """Return the next steps for a service; ``leaves`` returns True for a replica on a draining node.

    An update goes from slot to slot. In each, a replica with the new program is started next to the present
    one, which is stopped when the new one is healthy. So an update to a bad program costs no replica. A
    replica on a draining node is replaced in the same way, but not during an update.
    """
    stop: list[Replica] = []
    there: dict[Start, Replica] = {}
    known = record.specs()
    for replica in sorted(
        living, key=lambda candidate: (leaves(candidate), candidate.started_ns, candidate.fingerprint)
    ):
        place = Start(replica.slot, replica.generation)
        if replica.slot >= record.replicas or replica.generation not in known:
            stop.append(replica)
        elif place not in there:
            there[place] = replica
        elif record.updating or leaves(there[place]) or not leaves(replica) or is_healthy(there[place]):
            # After a partition a place may have two; the one that has run for longer stays.
            stop.append(replica)
    slots = range(0 if record.removed or record.waits else record.replicas)
    if not record.updating:
        wanted = [Start(slot, record.generation) for slot in slots]
        start = [place for place in wanted if place not in there or leaves(there[place])]
        return ServiceDecision(start, stop, complete=False)
    start = []
    complete = True
    for slot in slots:
        new, old = Start(slot, record.generation), Start(slot, record.previous_generation)
        if new in there and is_healthy(there[new]):
            stop += [there[old]] if old in there else []
            continue
        if old not in there:
            start.append(old)
        if complete and new not in there:
            start.append(new)
        complete = False
    return ServiceDecision(start, stop, complete)


def array_steps(
    record: ServiceRecord,
    living: Iterable[Replica],
    starting: Collection[Start],
    paused: Collection[Start] = (),
) -> ServiceDecision:
    """Return the next steps for a job that is an array; ``starting`` are the elements that are being started.

    Elements start in the order of their indices, as long as fewer run and start than may at once; those that
    are ``paused`` wait, and hold no place. One on a draining node stays there to its end.
    """
    job = record.job
    array = None if job is None else job.array
    if array is None:
        raise ValueError(f"{record.name!r} is no array")
    wanted = {} if record.waits else dict.fromkeys(Start(*place) for place in record.attempts().items())
    stop: list[Replica] = []
    placed: set[Start] = set()
    for replica in sorted(living, key=lambda candidate: (candidate.started_ns, candidate.fingerprint)):
        place = Start(replica.slot, replica.generation)
        # After a partition a place may have two; the one that has run for longer stays.
        if place in wanted and place not in placed:
            placed.add(place)
        else:
            stop.append(replica)
    occupied = placed.union(starting)
    room = max(0, array.at_once - len(occupied))
    startable = [place for place in wanted if place not in occupied and place not in paused]
    return ServiceDecision(startable[:room], stop, complete=False)
