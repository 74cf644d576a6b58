"""Services: tasks that accept connections for one purpose, found by the programs that route clients to them.

They are for workers with their own listening sockets, on any node, and for load balancers. Several tasks can
also share one acceptor, to which clients connect directly (``docs/python-client.md``).

A service is a small object with the names of its acceptors, in the form of a catalogue. An acceptor exists as
long as its name is found: it ends with its task, so nothing is renewed or probed. Members of the group may
publish, and may get connections for others: the group is for the servers and their balancers.

In a cluster the object has copies on up to SERVICE_LISTS_MAX nodes. A change goes to all that answer, with
everything that any of them lists; a query reads all of them, so it needs only one that answers. A copy may
list what has ended, since every member is looked up; of two entries for one acceptor the later one counts.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Final, TypeVar

import msgspec

from dios.client.ops.nodes import name_bytes
from dios.client.sync.node import Acceptor, Group, Node, Reference
from dios.errors import (
    Busy,
    ClosedError,
    Conflict,
    DiosError,
    InvalidError,
    LimitError,
    NotPermittedError,
    UnreachableError,
)
from dios.lib import catalogue
from dios.lib.catalogue import CatalogueEntry, StoredCatalogue
from dios.lib.closing import close_all
from dios.limits import CATALOGUE_EDITS_MAX, SERVICE_LISTS_MAX, SERVICE_MEMBERS_MAX
from dios.wire.addresses import split_address
from dios.wire.nametext import fingerprint
from dios.wire.types import Deletion, ObjectType

T = TypeVar("T")

_PRESENT: Final = 0
_WITHDRAWN: Final = 1
"""The values of the field ``size`` of an entry, for its acceptor."""
_EVERYWHERE: Final = frozenset({"0.0.0.0", "::"})  # noqa: S104 - such addresses are refused


class ServiceMember(msgspec.Struct, frozen=True):
    """A task that accepts connections."""

    host: str
    port: int
    node: str
    """The name of its node; "" without a cluster."""


class Service:
    """A service, identified by its group and its name. For one thread at a time.

    While none of the nodes with its lists can be reached, nobody can publish or query; earlier results stay
    valid.
    """

    def __init__(self, node: Node, group: Group | None, name: bytes) -> None:
        self.name: Final = name
        """The name with which others find it, in addition to the group. A secret."""
        self._node: Final = node
        self._group: Final = group
        self._lists: list[Reference] = []
        self._complete = False

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
        self._change(acceptor.address, acceptor.name, _PRESENT)

    def withdraw(self, acceptor: Acceptor) -> None:
        """Let nobody be led to an acceptor any more; it still accepts connections."""
        if acceptor.name is not None:
            self._change(acceptor.address, acceptor.name, _WITHDRAWN)

    def members(self) -> list[ServiceMember]:
        """Return the present members, in the order of publication.

        Raises UnreachableError while no list of the service can be reached. Members on unreachable nodes are
        omitted.
        """
        members = (self._look(entry)[0] for entry in self._entries() if entry.size == _PRESENT)
        return [member for member in members if member is not None]

    def places(self) -> list[tuple[str, int]]:
        """Return the addresses and ports of its members, for a load balancer."""
        return [(member.host, member.port) for member in self.members()]

    def _change(self, address: str, name: bytes, state: int) -> None:
        """Write what is new about an acceptor into all lists, without the members that have ended."""
        known = [entry for entry in self._entries() if not self._look(entry)[1]]
        last = max((entry.put_ns for entry in known), default=0)
        # Clocks of nodes differ: what is written now is the latest.
        new = CatalogueEntry(address, name, state, max(time.time_ns(), last + 1))
        ended: set[bytes] = set()

        def change(entries: tuple[CatalogueEntry, ...]) -> list[CatalogueEntry]:
            ended.update(entry.name for entry in entries if self._look(entry)[1])
            left = [entry for entry in _merged([entries, known, [new]]) if entry.name not in ended]
            if len(left) > SERVICE_MEMBERS_MAX:
                raise LimitError(
                    f"the service is full: it has {SERVICE_MEMBERS_MAX} members. Make a second service."
                )
            return left

        self._at_each(lambda reference: catalogue.edit(StoredCatalogue(reference), change))

    def _look(self, entry: CatalogueEntry) -> tuple[ServiceMember | None, bool]:
        """Return the member of an entry, and True if it certainly does not exist any more."""
        references = self._node.lookup(entry.name, group=self._group)
        try:
            if not references:
                return None, not references.incomplete
            return ServiceMember(*split_address(references[0].address), references[0].node), False
        finally:
            # A reference would keep the acceptor of a task that has ended.
            for reference in references:
                reference.close()

    def _entries(self) -> list[CatalogueEntry]:
        """Return what any of the lists has, in the order of publication."""
        return _merged(self._at_each(_read))

    def _at_each(self, work: Callable[[Reference], T]) -> list[T]:
        """Do something with each list; return the results of those that could be reached.

        Raises the last error if there is none, and LimitError from any.
        """
        results: list[T] = []
        trouble: DiosError | None = None
        for reference in self._found():
            try:
                results.append(work(reference))
            except LimitError:
                raise
            except DiosError as error:
                trouble = error
        if trouble is not None:
            # The next use looks them up again: a node may have returned.
            self._forget()
        if not results and trouble is not None:
            raise trouble
        return results

    def _found(self) -> list[Reference]:
        if not self._lists or not self._complete:
            self._forget()
            references = self._node.lookup(self.name, group=self._group)
            self._lists, self._complete = list(references), not references.incomplete
        if not self._lists:
            raise UnreachableError("this group has no such service, or its nodes are unreachable")
        return list(self._lists)

    def _forget(self) -> None:
        close_all(self._lists)
        self._lists = []


def _read(reference: Reference) -> tuple[CatalogueEntry, ...]:
    for _ in range(CATALOGUE_EDITS_MAX):
        with suppress(Busy, Conflict):
            return catalogue.decode(StoredCatalogue(reference).read()[0])
    raise UnreachableError("the list of the service is written all the time. Try again.")


def _merged(lists: Iterable[Iterable[CatalogueEntry]]) -> list[CatalogueEntry]:
    """Return the latest entry of each acceptor, in the order of their times."""
    latest: dict[bytes, CatalogueEntry] = {}
    for entry in (entry for entries in lists for entry in entries):
        if entry.name not in latest or latest[entry.name].put_ns < entry.put_ns:
            latest[entry.name] = entry
    return sorted(latest.values(), key=lambda entry: entry.put_ns)


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


def create_service(
    node: Node, group: Group, *, hosts: Sequence[str] | None = None, durable: bool = True
) -> Service:
    """Create a service in a group, with a list on each of the nodes called ``hosts`` ("" is this node).

    By default these are this node and up to SERVICE_LISTS_MAX - 1 others that answer now, in other racks if
    there are any; in a pure task, which does not see the nodes, this node alone.
    """
    chosen = _usual_hosts(node) if hosts is None else list(hosts)
    if not chosen:
        raise InvalidError("a service needs a list on a node: hosts is empty")
    kind = ObjectType.DURABLE_BLOB if durable else ObjectType.SHMEM_BLOB
    with node.create(kind, groups=[group], deletion=Deletion.IMMEDIATE, host=chosen[0]) as reference:
        assert reference.name is not None  # noqa: S101 - it is in a group
        for host in chosen[1:]:
            try:
                reference.copy(host=host).close()
            except DiosError:
                if hosts is not None:
                    raise  # a node that was chosen here may have no room for it
        return Service(node, group, reference.name)


def _usual_hosts(node: Node) -> list[str]:
    try:
        nodes = [member for member in node.nodes() if member.usable and member.keeps]
    except NotPermittedError:
        return [""]
    here = {member.rack for member in nodes if member.here}
    others = sorted((member for member in nodes if not member.here), key=lambda member: member.rack in here)
    return ["", *(member.name for member in others[: SERVICE_LISTS_MAX - 1])]


def open_service(node: Node, group: Group | None, name: bytes | str) -> Service:
    """Open a service by its name; UnreachableError if it is not found.

    Without a group it is looked up in all groups of this program, and can only be queried.
    """
    service = Service(node, group, name_bytes(name))
    service.members()
    return service
