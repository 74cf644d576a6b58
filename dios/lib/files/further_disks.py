"""Further durable replicas of files and of their list: for puts that several disks acknowledge."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from dios.client.sync.node import Group, Node, Reference
from dios.errors import DiosError, UnreachableError
from dios.lib.kept.decisions import Copied, KeptWish, Place, next_steps
from dios.lib.kept.versions import VersionState
from dios.wire.nametext import fingerprint
from dios.wire.types import ObjectType, Persistence


def hold_on(node: Node, group: Group, name: bytes, disks: int) -> None:
    """Make replicas of the latest version of an object until it is on the disks of this number of nodes.

    Raises UnreachableError, with the reason of each node that refused, if too few nodes take it.
    """
    found = node.lookup(name, group=group)
    try:
        _hold_on(
            node, [one for one in found if one.type is ObjectType.DURABLE_BLOB], fingerprint(name), disks
        )
    finally:
        for one in found:
            with suppress(DiosError):
                one.close()


def _hold_on(node: Node, replicas: Sequence[Reference], mark: str, disks: int) -> None:
    refusals: dict[str, str] = {}
    v_w = max((one.v_w for one in replicas), default=0)
    there = {one.node: one for one in replicas if one.v_w == v_w}
    while len(there) < disks:
        places = [
            Place(one.name, one.rack, usable=one.usable, draining=one.draining, refused=one.name in refusals)
            for one in node.nodes()
        ]
        copies = [Copied(one.object_id, name, VersionState(v_w, b"")) for name, one in there.items()]
        steps = next_steps(KeptWish(disks, apart=True), copies, places, key=mark)
        if not steps.targets or steps.source is None:
            why = (
                "; ".join(f"{name}: {reason}" for name, reason in refusals.items())
                or "no further node can take it"
            )
            raise UnreachableError(f"{len(there)} of {disks} disks took {mark} ({why})")
        target = steps.targets[0]
        try:
            with there[steps.source.node].copy(host=target, persistence=Persistence.DURABLE):
                there[target] = there[steps.source.node]
        except DiosError as error:
            refusals[target] = error.message
