"""Services: tasks that accept connections for one purpose, found by who leads clients to them.

For: workers that each have a listening socket of their own, on any node, and balancers that follow them.
Not for: one acceptor that several tasks share, to which clients come by themselves (``docs/streams.md``).

A service is a small object in which the names of its acceptors stand, in the form of a catalogue. An acceptor
is there as long as it is found by its name: it goes with the task that has it, and whoever dies is gone.
Nothing is renewed, and nobody is asked how it does. Those of the group may publish, and may take connections
that are for others: it is a group of those who serve, and of who leads to them.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from typing import Final

import msgspec

from dios.client.ops.nodes import name_bytes
from dios.client.sync.node import Acceptor, Group, Node, Reference
from dios.errors import Busy, ClosedError, Conflict, DiosError, InvalidError, LimitError, UnreachableError
from dios.lib import catalogue
from dios.lib.catalogue import CatalogueEntry, StoredCatalogue
from dios.limits import CATALOGUE_EDITS_MAX, SERVICE_MEMBERS_MAX
from dios.wire.nametext import fingerprint
from dios.wire.types import Deletion, ObjectType

_EVERYWHERE: Final = frozenset({"0.0.0.0", "::"})  # noqa: S104 - such addresses are refused


class ServiceMember(msgspec.Struct, frozen=True):
    """One who accepts connections."""

    host: str
    port: int
    node: str
    """The name of its node; empty on a node that is in no cluster."""


class Service:
    """A service, by the group that it is in and its name. For one thread at a time.

    Its list is on one node: while that one is away nobody can publish or ask, and whoever asked before has
    what was told then.
    """

    def __init__(self, node: Node, group: Group | None, name: bytes) -> None:
        self.name: Final = name
        """With this name, and the group, others find it. A secret."""
        self._node: Final = node
        self._group: Final = group
        self._reference: Reference | None = None

    def __repr__(self) -> str:
        return f"<Service {fingerprint(self.name)}>"

    def listen(self, address: str, *, ring_bytes: int = 0) -> Acceptor:
        """Listen on "HOST:PORT", where a port of 0 is any free one, and be found until it is closed.

        It takes the right to use the network (``Node.network``). Errors of ``Node.listen_tcp``, and those of
        ``publish``, after which it is closed.
        """
        if self._group is None:
            raise InvalidError("say in which group: open_service(node, group, name)")
        acceptor = self._node.listen_tcp(address, groups=[self._group], ring_bytes=ring_bytes)
        try:
            self.publish(acceptor)
        except BaseException:
            acceptor.close()
            raise
        return acceptor

    def publish(self, acceptor: Acceptor) -> None:
        """Let an acceptor, which was made in the service's group, be found as long as it is there.

        InvalidError for one that no client can be led to; LimitError when the list is full.
        """
        host, _ = _place(acceptor.address)
        if acceptor.name is None:
            raise InvalidError("an acceptor without a name is found by nobody: listen with groups=[group]")
        if host in _EVERYWHERE:
            raise InvalidError(f"nobody connects to {host}: listen on an address that others reach")
        entry = CatalogueEntry(acceptor.address, acceptor.name, 0, time.time_ns())
        self._edit(entry, entry.name)

    def withdraw(self, acceptor: Acceptor) -> None:
        """Let an acceptor be found no more, which goes on with the connections that come nevertheless."""
        if acceptor.name is not None:
            self._edit(None, acceptor.name)

    def members(self) -> list[ServiceMember]:
        """Who accepts connections now, those that published first before others.

        UnreachableError while the service's list is away. One whose node cannot be asked is left out.
        """
        found = []
        for entry in self._entries():
            here, _ = self._look(entry)
            if here is not None:
                found.append(here)
        return found

    def places(self) -> list[tuple[str, int]]:
        """The addresses and ports of its members: what a balancer wants."""
        return [(member.host, member.port) for member in self.members()]

    def _edit(self, entry: CatalogueEntry | None, name: bytes) -> None:
        """Put an entry into the list or take it out, and forget those that are gone for good."""

        def change(entries: tuple[CatalogueEntry, ...]) -> list[CatalogueEntry]:
            left = [each for each in entries if each.name != name and not self._look(each)[1]]
            if entry is not None and len(left) >= SERVICE_MEMBERS_MAX:
                raise LimitError(
                    f"{SERVICE_MEMBERS_MAX} accept connections for this service; make a second one for others"
                )
            return left if entry is None else [*left, entry]

        catalogue.edit(StoredCatalogue(self._found()), change)

    def _look(self, entry: CatalogueEntry) -> tuple[ServiceMember | None, bool]:
        """The member that an entry stands for, and whether there certainly is none any more."""
        found = self._node.lookup(entry.name, group=self._group)
        try:
            if not found:
                return None, not found.incomplete
            return ServiceMember(*_place(found[0].address), found[0].node), False
        finally:
            # A reference would keep the acceptor of a task that has ended.
            for reference in found:
                reference.close()

    def _entries(self) -> tuple[CatalogueEntry, ...]:
        for _ in range(CATALOGUE_EDITS_MAX):
            reference = self._found()
            try:
                data, _ = StoredCatalogue(reference).read()
            except (Busy, Conflict):
                continue
            except DiosError:
                # The next use looks it up anew: its node may have come back.
                self._reference = None
                with suppress(DiosError):
                    reference.close()
                raise
            return catalogue.decode(data)
        raise UnreachableError("the service's list is being written all the time; ask again")

    def _found(self) -> Reference:
        if self._reference is None:
            self._reference = self._node.find(self.name, group=self._group)
        if self._reference is None:
            raise UnreachableError("no such service is found in this group, or its node is away")
        return self._reference


class Followed:
    """A service that is asked over a connection of one's own, which is made anew after its node was away.

    For balancers, which run longer than nodes do. ``connect`` makes a session of who is in the service's
    group, as ``dios.connect`` does for a person whose keyring has it. For one thread at a time.
    """

    def __init__(self, connect: Callable[[], Node], name: bytes | str) -> None:
        self._connect: Final = connect
        self._name: Final = name_bytes(name)
        self._node: Node | None = None

    def places(self) -> list[tuple[str, int]]:
        """The addresses and ports of the service's members; errors of ``Service``, and of connecting."""
        if self._node is None:
            self._node = self._connect()
        try:
            return Service(self._node, None, self._name).places()
        except ClosedError:
            self.close()
            raise

    def close(self) -> None:
        """Let the connection go; the next question makes another."""
        node, self._node = self._node, None
        if node is not None:
            with suppress(DiosError):
                node.close()


def create_service(node: Node, group: Group, *, host: str = "", durable: bool = True) -> Service:
    """Make a service in a group, whose list is on the node called ``host`` (empty: the node asked)."""
    kind = ObjectType.DURABLE_BLOB if durable else ObjectType.SHMEM_BLOB
    with node.create(kind, groups=[group], deletion=Deletion.IMMEDIATE, host=host) as made:
        assert made.name is not None  # noqa: S101 - it is in a group
        return Service(node, group, made.name)


def open_service(node: Node, group: Group | None, name: bytes | str) -> Service:
    """A service that somebody made, by its name; UnreachableError when it is not found.

    Without a group it is looked for in all of this program's, and one can only ask who serves.
    """
    service = Service(node, group, name_bytes(name))
    service.members()
    return service


def _place(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)
