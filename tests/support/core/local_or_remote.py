"""One scene with its object on the caller's node, or on another: for claims that are made of both."""

from __future__ import annotations

from dios.wire import messages
from dios.wire.types import Buffering, Flag, Mode, ObjectType, Semantics
from tests.support.core.cluster import Citizen, Cluster

CONTENT = b"0123456789"


class Site:
    """``me`` on the first node, ``other`` on the node that has the object; each with a reference to it."""

    def __init__(self, place: str, buffering: Buffering = Buffering.DOUBLE) -> None:
        self.cluster = Cluster()
        self.away = place == "away"
        home = self.cluster.nodes[1 if self.away else 0]
        self.me = self.cluster.session(self.cluster.nodes[0])
        self.other = self.cluster.session(home)
        self.home = home
        self._count_up()
        self.ref, self.ref_of_other = self.object(ObjectType.SHMEM_BLOB, CONTENT, buffering)

    def _count_up(self) -> None:
        """Buffers of two nodes that belong together have different numbers."""
        mine = self.me.create(data=b"mine").reference.ref
        for _ in range(5):
            buffer = self.me.ask(messages.Buffer, messages.AcquireRead(mine)).buffer
            self.me.ask(messages.Done, messages.ReleaseRead(mine, buffer))
        self.me.ask(messages.Done, messages.Delete(mine, int(Flag.DESTROY)))

    def object(
        self, kind: ObjectType, data: bytes | None = None, buffering: Buffering = Buffering.DOUBLE
    ) -> tuple[int, int]:
        """An object of the other's, and both references to it."""
        call = messages.Create(kind, (self.other.groups[0],), buffering=buffering, data=data)
        created = self.other.ask(messages.Created, call)
        (reference,) = self.me.lookup(created.name)
        return reference.ref, created.reference.ref

    def acquire(self, mode: Mode, level: Semantics = Semantics.ANY, who: Citizen | None = None) -> int:
        """The buffer of an acquire that is admitted."""
        ref = self.ref if who is None else self.ref_of_other
        kind = messages.AcquireRead if mode is Mode.READ else messages.AcquireWrite
        return (who or self.me).ask(messages.Buffer, kind(ref, semantics=level)).buffer

    def counters(self) -> tuple[int, int, int, int]:
        """As the object's own node has them."""
        return self.other.counters(self.ref_of_other)

    def content(self) -> bytes:
        """As the object's own node has it."""
        return self.other.read(self.ref_of_other)
