"""The keeper of one user's replicas on one node: while the node leads, it copies and drops replicas.

It runs in the node's process, with a session of the node that acts for the user, as the supervisor of
services does. It presents the groups that the user's promises name, and no others. A round looks at a bounded
number of objects; copies run next to the rounds, at most KEPT_COPIES_AT_ONCE.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

import trio

from dios import limits
from dios.errors import (
    BadReferenceError,
    Busy,
    ClosedError,
    Conflict,
    DamagedError,
    DiosError,
    ExistsError,
    InvalidError,
    StaleError,
    UnreachableError,
)
from dios.lib import catalogue
from dios.lib.kept import replicas
from dios.lib.kept.decisions import Copied, KeptSteps, KeptWish, Place, next_steps
from dios.lib.kept.objects import LookOrder
from dios.lib.kept.records import KEPT_RECORDS, KeptPromise, KeptState
from dios.lib.kept.versions import Seen, VersionState, noted
from dios.lib.supervised.copies import RecordCopies
from dios.lib.supervised.leadership import Leadership
from dios.wire.nametext import fingerprint
from dios.wire.types import Flag, NodeStatus, ObjectType, Semantics

if TYPE_CHECKING:
    from dios.client.aio.node import AsyncGroup, AsyncNode, AsyncReference
    from dios.client.ops.cluster import Gathered, Member


class _Short(NamedTuple):
    """An object that is short of its promise, or in conflict; ``since`` is a time in seconds."""

    promise: str
    wanted: int
    current: int
    since: int
    reason: str
    conflict: tuple[str, ...]


@dataclass(slots=True)
class _Leading:
    """The knowledge of a leading keeper, which a next leader finds again by looking."""

    order: LookOrder = field(default_factory=LookOrder)
    digests: replicas.Digests = field(default_factory=replicas.Digests)
    promises: dict[str, KeptPromise] = field(default_factory=dict)
    listed: dict[str, tuple[tuple[int, int], tuple[bytes, ...]]] = field(default_factory=dict)
    """The names of each promise, with the object id and version of the catalogue from which they are."""
    lists: dict[str, set[tuple[int, int]]] = field(default_factory=dict)
    """The replicas of each list and their versions that were noted, by the fingerprint of the list."""
    groups: dict[bytes, AsyncGroup | None] = field(default_factory=dict)
    short: dict[bytes, _Short] = field(default_factory=dict)
    copying: set[tuple[bytes, str]] = field(default_factory=set)
    refused: dict[str, tuple[float, str]] = field(default_factory=dict)
    damaged: dict[int, float] = field(default_factory=dict)
    """Replicas whose bytes their disk has damaged, with the time until which they do not count."""
    not_before: float = float("-inf")
    seen: dict[str, tuple[Seen, ...]] = field(default_factory=dict)
    """The versions that were seen since the last round."""
    failures: dict[str, str] = field(default_factory=dict)
    """Why the list of a promise cannot be read, by promise."""
    leaving: dict[bytes, tuple[int, int]] = field(default_factory=dict)
    """Objects with replicas on draining nodes: the number of these replicas, and their bytes."""


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
        self._places: tuple[Place, ...] = ()
        self._repaired_at = float("-inf")
        self._leading: _Leading | None = None
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
        known = tuple(sorted((one.node, one.status, one.draining) for one in members))
        moved = known != self._members
        late = moved or now - self._repaired_at > limits.SERVICE_REPAIR_MS / 1000
        if late:
            await self._copies.find()
            self._members, self._repaired_at = known, now
        here = next(one for one in members if one.here)
        if not self._leadership.holds(members, here, self._copies.nodes, now):
            await self._rest()
            return
        begins = self._leading is None
        leading = self._leading = self._leading or _Leading()
        if late or begins:
            await self._copies.repair([one.name for one in members if one.usable])
        state = await self._copies.read_own(here.name)
        places = self._present_places(members, leading, now)
        if moved or begins or places != self._places:
            self._places = places
            leading.order.hurry()
            leading.order.doubt_all()
        # A node that dies keeps the list as it is now, so that its version is noted before the next one.
        await self._list_objects(state, leading)
        if any(one.status is NodeStatus.SUSPECT for one in members):
            await self._note_seen(state, leading)
            return  # the members will say within seconds if its replicas are lost
        await self._look_at_some(state, leading, nursery)
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
    def _note_silence(self, members: Sequence[Member], now: float) -> None:
        silent = {one.node for one in members if not one.usable}
        self._silent = {node: self._silent.get(node, now) for node in silent}

    def _present_places(self, members: Sequence[Member], leading: _Leading, now: float) -> tuple[Place, ...]:
        leading.refused = {name: why for name, why in leading.refused.items() if why[0] > now}
        return tuple(
            Place(
                one.name,
                one.rack,
                usable=one.usable,
                draining=one.draining,
                away=not one.usable and now - self._silent[one.node] < self._grace_s,
                refused=one.name in leading.refused,
            )
            for one in members
        )

    # -- objects ------------------------------------------------------------------------------------
    async def _list_objects(self, state: KeptState, leading: _Leading) -> None:
        """Read the catalogues that have changed, and list the objects of all promises."""
        promises = {one.key: one for one in state.living()}
        promised = changed = promises != leading.promises
        leading.promises = promises
        leading.listed = {key: names for key, names in leading.listed.items() if key in promises}
        for key, promise in promises.items():
            if promise.is_single:
                continue
            try:
                if await self._read_list(promise, state, leading):
                    changed = True
                leading.failures.pop(key, None)
            except ClosedError:
                raise
            except DiosError as error:
                leading.failures[key] = error.message
        if not changed:
            return
        objects: dict[bytes, str] = {}
        for key, (_, names) in leading.listed.items():
            for start in range(0, len(names), limits.KEPT_LISTED_AT_ONCE):
                objects.update(dict.fromkeys(names[start : start + limits.KEPT_LISTED_AT_ONCE], key))
                await trio.lowlevel.checkpoint()
        objects.update({one.target: key for key, one in promises.items() if one.is_single})
        for _ in leading.order.replace(objects):
            await trio.lowlevel.checkpoint()
        if promised:
            leading.order.hurry()
        leading.short = {name: short for name, short in leading.short.items() if name in objects}
        leading.leaving = {name: left for name, left in leading.leaving.items() if name in objects}

    async def _read_list(self, promise: KeptPromise, state: KeptState, leading: _Leading) -> bool:
        """Read the list of a group's files if it has changed; return True then."""
        group = await self._group(promise.group, leading)
        async with replicas.found(self._node, promise.target, group) as found:
            if not found:
                raise UnreachableError("the list of the group's files is on no node that answers")
            await self._note_list(
                promise, [one for one in found if replicas.is_durable_blob(one)], state, leading
            )
            latest = max(found, key=lambda one: (one.v_w, -one.object_id))
            former = leading.listed.get(promise.key)
            if former is not None and former[0] == (latest.object_id, latest.v_w):
                return False
            if latest.size > limits.KEPT_LIST_BYTES_MAX:
                raise InvalidError(
                    f"the list of the group's files has {latest.size} bytes, more than "
                    f"{limits.KEPT_LIST_BYTES_MAX}. Divide the group."
                )
            async with latest.read(Semantics.MRSW) as request:
                data, v_w = bytes(request.view), request.v_w
        names = [promise.target]
        for count, entry in enumerate(catalogue.decode_slowly(data)):
            names.extend(entry.names)
            if not count % limits.KEPT_LOOKS_MAX:
                await trio.lowlevel.checkpoint()
        leading.listed[promise.key] = (latest.object_id, v_w), tuple(names)
        return former is None or former[1] != tuple(names)

    async def _note_list(
        self,
        promise: KeptPromise,
        several: Sequence[AsyncReference],
        state: KeptState,
        leading: _Leading,
    ) -> None:
        """Note each version of a list of files, which is written more often than its turn of looks comes.

        Long lists would be read too often for that; their versions are noted in their turn.
        """
        mark = fingerprint(promise.target)
        versions = {(one.object_id, one.v_w) for one in several}
        if leading.lists.get(mark) == versions:
            return
        states: dict[int, VersionState] = {}
        for one in several:
            if one.size <= limits.KEPT_CHUNK_BYTES:
                with suppress(Busy, Conflict, DamagedError, UnreachableError, StaleError):
                    states[one.object_id] = await leading.digests.state(one, written=True)
        leading.lists[mark] = versions if len(states) == len(several) else set()
        self._charge(leading)
        before = leading.seen.get(mark, state.seen.get(mark, ()))
        seen = noted(before, states)
        if seen != before:
            leading.seen[mark] = seen

    async def _group(self, name: bytes, leading: _Leading) -> AsyncGroup:
        if leading.groups.get(name) is None:
            leading.groups[name] = await self._node.group(name)
        group = leading.groups[name]
        if group is None:
            raise InvalidError("the group was destroyed, or belongs to another user")
        return group

    # -- looks --------------------------------------------------------------------------------------
    async def _look_at_some(self, state: KeptState, leading: _Leading, nursery: trio.Nursery) -> None:
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
                key = leading.order.promise(name)
                if key is not None and key in leading.promises:
                    looks.start_soon(look, name, key)

    async def _look(
        self,
        name: bytes,
        promise: KeptPromise,
        state: KeptState,
        leading: _Leading,
        nursery: trio.Nursery,
    ) -> None:
        """Look at the replicas of one object, and begin the next steps for it."""
        group = await self._group(promise.group, leading)
        async with replicas.found(self._node, name, group) as found:
            if found and found[0].type is ObjectType.DURABLE_STREAM:
                return  # a log is in one place
            if (
                promise.is_single
                and not found
                and not found.incomplete
                and all(one.usable for one in self._places)
            ):
                await self._end_promise(promise)
                return
            mark = fingerprint(name)
            copies: dict[int, tuple[Copied, AsyncReference]] = {}
            damaged: set[str] = set()
            # Programs may write to the list, and to an object with a promise of its own.
            written = promise.is_single or name == promise.target
            for one in filter(replicas.is_durable_blob, found):
                held = await _state(one, leading, written=written)
                if held is None:
                    damaged.add(one.node)
                else:
                    copies[one.object_id] = Copied(one.object_id, one.node, held), one
            self._charge(leading)
            states = {object_id: copied.state for object_id, (copied, _) in copies.items()}
            before = leading.seen.get(mark, state.seen.get(mark, ()))
            seen = noted(before, states)
            if seen != before:
                leading.seen[mark] = seen
            steps = next_steps(
                KeptWish(promise.replicas, promise.apart),
                [copied for copied, _ in copies.values()],
                [one._replace(refused=one.refused or one.name in damaged) for one in self._places],
                key=mark,
                seen=seen,
                whole=not found.incomplete,
            )
            if damaged and steps.short:
                steps = steps._replace(reason=f"the replica on {min(damaged)} is damaged")
            gone_ids = {one.object_id for one in steps.drop}
            staying = [one for object_id, (_, one) in copies.items() if object_id not in gone_ids]
            if steps.drop and not await _are_readable(staying, leading):
                steps = steps._replace(drop=())
                leading.order.again(name, trio.current_time())
            draining = {place.name for place in self._places if place.draining}
            left = [one for _, one in copies.values() if one.node in draining]
            leading.leaving.pop(name, None)
            if left:
                leading.leaving[name] = len(left), sum(one.size for one in left)
            for gone in steps.drop:
                if await replicas.drop(copies[gone.object_id][1], gone.state.v_w):
                    self._log(f"dropped a replica of {mark} on {gone.node}, which its promise does not need")
        self._note(name, promise, steps, leading, found)
        for target in steps.targets:
            if steps.source is not None:
                self._begin_copy(name, promise, steps.source, target, leading, nursery)

    def _note(
        self,
        name: bytes,
        promise: KeptPromise,
        steps: KeptSteps,
        leading: _Leading,
        found: Gathered[AsyncReference],
    ) -> None:
        """Note if the object is short of its promise, and look at it again soon if there is more to do."""
        former = leading.short.pop(name, None)
        if (steps.short or steps.conflict) and len(leading.short) < limits.KEPT_SHORT_MAX:
            refusals = "; ".join(sorted({why for _, why in leading.refused.values()}))
            leading.short[name] = _Short(
                promise.key,
                promise.replicas,
                steps.current,
                int(time.time()) if former is None else former.since,
                f"{steps.reason} ({refusals})" if refusals and not steps.conflict else steps.reason,
                tuple(f"{one.node}: version {one.state.v_w}" for one in steps.conflict),
            )
        if steps.targets or steps.drop or steps.short or found.incomplete or name in leading.leaving:
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

    async def _note_seen(self, state: KeptState, leading: _Leading) -> None:
        fresh, leading.seen = leading.seen, {}
        if any(state.seen.get(mark) != versions for mark, versions in fresh.items()):
            await self._copies.store(KeptState(seen=fresh))

    # -- copies -------------------------------------------------------------------------------------
    def _charge(self, leading: _Leading, count: int = 0) -> None:
        """Let bytes that were read or copied delay the next copy."""
        total = count + leading.digests.bytes_read
        leading.digests.bytes_read = 0
        leading.not_before = max(leading.not_before, trio.current_time()) + total / self._rate

    def _begin_copy(
        self,
        name: bytes,
        promise: KeptPromise,
        source: Copied,
        target: str,
        leading: _Leading,
        nursery: trio.Nursery,
    ) -> None:
        place = (name, target)
        free = len(leading.copying) < limits.KEPT_COPIES_AT_ONCE
        if free and place not in leading.copying and trio.current_time() >= leading.not_before:
            leading.copying.add(place)
            nursery.start_soon(self._copy, name, promise, source, target, leading)

    async def _copy(
        self, name: bytes, promise: KeptPromise, source: Copied, target: str, leading: _Leading
    ) -> None:
        try:
            group = await self._group(promise.group, leading)
            async with replicas.found(self._node, name, group) as found:
                one = next((each for each in found if each.object_id == source.object_id), None)
                if one is None or one.v_w != source.state.v_w:
                    return
                self._charge(leading, one.size)
                try:
                    made = await replicas.copy_to(self._node, name, group, one, target)
                except DamagedError:
                    if not await _are_readable([one], leading):
                        return
                    raise  # the disk of the target failed
                if made is not None:
                    if made.v_w == source.state.v_w:
                        leading.digests.note(made.object_id, source.state)
                    with suppress(DiosError):
                        await made.close()
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

    # -- reports ------------------------------------------------------------------------------------
    async def _show(self, leading: _Leading, here: str) -> None:
        """Write what only the leader knows where the user's commands read it."""
        short = Counter(one.promise for one in leading.short.values())
        conflicts = Counter(one.promise for one in leading.short.values() if one.conflict)
        oldest: dict[str, _Short] = {}
        for lack in leading.short.values():
            known = oldest.get(lack.promise)
            if known is None or lack.since < known.since:
                oldest[lack.promise] = lack
        told = {
            "leader": here,
            "checked": not leading.order.hurried,
            "promises": {
                key: {
                    "objects": 1 if one.is_single else len(leading.listed.get(key, ((), ()))[1]),
                    "short": short[key],
                    "conflicts": conflicts[key],
                    "since": oldest[key].since if key in oldest else 0,
                    "reason": oldest[key].reason if key in oldest else leading.failures.get(key, ""),
                }
                for key, one in leading.promises.items()
            },
            "objects": {
                fingerprint(name): one._asdict()
                for name, one in list(leading.short.items())[: limits.KEPT_SHOWN_MAX]
            },
        }
        data = json.dumps(told).encode()
        if self._board is None:
            try:
                self._board = await self._node.create(ObjectType.SHMEM_BLOB, flags=Flag.KEPT)
            except ExistsError:
                found = await self._node.lookup(KEPT_RECORDS.special_name, local_only=True)
                self._board = next((one for one in found if one.type is ObjectType.SHMEM_BLOB), None)
            self._shown = b""
        if self._board is not None and data != self._shown:
            try:
                await self._board.write_bytes(data)
            except DiosError:
                self._board = None
                raise
            self._shown = data


# -- damage -----------------------------------------------------------------------------------------
async def _state(one: AsyncReference, leading: _Leading, *, written: bool) -> VersionState | None:
    """Return the state of a replica, or None if its bytes are damaged."""
    if leading.damaged.get(one.object_id, float("-inf")) > trio.current_time():
        return None
    try:
        return await leading.digests.state(one, written=written)
    except DamagedError:
        _note_damage(one.object_id, leading)
        return None


async def _are_readable(several: Sequence[AsyncReference], leading: _Leading) -> bool:
    """Return True if each of these replicas can be read, so that others may be dropped."""
    sound = True
    for one in several:
        try:
            async with one.read(Semantics.MRSW, size=min(one.size, 1)):
                pass
        except DamagedError:
            _note_damage(one.object_id, leading)
            sound = False
    return sound


def _note_damage(object_id: int, leading: _Leading) -> None:
    """Leave a damaged replica out for some time, in which its node may repair it."""
    leading.damaged.pop(object_id, None)
    if len(leading.damaged) >= limits.KEPT_DAMAGED_MAX:
        del leading.damaged[next(iter(leading.damaged))]
    leading.damaged[object_id] = trio.current_time() + limits.KEPT_DAMAGED_MS / 1000
