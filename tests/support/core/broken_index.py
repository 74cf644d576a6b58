"""Indexes of names with one rule broken, each as somebody might break it.

``tests/sim/test_names.py`` shows that the simulator finds every one.
"""

from __future__ import annotations

import pytest

from dios.core.effects import Effect
from dios.core.model.name_table import NameTable
from dios.core.remote import registration, requests, serving
from dios.core.remote.name_index import unpack_digests
from dios.core.remote.peers import Cluster, Peer
from dios.core.step import Step
from dios.ids import InternalName
from dios.wire import dcp


def hands_nothing_over(patch: pytest.MonkeyPatch) -> None:
    """After a change of the members, only new names are registered."""

    def none(names: NameTable, part: int) -> list[InternalName]:
        del names, part
        return []

    patch.setattr(NameTable, "keys", none)


def answers_for_any_view(patch: pytest.MonkeyPatch) -> None:
    """An index node answers whatever members the asking node knows, and whatever was registered."""

    def find(step: Step, peer: Peer, number: int, body: dcp.FindNames) -> None:
        digests = frozenset(unpack_digests(body.digests))
        nodes = registration.nodes_with(step.require_cluster(), digests)
        requests.reply(step, peer, number, dcp.NameNodes(known=True, nodes=nodes))

    def always(cluster: Cluster) -> bool:
        del cluster
        return True

    patch.setitem(serving._HANDLERS, dcp.FindNames, find)
    patch.setattr(registration, "_all_complete", always)


def answers_with_some_names(patch: pytest.MonkeyPatch) -> None:
    """An index node answers as soon as it has registered its own names, without those of others."""

    def own(cluster: Cluster) -> bool:
        return cluster.index.announced is not None and cluster.index.own_complete

    patch.setattr(registration, "_all_complete", own)


def does_not_wait(patch: pytest.MonkeyPatch) -> None:
    """A create is answered before its name is registered."""

    def never(effect: Effect) -> bool:
        del effect
        return False

    patch.setattr(registration, "_is_answer", never)
