"""What the nodes of a simulated cluster have promised to anybody: values, rights, locks, children.

Not for: looking at the nodes (``dios.sim.cluster.agreement``). Everything here was learnt from answers
alone, so that
a defect of the core cannot explain itself.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Final, TypeAlias

from msgspec import Struct, field

from dios.ids import NodeId
from dios.sim.node.checker import BrokenPromiseError
from dios.wire.types import Permission

Key: TypeAlias = bytes | int
"""A logical object: its name, or the id of one without."""
Who: TypeAlias = int | str
"""A task by its id, or one that is to be started by its label, which is like no other's."""


class Write(Struct):
    """One write of one object, from when it was asked for; ``end`` is when it was vouched for."""

    value: bytes
    begin: int
    end: int | None = None


class Register(Struct):
    """One physical object that holds one value at a time.

    ``gone_at`` is when it was certainly no more.
    """

    key: Key
    home: NodeId
    durable: bool
    writes: list[Write] = field(default_factory=list)
    gone_at: int | None = None
    may_be_gone: bool = False

    def allows(self, value: bytes, since: int) -> bool:
        """Whether a read that was asked for at ``since``, and is answered now, may have found this."""
        return any(write.value == value and not self._over(write, since) for write in self.writes)

    def possible(self, since: int) -> list[bytes]:
        """The values that such a read may have found."""
        return [write.value for write in self.writes if not self._over(write, since)]

    def _over(self, write: Write, since: int) -> bool:
        """Whether another write began after this one had ended, and was done before the read."""
        end = write.end
        return end is not None and any(
            other.end is not None and other.end <= since and other.begin >= end
            for other in self.writes
            if other is not write
        )


class Grant(Struct):
    """Why somebody may have references to an object: on their own authority, or from somebody's reference."""

    mask: int
    source: int = 0
    parents: tuple[Grant, ...] = ()
    given_at: int | None = None
    retired: bool = False

    @property
    def valid(self) -> bool:
        """Whether it was not taken back, for what is known."""
        return not self.retired and (not self.source or any(one.valid for one in self.parents))


class Hold(Struct, frozen=True):
    """A lock that was held, from the answer to the acquire until the commit was sent, which did hold."""

    begin: int
    end: int
    v_w: int


class Child(Struct):
    """A task that somebody started; ``object`` is known when that was answered."""

    parent: int
    object: int | None = None


class Ledger:
    """One run's book of promises."""

    def __init__(self) -> None:
        self.registers: Final[dict[int, Register]] = {}
        self.keys: Final[dict[int, Key]] = {}
        self.groups_of: Final[dict[Key, tuple[bytes, ...]]] = {}
        self.disbanded: Final[dict[bytes, tuple[NodeId, int, int]]] = {}
        self.grants: Final[dict[tuple[Who, Key], list[Grant]]] = {}
        self.children: Final[list[Child]] = []
        self.told: Final[Counter[tuple[int, int]]] = Counter()
        self._stored: Final[set[tuple[int, bytes]]] = set()
        self._made: Final[dict[bytes, bytes]] = {}
        self.locks: Final[set[int]] = set()
        self.perhaps_gone: Final[set[int]] = set()  # deleted or written before whoever made them was answered
        self._holds: Final[dict[int, list[Hold]]] = {}

    # -- values -------------------------------------------------------------------------------------
    def register(self, target: int, key: Key, home: NodeId, value: Write | None, *, durable: bool) -> None:
        """An object came to be."""
        self.keys[target] = key
        if target not in self.registers:
            writes = [] if value is None else [value]
            self.registers[target] = Register(key, home, durable, writes)
            self.registers[target].may_be_gone = target in self.perhaps_gone

    def begin(self, target: int, value: bytes, now: int) -> Write | None:
        """A write is asked for; None for an object of which nothing is known."""
        found = self.registers.get(target)
        if found is None:
            self.perhaps_gone.add(target)
            return None
        write = Write(value, now)
        found.writes.append(write)
        return write

    def withdraw(self, target: int, write: Write | None) -> None:
        """It certainly did not take place."""
        if write is not None:
            self.registers[target].writes.remove(write)

    def read(self, target: int, value: bytes, since: int) -> None:
        """Somebody found this value."""
        found = self.registers.get(target)
        if found is None or not found.writes:
            return
        if found.gone_at is not None and since > found.gone_at:
            raise BrokenPromiseError(f"an object that was gone gave {value!r}")
        if not found.allows(value, since):
            raise BrokenPromiseError(f"read {value!r}, possible were {found.possible(since)!r}")

    # -- rights -------------------------------------------------------------------------------------
    def entitle(self, who: Who, key: Key, mask: int = int(Permission.ALL)) -> None:
        """Somebody may resolve the name, or has made the object."""
        found = self.grants.setdefault((who, key), [])
        if not any(not one.source and one.mask == mask for one in found):
            found.append(Grant(mask))

    def lend(self, giver: tuple[Who, ...], source: int, receiver: Who, key: Key, mask: int) -> Grant:
        """Somebody asks for a delegation of a reference."""
        parents = tuple(one for who in giver for one in self.grants.get((who, key), ()))
        given = Grant(mask, source, parents)
        self.grants.setdefault((receiver, key), []).append(given)
        return given

    def retire(self, source: int, since: int) -> None:
        """Whatever came from a reference before this was asked for is taken back."""
        for found in self.grants.values():
            for grant in found:
                if grant.source == source and grant.given_at is not None and grant.given_at < since:
                    grant.retired = True

    def mask_of(self, who: Iterable[Who], key: Key, *, quiet: bool) -> int:
        """The rights that somebody may have on an object.

        What was taken back may be on its way to the holder, unless all is ``quiet``.
        """
        mask = 0
        for one in who:
            for grant in self.grants.get((one, key), ()):
                if grant.valid or not quiet:
                    mask |= grant.mask
        return mask

    # -- locks --------------------------------------------------------------------------------------
    def held(self, target: int, hold: Hold) -> None:
        """Somebody had the lock, and let it go by a commit that held."""
        for other in self._holds.setdefault(target, []):
            if hold.v_w == other.v_w:
                raise BrokenPromiseError(f"two holders of a lock got the same token {hold.v_w}")
            if hold.begin < other.end and other.begin < hold.end:
                raise BrokenPromiseError("two held a lock at one time")
        self._holds[target].append(hold)

    # -- things done once -----------------------------------------------------------------------------
    def stored(self, target: int, name: bytes | None, value: bytes) -> None:
        """A node did a write, or a create: like each value there is no other."""
        if (target, value) in self._stored:
            raise BrokenPromiseError("one call to write has written twice")
        self._stored.add((target, value))
        if name is not None and self._made.setdefault(value, name) != name:
            raise BrokenPromiseError("one call to create has made two objects")

    def child_ended(self, parent: int, child: int) -> None:
        """A task heard of the end of one that it started."""
        self.told[parent, child] += 1
        if self.told[parent, child] > 1:
            raise BrokenPromiseError("the end of a task was told twice to who started it")
