"""The state of the replicas of a list, by the names of their nodes."""

from __future__ import annotations

from typing import cast

from dios.errors import DamagedError, UnreachableError
from dios.lib.files.catalogue_record import CatalogueRecord
from dios.lib.files.list_repair import ReplicaHealth, list_state
from dios.lib.replicated_record.frame import Member, Value
from dios.lib.replicated_record.protocol import Reading

MEMBERS = tuple(Member(number, f"n{number}") for number in range(1, 6))


class Record:
    """A record that was read with this result."""

    def __init__(self, reading: Reading) -> None:
        self._reading = reading

    def read_record(self) -> Reading:
        """Return the result."""
        return self._reading


def test_each_replica_has_a_state() -> None:
    """One that was read is current or earlier; one that was not is damaged, or missing."""
    value = Value((1, 1), MEMBERS, (), 3, 0, bytes(32), b"")
    unread = {"n3": DamagedError("x"), "n4": UnreachableError("y")}
    reading = Reading(value, MEMBERS[:1], decided=False, is_plain=False, sound=MEMBERS[:2], unread=unread)
    state = list_state(cast("CatalogueRecord", Record(reading)))
    assert list(state.replicas.values()) == [
        ReplicaHealth.CURRENT,
        ReplicaHealth.EARLIER,
        ReplicaHealth.DAMAGED,
        ReplicaHealth.MISSING,
        ReplicaHealth.MISSING,
    ]
    assert (list(state.replicas), state.nodes) == (["n1", "n2", "n3", "n4", "n5"], ["n1"])
    assert not state.divided
    assert list_state(cast("CatalogueRecord", Record(reading._replace(divided=(b"a", b"b"))))).divided
