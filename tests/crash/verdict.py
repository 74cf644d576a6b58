"""The checks of a killed node's data against the journals of its clients.

The data comes from ``writer``; ``rounds`` decides when to check.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import dios
from dios.core.events import ObjectRecord
from dios.host.audit.reader import AuditReader
from dios.ids import Name
from dios.store.check import hold_directory, read_index, verify_contents
from dios.store.findings import FindingKind
from dios.wire.types import ObjectType
from tests.crash.writer import Journal, Value, named_groups, whole_value

OURS: Final = frozenset(
    {"lock", "node.sock", "node.pid", "node.log", "store", "extents", "audit", "audit-heads", "restart.json"}
)
_LEFT_BY_A_CRASH: Final = frozenset({FindingKind.ORPHAN, FindingKind.AUDIT_TORN})


class BrokenError(Exception):
    """A promise was not kept."""


def must(holds: object, said: str) -> None:
    """Raise BrokenError with the promise unless it holds."""
    if not holds:
        raise BrokenError(said)


def on_the_disk(data: Path, journals: Sequence[Journal]) -> dict[Name, ObjectRecord]:
    """Check the store of a stopped node; return the records that no journal has, by name.

    These were requested but not acknowledged; everything else must be as it was acknowledged.
    """
    with hold_directory(data):
        index = read_index(data)
        verify_contents(index, lambda _: None)
    strange = [finding for finding in index.findings if finding.kind not in _LEFT_BY_A_CRASH]
    must(not strange, f"the store is intact: {strange[:3]}")
    records = {row.record.name: row.record for row in index.rows.values()}
    must(len(records) == len(index.rows), "no two objects have one name")
    for journal in journals:
        _hold_against(journal, records)
    known = {name for journal in journals for name in (*journal.live, *journal.groups)}
    unknown = {name: record for name, record in records.items() if name is not None and name not in known}
    homes = [
        name for name, record in unknown.items() if record.type is ObjectType.GROUP and not record.groups
    ]
    must(len(homes) <= 1, "one home group")
    for name in homes:
        del unknown[name]
    makes_group = sum(journal.doubt is not None and journal.doubt.makes_group for journal in journals)
    creates = sum(journal.doubt is not None and journal.doubt.creates for journal in journals)
    groups = sum(record.type is ObjectType.GROUP for record in unknown.values())
    must(groups <= makes_group, f"{groups} unknown groups, but only {makes_group} were requested")
    must(
        len(unknown) - groups <= creates, f"{len(unknown)} unknown objects, but only {creates} were requested"
    )
    return unknown


def _hold_against(journal: Journal, records: Mapping[Name | None, ObjectRecord]) -> None:
    doubt = journal.doubt
    for name, value in journal.live.items():
        in_doubt = doubt is not None and doubt.name == name
        if name not in records:
            must(in_doubt and doubt is not None and doubt.deletes, "an acknowledged object is there")
            continue
        sizes = {value.size}
        if in_doubt and doubt is not None and doubt.value is not None:
            sizes.add(doubt.value.size)
        must(records[name].size in sizes, "an object has the size of its version")
    back = journal.deleted.intersection(name for name in records if name is not None)
    must(not back, f"{len(back)} deleted objects are back")
    for name in journal.groups:
        going = doubt is not None and doubt.name == name and doubt.deletes
        must(name in records or going, "every acknowledged group is there")


def through_the_node(place: str, journals: Sequence[Journal], unknown: dict[Name, ObjectRecord]) -> int:
    """Check the data that a started node serves, and resolve doubts; return the number of objects read."""
    for journal in journals:
        with dios.connect(place, groups=journal.groups) as node:
            _serves(node, journal)
    groups = [name for journal in journals for name in journal.groups]
    groups += [name for name, record in unknown.items() if record.type is ObjectType.GROUP]
    with dios.connect(place, groups=groups) as node:
        for name, record in unknown.items():
            references = node.lookup(name)
            must(references, "an object that was stored without acknowledgement can be found")
            if record.type is not ObjectType.GROUP:
                _is_all_or_nothing(bytes(references[0].read_bytes()), journals)
            references[0].delete()
    with dios.connect(place, groups=()) as node:
        # A client without the group finds nothing in it, before and after a restart.
        hidden = [name for journal in journals for name in journal.group_of if name in journal.live]
        must(not any(node.lookup(name) for name in hidden[:3]), "only members find a group's objects")
    return sum(len(journal.live) for journal in journals) + len(unknown)


def _serves(node: dios.Node, journal: Journal) -> None:
    doubt, journal.doubt = journal.doubt, None
    there = {name for name, _ in named_groups(node)}
    for name in list(journal.groups):
        if name not in there:
            must(doubt is not None and doubt.name == name and doubt.deletes, "an acknowledged group resolves")
            journal.groups.remove(name)
    for name, value in list(journal.live.items()):
        in_doubt = doubt if doubt is not None and doubt.name == name else None
        references = node.lookup(name)
        if not references:
            must(in_doubt is not None and in_doubt.deletes, "an acknowledged object resolves")
            del journal.live[name]
            journal.deleted.add(name)
            continue
        held_now = whole_value(bytes(references[0].read_bytes()))
        may_be: set[Value | None] = {value}
        if in_doubt is not None and in_doubt.value is not None:
            may_be.add(in_doubt.value)
        must(held_now is not None, f"all bytes are of one version: {value}")
        must(held_now in may_be, f"the last acknowledged version is served: {value}, not {held_now}")
        if held_now is not None:
            journal.live[name] = held_now
        references[0].close()
    for name in sorted(journal.deleted)[:4]:
        must(not node.lookup(name), "a deleted object stays deleted")
    # Only for a while, so that the journal does not grow with the rounds.
    journal.deleted = set(sorted(journal.deleted)[-64:])


def _is_all_or_nothing(data: bytes, journals: Sequence[Journal]) -> None:
    if not data:
        return  # a large content is written after its object was created
    value = whole_value(data)
    must(value is not None, "an unacknowledged object is complete or absent")
    if value is not None:
        must(value.serial <= journals[value.writer].serial, "this version was requested")


class AuditWatch:
    """A reader of the audit log over all rounds: every acknowledged change must be in it."""

    def __init__(self, folder: Path) -> None:
        self._reader: Final = AuditReader(folder)

    def follow(self, journals: Sequence[Journal]) -> int:
        """Check the records since the last call; return their number."""
        count = 0
        known: set[tuple[str, str]] = set()
        for entry in self._reader.poll():
            count += 1
            known.add((entry.record.action, entry.record.subject))
        for journal in journals:
            missing = journal.told - known
            must(not missing, f"{len(missing)} acknowledged changes are not in the audit log")
            journal.told.clear()
        return count


def only_ours(data: Path) -> None:
    """Check that the directory has only files of a node, and no extent without a row."""
    names = {path.name for path in data.iterdir()}
    must(names <= OURS, f"only files of a node are left: {sorted(names - OURS)}")
