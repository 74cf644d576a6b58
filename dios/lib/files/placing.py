"""The next nodes for further durable replicas, as the keeper of replicas would choose them."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from dios.client.sync.node import Node
from dios.lib.kept.decisions import Copied, KeptWish, Place, next_steps
from dios.lib.kept.versions import CREATED


def present_places(node: Node, refused: Collection[str]) -> list[Place]:
    """Return the nodes on which replicas can be, but for those that have ``refused`` one."""
    return [
        Place(
            member.name,
            member.rack,
            usable=member.usable,
            draining=member.draining,
            refused=member.name in refused,
        )
        for member in node.nodes()
    ]


def further_places(places: Sequence[Place], taken: Collection[str], disks: int, *, key: str) -> Sequence[str]:
    """Return the names of the nodes for the replicas that are missing to ``disks``, or for as many as can be.

    ``taken`` are the nodes that have a replica.
    """
    copies = [Copied(number, name, CREATED) for number, name in enumerate(sorted(taken))]
    return next_steps(KeptWish(disks, apart=True), copies, places, key=key).targets


def next_place(
    node: Node, taken: Collection[str], disks: int, refused: Collection[str], *, key: str
) -> str | None:
    """Return the name of a node for the next of ``disks`` replicas; None if no further node can take one."""
    targets = further_places(present_places(node, refused), taken, disks, key=key)
    return targets[0] if targets else None
