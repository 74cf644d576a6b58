"""The promises that the nodes of a simulated cluster have made: values, permissions, locks, child tasks.

All of it is learnt from answers alone, so that a defect of the core cannot hide itself. The nodes are
compared with it in ``labs.sim.cluster.agreement``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Final, TypeAlias

from msgspec import Struct, field

from dios.ids import NodeId
from dios.wire.types import Permission
from labs.sim.node.checker import BrokenPromiseError

Key: TypeAlias = bytes | int
"""A logical object: its name, or its id if it has no name."""
TaskKey: TypeAlias = int | str
"""A task by its id, or a task that is being started by its unique label."""


class Write(Struct):
    """One write to one object; ``begin`` is the time of the call, ``end`` the time of the acknowledgement."""

    value: bytes
    begin: int
    end: int | None = None


class ValueHistory(Struct):
    """The values of one physical object over time.

    ``deleted_at`` is the time after which the object certainly does not exist.
    """

    key: Key
    home: NodeId
    durable: bool
    writes: list[Write] = field(default_factory=list)
    deleted_at: int | None = None
    may_be_deleted: bool = False

    def allows(self, value: bytes, since: int) -> bool:
        """Return True if a read that was sent at ``since`` and is answered now may return this value."""
        return any(write.value == value and not self._superseded(write, since) for write in self.writes)

    def possible(self, since: int) -> list[bytes]:
        """Return the values that such a read may return."""
        return [write.value for write in self.writes if not self._superseded(write, since)]

    def _superseded(self, write: Write, since: int) -> bool:
        """Return True if a later write began after this one had ended, and ended before the read."""
        end = write.end
        return end is not None and any(
            other.end is not None and other.end <= since and other.begin >= end
            for other in self.writes
            if other is not write
        )


class Grant(Struct):
    """The authority for references to an object: the holder's own, or a delegation from another reference."""

    mask: int
    source: int = 0
    parents: tuple[Grant, ...] = ()
    granted_at: int | None = None
    retired: bool = False

    @property
    def valid(self) -> bool:
        """Return True if the grant is not known to be retired."""
        return not self.retired and (not self.source or any(parent.valid for parent in self.parents))


class LockHold(Struct, frozen=True):
    """A period with a lock: from the answer to the acquire to the sending of the commit that succeeded."""

    begin: int
    end: int
    v_w: int


class StartedTask(Struct):
    """A task that another task started; ``object`` is known after the answer."""

    parent: int
    object: int | None = None


class PromiseLedger:
    """All promises of one run."""

    def __init__(self) -> None:
        self.registers: Final[dict[int, ValueHistory]] = {}
        self.keys: Final[dict[int, Key]] = {}
        self.groups_of: Final[dict[Key, tuple[bytes, ...]]] = {}
        self.disbanded: Final[dict[bytes, tuple[NodeId, int, int]]] = {}
        self.grants: Final[dict[tuple[TaskKey, Key], list[Grant]]] = {}
        self.children: Final[list[StartedTask]] = []
        self.reported_ends: Final[Counter[tuple[int, int]]] = Counter()
        self.lookups: Final[Counter[bool]] = Counter()  # lookups whose result was certain
        self._stored: Final[set[tuple[int, bytes]]] = set()
        self._created: Final[dict[bytes, bytes]] = {}
        self.locks: Final[set[int]] = set()
        self.maybe_deleted: Final[set[int]] = set()  # deleted before their creation was answered
        self._early_writes: Final[dict[int, list[Write]]] = {}  # begun before the creation was answered
        self._holds: Final[dict[int, list[LockHold]]] = {}

    # -- values -------------------------------------------------------------------------------------
    def register(self, target: int, key: Key, home: NodeId, value: Write | None, *, durable: bool) -> None:
        """Record a new object."""
        self.keys[target] = key
        if target not in self.registers:
            writes = [] if value is None else [value]
            writes.extend(self._early_writes.pop(target, ()))
            self.registers[target] = ValueHistory(key, home, durable, writes)
            self.registers[target].may_be_deleted = target in self.maybe_deleted

    def begin(self, target: int, value: bytes, now: int) -> Write:
        """Record the start of a write, also to an object whose creator has no answer yet."""
        write = Write(value, now)
        self._writes_to(target).append(write)
        return write

    def withdraw(self, target: int, write: Write) -> None:
        """Remove a write that certainly did not take place."""
        self._writes_to(target).remove(write)

    def _writes_to(self, target: int) -> list[Write]:
        register = self.registers.get(target)
        return self._early_writes.setdefault(target, []) if register is None else register.writes

    def read(self, target: int, value: bytes, since: int) -> None:
        """Check a value that a client has read."""
        register = self.registers.get(target)
        if register is None or not register.writes:
            return
        if register.deleted_at is not None and since > register.deleted_at:
            raise BrokenPromiseError(f"an object that was gone gave {value!r}")
        if not register.allows(value, since):
            raise BrokenPromiseError(
                f"read {value!r}, but the possible values are {register.possible(since)!r}"
            )

    # -- rights -------------------------------------------------------------------------------------
    def allow(self, task: TaskKey, key: Key, mask: int = int(Permission.ALL)) -> None:
        """Record that a task may resolve a name, or has created the object."""
        grants = self.grants.setdefault((task, key), [])
        if not any(not grant.source and grant.mask == mask for grant in grants):
            grants.append(Grant(mask))

    def grant(self, giver: tuple[TaskKey, ...], source: int, receiver: TaskKey, key: Key, mask: int) -> Grant:
        """Record the request for a delegation of a reference."""
        parents = tuple(parent for who in giver for parent in self.grants.get((who, key), ()))
        new = Grant(mask, source, parents)
        self.grants.setdefault((receiver, key), []).append(new)
        return new

    def retire(self, source: int, since: int) -> None:
        """Retire all grants from a reference that were made before this call was sent."""
        for grants in self.grants.values():
            for grant in grants:
                if grant.source == source and grant.granted_at is not None and grant.granted_at < since:
                    grant.retired = True

    def mask_of(self, who: Iterable[TaskKey], key: Key, *, quiet: bool) -> int:
        """Return the permissions that a task may have on an object.

        A retired reference may still be with its holder, unless the cluster is ``quiet``.
        """
        mask = 0
        for task in who:
            for grant in self.grants.get((task, key), ()):
                if grant.valid or not quiet:
                    mask |= grant.mask
        return mask

    def may_read(self, who: Iterable[TaskKey], target: int) -> bool:
        """Return True unless every right of a task to read an object was certainly taken back."""
        key = self.keys.get(target)
        return key is None or bool(self.mask_of(who, key, quiet=True) & Permission.READ)

    # -- locks --------------------------------------------------------------------------------------
    def record_hold(self, target: int, hold: LockHold) -> None:
        """Record a lock that was released by a successful commit."""
        for other in self._holds.setdefault(target, []):
            if hold.v_w == other.v_w:
                raise BrokenPromiseError(f"two holders of a lock got the same token {hold.v_w}")
            if hold.begin < other.end and other.begin < hold.end:
                raise BrokenPromiseError("two clients held a lock at the same time")
        self._holds[target].append(hold)

    # -- things done once -----------------------------------------------------------------------------
    def record_store(self, target: int, name: bytes | None, value: bytes) -> None:
        """Record a write or create that a node carried out; all values of a run differ."""
        if (target, value) in self._stored:
            raise BrokenPromiseError("one write call was carried out twice")
        self._stored.add((target, value))
        if name is not None and self._created.setdefault(value, name) != name:
            raise BrokenPromiseError("one create call has created two objects")

    def child_ended(self, parent: int, child: int) -> None:
        """Record that a task was notified of the end of a task that it started."""
        self.reported_ends[parent, child] += 1
        if self.reported_ends[parent, child] > 1:
            raise BrokenPromiseError("a task was notified twice of the end of a task that it started")
