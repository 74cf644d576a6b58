"""The list of a group's files as a keeper reads and edits it, and the replicas of the list.

The replicas are members of one record. Unlike those of a file they cannot be copied and dropped one by one: a
replica counts when a majority has made it a member, and can be destroyed when a majority has removed it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, NamedTuple

import trio

from dios import limits
from dios.errors import Busy, Conflict, DamagedError, UnreachableError
from dios.lib import catalogue
from dios.lib.catalogue import Listed
from dios.lib.closing import close_all_async
from dios.lib.kept.decisions import Copied, KeptSteps, KeptWish, Place, next_steps
from dios.lib.kept.records import KeptPromise
from dios.lib.kept.versions import CREATED, VersionState
from dios.lib.replicated_record import protocol
from dios.lib.replicated_record.asynchronous import AsyncReplicas
from dios.lib.replicated_record.frame import ZERO, Member
from dios.lib.replicated_record.protocol import Reading
from dios.lib.retrying import Pauses
from dios.wire.types import Persistence

if TYPE_CHECKING:
    from dios.client.aio.node import AsyncGroup, AsyncNode


async def read_list(node: AsyncNode, group: AsyncGroup, promise: KeptPromise) -> Listed:
    """Return the present list. Raises UnreachableError if too few nodes have it, and DamagedError."""
    async with AsyncReplicas(node, promise.target, group) as record:
        reading = await record.run(protocol.read_record())
    return catalogue.decode_all(reading.value.content or b"")


async def edit_list(
    node: AsyncNode, group: AsyncGroup, promise: KeptPromise, change: Callable[[Listed], Listed]
) -> None:
    """Change the list in one write, even if others edit it at the same time.

    ``change`` may be called several times. Raises UnreachableError if too few nodes have the list, and Busy
    or Conflict after CATALOGUE_EDIT_S.
    """
    pauses = Pauses(limits.CATALOGUE_EDIT_S, most_us=limits.CATALOGUE_PAUSE_US_MAX)
    while True:
        try:
            async with AsyncReplicas(node, promise.target, group) as record:
                reading = await record.run(protocol.read_record())
                listed = catalogue.decode_all(reading.value.content or b"")
                data = catalogue.encode(*change(listed))
                await record.run(protocol.replace(reading.value, data))
        except (Busy, Conflict) as conflict:
            if pauses.is_over:
                raise
            await trio.sleep(pauses.after(conflict))
        else:
            return


# -- replicas ---------------------------------------------------------------------------------------
def list_wish(replicas: int, places: Collection[Place], *, apart: bool) -> KeptWish:
    """Return the number of replicas of a list: at least three where there are as many nodes.

    With two, the loss of either would leave no majority that could change the list.
    """
    if replicas == 1:
        return KeptWish(1, apart=apart)
    possible = sum(place.usable and not place.draining for place in places)
    return KeptWish(min(max(replicas, limits.KEPT_LIST_REPLICAS), max(possible, replicas)), apart=apart)


class ListChange(NamedTuple):
    """The next change of the members of a list: a node to copy it to, and members to remove.

    ``settle`` is True if members have an earlier value. ``strays`` are replicas that are no members.
    """

    target: str | None
    remove: frozenset[Member]
    settle: bool
    strays: tuple[int, ...]
    steps: KeptSteps


def next_change(
    reading: Reading, object_ids: Collection[int], places: Collection[Place], wish: KeptWish, *, key: str
) -> ListChange:
    """Return the next change for a list that was read; ``object_ids`` are the object ids of all replicas."""
    members = reading.value.members
    by_name = {place.name: place for place in places}
    sound = [member for member in members if member in reading.sound]
    lost = {
        member
        for member in members
        if member not in reading.sound and _is_lost(member, reading, object_ids, by_name.get(member.node))
    }
    damaged = {node for node, error in reading.unread.items() if isinstance(error, DamagedError)}
    steps = next_steps(
        wish,
        [Copied(member.object_id, member.node, CREATED) for member in sound],
        [place._replace(refused=place.refused or place.name in damaged) for place in places],
        key=key,
    )
    dropped = {copied.object_id for copied in steps.drop}
    remove = lost | {member for member in sound if member.object_id in dropped}
    holders = {member.object_id for member in reading.holders}
    return ListChange(
        steps.targets[0] if steps.targets else None,
        frozenset(remove) if len(remove) < len(members) else frozenset(),
        settle=any(member.object_id not in holders for member in sound) or not reading.decided,
        strays=tuple(sorted(set(object_ids) - reading.value.object_ids)),
        steps=steps,
    )


def list_conflict(record: AsyncReplicas, reading: Reading) -> KeptSteps:
    """Return the report of a list whose replicas differ and have no history."""
    conflict = tuple(
        Copied(reference.object_id, reference.node, VersionState(reference.v_w, b""), reference.v_w)
        for reference in record.references.values()
    )
    return KeptSteps(
        current=reading.disks,
        conflict=conflict,
        reason="the list's replicas differ, from an earlier release; `dios group repair` unites them",
    )


def _is_lost(member: Member, reading: Reading, object_ids: Collection[int], place: Place | None) -> bool:
    """Return True if a replica will not come back: its node is lost, or answers without it, or damaged it."""
    if place is None or (not place.usable and not place.away):
        return True
    if place.away:
        return False
    return member.object_id not in object_ids or isinstance(reading.unread.get(member.node), DamagedError)


async def change_list(
    record: AsyncReplicas, reading: Reading, change: ListChange, log: Callable[[str], None]
) -> bool:
    """Carry out a change of the members, and return True if there was one.

    Raises UnreachableError without a majority, Busy or Conflict if others change the list at the same time,
    and the errors of copies.
    """
    if change.target is not None:
        await _add(record, reading, change)
        return True
    if change.remove:
        await record.run(protocol.change_members(lambda members: set(members) - change.remove))
        for member in change.remove & set(reading.sound):
            log(f"removed the list's replica on {member.node}, which the promise does not need")
            await record.destroy(member.object_id)
        return True
    if change.settle or (reading.is_plain and len(reading.value.members) > 1):
        await record.run(protocol.propose(lambda present: present))
        return True
    return False


async def _add(record: AsyncReplicas, reading: Reading, change: ListChange) -> None:
    """Copy the list to a further node and make the copy a member, in place of those to remove."""
    if reading.value.ballot == ZERO:
        # From now on a copy does not count as a replica before it is added.
        await record.run(protocol.propose(lambda present: present))
    holders = {member.object_id for member in reading.holders}
    source = next((reference for number, reference in record.references.items() if number in holders), None)
    if source is None or change.target is None:
        raise UnreachableError("the list's replicas changed while one was added", call="copy")
    copied = await source.copy(persistence=Persistence.DURABLE, host=change.target)
    added = Member(copied.object_id, copied.node)

    def with_added(members: tuple[Member, ...]) -> set[Member]:
        stay = set(members) - change.remove
        return stay if any(member.node == added.node for member in stay) else {*stay, added}

    try:
        outcome = await record.run(protocol.change_members(with_added))
    finally:
        await close_all_async([copied])
    if added not in outcome.value.members:
        await record.destroy(added.object_id)
    for member in change.remove & set(reading.sound):
        await record.destroy(member.object_id)
