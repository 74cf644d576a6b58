"""A catalogue that had several replicas keeps their history when one is left."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import pytest

from dios.lib.files.catalogue_record import CatalogueRecord
from dios.lib.replicated_record.frame import ZERO, Member, Value
from dios.lib.replicated_record.protocol import Reading
from dios.wire.types import ObjectType, Proximity

if TYPE_CHECKING:
    from dios.client.sync.node import Node, Reference

HERE = Member(1, "n1")


@pytest.mark.parametrize(("members", "is_plain"), [((HERE,), True), ((HERE,), False), ((HERE, HERE), True)])
def test_replaced_files_leave_notes_while_the_catalogue_has_a_history(
    members: tuple[Member, ...], *, is_plain: bool
) -> None:
    """A node that was lost for long may have objects of its files, and is asked when it is back."""
    there = SimpleNamespace(
        object_id=1,
        ref=1,
        node="n1",
        type=ObjectType.DURABLE_BLOB,
        proximity=Proximity.NODE,
        v_w=0,
        zombie=False,
    )
    reference = cast("Reference", there)
    record = CatalogueRecord(cast("Node", SimpleNamespace(nodes=list)), lambda: [reference])
    assert record.exists()
    assert not record.is_replicated
    value = Value(ZERO, members, (), 0, 1, bytes(32), b"")
    record._note(Reading(value, members, decided=True, is_plain=is_plain), None, 0.0)
    assert record.is_replicated == (len(members) > 1 or not is_plain)
