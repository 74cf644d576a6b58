"""Services: tasks that accept connections for one purpose, found by the programs that route clients to them.

They are for workers with their own listening sockets, on any node, and for load balancers. Several tasks can
also share one acceptor, to which clients connect directly (``docs/streams.md``).

A service is a small object with the names of its acceptors, in the form of a catalogue. An acceptor exists as
long as its name is found: it ends with its task, so nothing is renewed or probed. Members of the group may
publish, and may get connections for others: the group is for the servers and their balancers.
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
from dios.wire.addresses import split_address
from dios.wire.nametext import fingerprint
from dios.wire.types import Deletion, ObjectType

_EVERYWHERE: Final = frozenset({"0.0.0.0", "::"})  # noqa: S104 - such addresses are refused


class ServiceMember(msgspec.Struct, frozen=True):
    """A task that accepts connections."""

    host: str
    port: int
    node: str
    """The name of its node; "" without a cluster."""


class Service:
    """A service, identified by its group and its name. For one thread at a time.

    Its list is on one node: while that node is unreachable nobody can publish or query; earlier results stay
    valid.
    """

    def __init__(self, node: Node, group: Group | None, name: bytes) -> None:
        self.name: Final = name
        """The name with which others find it, in addition to the group. A secret."""
        self._node: Final = node
        self._group: Final = group
        self._reference: Reference | None = None

    def __repr__(self) -> str:
        return f"<Service {fingerprint(self.name)}>"

    def listen(self, address: str, *, ring_bytes: int = 0) -> Acceptor:
        """Listen on "HOST:PORT", where port 0 is any free port, and publish the acceptor until it is closed.

        It needs the right to use the network (``Node.network``). Raises the errors of ``Node.listen_tcp``,
        and those of ``publish``, after closing the acceptor.
        """
        if self._group is None:
            raise InvalidError("give the group of the service: open_service(node, group, name)")
        acceptor = self._node.listen_tcp(address, groups=[self._group], ring_bytes=ring_bytes)
        try:
            self.publish(acceptor)
        except BaseException:
            acceptor.close()
            raise
        return acceptor

    def publish(self, acceptor: Acceptor) -> None:
        """Publish an acceptor that was created in the service's group, as long as it exists.

        Raises InvalidError for one without a name or a reachable address; LimitError when the list is full.
        """
        host, _ = split_address(acceptor.address)
        if acceptor.name is None:
            raise InvalidError("an acceptor without a name cannot be found. Listen with groups=[group].")
        if host in _EVERYWHERE:
            raise InvalidError(f"nobody can connect to {host}. Listen on an address that others reach.")
        entry = CatalogueEntry(acceptor.address, acceptor.name, 0, time.time_ns())
        self._edit(entry, entry.name)

    def withdraw(self, acceptor: Acceptor) -> None:
        """Remove an acceptor from the list; it still accepts connections."""
        if acceptor.name is not None:
            self._edit(None, acceptor.name)

    def members(self) -> list[ServiceMember]:
        """Return the present members, in the order of publication.

        Raises UnreachableError while the service's list is unreachable. Members on unreachable nodes are
        omitted.
        """
        found = []
        for entry in self._entries():
            here, _ = self._look(entry)
            if here is not None:
                found.append(here)
        return found

    def places(self) -> list[tuple[str, int]]:
        """Return the addresses and ports of its members, for a load balancer."""
        return [(member.host, member.port) for member in self.members()]

    def _edit(self, entry: CatalogueEntry | None, name: bytes) -> None:
        """Put an entry into the list or remove it, and remove members that have ended."""

        def change(entries: tuple[CatalogueEntry, ...]) -> list[CatalogueEntry]:
            left = [each for each in entries if each.name != name and not self._look(each)[1]]
            if entry is not None and len(left) >= SERVICE_MEMBERS_MAX:
                raise LimitError(
                    f"the service is full: it has {SERVICE_MEMBERS_MAX} members. Make a second service."
                )
            return left if entry is None else [*left, entry]

        catalogue.edit(StoredCatalogue(self._found()), change)

    def _look(self, entry: CatalogueEntry) -> tuple[ServiceMember | None, bool]:
        """Return the member of an entry, and True if it certainly does not exist any more."""
        found = self._node.lookup(entry.name, group=self._group)
        try:
            if not found:
                return None, not found.incomplete
            return ServiceMember(*split_address(found[0].address), found[0].node), False
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
                # The next use looks it up again: its node may have returned.
                self._reference = None
                with suppress(DiosError):
                    reference.close()
                raise
            return catalogue.decode(data)
        raise UnreachableError("the list of the service is written all the time. Try again.")

    def _found(self) -> Reference:
        if self._reference is None:
            self._reference = self._node.find(self.name, group=self._group)
        if self._reference is None:
            raise UnreachableError("this group has no such service, or its node is unreachable")
        return self._reference


class Followed:
    """A service that is queried over its own connection, which is opened again after its node has returned.

    For load balancers, which run longer than nodes. ``connect`` opens a session with the service's group, as
    ``dios.connect`` does for a user whose keyring has it. For one thread at a time.
    """

    def __init__(self, connect: Callable[[], Node], name: bytes | str) -> None:
        self._connect: Final = connect
        self._name: Final = name_bytes(name)
        self._node: Node | None = None

    def places(self) -> list[tuple[str, int]]:
        """Return the addresses and ports of the members; raises errors of ``Service`` and of connecting."""
        if self._node is None:
            self._node = self._connect()
        try:
            return Service(self._node, None, self._name).places()
        except ClosedError:
            self.close()
            raise

    def close(self) -> None:
        """Close the connection; the next query opens another."""
        node, self._node = self._node, None
        if node is not None:
            with suppress(DiosError):
                node.close()


def create_service(node: Node, group: Group, *, host: str = "", durable: bool = True) -> Service:
    """Create a service in a group, with its list on the node called ``host`` (empty: this node)."""
    kind = ObjectType.DURABLE_BLOB if durable else ObjectType.SHMEM_BLOB
    with node.create(kind, groups=[group], deletion=Deletion.IMMEDIATE, host=host) as made:
        assert made.name is not None  # noqa: S101 - it is in a group
        return Service(node, group, made.name)


def open_service(node: Node, group: Group | None, name: bytes | str) -> Service:
    """Open a service by its name; UnreachableError if it is not found.

    Without a group it is looked up in all groups of this program, and can only be queried.
    """
    service = Service(node, group, name_bytes(name))
    service.members()
    return service
