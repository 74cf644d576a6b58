"""The keeper of one user's replicas on one node: while the node leads, it copies and drops replicas.

It runs in the node's process, with a session of the node that acts for the user. It presents the groups that
the user's promises name, and no others. A round looks at a bounded number of objects; copies run next to the
rounds, at most KEPT_COPIES_AT_ONCE.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from contextlib import suppress
from itertools import islice
from typing import TYPE_CHECKING, Final, NamedTuple

import trio

from dios import limits
from dios.errors import (
    BadReferenceError,
    ClosedError,
    DamagedError,
    DiosError,
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
from dios.lib.kept.leading import FoundReplicas, Leading
from dios.lib.kept.lists import change_list, list_conflict, list_wish, next_change
from dios.lib.kept.notes import WaitingNote
from dios.lib.kept.objects import PromisedObject
from dios.lib.kept.records import KEPT_RECORDS, KeptPromise, KeptReport, KeptState, PromiseReport, ShortObject
from dios.lib.kept.versions import CREATED, Seen, is_beyond_repair, latest, noted
from dios.lib.replicated_record import protocol
from dios.lib.replicated_record.asynchronous import AsyncReplicas
from dios.lib.replicated_record.protocol import Reading
from dios.lib.user_records.leader import Leader, Round
from dios.wire.nametext import fingerprint
from dios.wire.types import ObjectType

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


class NodeHistory:
    """The nodes of the cluster since a keeper began, and the time since when each is silent."""

    def __init__(self, grace_s: float) -> None:
        self._grace_s: Final = grace_s
        self._silent: dict[int, float] = {}
        self._met: set[str] = set()
        self._unusable: set[str] = set()
        self._met_others_at: float | None = None
        """The time since which the keeper's node knows others; None while it knows none."""

    def note(self, members: Sequence[Member], now: float) -> None:
        """Note the members at a time."""
        self._met |= {member.name for member in members}
        self._unusable = {member.name for member in members if not member.usable}
        if len(members) == 1:
            self._met_others_at = None
        elif self._met_others_at is None:
            self._met_others_at = now
        silent = {member.node for member in members if not member.usable}
        self._silent = {node: self._silent.get(node, now) for node in silent}

    def is_away(self, member: Member, now: float) -> bool:
        """Return True if a node does not answer, and its replicas do not count as lost yet."""
        return not member.usable and now - self._silent[member.node] < self._grace_s

    @property
    def known(self) -> set[str] | None:
        """The nodes that live, and those that were removed: they will not come back with a replica.

        A node that nobody has named within the grace time was removed before this keeper began: None then,
        for all.
        """
        since = self._met_others_at
        if since is not None and trio.current_time() - since > self._grace_s:
            return None
        return self._met - self._unusable


class Keeper:
    """The keeper of one user's replicas; ``node`` is a session that acts for the user.

    ``grace_ms`` is the time after which the replicas of a node that does not answer count as lost, ``rate``
    the bytes per second of copies.
    """

    def __init__(self, node: AsyncNode, log: Callable[[str], None], *, grace_ms: int, rate: int) -> None:
        self._actor: _LeadingKeeper | None = None
        history = NodeHistory(grace_ms / 1000)

        def begin(nursery: trio.Nursery) -> Callable[[Round[KeptState]], Awaitable[None]]:
            self._actor = _LeadingKeeper(self._leader, node, log, nursery, history, rate)
            return self._actor.act

        self._leader: Final[Leader[KeptState]] = Leader(
            node, KEPT_RECORDS, log, begin, round_ms=limits.KEPT_ROUND_MS, watch=history.note
        )

    async def run(self) -> None:
        """Keep replicas until cancelled. Raise DiosError if the connection ends."""
        await self._leader.run()

    @property
    def leaving(self) -> LeavingReplicas | None:
        """The replicas that have to leave draining nodes, or None while this node does not lead."""
        return self._actor.leaving if self._actor is not None and self._leader.leads else None


class _LeadingKeeper:
    """The keeper while its node leads."""

    def __init__(
        self,
        leader: Leader[KeptState],
        node: AsyncNode,
        log: Callable[[str], None],
        nursery: trio.Nursery,
        history: NodeHistory,
        rate: int,
    ) -> None:
        self._leader: Final = leader
        self._node: Final = node
        self._log: Final = log
        self._nursery: Final = nursery
        self._history: Final = history
        self._rate: Final = rate
        self._known: Final = Leading()
        self._places: tuple[Place, ...] = ()

    @property
    def leaving(self) -> LeavingReplicas:
        """The replicas that have to leave draining nodes."""
        left = self._known.leaving.values()
        return LeavingReplicas(
            sum(place.draining for place in self._places),
            sum(count for count, _ in left),
            sum(size for _, size in left),
            self._known.unread == set() and not self._known.order.unchecked,
        )

    async def act(self, turn: Round[KeptState]) -> None:
        """Look at some objects, and begin what there is to do."""
        places = self._present_places(turn.members, turn.now)
        if turn.moved or places != self._places:
            self._places = places
            self._known.order.hurry()
            self._known.order.doubt_all()
        # A node that dies keeps the list as it is now, so that its version is noted before the next one.
        await self._list_objects(turn.records)
        if not turn.suspects:
            await self._look_at_some(turn.records)
            self._begin_comparing()
            self._begin_notes(turn.records)
        await self._note_seen(turn.records)
        if not turn.suspects:
            await self._show(turn.here.name)

    def _present_places(self, members: Sequence[Member], now: float) -> tuple[Place, ...]:
        refused = {name: why for name, why in self._known.refused.items() if why[0] > now}
        self._known.refused = refused
        return tuple(
            Place(
                member.name,
                member.rack,
                usable=member.usable,
                draining=not member.keeps,
                away=self._history.is_away(member, now),
                refused=member.name in refused,
            )
            for member in members
        )

    # -- objects ------------------------------------------------------------------------------------
    async def _list_objects(self, state: KeptState) -> None:
        """Read the catalogues that have changed, and list the objects of all promises."""
        promises = {promise.key: promise for promise in state.living()}
        promised = changed = promises != self._known.promises
        self._known.promises = promises
        self._known.listed = {key: names for key, names in self._known.listed.items() if key in promises}
        unread: set[str] = set()
        for key, promise in promises.items():
            if promise.is_single:
                continue
            try:
                if await self._read_list(promise):
                    changed = True
                self._known.failures.pop(key, None)
            except ClosedError:
                raise
            except DiosError as error:
                self._known.failures[key] = error.message
                is_gone = promise.group in self._known.groups and self._known.groups[promise.group] is None
                if not is_gone:
                    unread.add(key)
        self._known.unread = unread
        if not changed:
            return
        objects: dict[bytes, PromisedObject] = {}
        for key, (_, parts) in self._known.listed.items():
            for start in range(0, len(parts), limits.KEPT_LISTED_AT_ONCE):
                some = parts[start : start + limits.KEPT_LISTED_AT_ONCE]
                objects.update({part.name: PromisedObject(key, part.digest) for part in some})
                await trio.lowlevel.checkpoint()
        for key, kept_promise in promises.items():
            if kept_promise.is_single:
                listed = objects.get(kept_promise.target, PromisedObject(key))
                objects[kept_promise.target] = listed._replace(promise=key)
        for _ in self._known.order.replace(objects):
            await trio.lowlevel.checkpoint()
        if promised:
            self._known.order.hurry()
        self._known.short = {name: short for name, short in self._known.short.items() if name in objects}
        self._known.leaving = {name: left for name, left in self._known.leaving.items() if name in objects}
        self._known.comparisons.forget_others(objects)
        self._known.ending &= objects.keys()
        self._known.notes = {key: waiting for key, waiting in self._known.notes.items() if key in promises}
        former = self._known.awaited
        waiting = (waiting_note for several in self._known.notes.values() for waiting_note in several)
        self._known.awaited = {part.name for waiting_note in waiting for part in waiting_note.waits_for or ()}
        self._known.kept &= self._known.awaited
        for name in self._known.awaited - former:
            self._known.order.again(name, 0.0)

    async def _read_list(self, promise: KeptPromise) -> bool:
        """Read the list of a group's files if it has changed; return True then."""
        group = await self._group(promise.group)
        async with AsyncReplicas(self._node, promise.target, group, self._history.known) as record:
            versions = frozenset((await record.look()).versions.items())
            former = self._known.listed.get(promise.key)
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
            self._known.order.again(promise.target, 0.0)
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
        changed = (
            former is None or former[1] != tuple(parts) or waiting != self._known.notes.get(promise.key, ())
        )
        self._known.listed[promise.key] = versions, tuple(parts)
        self._known.notes[promise.key] = waiting
        return changed

    async def _group(self, name: bytes) -> AsyncGroup:
        if self._known.groups.get(name) is None:
            self._known.groups[name] = await self._node.group(name)
        group = self._known.groups[name]
        if group is None:
            raise InvalidError("the group was destroyed, or belongs to another user")
        return group

    # -- looks --------------------------------------------------------------------------------------
    async def _look_at_some(self, state: KeptState) -> None:
        at_once = trio.CapacityLimiter(limits.KEPT_LOOKS_AT_ONCE)

        async def look(name: bytes, key: str) -> None:
            async with at_once:
                try:
                    await self._look(name, self._known.promises[key], state)
                    self._known.order.unchecked.discard(name)
                except ClosedError:
                    raise
                except DiosError:
                    self._look_again(name)

        async with trio.open_nursery() as looks:
            for name in self._known.order.take(trio.current_time()):
                covered = self._known.order.covered(name)
                if covered is not None and covered.promise in self._known.promises:
                    looks.start_soon(look, name, covered.promise)

    async def _look(self, name: bytes, promise: KeptPromise, state: KeptState) -> None:
        """Look at the replicas of one object, and begin the next steps for it."""
        group = await self._group(promise.group)
        if name == promise.target and not promise.is_single:
            await self._look_at_list(promise, group)
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
            covered = self._known.order.covered(name)
            part = Part(name, covered.digest if covered is not None else b"")
            seen: tuple[Seen, ...] = ()
            if part.digest:
                there = self._known.compared(part, references)
            else:
                there, seen = await self._versions(name, promise, references, state)
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
            self._note_compared(part, promise, there, steps)
            if steps.drop and not await self._may_drop(part, there, steps):
                steps = steps._replace(drop=())
            several = (*there.copies.values(), *there.unsound.values())
            self._note_leaving(name, ((reference.node, reference.size) for _, reference in several))
            others = await self._drop(mark, there, steps)
        removed = {copied.node for copied, _ in there.unsound.values()} - others
        if removed:
            why = f"{_other_bytes(removed, 'had')}; removed"
            self._known.note_removed(
                name, ShortObject(mark, promise.key, promise.replicas, steps.current, int(time.time()), why)
            )
        self._note(name, promise, steps, _other_bytes(others, "has"), incomplete=references.incomplete)
        for target in steps.targets:
            if steps.source is not None:
                self._begin_copy(part, promise, steps.source, target)

    async def _look_at_list(self, promise: KeptPromise, group: AsyncGroup) -> None:
        """Look at the replicas of a list, and make the next change of its members."""
        name, mark = promise.target, fingerprint(promise.target)
        async with AsyncReplicas(self._node, name, group, self._history.known) as record:
            await record.look()
            reading = await record.run(protocol.read_record())
            wish = list_wish(promise.replicas, self._places, apart=promise.apart)
            change = next_change(reading, record.references, self._places, wish, key=mark)
            steps = change.steps._replace(drop=())
            if reading.divided:
                steps = list_conflict(record, reading)
            elif change.target is None or self._may_copy():
                self._charge(reading.value.size if change.target else 0)
                try:
                    changed = await change_list(record, reading, change, self._log)
                except (UnreachableError, NoSpaceError, LimitError) as error:
                    if change.target is None:
                        raise
                    why = f"{change.target}: {error.message}"
                    self._refuse(change.target, why)
                    changed = True
                if changed:
                    self._look_again(name)
            await self._drop_strays(change.strays, record, reading)
            sizes = [(member.node, reading.value.size) for member in reading.sound]
            self._note_leaving(name, sizes)
        damaged = "; ".join(
            f"the list's replica on {node} is damaged: {error.message}"
            for node, error in reading.unread.items()
            if isinstance(error, DamagedError)
        )
        steps = steps._replace(current=reading.disks, short=max(promise.replicas - reading.disks, 0))
        self._note(name, promise, steps, damaged, incomplete=not record.complete)

    async def _drop_strays(self, strays: Collection[int], record: AsyncReplicas, reading: Reading) -> None:
        """Destroy replicas of a list that were not made members within some time.

        One without a header stays: its node was away when an earlier release's list got its history, and it
        may have files that are in no other replica.
        """
        now = trio.current_time()
        if not record.complete or not reading.decided or reading.is_plain:
            return
        self._known.strays = {
            stray: at for stray, at in self._known.strays.items() if stray in strays or at > now
        }
        for object_id in strays:
            due = self._known.strays.setdefault(object_id, now + limits.KEPT_STRAY_MS / 1000)
            if due > now:
                self._known.order.again(record.name, due)
            elif not await record.is_plain(object_id):
                await record.destroy(object_id)
                del self._known.strays[object_id]

    async def _versions(
        self, name: bytes, promise: KeptPromise, references: Iterable[AsyncReference], state: KeptState
    ) -> tuple[FoundReplicas, tuple[Seen, ...]]:
        """Return the replicas of an object without a digest, and the versions that were seen."""
        mark, there = fingerprint(name), FoundReplicas({}, {}, set(), {})
        damaged: list[AsyncReference] = []
        for reference in filter(replicas.is_durable_blob, references):
            # Programs may write to an object with a promise of its own.
            held = await self._known.state(reference, written=promise.is_single)
            if held is None:
                damaged.append(reference)
            else:
                there.copies[reference.object_id] = (
                    Copied(reference.object_id, reference.node, held, held.v_w),
                    reference,
                )
        self._charge()
        states = {object_id: copied.state for object_id, (copied, _) in there.copies.items()}
        before = self._known.seen.get(mark, state.seen.get(mark, ()))
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
            self._known.seen[mark] = seen
        return there, seen

    def _note_compared(
        self, part: Part, promise: KeptPromise, there: FoundReplicas, steps: KeptSteps
    ) -> None:
        """Note if all replicas were compared, and if the object is kept as far as notes wait for that."""
        copies = [copied for copied, _ in there.copies.values()]
        verified = not part.digest or all(copied.verified for copied in copies)
        if verified:
            self._known.unverified.pop(part.name, None)
        else:
            self._known.unverified.setdefault(part.name, promise.key)
            versions = {copied.v_w for copied in copies}
            if len(versions) > 1 or max(versions) > 1 or part.name in self._known.awaited:
                self._known.urgent.setdefault(part.name)  # no put leaves such versions
        self._known.kept.discard(part.name)
        if part.name not in self._known.awaited:
            return
        kept = verified and len(self._homes(copied.node for copied in copies)) >= promise.replicas
        if kept if part.digest else not steps.short and not steps.conflict:
            self._known.kept.add(part.name)

    def _homes(self, nodes: Iterable[str]) -> set[str]:
        """Return those of these nodes on which replicas are to stay."""
        return {place.name for place in self._places if place.usable and not place.draining}.intersection(
            nodes
        )

    async def _may_drop(self, part: Part, there: FoundReplicas, steps: KeptSteps) -> bool:
        """Return True if each replica that stays has its bytes, as was seen not long ago."""
        gone = {copied.object_id for copied in steps.drop}
        staying = [
            (copied, reference)
            for object_id, (copied, reference) in there.copies.items()
            if object_id not in gone
        ]
        if not await self._known.are_readable([reference for _, reference in staying]):
            self._known.order.again(part.name, trio.current_time())
            return False
        fresh = self._known.comparisons.is_fresh
        if part.digest and not all(fresh(part, copied.object_id, copied.v_w) for copied, _ in staying):
            self._known.urgent.setdefault(part.name)
            return False
        return True

    def _note_leaving(self, name: bytes, replicas_there: Iterable[tuple[str, int]]) -> None:
        """Note the replicas of an object, by node and size, that are on draining nodes."""
        draining = {place.name for place in self._places if place.draining}
        sizes = [size for node, size in replicas_there if node in draining]
        self._known.leaving.pop(name, None)
        if sizes:
            self._known.leaving[name] = len(sizes), sum(sizes)

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
        self, name: bytes, promise: KeptPromise, steps: KeptSteps, others: str, *, incomplete: bool
    ) -> None:
        """Note if the object is short of its promise, and look at it again soon if there is more to do."""
        former = self._known.short.pop(name, None)
        if (steps.short or steps.conflict or others) and len(self._known.short) < limits.KEPT_SHORT_MAX:
            refusals = "; ".join(sorted({why for _, why in self._known.refused.values()}))
            reason = others or steps.reason
            self._known.short[name] = ShortObject(
                fingerprint(name),
                promise.key,
                promise.replicas,
                steps.current,
                int(time.time()) if former is None else former.since,
                f"{reason} ({refusals})" if refusals and not steps.conflict else reason,
                tuple(f"{copied.node}: version {copied.state.v_w}" for copied in steps.conflict),
            )
        if steps.targets or steps.drop or steps.short or others or incomplete or name in self._known.leaving:
            self._look_again(name)

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
        await self._leader.copies.store(KeptState({ended.key: ended}))

    async def _note_seen(self, state: KeptState) -> None:
        fresh, self._known.seen = self._known.seen, {}
        if any(state.seen.get(mark) != versions for mark, versions in fresh.items()):
            await self._leader.copies.store(KeptState(seen=fresh))

    def _look_again(self, name: bytes) -> None:
        """Look at an object again after a while."""
        self._known.order.again(name, trio.current_time() + limits.KEPT_AGAIN_MS / 1000)

    # -- copies -------------------------------------------------------------------------------------
    def _charge(self, count: int = 0) -> None:
        """Let bytes that were read or copied delay the next copy."""
        total = count + self._known.digests.bytes_read
        self._known.digests.bytes_read = 0
        self._known.not_before = max(self._known.not_before, trio.current_time()) + total / self._rate

    def _may_copy(self) -> bool:
        """Return True if the number of copies and their rate allow for another one."""
        free = len(self._known.copying) < limits.KEPT_COPIES_AT_ONCE
        return free and trio.current_time() >= self._known.not_before

    def _refuse(self, node: str, why: str) -> None:
        """Copy nothing to a node for some time."""
        self._known.refused[node] = trio.current_time() + limits.KEPT_REFUSED_MS / 1000, why

    def _begin_copy(self, part: Part, promise: KeptPromise, source: Copied, target: str) -> None:
        place = (part.name, target)
        if place in self._known.copying or part.name in self._known.ending:
            return
        if self._may_copy():
            self._known.copying.add(place)
            self._nursery.start_soon(self._copy, part, promise, source, target)

    async def _copy(self, part: Part, promise: KeptPromise, source: Copied, target: str) -> None:
        name = part.name

        async def charge(count: int) -> None:
            self._reserve(count)  # other comparisons wait, and copies do not

        try:
            group = await self._group(promise.group)
            async with replicas.references_to(self._node, name, group) as references:
                reference = next(
                    (candidate for candidate in references if candidate.object_id == source.object_id), None
                )
                if reference is None or reference.v_w != source.v_w:
                    return
                if (
                    part.digest
                    and not source.verified
                    and not await self._known.is_sound(part, reference, charge)
                ):
                    return  # other bytes are never copied
                self._charge(reference.size)
                try:
                    replica = await replicas.copy_to(self._node, name, group, reference, target)
                except DamagedError:
                    if not await self._known.are_readable([reference]):
                        return
                    raise  # the disk of the target failed
                if replica is not None:
                    if part.digest:
                        await self._known.is_sound(part, replica, charge)
                    elif replica.v_w == source.v_w:
                        self._known.digests.note(replica.object_id, source.state)
                    with suppress(DiosError):
                        await replica.close()
        except ClosedError:
            return
        except DiosError as error:
            if not isinstance(error, StaleError | BadReferenceError):
                why = f"{target}: {error.message}"
                self._refuse(target, why)
                self._log(f"cannot copy {fingerprint(name)} to {why}")
        finally:
            self._known.copying.discard((name, target))
            self._known.order.again(name, trio.current_time())

    # -- comparisons --------------------------------------------------------------------------------
    def _begin_comparing(self) -> None:
        """Compare bytes next to the rounds, those on which something depends first."""
        free = limits.KEPT_COMPARES_AT_ONCE - self._known.tasks["compare"]
        waiting = len(self._known.urgent) + (
            0 if self._known.comparisons.is_full else len(self._known.unverified)
        )
        for _ in range(min(free, waiting)):
            self._known.tasks["compare"] += 1
            self._nursery.start_soon(self._compare_some)

    async def _compare_some(self) -> None:
        """Compare the replicas of each object that waits now, once."""
        try:
            for _ in range(len(self._known.urgent) + len(self._known.unverified)):
                name = self._known.next_doubt()
                if name is None:
                    break
                urgent = name in self._known.urgent
                self._known.urgent.pop(name, None)
                covered = self._known.order.covered(name)
                promise = None if covered is None else self._known.promises.get(covered.promise)
                if covered is None or promise is None or not covered.digest:
                    self._known.unverified.pop(name, None)
                    continue
                if name in self._known.comparing:
                    continue
                self._known.comparing.add(name)
                try:
                    await self._compare(Part(name, covered.digest), promise, fresh=urgent)
                finally:
                    self._known.comparing.discard(name)
        except ClosedError:
            return  # the rounds end, too
        finally:
            self._known.tasks["compare"] -= 1

    async def _compare(self, part: Part, promise: KeptPromise, *, fresh: bool) -> None:
        """Compare the replicas of an object that were not compared, or with ``fresh`` not lately."""
        done = self._known.comparisons.is_fresh if fresh else self._known.comparisons.known
        try:
            group = await self._group(promise.group)
            async with replicas.references_to(self._node, part.name, group) as references:
                several = [reference for reference in references if replicas.is_durable_blob(reference)]
                for replica in several:
                    if not done(part, replica.object_id, replica.v_w) and not self._known.is_damaged(
                        replica.object_id
                    ):
                        await self._known.is_sound(part, replica, self._pace)
                there = self._known.compared(part, several)
                if not references.incomplete:
                    self._known.comparisons.forget_gone(part, {reference.object_id for reference in several})
        except ClosedError:
            raise
        except DiosError:
            return  # in its next turn
        if all(copied.verified for copied, _ in there.copies.values()):
            self._known.unverified.pop(part.name, None)
        if fresh or there.unsound:
            self._known.order.again(part.name, trio.current_time())

    async def _pace(self, count: int) -> None:
        """Wait until bytes may be read for a comparison."""
        await trio.sleep_until(self._reserve(count))

    def _reserve(self, count: int) -> float:
        """Let the next comparisons wait for this number of bytes, and return the time until which."""
        begin = max(self._known.compares_not_before, trio.current_time())
        self._known.compares_not_before = begin + count / self._rate
        return self._known.compares_not_before

    # -- notes --------------------------------------------------------------------------------------
    def _begin_notes(self, state: KeptState) -> None:
        """Carry out notes next to the rounds: of promised groups, and of groups whose promise has ended."""
        if self._known.tasks["notes"]:
            return
        now = trio.current_time()
        for key, waiting in self._known.notes.items():
            due = [waiting_note.note for waiting_note in waiting if self._may_be_due(waiting_note)]
            if due:
                self._known.tasks["notes"] += 1
                self._nursery.start_soon(self._carry_out_some, self._known.promises[key])
                return
        ended = [
            promise for promise in state.promises.values() if not promise.replicas and not promise.is_single
        ]
        if ended and now - self._known.ended_at >= limits.KEPT_ENDED_LOOK_MS / 1000:
            self._known.ended_at = now
            self._known.ended_turn = (self._known.ended_turn + 1) % len(ended)
            self._known.tasks["notes"] += 1
            self._nursery.start_soon(self._carry_out_some, ended[self._known.ended_turn])

    def _may_be_due(self, waiting_note: WaitingNote) -> bool:
        """Return True if the objects for which a note waits are kept, as far as the looks have shown."""
        if waiting_note.waits_for is None or not all(place.usable for place in self._places):
            return False
        return all(part.name in self._known.kept for part in waiting_note.waits_for)

    async def _carry_out_some(self, promise: KeptPromise) -> None:
        try:
            await self._carry_out(promise)
        except ClosedError:
            return
        except DiosError as error:
            if promise.replicas:
                self._log(f"cannot destroy former files of {promise.key}: {error.message}")
        finally:
            self._known.tasks["notes"] -= 1

    async def _carry_out(self, promise: KeptPromise) -> None:
        """Destroy the objects of former files whose replacements are kept, then remove their notes."""
        if not all(place.usable for place in self._places):
            return  # a node that is away may have a former object
        group = await self._group(promise.group)
        content = await lists.read_list(self._node, group, promise)
        if not content.notes:
            return
        needed = notes.needed_names(content)
        waiting = notes.waiting_notes(content.notes, needed)
        done: set[Note] = set()
        for waiting_note in waiting:
            if len(done) >= limits.KEPT_NOTES_AT_ONCE:
                break
            if promise.replicas and not self._may_be_due(waiting_note):
                continue
            if waiting_note.waits_for is not None and await self._are_kept(
                waiting_note.waits_for, promise, group
            ):
                former = [name for name in waiting_note.note.former.local_names if name not in needed]
                self._known.ending.update(former)
                if await self._destroy_former(former, group):
                    done.add(waiting_note.note)
        if done:
            await lists.edit_list(self._node, group, promise, lambda now: notes.without(now, done))
            self._log(f"destroyed {len(done)} former files of {promise.key}, whose replacements are kept")

    async def _are_kept(self, parts: Iterable[Part], promise: KeptPromise, group: AsyncGroup) -> bool:
        """Return True if each object has as many sound replicas as are promised, or one without a promise."""
        for part in parts:
            async with replicas.references_to(self._node, part.name, group) as references:
                several = [reference for reference in references if replicas.is_durable_blob(reference)]
                if part.digest:
                    sound = [
                        replica.node for replica in several if await self._is_freshly_sound(part, replica)
                    ]
                else:
                    states = [await self._known.digests.state(replica, written=False) for replica in several]
                    heads = latest(states, ())
                    sound = [replica.node for replica in several] if len(heads) == 1 else []
                is_log = any(reference.type is ObjectType.DURABLE_STREAM for reference in references)
            covered = self._known.order.covered(part.name)
            own = promise if covered is None else self._known.promises.get(covered.promise, promise)
            if not is_log and len(self._homes(sound)) < max(own.replicas, 1):
                return False
        return True

    async def _is_freshly_sound(self, part: Part, reference: AsyncReference) -> bool:
        if self._known.comparisons.is_fresh(part, reference.object_id, reference.v_w):
            return True
        return await self._known.is_sound(part, reference, self._pace)

    async def _destroy_former(self, names: Iterable[bytes], group: AsyncGroup) -> bool:
        """Destroy objects on all nodes; return False if a node may still have one."""
        if not all(place.usable for place in self._places):
            return False
        for name in names:
            if any(copied == name for copied, _ in self._known.copying):
                return False
            if not await notes.destroy(self._node, group, name):
                return False
        return True

    # -- reports ------------------------------------------------------------------------------------
    async def _show(self, here: str) -> None:
        """Write what only the leader knows where the user's commands read it."""
        short = Counter(lack.promise for lack in self._known.short.values())
        unverified = Counter(self._known.unverified.values())
        conflicts = Counter(lack.promise for lack in self._known.short.values() if lack.conflict)
        oldest: dict[str, ShortObject] = {}
        for lack in self._known.short.values():
            known = oldest.get(lack.promise)
            if known is None or lack.since < known.since:
                oldest[lack.promise] = lack
        promises = {
            key: PromiseReport(
                1 if promise.is_single else len(self._known.listed.get(key, ((), ()))[1]),
                short[key],
                conflicts[key],
                unverified[key],
                oldest[key].since if key in oldest else 0,
                oldest[key].reason if key in oldest else self._known.failures.get(key, ""),
            )
            for key, promise in self._known.promises.items()
        }
        shown = islice(self._known.shown(int(time.time())).values(), limits.KEPT_SHOWN_MAX)
        objects = {row.fingerprint: row for row in shown}
        await self._leader.show(KeptReport(here, not self._known.order.hurried, promises, objects))


def _other_bytes(nodes: Collection[str], verb: str) -> str:
    """Return a text about replicas whose bytes are not those that were put, "" if there are none."""
    several = "; ".join(f"the replica on {node} {verb} other bytes" for node in sorted(nodes))
    return f"{several} than those that were put (written directly?)" if nodes else ""
