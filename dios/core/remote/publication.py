"""Publish the counters of objects to the nodes whose tasks refer to them (§4.5.1)."""

from __future__ import annotations

from typing import Final

from dios import limits
from dios.core import effects
from dios.core.model.records import PhysicalObject
from dios.core.remote.peers import Cluster
from dios.ids import NodeId
from dios.wire import dcp

_MS: Final = 1_000_000


def publish(cluster: Cluster, target: PhysicalObject, now: int, informed: NodeId) -> list[effects.Send]:
    """Return the messages about an object that was deleted; schedule those about other changes.

    ``informed`` is the node that learns of the change from this step's own answer, or 0.
    """
    if informed and not target.zombie and len(target.watchers) == 1 and informed in target.watchers:
        return []
    if target.zombie:
        cluster.to_publish.pop(target.id, None)
        return messages_to_watchers(cluster, target)
    cluster.to_publish[target.id] = target
    if cluster.publish_at is None:
        cluster.publish_at = now + limits.PUBLISH_DELAY_MS * _MS
    return []


def publish_due(cluster: Cluster) -> list[effects.Send]:
    """Return the messages about objects with scheduled changes; those that are left come at once."""
    sends: list[effects.Send] = []
    for _ in range(limits.STEP_UNITS):
        if not cluster.to_publish or len(sends) >= limits.STEP_UNITS:
            break
        _, target = cluster.to_publish.popitem()
        sends += messages_to_watchers(cluster, target)
    if not cluster.to_publish:
        cluster.publish_at = None
    return sends


def messages_to_watchers(cluster: Cluster, target: PhysicalObject) -> list[effects.Send]:
    """Return one message with the object's counters for each connected node whose tasks refer to it."""
    sends: list[effects.Send] = []
    for node in target.watchers:
        peer = cluster.peers.get(node)
        if peer is not None and peer.connected:
            peer.order_out += 1
            counters = target.counters_for_nodes()
            message = dcp.Published(target.id, *counters, target.zombie, peer.order_out)
            sends.append(effects.Send(node, message))
    return sends
