"""The catalogue of a group as one record: in one replica as plain bytes, in several with one history.

A catalogue in one replica is read and written as any object. One in several is a replicated record, whose
changes a majority of the replicas decides. It becomes that when it gets its second replica.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final, TypeAlias

from dios import limits
from dios.client.sync.node import Node, Reference
from dios.errors import (
    BadReferenceError,
    Busy,
    Conflict,
    DiosError,
    InvalidError,
    StaleError,
    UnreachableError,
)
from dios.lib.catalogue import StoredCatalogue
from dios.lib.files.disks import next_place
from dios.lib.replicated_record import frame, protocol
from dios.lib.replicated_record.blocking import BlockingReplicas
from dios.lib.replicated_record.frame import ZERO, Member, Value
from dios.lib.replicated_record.protocol import Reading
from dios.lib.retrying import Pauses
from dios.wire.types import Persistence, Proximity

CatalogueVersion: TypeAlias = tuple[int, int | bytes]
"""The object id and version of a single replica; or the version and digest of a value of the record."""

_GONE: Final = (UnreachableError, StaleError, BadReferenceError)


class CatalogueRecord:
    """The replicas of a catalogue, as one ``CatalogueObject``; ``find`` looks them up."""

    def __init__(self, node: Node, find: Callable[[], Sequence[Reference]]) -> None:
        self._node: Final = node
        self._replicas: Final = BlockingReplicas(node, find)
        self._reading: Reading | None = None
        self._read_at = float("-inf")
        self._near: tuple[int, int] | None = None
        """The object id and the version of the replica on this node with the value that was read last."""

    def exists(self) -> bool:
        """Look the replicas up if that was not done, and return True if there are any."""
        return bool(self._replicas.references or self._replicas.look_again())

    @property
    def secrecy(self) -> tuple[str, ...]:
        """The tags of the catalogue."""
        return next((replica.secrecy for replica in self._replicas.references), ())

    # -- reading and writing ------------------------------------------------------------------------
    def version(self) -> CatalogueVersion | None:
        """Return the present version without a call; None if that is not possible.

        Of a record, a change of which this node's replica does not know is noticed after CATALOGUE_FRESH_MS.
        """
        fresh = time.monotonic() - self._read_at < limits.CATALOGUE_FRESH_MS / 1000
        return self._version_here() if fresh or self._reading is None else None

    def likely_version(self) -> CatalogueVersion | None:
        """Return the version that was read last, if the replica of this node still has it.

        Without a replica here it is that of the last CATALOGUE_LOOK_MS. Return None in all other cases.
        """
        if self._here is None and self._reading is not None:
            recent = time.monotonic() - self._read_at < limits.CATALOGUE_LOOK_MS / 1000
            return _version(self._reading.value) if recent else None
        return self._version_here()

    def _version_here(self) -> CatalogueVersion | None:
        near = self._here
        if near is None or near.link.page is None or near.zombie:
            return None
        if self._reading is None:
            return near.object_id, near.v_w
        return _version(self._reading.value) if self._near == (near.object_id, near.v_w) else None

    def read_likely(self) -> tuple[bytes, CatalogueVersion] | None:
        """Return content and version of the replica on this node, which may not know the latest change.

        Return None if there is none, if it is known to be late, and if its members are being changed.
        """
        near = self._here
        if near is None or self._only is not None:
            return None
        try:
            value = frame.decode(near.read_bytes(), Member(near.object_id, near.node)).value
        except DiosError:
            return None
        earlier = self._reading is not None and value.version < self._reading.value.version
        if earlier or value.ballot == ZERO or value.former or value.content is None:
            return None
        self._reading, self._near = Reading(value, (), decided=False, is_plain=False), None
        return value.content, _version(value)

    def read(self) -> tuple[bytes, CatalogueVersion]:
        """Return content and version. Raises Conflict if a writer came between.

        Raises UnreachableError if too few replicas answer to know the latest change, and DamagedError if none
        is sound.
        """
        plain = self._read_plain()
        if plain is not None:
            return plain
        reading = self.read_record()
        return reading.value.content or b"", _version(reading.value)

    def read_record(self) -> Reading:
        """Return the value of the record, and the replicas that have it; raises as ``read``."""
        began, near = time.monotonic(), self._near_version()
        reading = self._replicas.run(protocol.read_record())
        self._note(reading, near, began)
        return reading

    def replace(self, data: bytes, version: CatalogueVersion) -> CatalogueVersion | None:
        """Write the content if the catalogue has ``version``, and return the new version.

        Return None if others have changed it again since. Raises Conflict and Busy if others write, and
        UnreachableError without a majority of the replicas.
        """
        only = self._only
        if only is not None and (only.object_id, version[1]) == version:
            return only.object_id, StoredCatalogue(only).replace(data, int(version[1]))
        reading = self._reading
        if reading is None or _version(reading.value) != version:
            raise Conflict("another task changed the catalogue")
        began = time.monotonic()
        steps = protocol.replace(reading.value, data)
        try:
            outcome = self._replicas.run(steps)
        except DiosError:
            self._near = None
            raise
        written = Reading(outcome.value, outcome.holders, decided=True, is_plain=False)
        self._note(written, self._replicas.near_commit, began)
        return _version(outcome.value) if outcome.value.content == data else None

    @property
    def _only(self) -> Reference | None:
        """The replica of a catalogue that has one, as far as is known; else None."""
        several = self._replicas.references
        return several[0] if len(several) == 1 and self._reading is None else None

    def _read_plain(self) -> tuple[bytes, CatalogueVersion] | None:
        """Return content and version of a catalogue in one replica; None if it has several."""
        for _ in range(2):
            only = self._only
            if only is None:
                break
            try:
                data, v_w = StoredCatalogue(only).read()
            except _GONE:
                if not any(replica.object_id != only.object_id for replica in self._replicas.look_again()):
                    raise
            else:
                return None if frame.has_header(data) else (data, (only.object_id, v_w))
        return None

    @property
    def _here(self) -> Reference | None:
        """The replica on this node, or None."""
        near = next(iter(self._replicas.references), None)
        return None if near is None or near.proximity > Proximity.NODE else near

    def _near_version(self) -> tuple[int, int] | None:
        near = self._here
        return None if near is None else (near.object_id, near.v_w)

    def _note(self, reading: Reading, near: tuple[int, int] | None, began: float) -> None:
        """Note what was read; a record that has one plain replica again is read as such from now on."""
        plain = reading.is_plain and len(reading.value.members) == 1
        self._reading = None if plain else reading
        has_it = near is not None and any(holder.object_id == near[0] for holder in reading.holders)
        self._near, self._read_at = near if has_it and reading.decided else None, began

    # -- replicas -----------------------------------------------------------------------------------
    @property
    def is_replicated(self) -> bool:
        """True if the catalogue has several replicas, or had them: one that is left keeps their history."""
        return len(self._replicas.references) > 1 or self._reading is not None

    @property
    def is_divided(self) -> bool:
        """True if replicas that differ, and have no history, were found when the catalogue was read."""
        return self._reading is not None and bool(self._reading.divided)

    def is_on(self, disks: int) -> bool:
        """Return True if the catalogue has replicas on this number of nodes, as far as this node knows."""
        if self._reading is None:
            self.read_likely()
        return self._reading is not None and len(self._reading.value.nodes) >= disks

    def hold(self, disks: int) -> None:
        """Make replicas until the latest value is on the disks of this number of nodes, and decided.

        Raises UnreachableError, with the reason of each node that refused, if too few take it.
        """
        known = self._reading
        if known is not None and known.decided and self._near is not None and known.disks >= disks:
            return
        refusals: dict[str, str] = {}
        pauses = Pauses(limits.CATALOGUE_EDIT_S, most_us=limits.CATALOGUE_PAUSE_US_MAX)
        while True:
            try:
                reading = self.read_record()
                if reading.disks >= disks and reading.decided:
                    return
                if len(reading.value.nodes) >= disks:
                    self._settle(disks)
                    return
                self._extend(reading, disks, refusals)
            except (Busy, Conflict) as conflict:
                if pauses.is_over:
                    raise
                pauses.wait(conflict)

    def _settle(self, disks: int) -> None:
        """Let all replicas that answer accept the present value again."""
        outcome = self._replicas.run(protocol.propose(lambda present: present))
        nodes = {member.node for member in outcome.holders}
        if len(nodes) < disks:
            silent = sorted(outcome.value.nodes - nodes)
            raise UnreachableError(
                f"{len(nodes)} of {disks} disks have the list of files ({', '.join(silent)} did not take it)"
            )

    def _extend(self, reading: Reading, disks: int, refusals: dict[str, str]) -> None:
        """Add one replica on a further node."""
        if reading.value.ballot == ZERO:
            # From now on a copy does not count as a replica before it is added.
            self._replicas.run(protocol.propose(lambda present: present))
        nodes = reading.value.nodes
        place = next_place(self._node, nodes, disks, refusals, key=reading.value.digest.hex())
        if place is None:
            why = "; ".join(f"{name}: {reason}" for name, reason in refusals.items())
            raise UnreachableError(
                f"{len(nodes)} of {disks} disks have the list of files "
                f"({why or 'no further node can take it'})"
            )
        holders = {member.object_id for member in reading.holders}
        source = next(replica for replica in self._replicas.references if replica.object_id in holders)
        try:
            copied = source.copy(host=place, persistence=Persistence.DURABLE)
        except DiosError as error:
            refusals[place] = error.message
            return
        added = Member(copied.object_id, copied.node)

        def with_added(members: tuple[Member, ...]) -> set[Member]:
            enough = len({member.node for member in members}) >= disks
            taken = any(member.node == added.node for member in members)
            return set(members) if enough or taken else {*members, added}

        outcome = None
        try:
            outcome = self._replicas.run(protocol.change_members(with_added))
        finally:
            if outcome is not None and added not in outcome.value.members:
                with suppress(DiosError):
                    copied.destroy()
            else:
                with suppress(DiosError):
                    copied.close()

    def unite(self, merge: Callable[[Sequence[bytes]], bytes]) -> Value:
        """Give replicas that differ, and have no history, one content; return the value.

        Members on nodes that no node knows any more are removed: the user says that they are lost for ever.
        Raises InvalidError if there is nothing to do.
        """
        self._replicas.vouches = True
        reading = self.read_record()
        sound = set(reading.sound)
        if not reading.divided and sound.issuperset(reading.value.members):
            raise InvalidError("the list of the group's files is not in conflict")
        if not reading.divided:
            outcome = self._replicas.run(protocol.change_members(sound.intersection))
            self._reading = None
            return outcome.value
        outcome = self._replicas.run(protocol.propose(lambda present: present, merge))
        self._reading = None
        return outcome.value

    def restore(self, merge: Callable[[Sequence[bytes]], bytes]) -> Value:
        """Make a record again no member of which is left, from copies of it; return the value.

        Raises as ``protocol.restore``.
        """
        self._replicas.vouches = True
        outcome = self._replicas.run(protocol.restore(merge))
        self._reading = None
        return outcome.value


def _version(value: Value) -> CatalogueVersion:
    return value.version, value.digest
