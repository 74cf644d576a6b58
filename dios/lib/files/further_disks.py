"""Further durable replicas of files: for puts that several disks acknowledge."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from dios.client.sync.connection import Connection
from dios.client.sync.node import Group, Node, Reference
from dios.errors import DiosError, UnreachableError
from dios.lib.closing import close_all
from dios.lib.files.kept_copies import digest_of
from dios.lib.files.placing import further_places, next_place, present_places
from dios.wire.nametext import fingerprint
from dios.wire.types import ObjectType, Persistence


def copy_all(node: Node, group: Group, stored: Sequence[Reference], disks: int) -> None:
    """Make replicas of new objects, each of which is on one disk, many at a time.

    Raises UnreachableError if too few nodes take one of them.
    """
    if disks < 2:
        return
    places = present_places(node, ())
    again: list[Reference] = []
    wanted: list[tuple[Reference, str]] = []
    for reference in stored:
        targets = further_places(places, [reference.node], disks, key=reference.fingerprint)
        again += [reference] if len(targets) < disks - 1 else []
        wanted += [(reference, place) for place in targets]
    copies = (source.copy_op(host=place, persistence=Persistence.DURABLE) for source, place in wanted)
    outcomes = cast("Connection", node.link).run_each(copies)
    with node.batch() as batch:
        for (reference, _), copied in zip(wanted, outcomes, strict=True):
            if isinstance(copied, DiosError):
                again.append(reference)
            else:
                batch.add(copied.close)
    for reference in again:
        hold_on(node, group, reference.name or b"", disks)


def hold_on(node: Node, group: Group, name: bytes, disks: int, digest: bytes = b"") -> None:
    """Make replicas of an object until it is on the disks of this number of nodes.

    Replicas that were there before count if their bytes have the ``digest``; any does without one. Copies
    that are made now have the bytes of one of these, because the nodes check them on the way. A log stays in
    one place. Raises UnreachableError, with the reason of each node that refused, if too few nodes take it.
    """
    replicas = node.lookup(name, group=group)
    try:
        durable = [reference for reference in replicas if reference.type is ObjectType.DURABLE_BLOB]
        if any(reference.type is ObjectType.DURABLE_STREAM for reference in replicas):
            return  # a log is in one place
        few = len(durable) == 1 or not digest
        sound = {reference.node: reference for reference in durable if few or digest_of(reference) == digest}
        mark = fingerprint(name)
        refusals = {
            reference.node: "its replica has other bytes"
            for reference in durable
            if reference.node not in sound
        }
        while len(sound) < disks:
            place = next_place(node, sound, disks, refusals, key=mark) if sound else None
            if place is None:
                why = "; ".join(f"{at}: {reason}" for at, reason in refusals.items())
                raise UnreachableError(
                    f"{len(sound)} of {disks} disks took {mark} ({why or 'no further node can take it'})"
                )
            source = next(iter(sound.values()))
            try:
                with source.copy(host=place, persistence=Persistence.DURABLE):
                    sound[place] = source
            except DiosError as error:
                refusals[place] = error.message
    finally:
        close_all(replicas)
