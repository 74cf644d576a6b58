"""Reading and changing the record: a generator of steps, without any input or output of its own.

A proposal has two phases. In the first one a majority of the members promises to accept nothing below a
ballot, and reports what it has accepted. In the second one the proposal, which comes from the latest of these
values, is accepted. A client that holds all members and finds one value in them all needs no promises: it
writes the next value at once, with client 0 in its ballot, and it is decided if all members have taken it. Of
several such values in different members none is decided, so that a later proposal can come from any of them.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final, NamedTuple, cast

from dios import limits
from dios.errors import Busy, Conflict, DamagedError, DiosError, InvalidError, UnreachableError
from dios.lib.replicated_record import frame
from dios.lib.replicated_record.frame import (
    CHANGES_KEPT,
    HEADER_BYTES_MAX,
    ZERO,
    Ballot,
    Member,
    ReplicaState,
    Value,
)
from dios.lib.replicated_record.quorums import is_decided, is_latest, is_majority
from dios.lib.replicated_record.steps import (
    CommitReplicas,
    Committed,
    Held,
    HoldReplicas,
    Look,
    ReadReplicas,
    ReleaseReplicas,
    Results,
    Sighting,
    Steps,
    Wait,
)

_ATTEMPTS: Final = 32
_READS: Final = 256
_LOOKS_BEFORE_SETTLING: Final = 5
_HOLDS: Final = 8
_ROOM_BYTES: Final = HEADER_BYTES_MAX + 4 * limits.KIB
"""The room for a header, and for the growth of the content by one change."""

RESTORED_ROUNDS: Final = 1 << 32
"""The rounds that a record which was made again is ahead, so that no lost member that comes back is later."""


class Reading(NamedTuple):
    """A value that was read, and the members that have it.

    It is ``decided`` if no later reader can find an earlier one. ``sound`` are the members that were read,
    also those that have an earlier value; ``unread`` are the errors of the others that were found, by their
    nodes. ``divided`` are the different contents of a record that has no history, because an earlier release
    wrote to its replicas; empty in all other cases.
    """

    value: Value
    holders: tuple[Member, ...]
    decided: bool
    is_plain: bool
    sound: tuple[Member, ...] = ()
    unread: Mapping[str, DiosError] = {}
    divided: tuple[bytes, ...] = ()

    @property
    def disks(self) -> int:
        """The number of nodes that have the value."""
        return len({member.node for member in self.holders})


class Outcome(NamedTuple):
    """A value, and the members that have accepted it."""

    value: Value
    holders: tuple[Member, ...]

    @property
    def accepted(self) -> set[int]:
        """The object ids of the members that have accepted it."""
        return {member.object_id for member in self.holders}


class _States(NamedTuple):
    """The states of replicas by object id, and the errors of the others."""

    sighting: Sighting
    states: dict[int, ReplicaState]
    errors: dict[int, DiosError]

    @property
    def existing(self) -> set[int] | None:
        """The ids of all sound replicas.

        None if a node that may have one did not answer, and if lost members may have decided something later.
        """
        return None if self._is_overtaken else self._existing(known=self.sighting.known)

    @property
    def _is_overtaken(self) -> bool:
        """True if a copy that is no member has a later value than all members that were read."""
        latest = self.latest()
        return latest is not None and any(
            not state.plain and state.value.ballot > latest.ballot for state in self.states.values()
        )

    def _existing(self, known: frozenset[str] | None) -> set[int] | None:
        members = {
            member for state in self.states.values() for group in state.value.groups for member in group
        }
        there = {member.node for member in self.sighting.replicas}
        if known is not None and not {member.node for member in members} <= known | there:
            return None
        damaged = {object_id for object_id, error in self.errors.items() if isinstance(error, DamagedError)}
        return None if self.sighting.existing is None else self.sighting.existing - damaged

    def latest(self) -> Value | None:
        """Return the value with the highest ballot; of equal ones, one with its content.

        A replica that is no member of its own value is a copy that was not added yet, or was removed.
        """
        counted = [
            state
            for object_id, state in self.states.items()
            if not state.plain and object_id in state.value.object_ids
        ]
        if counted:
            return max(counted, key=lambda state: (state.value.ballot, state.value.content is not None)).value
        plain = {object_id: state.value for object_id, state in self.states.items() if state.plain}
        if not plain:
            return None
        members = tuple(sorted(value.members[0] for value in plain.values()))
        latest = max(plain, key=lambda object_id: (self.sighting.versions[object_id], -object_id))
        return plain[latest]._replace(members=members)

    @property
    def is_lost(self) -> bool:
        """True if all nodes have answered, and no member of the record is left, but copies of it are."""
        existing = self._existing(known=None)
        silent = not all(isinstance(error, DamagedError) for error in self.errors.values())
        if not self.states or existing is None or silent:
            return False
        latest = self.latest()
        return latest is None or not is_latest(latest, self.states, None if self._is_overtaken else existing)

    def drop_plain(self) -> None:
        """Leave out plain replicas next to those with a history: a program has written to them directly.

        Members stay while there is no history: a client was interrupted before it had given all a header.
        """
        latest = self.latest()
        if latest is None or all(state.plain for state in self.states.values()):
            return
        has_begun = latest.ballot != ZERO or not any(
            object_id in latest.object_ids for object_id, state in self.states.items() if not state.plain
        )
        for object_id in [object_id for object_id, state in self.states.items() if state.plain]:
            if object_id in latest.object_ids and not has_begun:
                continue
            here = self.states.pop(object_id).value.members[0]
            if object_id in latest.object_ids:
                self.errors[object_id] = DamagedError(
                    f"a program has written to the replica on {here.node} directly"
                )

    def holders(self, value: Value) -> set[int]:
        """Return the ids of the members that have accepted this value."""
        return {
            object_id
            for object_id, state in self.states.items()
            if object_id in value.object_ids and (state.value.ballot, state.value.digest) == _mark(value)
        }


def _mark(value: Value) -> tuple[Ballot, bytes]:
    return value.ballot, value.digest


# -- reading ----------------------------------------------------------------------------------------
def read_record() -> Steps[Reading]:
    """Return the latest decided value, or a later one.

    Raises UnreachableError if too few members answer to know it, and DamagedError if no replica is sound.
    """
    undecided: Ballot | None = None
    looks = 0
    for _ in range(_READS):
        sighting = yield from _look(fresh=looks > 0)
        seen = yield from _read_states(sighting)
        value = seen.latest()
        if value is None or not is_latest(value, seen.states, None):
            sighting = yield from _look(fresh=True)
            seen = yield from _read_states(sighting)
            value = seen.latest()
        if seen.is_lost:
            raise _lost(seen)
        if value is None:
            raise _unreadable(seen)
        if not is_latest(value, seen.states, seen.existing):
            raise _too_few(value, seen.states, "answer")
        divided = _divided(seen, value)
        value = yield from _with_content(seen, value)
        if value is None:
            continue
        reading = _reading(seen, value, divided)
        can_be_decided = is_majority(value, seen.states, seen.existing)
        if reading.decided or divided or not can_be_decided:
            return reading
        looks = looks + 1 if value.ballot == undecided else 0
        undecided = value.ballot
        if looks < _LOOKS_BEFORE_SETTLING and len(reading.holders) < len(reading.sound):
            # Another client is probably about to finish its proposal.
            yield Wait(Conflict("another client changes the record"))
            continue
        try:
            outcome = yield from propose(lambda present: present)
        except (Busy, Conflict) as conflict:
            yield Wait(conflict)
        except UnreachableError:
            return reading
        else:
            return reading._replace(value=outcome.value, holders=outcome.holders, decided=True)
    raise Busy("other clients change the record without a pause. Try again.")


def _read_states(sighting: Sighting) -> Steps[_States]:
    """Read the header of each replica, and the content of the nearest one."""
    sizes = {
        member.object_id: HEADER_BYTES_MAX if number else 0 for number, member in enumerate(sighting.replicas)
    }
    seen = yield from _read(sighting, sizes)
    yield from _read_whole(seen, [object_id for object_id, state in seen.states.items() if state.plain])
    seen.drop_plain()
    latest = seen.latest()
    if latest is not None and latest.ballot == ZERO:
        members = [object_id for object_id in seen.states if object_id in latest.object_ids]
        if len({seen.states[object_id].value.digest for object_id in members}) > 1:
            yield from _read_whole(seen, members)
    return seen


def _read_whole(seen: _States, object_ids: Collection[int]) -> Steps[None]:
    """Read the contents of those of these replicas of which only the header was read."""
    wanted = [object_id for object_id in object_ids if seen.states[object_id].value.content is None]
    if wanted:
        more = yield from _read(seen.sighting, dict.fromkeys(wanted, 0))
        for object_id in more.errors:
            seen.states.pop(object_id)
        seen.states.update(more.states)
        seen.errors.update(more.errors)


def _read(sighting: Sighting, sizes: Mapping[int, int]) -> Steps[_States]:
    results = cast("Results[bytes]", (yield ReadReplicas(sizes)))
    members = {member.object_id: member for member in sighting.replicas}
    seen = _States(sighting, {}, {})
    for object_id, data in results.items():
        if isinstance(data, DiosError):
            seen.errors[object_id] = data
            continue
        try:
            seen.states[object_id] = frame.decode(data, members[object_id], whole=not sizes[object_id])
        except DamagedError as error:
            seen.errors[object_id] = error
    return seen


def _with_content(seen: _States, value: Value) -> Steps[Value | None]:
    """Return the value with its content, read from a member that has it; None if they have changed."""
    if value.content is not None:
        return value
    for member in seen.sighting.replicas:
        if member.object_id in seen.holders(value):
            reread = yield from _read(seen.sighting, {member.object_id: 0})
            state = reread.states.get(member.object_id)
            if state is not None and _mark(state.value) == _mark(value):
                return state.value
            seen.states.pop(member.object_id)
            seen.errors.update(reread.errors)
    if any(isinstance(error, DamagedError) for error in seen.errors.values()):
        raise _unreadable(seen)
    return None


def _reading(seen: _States, value: Value, divided: tuple[bytes, ...]) -> Reading:
    holders = seen.holders(value)
    known = {member.object_id: member for group in value.groups for member in group}
    plain = all(state.plain for state in seen.states.values())
    nodes = {member.object_id: member.node for member in seen.sighting.replicas}
    return Reading(
        value,
        tuple(sorted(known[object_id] for object_id in holders)),
        is_decided(value, holders, seen.existing),
        plain,
        tuple(sorted(known[object_id] for object_id in known.keys() & seen.states.keys())),
        {nodes[object_id]: error for object_id, error in seen.errors.items()},
        divided,
    )


def _divided(seen: _States, value: Value) -> tuple[bytes, ...]:
    """Return the different contents of replicas that have the first ballot; empty if there is one."""
    if value.ballot != ZERO:
        return ()
    contents = {
        state.value.digest: state.value.content
        for object_id, state in seen.states.items()
        if object_id in value.object_ids and state.value.content is not None
    }
    return tuple(contents[digest] for digest in sorted(contents)) if len(contents) > 1 else ()


# -- changing ---------------------------------------------------------------------------------------
def replace(base: Value, content: bytes) -> Steps[Outcome]:
    """Replace the content if the record still has ``base``.

    Raises Conflict if it has another value, Busy if others write at the same time; nothing was changed then.
    Raises UnreachableError without a majority: then the change was made, or may be made later.
    """
    mark = secrets.randbits(62)
    proposed = overtaken = False
    if not base.former and base.ballot != ZERO:
        outcome = yield from _replace_held(base, content, mark)
        if outcome is not None and is_decided(outcome.value, outcome.accepted, None):
            return outcome
        proposed = outcome is not None

    def decide(present: Value) -> Value:
        nonlocal overtaken, proposed
        if mark in present.changes:
            overtaken = False  # whatever an earlier attempt has found
            return present
        overtaken = (present.version, present.digest) != (base.version, base.digest)
        if proposed and overtaken and present.version - base.version > CHANGES_KEPT:
            raise UnreachableError("so many others have changed the record that the outcome is not known")
        proposed = proposed or not overtaken
        # After this proposal no earlier one can be decided any more.
        return present if overtaken else present.with_content(content, ZERO, mark)

    try:
        outcome = yield from propose(decide)
    except Conflict as conflict:
        if not proposed:
            raise
        raise UnreachableError(f"the outcome of a change is not known: {conflict.message}") from None
    if overtaken:
        raise Conflict("another client changed the record")
    return outcome


def _replace_held(base: Value, content: bytes, mark: int) -> Steps[Outcome | None]:
    """Replace the content while all members are held; None if one of them cannot be, or has another value.

    The outcome may have fewer members than a decision needs.
    """
    ids = tuple(member.object_id for member in base.members)
    held, errors = yield from _hold_all(ids, len(content) + HEADER_BYTES_MAX)
    missing = list(errors)
    busy = bool(errors) and all(isinstance(error, Busy | Conflict) for error in errors.values())
    states: list[ReplicaState] = []
    if not missing:
        known = {member.object_id: member for member in base.members}
        for object_id, hold in held.items():
            try:
                states.append(frame.decode(hold.data, known[object_id], whole=False))
            except DamagedError:
                missing.append(object_id)
    ballots = {state.value.ballot for state in states}
    if missing or len(ballots) > 1 or any(_differs(state, base) for state in states):
        yield ReleaseReplicas(tuple(held))
        if busy:
            raise Busy("another client changes the record")
        if any(state.value.version > base.version for state in states):
            raise Conflict("another client changed the record")
        return None
    value = base.with_content(content, (max(ballots)[0] + 1, 0), mark)
    data = frame.encode(ReplicaState(value.ballot, value))
    committed = cast("Results[Committed]", (yield CommitReplicas(dict.fromkeys(ids, data))))
    return Outcome(value, _without_errors(value, committed))


def _hold_all(
    ids: Sequence[int], size: int, *, blank: bool = False
) -> Steps[tuple[dict[int, Held], dict[int, DiosError]]]:
    """Hold replicas, and return those that are held and the errors of the others.

    Of clients that hold some of them, the one with the first goes on, and the others give way.
    """
    held: dict[int, Held] = {}
    missing = tuple(ids)
    errors: dict[int, DiosError] = {}
    for _ in range(_HOLDS):
        results = cast("Results[Held]", (yield HoldReplicas(missing, size, blank)))
        errors = {} if missing == tuple(ids) else errors
        errors |= {object_id: error for object_id, error in results.items() if isinstance(error, DiosError)}
        held |= {object_id: hold for object_id, hold in results.items() if not isinstance(hold, DiosError)}
        errors = {object_id: error for object_id, error in errors.items() if object_id not in held}
        missing = tuple(
            object_id for object_id, error in errors.items() if isinstance(error, Busy | Conflict)
        )
        if not missing:
            break
        if min(ids) in missing:
            yield ReleaseReplicas(tuple(held))
            return {}, errors
        yield Wait(Busy("another client holds a replica"))
    return held, errors


def _differs(state: ReplicaState, base: Value) -> bool:
    """Return True if a member has another value, or has promised not to accept one without promises."""
    value = state.value
    return (
        state.plain
        or state.promised > value.ballot
        or bool(value.former)
        or (value.members, value.version, value.digest) != (base.members, base.version, base.digest)
    )


def change_members(decide: Callable[[tuple[Member, ...]], Collection[Member]]) -> Steps[Outcome]:
    """Replace the members by those that ``decide`` returns for the present ones; the content stays.

    New ones must be replicas that were found, as copies of a member. Raises as ``replace``.
    """

    def with_members(present: Value) -> Value:
        members = tuple(sorted(decide(present.members)))
        if members == present.members and present.ballot != ZERO:
            return present
        return present._replace(members=members, former=present.members, version=present.version + 1)

    return (yield from propose(with_members))


def propose(
    decide: Callable[[Value], Value],
    unite: Callable[[Sequence[bytes]], bytes] | None = None,
) -> Steps[Outcome]:
    """Decide about the value that ``decide`` returns for the present one, whose ballot does not matter.

    It may be called several times, and an exception of it ends the attempt. ``unite`` returns the content of
    a record whose replicas have different ones without a history; without it such a record is refused. Raises
    Conflict if other clients are faster time after time, and UnreachableError without a majority.
    """
    rounds = 0
    # No ballot is ever used for two values, also if a replica that has the first one does not answer.
    client = 1 + secrets.randbits(62)
    decided: Ballot | None = None
    """The ballot of a change of members of which this client knows that it is decided."""
    for _ in range(_ATTEMPTS):
        sighting = yield from _look(fresh=True)
        seen = yield from _read_states(sighting)
        hint = seen.latest()
        if seen.is_lost:
            raise _lost(seen)
        if hint is None:
            raise _unreadable(seen)
        if unite is None and _divided(seen, hint):
            raise _conflict()
        rounds = max(rounds, hint.ballot[0], *(state.promised[0] for state in seen.states.values())) + 1
        ballot = (rounds, client)
        prepared = yield from _prepare(hint, ballot, seen)
        present = prepared.states.latest()
        if prepared.overtaken:
            yield ReleaseReplicas(prepared.held)
            yield Wait(Conflict("another client changes the record"))
            continue
        if present is None or not _may_decide(present, prepared.versions, seen.existing):
            yield ReleaseReplicas(prepared.held)
            if present is not None and present.object_ids != hint.object_ids:
                continue  # the members have changed just now
            raise _too_few(hint, prepared.versions, "can take a change")
        if present.ballot[0] >= rounds:
            # A value without promises, of the next round, must never be later than one with them.
            yield ReleaseReplicas(prepared.held)
            continue
        try:
            proposal = _proposal(present, decided, decide, _divided(prepared.states, present), unite)
        except BaseException:
            yield ReleaseReplicas(prepared.held)
            raise
        proposal = proposal._replace(ballot=ballot)
        outcome = yield from _accept(proposal, prepared, seen)
        if outcome is None:
            yield Wait(Conflict("another client changes the record"))
            continue
        if not proposal.former:
            return outcome
        if proposal.members != present.members:
            # What is left is to forget the former members.
            decide = _unchanged
        decided = ballot
    raise Conflict("other clients change the record without a pause. Try again.")


def _unchanged(present: Value) -> Value:
    return present


def _proposal(
    present: Value,
    decided: Ballot | None,
    decide: Callable[[Value], Value],
    divided: Sequence[bytes],
    unite: Callable[[Sequence[bytes]], bytes] | None,
) -> Value:
    """Return the value to propose: first of all, a change of members that may not be decided yet."""
    if present.former and present.ballot != decided:
        return present
    if divided:
        if unite is None:
            raise _conflict()
        present = present.with_content(unite(divided), ZERO, secrets.randbits(62))
    return decide(present._replace(former=()))


def _may_decide(present: Value, prepared: Collection[int], existing: Collection[int] | None) -> bool:
    """Return True if the members that have promised suffice to decide about the next value.

    The first value of a history needs all members that there are, because each may have other content.
    """
    if present.ballot != ZERO:
        return is_majority(present, prepared, existing)
    missing = present.object_ids.difference(prepared)
    return not missing or (existing is not None and bool(prepared) and missing.isdisjoint(existing))


class _Prepared(NamedTuple):
    """The members that have promised: their states, and the versions of their objects after that.

    Those in ``held`` are held on, for at most ``room`` bytes, so that no other client can come between.
    """

    states: _States
    versions: dict[int, int]
    held: tuple[int, ...] = ()
    room: int = 0
    overtaken: bool = False


def _prepare(hint: Value, ballot: Ballot, seen: _States) -> Steps[_Prepared]:
    """Let all members that answer promise to accept nothing below a ballot."""
    sighting = seen.sighting
    members = {member.object_id: member for member in sighting.replicas if member.object_id in seen.states}
    ids = tuple(object_id for object_id in members if object_id in hint.object_ids)
    if len(ids) > 1 and all(seen.states[object_id].plain for object_id in ids) and not sighting.complete:
        raise UnreachableError(
            "a node that may have another replica of the record does not answer. Repeat this when "
            "`dios node ls` shows that all nodes are alive.",
            call="lookup",
        )
    size = _ROOM_BYTES + max(state.value.size for state in seen.states.values())
    held, errors = yield from _hold_all(ids, size)
    prepared = _States(sighting, {}, errors)
    data: dict[int, bytes] = {}
    refused: list[int] = []
    for object_id, hold in held.items():
        try:
            state = _held_state(hold, members[object_id], hint, ballot, seen)
        except (DamagedError, Conflict) as error:
            prepared.errors[object_id] = error
            refused.append(object_id)
        else:
            prepared.states[object_id] = state
            data[object_id] = frame.encode(ReplicaState(ballot, state.value))
    if refused:
        yield ReleaseReplicas(tuple(refused))
    committed = cast("Results[Committed]", (yield CommitReplicas(data, hold=True))) if data else {}
    versions: dict[int, int] = {}
    holding: list[int] = []
    for object_id, done in committed.items():
        if isinstance(done, DiosError):
            del prepared.states[object_id]
            prepared.errors[object_id] = done
        else:
            versions[object_id] = done.v_w
            holding += [object_id] if done.is_held else []
    overtaken = any(isinstance(error, Busy | Conflict) for error in prepared.errors.values())
    enough = _may_decide(hint, versions, seen.existing)
    return _Prepared(prepared, versions, tuple(holding), size, overtaken and not enough)


def _held_state(held: Held, here: Member, hint: Value, ballot: Ballot, seen: _States) -> ReplicaState:
    """Return the whole state of a replica that is held.

    Raises DamagedError, and Conflict if it has promised something else or was changed meanwhile.
    """
    before = seen.states[here.object_id]
    if before.plain:
        if held.v_w != seen.sighting.versions[here.object_id]:
            raise Conflict("another client changed the record")
        return ReplicaState(ZERO, before.value._replace(members=hint.members))
    state = frame.decode(held.data, here, whole=False)
    if state.plain or state.promised >= ballot or state.value.size > len(held.data):
        raise Conflict("another client changed the record")
    return frame.decode(held.data, here)


def _accept(proposal: Value, prepared: _Prepared, seen: _States) -> Steps[Outcome | None]:
    """Let all members accept the proposal; None if another client was faster.

    Damaged replicas accept nothing, because their promises are lost. The keeper replaces them.
    """
    there = {member.object_id: member for member in seen.sighting.replicas if member.object_id in seen.states}
    ids = {object_id for object_id in there if object_id in proposal.object_ids}
    data = frame.encode(ReplicaState(proposal.ballot, proposal))
    fits = len(data) <= prepared.room
    accepts = [object_id for object_id in prepared.held if fits and object_id in ids]
    refused = [object_id for object_id in prepared.held if object_id not in accepts]
    if refused:
        yield ReleaseReplicas(tuple(refused))
        refused = []
    known = tuple(
        object_id for object_id in prepared.versions if object_id in ids and object_id not in accepts
    )
    new = tuple(object_id for object_id in ids if object_id not in prepared.versions)
    held: dict[int, Held] = {}
    errors: dict[int, DiosError] = {}
    for some, size, blank in ((known, len(data), True), (new, len(data) + HEADER_BYTES_MAX, False)):
        more, failed = (yield from _hold_all(some, size, blank=blank)) if some else ({}, {})
        held |= more
        errors |= failed
    overtaken = any(isinstance(error, Busy | Conflict) for error in errors.values())
    for object_id, hold in held.items():
        if object_id in prepared.versions:
            same = hold.v_w == prepared.versions[object_id]
            (accepts if same else refused).append(object_id)
            overtaken = overtaken or not same
        elif _may_accept(hold, there[object_id], proposal.ballot):
            accepts.append(object_id)
        else:
            refused.append(object_id)
    if refused:
        yield ReleaseReplicas(tuple(refused))
    committed: Results[Committed] = {}
    if accepts:
        committed = cast("Results[Committed]", (yield CommitReplicas(dict.fromkeys(accepts, data))))
    holders = _without_errors(proposal, committed)
    outcome = Outcome(proposal, holders)
    if is_decided(proposal, outcome.accepted, seen.existing):
        return outcome
    if overtaken or any(isinstance(done, Busy | Conflict) for done in committed.values()):
        return None
    raise _too_few(proposal, outcome.accepted, "have taken the change")


def _may_accept(held: Held, here: Member, ballot: Ballot) -> bool:
    """Return True if a replica that has not promised anything to this client may accept its ballot."""
    try:
        state = frame.decode(held.data, here, whole=False)
    except DamagedError:
        return False  # its promises are lost
    return max(state.promised, state.value.ballot) < ballot


def _without_errors(value: Value, committed: Mapping[int, Committed | DiosError]) -> tuple[Member, ...]:
    members = {member.object_id: member for group in value.groups for member in group}
    return tuple(
        sorted(members[object_id] for object_id, done in committed.items() if not isinstance(done, DiosError))
    )


# -- a record that is lost ---------------------------------------------------------------------------
def restore(unite: Callable[[Sequence[bytes]], bytes]) -> Steps[Outcome]:
    """Make a record without any member again: from copies that were no members yet, or not any more.

    The latest copy has the value, and all of them are the new members. ``unite`` returns one content if
    plain replicas have others. Raises InvalidError if a member is there, UnreachableError if a node does not
    answer, DamagedError if no copy is sound, and Conflict if other clients are faster time after time.
    """
    for _ in range(_ATTEMPTS):
        sighting = yield from _look(fresh=True)
        seen = yield from _read(
            sighting, dict.fromkeys((member.object_id for member in sighting.replicas), 0)
        )
        _require_lost(seen)
        ids = tuple(seen.states)
        size = HEADER_BYTES_MAX + max(state.value.size for state in seen.states.values())
        held = cast("Results[Held]", (yield HoldReplicas(ids, size)))
        sound = {object_id for object_id, hold in held.items() if isinstance(hold, Held)}
        versions = {object_id: hold.v_w for object_id, hold in held.items() if isinstance(hold, Held)}
        if versions != {object_id: sighting.versions[object_id] for object_id in ids}:
            yield ReleaseReplicas(tuple(sound))
            yield Wait(Conflict("another client changes the record"))
            continue
        value = _restored(seen, unite)
        data = frame.encode(ReplicaState(value.ballot, value))
        committed = cast("Results[Committed]", (yield CommitReplicas(dict.fromkeys(ids, data))))
        outcome = Outcome(value, _without_errors(value, committed))
        if is_decided(value, outcome.accepted, seen.existing):
            return outcome
        raise _too_few(value, outcome.accepted, "have taken the change")
    raise Conflict("other clients change the record without a pause. Try again.")


def _require_lost(seen: _States) -> None:
    """Raise an error unless all nodes have answered and every copy was read, and none is a member."""
    if not seen.sighting.complete or not all(
        isinstance(error, DamagedError) for error in seen.errors.values()
    ):
        raise UnreachableError(
            "a node that may have a replica of the list does not answer. `dios node ls` shows which; repeat "
            "this when it is back, or `dios node forget` it if it is lost for ever.",
            call="lookup",
        )
    if not seen.states:
        raise _unreadable(seen)
    read = _States(seen.sighting, dict(seen.states), dict(seen.errors))
    read.drop_plain()
    if not read.is_lost:
        raise InvalidError("the record has members, and is not lost")


def _restored(seen: _States, unite: Callable[[Sequence[bytes]], bytes]) -> Value:
    """Return the value of a record that is made again from all copies that were read."""
    states = seen.states.values()
    latest = max((state.value for state in states if not state.plain), key=lambda value: value.ballot)
    contents = {latest.digest: latest.content or b""}
    contents |= {state.value.digest: state.value.content or b"" for state in states if state.plain}
    content = contents[latest.digest] if len(contents) == 1 else unite(tuple(contents.values()))
    rounds = max(max(state.promised, state.value.ballot) for state in states)[0] + RESTORED_ROUNDS
    members = {member.object_id: member for member in seen.sighting.replicas}
    value = latest.with_content(content, (rounds, 0), secrets.randbits(62))
    return value._replace(members=tuple(sorted(members[object_id] for object_id in seen.states)))


# -- steps and errors -------------------------------------------------------------------------------
def _look(*, fresh: bool) -> Steps[Sighting]:
    return cast("Sighting", (yield Look(fresh)))


def _unreadable(seen: _States) -> DiosError:
    nodes = {member.object_id: member.node for member in seen.sighting.replicas}
    why = "; ".join(f"{nodes[object_id]}: {error.message}" for object_id, error in seen.errors.items())
    are_damaged = [isinstance(error, DamagedError) for error in seen.errors.values()]
    if seen.sighting.complete and are_damaged and all(are_damaged):
        return DamagedError(f"no replica of the record is sound ({why})")
    return UnreachableError(
        f"no replica of the record can be read{f' ({why})' if why else ''}. `dios node ls` shows the nodes.",
        call="lookup",
    )


def _conflict() -> InvalidError:
    return InvalidError(
        "the list's replicas differ, from an earlier release, and it cannot be changed. "
        "`dios group repair` unites them."
    )


def _lost(seen: _States) -> DamagedError:
    nodes = sorted({member.node for member in seen.sighting.replicas if member.object_id in seen.states})
    return DamagedError(
        f"no replica of the list that counts is left. There are copies of it on {', '.join(nodes)}, which "
        "may be older: `dios group repair` makes the list from the latest of them."
    )


def _too_few(value: Value, given: Collection[int], action: str) -> UnreachableError:
    members = {member for group in value.groups for member in group}
    silent = sorted({member.node for member in members if member.object_id not in given})
    have = sum(member.object_id in given for member in members)
    return UnreachableError(
        f"{have} of {len(members)} replicas of the record {action}, not enough without {', '.join(silent)}. "
        "Start these nodes, or `dios node forget` those that are lost for ever.",
        call="lookup",
    )
