from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import pytest

from dios.client.ops.attributes import Handle
from dios.errors import InvalidError
from dios.lib.pickers import pick_apart, pick_closest, pick_durable, pick_input, spread
from dios.wire.messages import Reference
from dios.wire.types import Buffering, Deletion, ObjectType, Persistence, Proximity

if TYPE_CHECKING:
    from dios.client.ops.attributes import NodeBase

NOWHERE = cast("NodeBase", SimpleNamespace(link=SimpleNamespace(page=None)))


def replica(
    persistence: Persistence, proximity: Proximity = Proximity.CLUSTER, node: str = "", rack: str = ""
) -> Handle:
    """A reference with these attributes."""
    durable = persistence is Persistence.DURABLE
    return Handle(
        NOWHERE,
        Reference(
            ref=1,
            object=1,
            type=ObjectType.DURABLE_BLOB if durable else ObjectType.SHMEM_BLOB,
            permissions=1,
            persistence=persistence,
            proximity=proximity,
            deletion=Deletion.REFERENCE_COUNTED,
            buffering=Buffering.DOUBLE,
            slot=0,
            size=0,
            v_r=0,
            v_w=0,
            a_r=0,
            a_w=0,
            fingerprint="0" * 12,
            node=node,
            rack=rack,
        ),
    )


DISK_HERE = replica(Persistence.DURABLE, Proximity.NODE)
MEMORY_FAR = replica(Persistence.VOLATILE, Proximity.CLUSTER)
MEMORY_NEAR = replica(Persistence.VOLATILE, Proximity.RACK)


def test_memory_comes_before_disk_whatever_the_distance() -> None:
    """Listing 4.3: a replica in memory is preferred even when one on disk is nearer; then the nearest."""
    assert pick_input([DISK_HERE, MEMORY_FAR, MEMORY_NEAR]) is MEMORY_NEAR
    assert pick_input([DISK_HERE, MEMORY_FAR]) is MEMORY_FAR


def test_the_closest_is_picked() -> None:
    """The nearest replica, and of equally near ones the one in memory."""
    assert pick_closest([MEMORY_FAR, DISK_HERE, MEMORY_NEAR]) is DISK_HERE
    memory_here = replica(Persistence.VOLATILE, Proximity.NODE)
    assert pick_closest([DISK_HERE, memory_here]) is memory_here


def test_the_durable_one_is_picked() -> None:
    """A replica that survives a restart, however far."""
    assert pick_durable([MEMORY_NEAR, DISK_HERE]) is DISK_HERE


def test_equal_replicas_are_picked_in_their_order() -> None:
    """Of equals the first, so that the choice can be repeated."""
    twin = replica(Persistence.VOLATILE, Proximity.RACK)
    assert pick_input([MEMORY_NEAR, twin]) is MEMORY_NEAR


def test_nothing_to_pick_from_is_an_error() -> None:
    """An empty answer to a lookup is told as such."""
    with pytest.raises(InvalidError, match="replica"):
        pick_input([])


def placed(node: str, rack: str = "", proximity: Proximity = Proximity.CLUSTER) -> Handle:
    """A replica on a node of a rack."""
    return replica(Persistence.DURABLE, proximity, node, rack)


def test_the_fewest_fault_domains_are_shared() -> None:
    """After a replica in one rack comes one of another rack, else of another node, else the nearest."""
    here, beside, far = placed("a", "r1", Proximity.NODE), placed("b", "r1"), placed("c", "r2")
    again = placed("a", "r1", Proximity.NODE)
    assert pick_apart([again, beside, far], [here]) is far
    assert pick_apart([again, beside], [here]) is beside
    assert pick_apart([beside, here], []) is here
    assert pick_apart([again], [here]) is again


def test_a_used_node_is_worse_than_a_used_rack() -> None:
    """One more replica goes to a fresh node of the fuller rack before it shares a node in the emptier one."""
    chosen = [placed("a", "r1"), placed("b", "r1"), placed("c", "r2")]
    fresh = placed("d", "r1")
    assert pick_apart([placed("c", "r2"), fresh], chosen) is fresh


def test_nodes_without_racks_are_told_apart() -> None:
    """Where nobody was told a rack the nodes count."""
    assert pick_apart([placed("a"), second := placed("b")], [placed("a")]) is second


def test_replicas_are_spread_over_racks_and_nodes() -> None:
    """Two of four replicas are in two racks, three on three nodes; the nearest is the first of them."""
    near = placed("a", "r1", Proximity.NODE)
    replicas = [placed("b", "r1"), near, placed("a", "r1"), placed("c", "r2")]
    assert [chosen.node for chosen in spread(replicas, 2)] == ["a", "c"]
    assert {chosen.node for chosen in spread(replicas, 3)} == {"a", "b", "c"}
    assert len(spread(replicas, 9)) == 4
