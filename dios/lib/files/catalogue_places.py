"""The catalogue object of a group: named in the user's keyring, or handed to a task as an input."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Final, Protocol

from dios.client.keyring import Keyring
from dios.client.ops.cluster import Member
from dios.client.sync.node import Group, Node, Reference
from dios.errors import DamagedError, DiosError, ExistsError, UnreachableError
from dios.ids import Name
from dios.lib import catalogue
from dios.wire.types import ObjectType

CATALOGUE_ALIAS: Final = "catalogue/"
_OWN_WAY_OUT: Final = (
    "If a node was forgotten, its disk may have one. Else restore the group under another alias from a "
    "backup (`dios backup restore`)."
)
_SHARED_WAY_OUT: Final = "Ask its owner, who may have removed the group."


class CataloguePlace(Protocol):
    """The place of a group's catalogue."""

    def replicas(self) -> Sequence[Reference]:
        """Return references to the catalogue's replicas; none if there is no catalogue yet.

        They are ``incomplete``, as those of a lookup, if a node did not answer.
        """

    def is_complete(self) -> bool:
        """Return True if every node answered that may have a replica."""

    def create(self) -> Reference:
        """Return a reference to the catalogue, which is created if there is none."""


class KeyringCatalogue:
    """A catalogue whose name is in the keyring, next to the name of its group."""

    def __init__(self, node: Node, keyring: Keyring, alias: str, group: Group) -> None:
        self._node: Final = node
        self._keyring: Final = keyring
        self._alias: Final = alias
        self._group: Final = group

    def replicas(self) -> list[Reference]:
        """Return the replicas; none if the keyring has no name of a catalogue for the group.

        Raises UnreachableError if none is found and a node does not answer, and DamagedError if all answered.
        """
        name = self._keyring.objects.get(CATALOGUE_ALIAS + self._alias)
        if name is None:
            # Another process may have made it after this process read the keyring.
            name = Keyring.load(self._keyring.path).objects.get(CATALOGUE_ALIAS + self._alias)
        if name is None:
            return []
        list_of = f"the list of the files of group {self._alias!r}"
        return _look_up(self._node, name, self._group, list_of, _OWN_WAY_OUT)

    def is_complete(self) -> bool:
        """Return True if every node answered that may have a replica."""
        name = self._keyring.objects.get(CATALOGUE_ALIAS + self._alias)
        return name is not None and _is_complete(self._node, name, self._group)

    def find(self) -> Reference | None:
        """Return the nearest replica, or None."""
        return next(iter(self.replicas()), None)

    def create(self, secrecy: Sequence[str] | None = None) -> Reference:
        """Return the catalogue; create it, and add its name to the keyring, if there is none.

        ``secrecy`` are the tags of a new catalogue, which are those of the group: its files get them.
        """
        known = self.find()
        if known is not None:
            return known
        blob = self._node.create(
            ObjectType.DURABLE_BLOB, groups=[self._group], data=catalogue.encode(()), secrecy=secrecy
        )
        try:
            self._keyring.add(CATALOGUE_ALIAS + self._alias, Name(blob.name or b""), section="objects")
        except ExistsError:
            # Another process created the catalogue at the same moment: use the other's.
            blob.destroy()
            again = self.find()
            if again is None:
                raise
            return again
        return blob


class SharedCatalogue:
    """The catalogue of a group that another user shares; this user can only read it."""

    def __init__(self, node: Node, group: Group, name: bytes) -> None:
        self._node: Final = node
        self._group: Final = group
        self._name: Final = name

    def replicas(self) -> list[Reference]:
        """Return the replicas. Raises as ``KeyringCatalogue.replicas`` does if none is found."""
        list_of = "the list of the files of a group that was shared with you"
        return _look_up(self._node, self._name, self._group, list_of, _SHARED_WAY_OUT)

    def is_complete(self) -> bool:
        """Return True if every node answered that may have a replica."""
        return _is_complete(self._node, self._name, self._group)

    def create(self) -> Reference:
        """Return the catalogue, which its owner has created."""
        return self.replicas()[0]


class HandedCatalogue:
    """A catalogue whose replicas a task has among its inputs."""

    def __init__(self, references: Sequence[Reference]) -> None:
        self._references: Final = references

    def replicas(self) -> Sequence[Reference]:
        """Return the replicas that the task was given."""
        return self._references

    def is_complete(self) -> bool:
        """Return False: a task does not know where other replicas are."""
        return False

    def create(self) -> Reference:
        """Return the catalogue: its giver has created it."""
        return self._references[0]


def _look_up(node: Node, name: bytes, group: Group, list_of: str, way_out: str) -> list[Reference]:
    """Return the replicas of a catalogue. One that has a name and no replica is lost, and not empty.

    A node that has just started may meet others during the lookup, which asked none of them then. So an
    answer without a replica counts only if the node knew others before.
    """
    replicas = node.lookup(name, group=group)
    alone = not replicas and _is_alone(node)
    if not replicas and not alone:
        replicas = node.lookup(name, group=group)
    if not replicas and replicas.incomplete:
        raise UnreachableError(
            f"{list_of} is on a node that does not answer. `dios node ls` shows which; try again when that "
            "node is back.",
            call="lookup",
        )
    if not replicas and alone:
        raise UnreachableError(
            f"{list_of} is not on this node, which has met no other one since its start. `dios node ls` "
            "shows those that it knows; try again when it has met them.",
            call="lookup",
        )
    if not replicas:
        raise DamagedError(f"{list_of} is lost: all nodes answered, and none has a replica of it. {way_out}")
    return replicas


def _is_alone(node: Node) -> bool:
    """Return True if a node belongs to a cluster, and knows no other node of it."""
    members: Sequence[Member] = ()
    with suppress(DiosError):  # a task may not ask for the nodes
        members = node.nodes()
    return len(members) == 1 and bool(members[0].address)


def _is_complete(node: Node, name: bytes, group: Group) -> bool:
    replicas = node.lookup(name, group=group)
    for replica in replicas:
        replica.close()
    return not replicas.incomplete
