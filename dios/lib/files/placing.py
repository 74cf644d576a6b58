"""The next node for a further durable replica, as the keeper of replicas would choose it."""

from __future__ import annotations

from collections.abc import Collection

from dios.client.sync.node import Node
from dios.lib.kept.decisions import Copied, KeptWish, Place, next_steps
from dios.lib.kept.versions import CREATED


def next_place(
    node: Node, taken: Collection[str], disks: int, refused: Collection[str], *, key: str
) -> str | None:
    """Return the name of a node for the next of ``disks`` replicas; None if no further node can take one.

    ``taken`` are the nodes that have a replica, and ``refused`` those that did not take one.
    """
    places = [
        Place(one.name, one.rack, usable=one.usable, draining=one.draining, refused=one.name in refused)
        for one in node.nodes()
    ]
    copies = [Copied(number, name, CREATED) for number, name in enumerate(sorted(taken))]
    targets = next_steps(KeptWish(disks, apart=True), copies, places, key=key).targets
    return targets[0] if targets else None
