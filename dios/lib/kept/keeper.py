"""The keeper of one user's replicas on one node: while the node leads, it copies and drops replicas.

It runs in the node's process, with a session of the node that acts for the user, as the supervisor of
services does. It presents the groups that the user's promises name, and no others. A round looks at a bounded
number of objects; copies run next to the rounds, at most KEPT_COPIES_AT_ONCE.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Final, NamedTuple

import trio

from dios import limits
from dios.errors import (
    BadReferenceError,
    ClosedError,
    DamagedError,
    DiosError,
    ExistsError,
    InvalidError,
    LimitError,
    NoSpaceError,
    StaleError,
    UnreachableError,
)
from dios.lib import catalogue
from dios.lib.catalogue import Note, Part
from dios.lib.kept import lists, notes, replicas
from dios.lib.kept.decisions import Copied, KeptSteps, KeptWish, Place, next_steps
from dios.lib.kept.leading import FoundReplicas, Leading, ShortOfPromise
from dios.lib.kept.list_replicas import change_list, list_conflict, list_wish, next_change
from dios.lib.kept.notes import WaitingNote
from dios.lib.kept.objects import PromisedObject
from dios.lib.kept.records import KEPT_RECORDS, KeptPromise, KeptState
from dios.lib.kept.versions import CREATED, Seen, is_beyond_repair, latest, noted
from dios.lib.replicated_record import protocol
from dios.lib.replicated_record.asynchronous import AsyncReplicas
from dios.lib.replicated_record.protocol import Reading
from dios.lib.supervised.copies import RecordCopies
from dios.lib.supervised.leadership import Leadership
from dios.wire.nametext import fingerprint
from dios.wire.types import Flag, NodeStatus, ObjectType

if TYPE_CHECKING:
    from dios.client.aio.node import AsyncGroup, AsyncNode, AsyncReference
    from dios.client.ops.cluster import Member


class LeavingReplicas(NamedTuple):
    """The replicas of promised objects that have to leave draining nodes, as a leading keeper knows them.

    ``nodes`` is the number of draining nodes that it knows. ``checked`` is False until it has looked at every
    object since the nodes changed.
    """

    nodes: int
    replicas: int
    size: int
    checked: bool


class Keeper:
    """The keeper of one user's replicas; ``node`` is a session that acts for the user.

    ``grace_ms`` is the time after which the replicas of a node that does not answer count as lost, ``rate``
    the bytes per second of copies.
    """

    def __init__(self, node: AsyncNode, log: Callable[[str], None], *, grace_ms: int, rate: int) -> None:
        self._node: Final = node
        self._log: Final = log
        self._grace_s: Final = grace_ms / 1000
        self._rate: Final = rate
        self._copies: Final = RecordCopies(node, KEPT_RECORDS)
        self._leadership: Final = Leadership()
        self._members: tuple[tuple[int, NodeStatus, bool], ...] = ()
        self._silent: dict[int, float] = {}
        self._met: set[str] = set()
        """The names of all nodes that were in the cluster since this keeper began."""
        self._unusable: set[str] = set()
        self._alone_until: float | None = None
        """The time since which this keeper's node knows others; None while it knows none."""
        self._places: tuple[Place, ...] = ()
        self._repaired_at = float("-inf")
        self._leading: Leading | None = None
        self._acting: trio.CancelScope = trio.CancelScope()
        self._board: AsyncReference | None = None
        self._shown = b""

    @property
    def leaving(self) -> LeavingReplicas | None:
        """The replicas that have to leave draining nodes, or None while this node does not lead."""
        leading = self._leading
        if leading is None:
            return None
        nodes = sum(place.draining for place in self._places)
        left = leading.leaving.values()
        return LeavingReplicas(
            nodes,
            sum(count for count, _ in left),
            sum(size for _, size in left),
            not leading.order.unchecked,
        )

    async def run(self) -> None:
        """Keep replicas until cancelled. Raise DiosError if the connection ends."""
        failure = ""
        while True:
            async with trio.open_nursery() as nursery:
                # Copies end when this node stops leading.
                self._acting = nursery.cancel_scope
                while True:
                    try:
                        await self._round(nursery)
                        failure = ""
                    except ClosedError:
                        raise
                    except DiosError as error:
                        if error.message != failure:
                            failure = error.message
                            self._log(failure)
                        self._repaired_at = float("-inf")
                    await trio.sleep(limits.KEPT_ROUND_MS / 1000)

    async def _round(self, nursery: trio.Nursery) -> None:
        now = trio.current_time()
        members = await self._node.nodes()
        self._note_silence(members, now)
        known = tuple(sorted((member.node, member.status, member.draining) for member in members))
        moved = known != self._members
        late = moved or now - self._repaired_at > limits.SERVICE_REPAIR_MS / 1000
        if late:
            await self._copies.find()
            self._members, self._repaired_at = known, now
        here = next(member for member in members if member.here)
        if not self._leadership.holds(members, here, self._copies.nodes, now):
            await self._rest()
            return
        begins = self._leading is None
        leading = self._leading = self._leading or Leading()
        if late or begins:
            await self._copies.repair([member.name for member in members if member.usable])
        state = await self._copies.read_own(here.name)
        places = self._present_places(members, leading, now)
        if moved or begins or places != self._places:
            self._places = places
            leading.order.hurry()
            leading.order.doubt_all()
        # A node that dies keeps the list as it is now, so that its version is noted before the next one.
        await self._list_objects(state, leading)
        if any(member.status is NodeStatus.SUSPECT for member in members):
            await self._note_seen(state, leading)
            return  # the members will say within seconds if its replicas are lost
        await self._look_at_some(state, leading, nursery)
        self._begin_comparing(leading, nursery)
        self._begin_notes(state, leading, nursery)
        await self._note_seen(state, leading)
        await self._show(leading, here.name)

    async def _rest(self) -> None:
        """Forget what this node knew as the leader."""
        if self._leading is not None:
            self._leading = None
            board, self._board = self._board, None
            self._acting.cancel()
            if board is not None:
                with trio.CancelScope(shield=True), suppress(DiosError):
                    await board.destroy()

    # -- nodes --------------------------------------------------------------------------------------
    @property
    def _known(self) -> set[str] | None:
        """The nodes that live, and those that were removed: they will not come back with a replica.

        A node that nobody has named within the grace time was removed before this keeper began: None then,
        for all.
        """
        since = self._alone_until
        if since is not None and trio.current_time() - since > self._grace_s:
            return None
        return self._met - self._unusable

    def _note_silence(self, members: Sequence[Member], now: float) -> None:
        self._met |= {member.name for member in members}
        self._unusable = {member.name for member in members if not member.usable}
        if len(members) == 1:
            self._alone_until = None
        elif self._alone_until is None:
            self._alone_until = now
        silent = {member.node for member in members if not member.usable}
        self._silent = {node: self._silent.get(node, now) for node in silent}

    def _present_places(self, members: Sequence[Member], leading: Leading, now: float) -> tuple[Place, ...]:
        leading.refused = {name: why for name, why in leading.refused.items() if why[0] > now}
        return tuple(
            Place(
                member.name,
                member.rack,
                usable=member.usable,
                draining=member.draining,
                away=not member.usable and now - self._silent[member.node] < self._grace_s,
                refused=member.name in leading.refused,
            )
            for member in members
        )

    # -- objects ------------------------------------------------------------------------------------
    async def _list_objects(self, state: KeptState, leading: Leading) -> None:
        """Read the catalogues that have changed, and list the objects of all promises."""
        promises = {promise.key: promise for promise in state.living()}
        promised = changed = promises != leading.promises
        leading.promises = promises
        leading.listed = {key: names for key, names in leading.listed.items() if key in promises}
        for key, promise in promises.items():
            if promise.is_single:
                continue
            try:
                if await self._read_list(promise, leading):
                    changed = True
                leading.failures.pop(key, None)
            except ClosedError:
                raise
            except DiosError as error:
                leading.failures[key] = error.message
        if not changed:
            return
        objects: dict[bytes, PromisedObject] = {}
        for key, (_, parts) in leading.listed.items():
            for start in range(0, len(parts), limits.KEPT_LISTED_AT_ONCE):
                some = parts[start : start + limits.KEPT_LISTED_AT_ONCE]
                objects.update({part.name: PromisedObject(key, part.digest) for part in some})
                await trio.lowlevel.checkpoint()
        for key, kept_promise in promises.items():
            if kept_promise.is_single:
                listed = objects.get(kept_promise.target, PromisedObject(key))
                objects[kept_promise.target] = listed._replace(promise=key)
        for _ in leading.order.replace(objects):
            await trio.lowlevel.checkpoint()
        if promised:
            leading.order.hurry()
        leading.short = {name: short for name, short in leading.short.items() if name in objects}
        leading.leaving = {name: left for name, left in leading.leaving.items() if name in objects}
        leading.comparisons.forget_others(objects)
        leading.ending &= objects.keys()
        leading.notes = {key: waiting for key, waiting in leading.notes.items() if key in promises}
        former = leading.awaited
        waiting = (waiting_note for several in leading.notes.values() for waiting_note in several)
        leading.awaited = {part.name for waiting_note in waiting for part in waiting_note.waits_for or ()}
        leading.kept &= leading.awaited
        for name in leading.awaited - former:
            leading.order.again(name, 0.0)

    async def _read_list(self, promise: KeptPromise, leading: Leading) -> bool:
        """Read the list of a group's files if it has changed; return True then."""
        group = await self._group(promise.group, leading)
        async with AsyncReplicas(self._node, promise.target, group, self._known) as record:
            versions = frozenset((await record.look()).versions.items())
            former = leading.listed.get(promise.key)
            if former is not None and versions and former[0] == versions:
                return False
            size = max((reference.size for reference in record.references.values()), default=0)
            if size > limits.KEPT_LIST_BYTES_MAX:
                raise InvalidError(
                    f"the list of the group's files has {size} bytes, more than "
                    f"{limits.KEPT_LIST_BYTES_MAX}. Divide the group."
                )
            reading = await record.run(protocol.read_record())
        if former is not None and former[0] != versions:
            leading.order.again(promise.target, 0.0)
        data = reading.value.content or b""
        parts = [Part(promise.target, b"")]
        for count, entry in enumerate(catalogue.decode_slowly(data)):
            parts.extend(entry.objects)
            if not count % limits.KEPT_LOOKS_MAX:
                await trio.lowlevel.checkpoint()
        noted_files = catalogue.decode_notes(data)
        waiting = notes.waiting_notes(noted_files, {part.name for part in parts}) if noted_files else ()
        # A former file stays as safe as it was while its replacement is not.
        parts.extend(
            part
            for waiting_note in waiting
            if waiting_note.note.until
            for part in waiting_note.note.former.objects
        )
        changed = former is None or former[1] != tuple(parts) or waiting != leading.notes.get(promise.key, ())
        leading.listed[promise.key] = versions, tuple(parts)
        leading.notes[promise.key] = waiting
        return changed

    async def _group(self, name: bytes, leading: Leading) -> AsyncGroup:
        if leading.groups.get(name) is None:
            leading.groups[name] = await self._node.group(name)
        group = leading.groups[name]
        if group is None:
            raise InvalidError("the group was destroyed, or belongs to another user")
        return group

    # -- looks --------------------------------------------------------------------------------------
    async def _look_at_some(self, state: KeptState, leading: Leading, nursery: trio.Nursery) -> None:
        at_once = trio.CapacityLimiter(limits.KEPT_LOOKS_AT_ONCE)

        async def look(name: bytes, key: str) -> None:
            async with at_once:
                try:
                    await self._look(name, leading.promises[key], state, leading, nursery)
                    leading.order.unchecked.discard(name)
                except ClosedError:
                    raise
                except DiosError:
                    leading.order.again(name, trio.current_time() + limits.KEPT_AGAIN_MS / 1000)

        async with trio.open_nursery() as looks:
            for name in leading.order.take(trio.current_time()):
                covered = leading.order.covered(name)
                if covered is not None and covered.promise in leading.promises:
                    looks.start_soon(look, name, covered.promise)

    async def _look(
        self,
        name: bytes,
        promise: KeptPromise,
        state: KeptState,
        leading: Leading,
        nursery: trio.Nursery,
    ) -> None:
        """Look at the replicas of one object, and begin the next steps for it."""
        group = await self._group(promise.group, leading)
        if name == promise.target and not promise.is_single:
            await self._look_at_list(promise, group, leading)
            return
        async with replicas.references_to(self._node, name, group) as references:
            if references and references[0].type is ObjectType.DURABLE_STREAM:
                return  # a log is in one place
            if (
                promise.is_single
                and not references
                and not references.incomplete
                and all(place.usable for place in self._places)
            ):
                await self._end_promise(promise)
                return
            mark = fingerprint(name)
            covered = leading.order.covered(name)
            part = Part(name, covered.digest if covered is not None else b"")
            seen: tuple[Seen, ...] = ()
            if part.digest:
                there = leading.compared(part, references)
            else:
                there, seen = await self._versions(name, promise, references, state, leading)
            steps = next_steps(
                KeptWish(promise.replicas, promise.apart),
                [copied for copied, _ in there.copies.values()],
                [
                    place._replace(refused=place.refused or place.name in there.damaged)
                    for place in self._places
                ],
                key=mark,
                seen=seen,
                unsound=[copied for copied, _ in (*there.unsound.values(), *there.outdated.values())],
                whole=not references.incomplete,
            )
            if there.damaged and steps.short:
                steps = steps._replace(reason=f"the replica on {min(there.damaged)} is damaged")
            self._note_compared(part, promise, there, steps, leading)
            if steps.drop and not await self._may_drop(part, there, steps, leading):
                steps = steps._replace(drop=())
            self._note_leaving(name, there, leading)
            others = await self._drop(mark, there, steps)
        removed = {copied.node for copied, _ in there.unsound.values()} - others
        if removed:
            why = f"{_other_bytes(removed, 'had')}; removed"
            leading.note_removed(
                name, ShortOfPromise(promise.key, promise.replicas, steps.current, int(time.time()), why, ())
            )
        self._note(
            name, promise, steps, leading, _other_bytes(others, "has"), incomplete=references.incomplete
        )
        for target in steps.targets:
            if steps.source is not None:
                self._begin_copy(part, promise, steps.source, target, leading, nursery)

    async def _look_at_list(self, promise: KeptPromise, group: AsyncGroup, leading: Leading) -> None:
        """Look at the replicas of a list, and make the next change of its members."""
        name, mark = promise.target, fingerprint(promise.target)
        async with AsyncReplicas(self._node, name, group, self._known) as record:
            await record.look()
            reading = await record.run(protocol.read_record())
            wish = list_wish(promise.replicas, self._places, apart=promise.apart)
            change = next_change(reading, record.references, self._places, wish, key=mark)
            steps = change.steps._replace(drop=())
            if reading.divided:
                steps = list_conflict(record, reading)
            elif change.target is None or self._may_copy(leading):
                self._charge(leading, reading.value.size if change.target else 0)
                try:
                    changed = await change_list(record, reading, change, self._log)
                except (UnreachableError, NoSpaceError, LimitError) as error:
                    if change.target is None:
                        raise
                    why = f"{change.target}: {error.message}"
                    leading.refused[change.target] = (
                        trio.current_time() + limits.KEPT_REFUSED_MS / 1000,
                        why,
                    )
                    changed = True
                if changed:
                    leading.order.again(name, trio.current_time() + limits.KEPT_AGAIN_MS / 1000)
            await self._drop_strays(change.strays, record, reading, leading)
            draining = {place.name for place in self._places if place.draining}
            left = [member for member in reading.sound if member.node in draining]
            leading.leaving.pop(name, None)
            if left:
                leading.leaving[name] = len(left), len(left) * reading.value.size
        damaged = "; ".join(
            f"the list's replica on {node} is damaged: {error.message}"
            for node, error in reading.unread.items()
            if isinstance(error, DamagedError)
        )
        steps = steps._replace(current=reading.disks, short=max(promise.replicas - reading.disks, 0))
        self._note(name, promise, steps, leading, damaged, incomplete=not record.complete)

    async def _drop_strays(
        self, strays: Collection[int], record: AsyncReplicas, reading: Reading, leading: Leading
    ) -> None:
        """Destroy replicas of a list that were not made members within some time.

        One without a header stays: its node was away when an earlier release's list got its history, and it
        may have files that are in no other replica.
        """
        now = trio.current_time()
        if not record.complete or not reading.decided or reading.is_plain:
            return
        leading.strays = {stray: at for stray, at in leading.strays.items() if stray in strays or at > now}
        for object_id in strays:
            due = leading.strays.setdefault(object_id, now + limits.KEPT_STRAY_MS / 1000)
            if due > now:
                leading.order.again(record.name, due)
            elif not await record.is_plain(object_id):
                await record.destroy(object_id)
                del leading.strays[object_id]

    async def _versions(
        self,
        name: bytes,
        promise: KeptPromise,
        references: Iterable[AsyncReference],
        state: KeptState,
        leading: Leading,
    ) -> tuple[FoundReplicas, tuple[Seen, ...]]:
        """Return the replicas of an object without a digest, and the versions that were seen."""
        mark, there = fingerprint(name), FoundReplicas({}, {}, set(), {})
        damaged: list[AsyncReference] = []
        for reference in filter(replicas.is_durable_blob, references):
            # Programs may write to an object with a promise of its own.
            held = await leading.state(reference, written=promise.is_single)
            if held is None:
                damaged.append(reference)
            else:
                there.copies[reference.object_id] = (
                    Copied(reference.object_id, reference.node, held, held.v_w),
                    reference,
                )
        self._charge(leading)
        states = {object_id: copied.state for object_id, (copied, _) in there.copies.items()}
        before = leading.seen.get(mark, state.seen.get(mark, ()))
        for reference in damaged:
            if is_beyond_repair(reference.object_id, reference.v_w, states.values(), before):
                there.outdated[reference.object_id] = (
                    Copied(reference.object_id, reference.node, CREATED, reference.v_w),
                    reference,
                )
            else:
                there.damaged.add(reference.node)
        seen = noted(before, states)
        if seen != before:
            leading.seen[mark] = seen
        return there, seen

    def _note_compared(
        self, part: Part, promise: KeptPromise, there: FoundReplicas, steps: KeptSteps, leading: Leading
    ) -> None:
        """Note if all replicas were compared, and if the object is kept as far as notes wait for that."""
        copies = [copied for copied, _ in there.copies.values()]
        verified = not part.digest or all(copied.verified for copied in copies)
        if verified:
            leading.unverified.pop(part.name, None)
        else:
            leading.unverified.setdefault(part.name, promise.key)
            versions = {copied.v_w for copied in copies}
            if len(versions) > 1 or max(versions) > 1 or part.name in leading.awaited:
                leading.urgent.setdefault(part.name)  # no put leaves such versions
        leading.kept.discard(part.name)
        if part.name not in leading.awaited:
            return
        kept = verified and len(self._homes(copies)) >= promise.replicas
        if kept if part.digest else not steps.short and not steps.conflict:
            leading.kept.add(part.name)

    def _homes(self, copies: Iterable[Copied]) -> set[str]:
        """Return the nodes with replicas that are to stay there."""
        staying = {place.name for place in self._places if place.usable and not place.draining}
        return {copied.node for copied in copies} & staying

    async def _may_drop(self, part: Part, there: FoundReplicas, steps: KeptSteps, leading: Leading) -> bool:
        """Return True if each replica that stays has its bytes, as was seen not long ago."""
        gone = {copied.object_id for copied in steps.drop}
        staying = [
            (copied, reference)
            for object_id, (copied, reference) in there.copies.items()
            if object_id not in gone
        ]
        if not await leading.are_readable([reference for _, reference in staying]):
            leading.order.again(part.name, trio.current_time())
            return False
        fresh = leading.comparisons.is_fresh
        if part.digest and not all(fresh(part, copied.object_id, copied.v_w) for copied, _ in staying):
            leading.urgent.setdefault(part.name)
            return False
        return True

    def _note_leaving(self, name: bytes, there: FoundReplicas, leading: Leading) -> None:
        draining = {place.name for place in self._places if place.draining}
        several = (*there.copies.values(), *there.unsound.values())
        left = [reference for _, reference in several if reference.node in draining]
        leading.leaving.pop(name, None)
        if left:
            leading.leaving[name] = len(left), sum(reference.size for reference in left)

    async def _drop(self, mark: str, there: FoundReplicas, steps: KeptSteps) -> set[str]:
        """Drop replicas, and return the nodes that still have one with other bytes."""
        others = {copied.node for copied, _ in there.unsound.values()}
        for gone in steps.drop:
            _, reference = (there.copies | there.unsound | there.outdated)[gone.object_id]
            if not await replicas.drop(reference, gone.v_w):
                continue
            if gone.object_id in there.unsound:
                others.discard(gone.node)
                self._log(f"dropped the replica of {mark} on {gone.node}, which had other bytes")
            elif gone.object_id in there.outdated:
                self._log(f"dropped the replica of {mark} on {gone.node}, which is damaged and outdated")
            else:
                self._log(f"dropped a replica of {mark} on {gone.node}, which its promise does not need")
        return others

    def _note(
        self,
        name: bytes,
        promise: KeptPromise,
        steps: KeptSteps,
        leading: Leading,
        others: str,
        *,
        incomplete: bool,
    ) -> None:
        """Note if the object is short of its promise, and look at it again soon if there is more to do."""
        former = leading.short.pop(name, None)
        if (steps.short or steps.conflict or others) and len(leading.short) < limits.KEPT_SHORT_MAX:
            refusals = "; ".join(sorted({why for _, why in leading.refused.values()}))
            reason = others or steps.reason
            leading.short[name] = ShortOfPromise(
                promise.key,
                promise.replicas,
                steps.current,
                int(time.time()) if former is None else former.since,
                f"{reason} ({refusals})" if refusals and not steps.conflict else reason,
                tuple(f"{copied.node}: version {copied.state.v_w}" for copied in steps.conflict),
            )
        if steps.targets or steps.drop or steps.short or others or incomplete or name in leading.leaving:
            leading.order.again(name, trio.current_time() + limits.KEPT_AGAIN_MS / 1000)

    async def _end_promise(self, promise: KeptPromise) -> None:
        """Take back the promise for a single object that was destroyed."""
        ended = KeptPromise(
            max(promise.version + 1, time.time_ns() // 1_000_000),
            promise.group,
            promise.target,
            promise.label,
            0,
            is_single=True,
        )
        await self._copies.store(KeptState({ended.key: ended}))

    async def _note_seen(self, state: KeptState, leading: Leading) -> None:
        fresh, leading.seen = leading.seen, {}
        if any(state.seen.get(mark) != versions for mark, versions in fresh.items()):
            await self._copies.store(KeptState(seen=fresh))

    # -- copies -------------------------------------------------------------------------------------
    def _charge(self, leading: Leading, count: int = 0) -> None:
        """Let bytes that were read or copied delay the next copy."""
        total = count + leading.digests.bytes_read
        leading.digests.bytes_read = 0
        leading.not_before = max(leading.not_before, trio.current_time()) + total / self._rate

    def _may_copy(self, leading: Leading) -> bool:
        """Return True if the number of copies and their rate allow for another one."""
        free = len(leading.copying) < limits.KEPT_COPIES_AT_ONCE
        return free and trio.current_time() >= leading.not_before

    def _begin_copy(
        self,
        part: Part,
        promise: KeptPromise,
        source: Copied,
        target: str,
        leading: Leading,
        nursery: trio.Nursery,
    ) -> None:
        place = (part.name, target)
        if place in leading.copying or part.name in leading.ending:
            return
        if self._may_copy(leading):
            leading.copying.add(place)
            nursery.start_soon(self._copy, part, promise, source, target, leading)

    async def _copy(
        self, part: Part, promise: KeptPromise, source: Copied, target: str, leading: Leading
    ) -> None:
        name = part.name

        async def charge(count: int) -> None:
            self._reserve(leading, count)  # other comparisons wait, and copies do not

        try:
            group = await self._group(promise.group, leading)
            async with replicas.references_to(self._node, name, group) as references:
                reference = next(
                    (candidate for candidate in references if candidate.object_id == source.object_id), None
                )
                if reference is None or reference.v_w != source.v_w:
                    return
                if (
                    part.digest
                    and not source.verified
                    and not await leading.is_sound(part, reference, charge)
                ):
                    return  # other bytes are never copied
                self._charge(leading, reference.size)
                try:
                    replica = await replicas.copy_to(self._node, name, group, reference, target)
                except DamagedError:
                    if not await leading.are_readable([reference]):
                        return
                    raise  # the disk of the target failed
                if replica is not None:
                    if part.digest:
                        await leading.is_sound(part, replica, charge)
                    elif replica.v_w == source.v_w:
                        leading.digests.note(replica.object_id, source.state)
                    with suppress(DiosError):
                        await replica.close()
        except ClosedError:
            return
        except DiosError as error:
            if not isinstance(error, StaleError | BadReferenceError):
                why = f"{target}: {error.message}"
                leading.refused[target] = (trio.current_time() + limits.KEPT_REFUSED_MS / 1000, why)
                self._log(f"cannot copy {fingerprint(name)} to {why}")
        finally:
            leading.copying.discard((name, target))
            leading.order.again(name, trio.current_time())

    # -- comparisons --------------------------------------------------------------------------------
    def _begin_comparing(self, leading: Leading, nursery: trio.Nursery) -> None:
        """Compare bytes next to the rounds, those on which something depends first."""
        free = limits.KEPT_COMPARES_AT_ONCE - leading.tasks["compare"]
        waiting = len(leading.urgent) + (0 if leading.comparisons.is_full else len(leading.unverified))
        for _ in range(min(free, waiting)):
            leading.tasks["compare"] += 1
            nursery.start_soon(self._compare_some, leading)

    async def _compare_some(self, leading: Leading) -> None:
        """Compare the replicas of each object that waits now, once."""
        try:
            for _ in range(len(leading.urgent) + len(leading.unverified)):
                name = leading.next_doubt()
                if name is None:
                    break
                urgent = name in leading.urgent
                leading.urgent.pop(name, None)
                covered = leading.order.covered(name)
                promise = None if covered is None else leading.promises.get(covered.promise)
                if covered is None or promise is None or not covered.digest:
                    leading.unverified.pop(name, None)
                    continue
                if name in leading.comparing:
                    continue
                leading.comparing.add(name)
                try:
                    await self._compare(Part(name, covered.digest), promise, leading, fresh=urgent)
                finally:
                    leading.comparing.discard(name)
        except ClosedError:
            return  # the rounds end, too
        finally:
            leading.tasks["compare"] -= 1

    async def _compare(self, part: Part, promise: KeptPromise, leading: Leading, *, fresh: bool) -> None:
        """Compare the replicas of an object that were not compared, or with ``fresh`` not lately."""
        done = leading.comparisons.is_fresh if fresh else leading.comparisons.known
        try:
            group = await self._group(promise.group, leading)
            async with replicas.references_to(self._node, part.name, group) as references:
                several = [reference for reference in references if replicas.is_durable_blob(reference)]
                for replica in several:
                    if not done(part, replica.object_id, replica.v_w) and not leading.is_damaged(
                        replica.object_id
                    ):
                        await leading.is_sound(part, replica, partial(self._pace, leading))
                there = leading.compared(part, several)
                if not references.incomplete:
                    leading.comparisons.forget_gone(part, {reference.object_id for reference in several})
        except ClosedError:
            raise
        except DiosError:
            return  # in its next turn
        if all(copied.verified for copied, _ in there.copies.values()):
            leading.unverified.pop(part.name, None)
        if fresh or there.unsound:
            leading.order.again(part.name, trio.current_time())

    async def _pace(self, leading: Leading, count: int) -> None:
        """Wait until bytes may be read for a comparison."""
        await trio.sleep_until(self._reserve(leading, count))

    def _reserve(self, leading: Leading, count: int) -> float:
        """Let the next comparisons wait for this number of bytes, and return the time until which."""
        begin = max(leading.compares_not_before, trio.current_time())
        leading.compares_not_before = begin + count / self._rate
        return leading.compares_not_before

    # -- notes --------------------------------------------------------------------------------------
    def _begin_notes(self, state: KeptState, leading: Leading, nursery: trio.Nursery) -> None:
        """Carry out notes next to the rounds: of promised groups, and of groups whose promise has ended."""
        if leading.tasks["notes"]:
            return
        now = trio.current_time()
        for key, waiting in leading.notes.items():
            due = [waiting_note.note for waiting_note in waiting if self._may_be_due(waiting_note, leading)]
            if due:
                leading.tasks["notes"] += 1
                nursery.start_soon(self._carry_out_some, leading.promises[key], leading)
                return
        ended = [
            promise for promise in state.promises.values() if not promise.replicas and not promise.is_single
        ]
        if ended and now - leading.ended_at >= limits.KEPT_ENDED_LOOK_MS / 1000:
            leading.ended_at = now
            leading.ended_turn = (leading.ended_turn + 1) % len(ended)
            leading.tasks["notes"] += 1
            nursery.start_soon(self._carry_out_some, ended[leading.ended_turn], leading)

    def _may_be_due(self, waiting_note: WaitingNote, leading: Leading) -> bool:
        """Return True if the objects for which a note waits are kept, as far as the looks have shown."""
        if waiting_note.waits_for is None or not all(place.usable for place in self._places):
            return False
        return all(part.name in leading.kept for part in waiting_note.waits_for)

    async def _carry_out_some(self, promise: KeptPromise, leading: Leading) -> None:
        try:
            await self._carry_out(promise, leading)
        except ClosedError:
            return
        except DiosError as error:
            if promise.replicas:
                self._log(f"cannot destroy former files of {promise.key}: {error.message}")
        finally:
            leading.tasks["notes"] -= 1

    async def _carry_out(self, promise: KeptPromise, leading: Leading) -> None:
        """Destroy the objects of former files whose replacements are kept, then remove their notes."""
        if not all(place.usable for place in self._places):
            return  # a node that is away may have a former object
        group = await self._group(promise.group, leading)
        content = await lists.read_list(self._node, group, promise)
        if not content.notes:
            return
        needed = notes.needed_names(content)
        waiting = notes.waiting_notes(content.notes, needed)
        done: set[Note] = set()
        for waiting_note in waiting:
            if len(done) >= limits.KEPT_NOTES_AT_ONCE:
                break
            if promise.replicas and not self._may_be_due(waiting_note, leading):
                continue
            if waiting_note.waits_for is not None and await self._are_kept(
                waiting_note.waits_for, promise, group, leading
            ):
                former = [name for name in waiting_note.note.former.local_names if name not in needed]
                leading.ending.update(former)
                if await self._destroy_former(former, group, leading):
                    done.add(waiting_note.note)
        if done:
            await lists.edit_list(self._node, group, promise, lambda now: notes.without(now, done))
            self._log(f"destroyed {len(done)} former files of {promise.key}, whose replacements are kept")

    async def _are_kept(
        self, parts: Iterable[Part], promise: KeptPromise, group: AsyncGroup, leading: Leading
    ) -> bool:
        """Return True if each object has as many sound replicas as are promised, or one without a promise."""
        for part in parts:
            async with replicas.references_to(self._node, part.name, group) as references:
                several = [reference for reference in references if replicas.is_durable_blob(reference)]
                if part.digest:
                    sound = [
                        replica.node
                        for replica in several
                        if await self._is_freshly_sound(part, replica, leading)
                    ]
                else:
                    states = [await leading.digests.state(replica, written=False) for replica in several]
                    heads = latest(states, ())
                    sound = [replica.node for replica in several] if len(heads) == 1 else []
                is_log = any(reference.type is ObjectType.DURABLE_STREAM for reference in references)
            homes = {place.name for place in self._places if place.usable and not place.draining}
            covered = leading.order.covered(part.name)
            own = promise if covered is None else leading.promises.get(covered.promise, promise)
            if not is_log and len(homes & set(sound)) < max(own.replicas, 1):
                return False
        return True

    async def _is_freshly_sound(self, part: Part, reference: AsyncReference, leading: Leading) -> bool:
        if leading.comparisons.is_fresh(part, reference.object_id, reference.v_w):
            return True
        return await leading.is_sound(part, reference, partial(self._pace, leading))

    async def _destroy_former(self, names: Iterable[bytes], group: AsyncGroup, leading: Leading) -> bool:
        """Destroy objects on all nodes; return False if a node may still have one."""
        if not all(place.usable for place in self._places):
            return False
        for name in names:
            if any(copied == name for copied, _ in leading.copying):
                return False
            if not await notes.destroy(self._node, group, name):
                return False
        return True

    # -- reports ------------------------------------------------------------------------------------
    async def _show(self, leading: Leading, here: str) -> None:
        """Write what only the leader knows where the user's commands read it."""
        short = Counter(lack.promise for lack in leading.short.values())
        unverified = Counter(leading.unverified.values())
        conflicts = Counter(lack.promise for lack in leading.short.values() if lack.conflict)
        oldest: dict[str, ShortOfPromise] = {}
        for lack in leading.short.values():
            known = oldest.get(lack.promise)
            if known is None or lack.since < known.since:
                oldest[lack.promise] = lack
        told = {
            "leader": here,
            "checked": not leading.order.hurried,
            "promises": {
                key: {
                    "objects": 1 if promise.is_single else len(leading.listed.get(key, ((), ()))[1]),
                    "short": short[key],
                    "conflicts": conflicts[key],
                    "unverified": unverified[key],
                    "since": oldest[key].since if key in oldest else 0,
                    "reason": oldest[key].reason if key in oldest else leading.failures.get(key, ""),
                }
                for key, promise in leading.promises.items()
            },
            "objects": {
                fingerprint(name): row._asdict()
                for name, row in islice(leading.shown(int(time.time())).items(), limits.KEPT_SHOWN_MAX)
            },
        }
        data = json.dumps(told).encode()
        if self._board is None:
            try:
                self._board = await self._node.create(ObjectType.SHMEM_BLOB, flags=Flag.KEPT)
            except ExistsError:
                references = await self._node.lookup(KEPT_RECORDS.special_name, local_only=True)
                self._board = next(
                    (reference for reference in references if reference.type is ObjectType.SHMEM_BLOB), None
                )
            self._shown = b""
        if self._board is not None and data != self._shown:
            try:
                await self._board.write_bytes(data)
            except DiosError:
                self._board = None
                raise
            self._shown = data


def _other_bytes(nodes: Collection[str], verb: str) -> str:
    """Return a text about replicas whose bytes are not those that were put, "" if there are none."""
    several = "; ".join(f"the replica on {node} {verb} other bytes" for node in sorted(nodes))
    return f"{several} than those that were put (written directly?)" if nodes else ""
