"""What every handle shows without a call: the public part of a reference, live from the node's page (§4.5.1).

Not for: doing anything with the object (``dios.client.ops.handles``).
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, Protocol, TypeAlias

from dios.errors import InvalidError
from dios.wire import messages
from dios.wire.page import PublicAttributes
from dios.wire.types import Buffering, Deletion, ObjectType, Permission, Persistence, Proximity

if TYPE_CHECKING:
    from dios.client.ops.node_base import NodeBase
    from dios.client.page import Page

Rights: TypeAlias = "str | Permission"


class ClientLink(Protocol):
    """The connection that a face drives operations over."""

    @property
    def page(self) -> Page | None:
        """The public page, where the node gave one."""


class HasLink(Protocol):
    """Whatever operations belong to."""

    @property
    def link(self) -> ClientLink:
        """The connection that their calls go over."""


class Handed:
    """A reference as it will be handed to a new task: narrowed, under a label, for ever or for a while."""

    __slots__ = ("label", "lifetime_ns", "permissions", "reference")

    def __init__(
        self, reference: Handle, permissions: Permission, label: str = "", lifetime_ns: int = 0
    ) -> None:
        self.reference: Final = reference
        self.permissions: Final = permissions
        self.label: Final = label
        self.lifetime_ns: Final = lifetime_ns
        """So long from its start on the task has it; 0 for as long as it runs."""

    def __repr__(self) -> str:
        return f"<handed {self.reference.fingerprint} {rights_text(self.permissions)}>"

    def message(self) -> messages.Handed:
        """The form on the wire."""
        return messages.Handed(self.reference.ref, int(self.permissions), self.label, self.lifetime_ns)


class Handle:
    """The public part of a reference (§4.5.1). Counters are read live from the node's page, with no call."""

    __slots__ = ("_closed", "_info", "_node", "link", "name")

    def __init__(self, node: NodeBase, info: messages.Reference, name: bytes | None = None) -> None:
        self._node: Final = node
        self._info: Final = info
        self._closed = False
        self.link: Final = node.link
        self.name: Final = name
        """The object's name where this handle came by it, else None. A secret: show the fingerprint."""

    def __repr__(self) -> str:
        info = self._info
        return f"<{type(self).__name__} {info.type.name} {info.fingerprint} {rights_text(self.permissions)}>"

    def _live(self) -> PublicAttributes | messages.Reference:
        page = self.link.page
        found = None if page is None else page.attributes(self._info)
        return self._info if found is None else found

    @property
    def ref(self) -> int:
        """The reference's id; it means nothing in another task."""
        return self._info.ref

    @property
    def object_id(self) -> int:
        """The physical object's id: equal in every reference to it."""
        return self._info.object

    @property
    def type(self) -> ObjectType:
        """What kind of object it is (Table 4.1)."""
        return self._info.type

    @property
    def label(self) -> str:
        """What the reference's giver called it."""
        return self._info.label

    @property
    def fingerprint(self) -> str:
        """What stands for the object in messages, logs and the audit log."""
        return self._info.fingerprint

    @property
    def permissions(self) -> Permission:
        """What this reference lets its holder do."""
        return Permission(self._info.permissions)

    @property
    def persistence(self) -> Persistence:
        """Whether the object survives the node's restart."""
        return self._info.persistence

    @property
    def proximity(self) -> Proximity:
        """How far away the object is."""
        return self._info.proximity

    @property
    def node(self) -> str:
        """The name of the node that has the object; empty on a node that is in no cluster."""
        return self._info.node

    @property
    def rack(self) -> str:
        """The fault domain of that node; empty when it was given none."""
        return self._info.rack

    @property
    def deletion(self) -> Deletion:
        """When the object is destroyed."""
        return self._info.deletion

    @property
    def buffering(self) -> Buffering:
        """Whether writers work on a shadow copy or on the shared bytes."""
        return self._info.buffering

    @property
    def address(self) -> str:
        """Of a network stream "HOST:PORT": the peer's of a connection, its own of any other; else empty."""
        return self._info.address

    @property
    def expires(self) -> float | None:
        """In how many seconds the node takes this reference back; 0 once it is over, None for never."""
        if not self._info.expires_ns:
            return None
        return max(0, self._info.expires_ns - time.time_ns()) / 1e9

    @property
    def size(self) -> int:
        """The object's size in bytes, as of now."""
        return self._live().size

    @property
    def v_r(self) -> int:
        """How many reads were committed."""
        return self._live().v_r

    @property
    def v_w(self) -> int:
        """How many writes were committed."""
        return self._live().v_w

    @property
    def a_r(self) -> int:
        """How many read requests are active."""
        return self._live().a_r

    @property
    def a_w(self) -> int:
        """How many write requests are active."""
        return self._live().a_w

    @property
    def dirty(self) -> int:
        """How many writes on a raw object's own bytes were not committed."""
        live = self._live()
        return live.dirty if isinstance(live, PublicAttributes) else 0

    @property
    def zombie(self) -> bool:
        """Whether the object was deleted, or this handle closed: I/O fails for good."""
        page = self.link.page
        if page is None or self._closed:
            return self._closed
        found = page.attributes(self._info)
        return found is None or found.zombie

    def detach(self) -> None:
        """Let go of what this process holds for the handle; the node is told by another way."""
        self._closed = True

    def restrict(self, *rights: Rights, label: str = "", expires: float | None = None) -> Handed:
        """This reference with at most these rights ("read", "write", "execute", "delegate", "delete"),
        to be handed to a new task; a task can hand on only what it may delegate.

        With ``expires`` the node takes it back that many seconds after the task's start.
        """
        return Handed(self, rights_of(rights), label, lifetime_ns(expires))


def lifetime_ns(expires: float | None) -> int:
    """Seconds until a delegation ends as the wire counts them, 0 for None; InvalidError for none at all."""
    if expires is None:
        return 0
    if not 0 < expires < float("inf"):
        raise InvalidError(f"a delegation cannot expire after {expires:g} s; leave it out for never")
    return min(max(1, int(expires * 1e9)), 2**62)


def rights_of(rights: Sequence[Rights]) -> Permission:
    """Rights given by name or as a Permission; none given means all."""
    found = Permission.NONE if rights else Permission.ALL
    for right in rights:
        if isinstance(right, Permission):
            found |= right
            continue
        try:
            found |= Permission[right.upper()]
        except KeyError:
            known = ", ".join(str(item.name).lower() for item in Permission if item.name)
            raise InvalidError(f"there is no right {right!r}; known: {known}") from None
    return found


def rights_text(permissions: Permission) -> str:
    """Rights in five letters, like a file's mode: ``rwxgd`` for read, write, execute, delegate, delete."""
    letters = zip("rwxgd", (1, 2, 4, 8, 16), strict=True)
    return "".join(letter if permissions & bit else "-" for letter, bit in letters)
