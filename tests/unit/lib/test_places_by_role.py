"""Nodes that may not keep are no places of replicas, and lead no keeper."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dios.client.ops.cluster import Member
from dios.lib.files.disks import attainable_disks
from dios.lib.store_keeper import spare_nodes
from dios.wire.node_roles import ROLES, NodeRight, NodeRole
from dios.wire.types import NodeStatus


def member(name: str, roles: tuple[str, ...], *, draining: bool = False) -> Member:
    """A living node with these roles."""
    return Member(1, name, "", "h:1", NodeStatus.ALIVE, draining, 1, 0, 0, 1, 0, False, roles=roles)


@pytest.mark.parametrize("role", NodeRole)
def test_a_node_keeps_by_its_role_if_it_is_not_drained(role: NodeRole) -> None:
    """Each role by its rights; a drained node keeps nothing, and one with unknown roles may."""
    able = NodeRight.KEEP in ROLES[role].rights
    assert member("n1", (str(role),)).keeps is able
    assert not member("n1", (str(role),), draining=True).keeps
    assert member("n1", ()).keeps


def test_a_host_is_replaced_by_a_node_that_may_keep() -> None:
    """A runner is no spare node of a store."""
    members = [member("n1", ("member",)), member("n2", ("runner",)), member("n3", ("scheduler", "keeper"))]
    assert spare_nodes(["n1"], members) == ["n3"]


def test_a_new_file_is_expected_on_this_node_and_those_that_may_keep() -> None:
    """A runner stores what its own user puts there, so that it counts; without a cluster it is one."""
    here = replace(member("n1", ("runner",)), here=True)
    others = [member("n2", ("runner",)), member("n3", ("keeper",)), member("n4", ())]
    assert attainable_disks([here]) == 1
    assert attainable_disks([here, others[0]]) == 1
    assert attainable_disks([here, *others]) == 3
    assert attainable_disks([replace(others[1], here=True), others[0]]) == 1
    assert attainable_disks([]) == 1
