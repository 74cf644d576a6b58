"""The base of all handles: the public part of a reference, read without a call (§4.5.1), and the node."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, Protocol, TypeAlias

from dios.client.ops.notebook_html import properties
from dios.errors import InvalidError
from dios.transport.rings.end import RingEnd
from dios.wire import messages
from dios.wire.nametext import fingerprint
from dios.wire.page import PublicAttributes
from dios.wire.types import Buffering, Deletion, ObjectType, Permission, Persistence, Proximity, Semantics

if TYPE_CHECKING:
    from dios.client.page import KeptBytes, Page
    from dios.client.tracing.started_tasks import StartedTask

Rights: TypeAlias = "str | Permission"

_DIRECT: Final = (Semantics.ANY, Semantics.MRSW)
"""The levels that do not depend on other readers."""


class ClientLink(Protocol):
    """The connection over which a client runs operations."""

    @property
    def page(self) -> Page | None:
        """Return the public page, if the node sent one."""

    @property
    def held_calls(self) -> int:
        """Return the number of calls that wait in this client until the node has room for them."""


class HasLink(Protocol):
    """An owner of operations."""

    @property
    def link(self) -> ClientLink:
        """Return the connection for its calls."""


class Handed:
    """A reference for a new task: with restricted rights, under a label, for ever or for a while."""

    __slots__ = ("label", "lifetime_ns", "permissions", "reference")

    def __init__(
        self, reference: Handle, permissions: Permission, label: str = "", lifetime_ns: int = 0
    ) -> None:
        self.reference: Final = reference
        self.permissions: Final = permissions
        self.label: Final = label
        self.lifetime_ns: Final = lifetime_ns
        """The lifetime from the start of the task in nanoseconds; 0 for as long as the task runs."""

    def __repr__(self) -> str:
        return f"<handed {self.reference.fingerprint} {rights_text(self.permissions)}>"

    def message(self) -> messages.Handed:
        """Return the form on the wire."""
        return messages.Handed(self.reference.ref, int(self.permissions), self.label, self.lifetime_ns)


class Handle:
    """The public part of a reference (§4.5.1). Counters are read from the node's page, without a call."""

    __slots__ = ("_closed", "_info", "_kept", "_node", "link", "name")

    def __init__(self, node: NodeBase, info: messages.Reference, name: bytes | None = None) -> None:
        self._node: Final = node
        self._info: Final = info
        self._closed = False
        self._kept: KeptBytes | None = None
        self.link: Final = node.link
        self.name: Final = name
        """The object's name if this handle was obtained by it, else None. A secret: show the fingerprint."""

    def __repr__(self) -> str:
        info = self._info
        return f"<{type(self).__name__} {info.type.name} {info.fingerprint} {rights_text(self.permissions)}>"

    def _repr_html_(self) -> str:
        """Return the public attributes for a notebook, without the name."""
        return properties(
            type(self).__name__,
            (
                ("type", self.type.name),
                ("object", self.fingerprint),
                ("rights", rights_text(self.permissions)),
                ("label", self.label),
                ("secrecy", " ".join(self.secrecy) or None),
                ("bytes", f"{self.size:,}" if "BLOB" in self.type.name else None),
                ("address", self.address),
                ("node", self.node),
                ("state", "deleted or closed" if self.zombie else None),
            ),
        )

    def _live(self) -> PublicAttributes | messages.Reference:
        page = self.link.page
        attributes = None if page is None else page.attributes(self._info)
        return self._info if attributes is None else attributes

    @property
    def info(self) -> messages.Reference:
        """Return the public part as the node sent it; the other attributes are more recent."""
        return self._info

    @property
    def ref(self) -> int:
        """Return the reference's id, which has no meaning in another task."""
        return self._info.ref

    @property
    def object_id(self) -> int:
        """Return the physical object's id, which is equal in every reference to it."""
        return self._info.object

    @property
    def type(self) -> ObjectType:
        """Return the type of the object (Table 4.1)."""
        return self._info.type

    @property
    def label(self) -> str:
        """Return the label that the delegating task gave to the reference."""
        return self._info.label

    @property
    def fingerprint(self) -> str:
        """Return the identification of the object for messages, logs and the audit log."""
        return self._info.fingerprint

    @property
    def permissions(self) -> Permission:
        """Return the rights of this reference."""
        return Permission(self._info.permissions)

    @property
    def persistence(self) -> Persistence:
        """Return VOLATILE or DURABLE: a durable object survives the node's restart."""
        return self._info.persistence

    @property
    def proximity(self) -> Proximity:
        """Return the distance of the object."""
        return self._info.proximity

    @property
    def node(self) -> str:
        """Return the name of the node that has the object; "" without a cluster."""
        return self._info.node

    @property
    def rack(self) -> str:
        """Return the fault domain of that node; "" if it has none."""
        return self._info.rack

    @property
    def deletion(self) -> Deletion:
        """Return the condition under which the object is destroyed."""
        return self._info.deletion

    @property
    def buffering(self) -> Buffering:
        """Return DOUBLE if writers use a shadow copy, RAW if they use the shared bytes."""
        return self._info.buffering

    @property
    def secrecy(self) -> tuple[str, ...]:
        """Return the tags of the object's secrecy label; () for an object without a label."""
        return self._info.secrecy

    @property
    def address(self) -> str:
        """Return "HOST:PORT" of a network stream: the peer's for a connection, else its own; else ""."""
        return self._info.address

    @property
    def expires(self) -> float | None:
        """Return the seconds until the node takes this reference back; 0 once it did, None for never."""
        if not self._info.expires_ns:
            return None
        return max(0, self._info.expires_ns - time.time_ns()) / 1e9

    @property
    def size(self) -> int:
        """Return the object's present size in bytes; 0 for a caller who may not know its label."""
        return self._live().size

    @property
    def v_r(self) -> int:
        """Return the number of committed reads."""
        return self._live().v_r

    @property
    def v_w(self) -> int:
        """Return the number of committed writes."""
        return self._live().v_w

    @property
    def a_r(self) -> int:
        """Return the number of active read requests."""
        return self._live().a_r

    @property
    def a_w(self) -> int:
        """Return the number of active write requests."""
        return self._live().a_w

    @property
    def dirty(self) -> int:
        """Return the number of uncommitted writes to a raw object's own bytes."""
        live = self._live()
        return live.dirty if isinstance(live, PublicAttributes) else 0

    @property
    def zombie(self) -> bool:
        """Return True if the object was deleted, or this handle closed: all I/O fails."""
        page = self.link.page
        if page is None or self._closed:
            return self._closed
        attributes = page.attributes(self._info)
        return attributes is None or attributes.zombie

    def detach(self) -> None:
        """Release this process' resources of the handle; the reference stays until ``close``."""

    def _give_up(self) -> None:
        """Release everything that this process has of the handle; its reference is dropped by a call."""
        self._closed = True
        self.detach()
        kept, page = self._kept, self.link.page
        if kept is not None and page is not None:
            page.forget(kept)

    # -- reads without a call -----------------------------------------------------------------------
    def direct(self, size: int, offset: int, semantics: Semantics) -> bytes | memoryview | None:
        """Return the bytes of a read if this process has them and the page shows that they are current.

        Otherwise return None: the read must be a call. The look at the page is the moment of the read.
        """
        kept = self._kept
        if kept is None or not kept.current or semantics not in _DIRECT:
            return None
        part = kept.part(size, offset)
        return part if part is not None and kept.count() else None

    def kept(self, semantics: Semantics) -> KeptBytes | None:
        """Return the bytes that this process has, if a read at this level may be served from them now."""
        kept = self._kept
        return kept if kept is not None and kept.current and semantics in _DIRECT else None

    def uncounted(self) -> int:
        """Return the number of reads without a call that the node does not know yet, to report them."""
        return 0 if self._kept is None else self._kept.reads

    def has_reported(self, counted: int) -> None:
        """Note that a call has reported ``counted`` reads."""
        if self._kept is not None:
            self._kept.reads -= counted

    def has_read(self, v_w: int, data: bytes | memoryview, start: int) -> None:
        """Keep the bytes that a call has read from ``start`` on at version ``v_w``, for further reads."""
        kept, page = self._kept, self.link.page
        if page is None or self._closed:
            return
        fresh = page.keep(self._info, v_w, data, start)
        if kept is not None:
            page.forget(kept)
        if fresh is not None:
            fresh.reads = 0 if kept is None else kept.reads
            self._kept = fresh

    def restrict(self, *rights: Rights, label: str = "", expires: float | None = None) -> Handed:
        """Return this reference with at most these rights, for a new task.

        The rights are "read", "write", "execute", "delegate", "delete" and "declassify"; it needs the right
        to delegate.
        With ``expires`` the node takes it back that number of seconds after the task's start.
        """
        return Handed(self, rights_of(rights), label, lifetime_ns(expires))


def lifetime_ns(expires: float | None) -> int:
    """Return seconds until a delegation ends as nanoseconds, 0 for None; InvalidError if not above 0."""
    if expires is None:
        return 0
    if not 0 < expires < float("inf"):
        raise InvalidError(f"a delegation cannot expire after {expires:g} s. Leave it out for never.")
    return min(max(1, int(expires * 1e9)), 2**62)


def rights_of(rights: Sequence[Rights]) -> Permission:
    """Return rights given by name or as a Permission; all rights if none is given."""
    permissions = Permission.NONE if rights else Permission.ALL
    for right in rights:
        if isinstance(right, Permission):
            permissions |= right
            continue
        try:
            permissions |= Permission[right.upper()]
        except KeyError:
            known = ", ".join(str(item.name).lower() for item in Permission if item.name)
            raise InvalidError(f"there is no right {right!r}; known: {known}") from None
    return permissions


def rights_text(permissions: Permission) -> str:
    """Return rights as five letters, like a file's mode: ``rwxgd``, where g is the right to delegate.

    A sixth letter ``c`` is the right to declassify, if the reference has it.
    """
    letters = zip("rwxgd", (1, 2, 4, 8, 16), strict=True)
    text = "".join(letter if permissions & bit else "-" for letter, bit in letters)
    return f"{text}c" if permissions & Permission.DECLASSIFY else text


class NodeBase(ABC):
    """The identity of this task, as given at its start (§4.5.2)."""

    def __init__(self, link: ClientLink, welcome: messages.Welcome, *, ambient: bool = False) -> None:
        self.link: Final = link
        self.ambient: Final = ambient
        """True for the task's own node, which is not closed before the task ends."""
        self.name: Final = welcome.name
        """This task's own name, which is a secret."""
        self.brand: Final = welcome.brand
        self.label: Final = welcome.label
        self.arguments: Final = welcome.arguments
        self.self_info: Final = welcome.self_ref
        self.ends: Final[set[RingEnd]] = set()
        """The ends of streams that are attached now."""
        self.traced_tasks: Final[dict[str, StartedTask]] = {}
        """The traced tasks of this session that are not known to have ended, by their fingerprints."""

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.brand.name.lower()} task {fingerprint(self.name)}>"

    def _repr_html_(self) -> str:
        """Return the identity of this task for a notebook, without its name."""
        return properties(
            type(self).__name__,
            (("task", fingerprint(self.name)), ("brand", self.brand.name.lower()), ("label", self.label)),
        )

    def close_ends(self) -> None:
        """Close every end of a stream, because their references end with the connection."""
        while self.ends:
            self.ends.pop().close()

    def abandon_ends(self) -> None:
        """Release every end of a stream in a fork of this process, where they belong to the origin."""
        while self.ends:
            self.ends.pop().abandon()

    @abstractmethod
    def handle(self, info: messages.Reference, name: bytes | None = None) -> Handle:
        """Return the client's handle for a reference in a message."""
