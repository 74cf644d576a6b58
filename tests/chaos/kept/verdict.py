"""The verdict of a kept round: the programs' notes, compared with what the healed cluster shows."""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from tests.chaos.history import Action, Operation
from tests.chaos.kept.content import ABSENT
from tests.chaos.kept.notes import Notes
from tests.chaos.linearizability import violation

THE_LIST: Final = "the list"
"""The key of the list of files among the objects whose replicas are counted."""


NO_LIST: Final = "no list: "
"""The beginning of the reason why a node reads no path at all."""


class Broken(enum.StrEnum):
    """The kinds of findings."""

    LOST = "acknowledged file lost"
    WRONG_BYTES = "wrong bytes"
    UNREADABLE = "listed file unreadable"
    ORDER = "no order explains the answers"
    CONFLICT = "conflict"
    NOT_KEPT = "promise not kept in time"
    REPLICAS = "wrong number of replicas"
    LISTS_DIFFER = "lists differ"
    LEFT_OVER = "object left over"
    UNEXPECTED = "unexpected error"
    NODE = "node failed"


class Finding(NamedTuple):
    """One broken promise."""

    kind: Broken
    text: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.text}"


class Wanted(NamedTuple):
    """The exact numbers of replicas of files, and of their list."""

    files: int
    list: int

    def of(self, path: str) -> int:
        """Return the number for a path, or for the list."""
        return self.list if path == THE_LIST else self.files


class Replica(NamedTuple):
    """A replica as a node shows it; ``same`` is True if it has the bytes that the list says."""

    node: str
    version: int
    same: bool


@dataclass(slots=True)
class Observation:
    """The state that the nodes show when all faults have ended and they had time to converge."""

    reads: dict[str, dict[str, int | str]] = field(default_factory=dict)
    """The value, ABSENT, or the reason of a failure, for each path on each node."""
    replicas: dict[str, list[Replica]] = field(default_factory=dict)
    """The replicas of each stored object that is listed, by its path, and of the list."""
    orphans: dict[str, list[str]] = field(default_factory=dict)
    """The fingerprints of objects on each node that neither a list nor a record has."""
    conflicts: int = 0
    kept: bool = True
    why: str = ""


def judge(notes: Notes, seen: Observation, wanted: Wanted) -> list[Finding]:
    """Return all broken promises of a round."""
    findings = [Finding(Broken.UNEXPECTED, text) for text in notes.unexpected]
    if seen.conflicts:
        findings.append(Finding(Broken.CONFLICT, f"{seen.conflicts} objects: {seen.why}"))
    elif not seen.kept:
        findings.append(Finding(Broken.NOT_KEPT, seen.why))
    findings += judge_paths(notes, seen.reads)
    findings += judge_lists(seen.reads)
    findings += judge_replicas(seen.replicas, wanted)
    findings += judge_orphans(notes, seen.orphans)
    return findings


def judge_paths(notes: Notes, reads: Mapping[str, Mapping[str, int | str]]) -> list[Finding]:
    """Check that each path is a register: a single order of all calls explains what each node reads."""
    findings = [
        Finding(Broken.UNREADABLE, f"the list on {node}: {reason}")
        for node, values in reads.items()
        for reason in {value for value in values.values() if _is_of_list(value)}
    ]
    reads = {node: values for node, values in reads.items() if not any(map(_is_of_list, values.values()))}
    paths = sorted({*notes.operations, *(path for readings in reads.values() for path in readings)})
    for path in paths:
        operations = list(notes.operations.get(path, ()))
        after = (
            max([notes.last_ns, *(operation.returned or operation.called for operation in operations)]) + 1
        )
        for number, (node, values) in enumerate(sorted(reads.items())):
            value = values.get(path, ABSENT)
            if isinstance(value, str):
                kind = Broken.WRONG_BYTES if "never put" in value else Broken.UNREADABLE
                findings.append(Finding(kind, f"{path} on {node}: {value}"))
                continue
            moment = after + 2 * number
            operations.append(
                Operation(path, Action.READ, value, moment, f"the last reader on {node}", moment + 1)
            )
        wrong = violation(operations)
        if wrong is not None:
            findings.append(_explained(path, operations, notes, wrong))
    return findings


def _is_of_list(value: int | str) -> bool:
    return isinstance(value, str) and value.startswith(NO_LIST)


def _explained(path: str, operations: list[Operation], notes: Notes, wrong: str) -> Finding:
    """Return the finding for a path: a loss, if its last acknowledged write was a put and it is absent."""
    writes = [operation for operation in operations if operation.action is Action.WRITE]
    known = [write for write in writes if write.returned is not None]
    last = max(known, key=lambda write: write.returned or 0, default=None)
    final = [operation.value for operation in operations if operation.client.startswith("the last reader")]
    if last is not None and last.value in notes.acknowledged and ABSENT in final:
        later = [write for write in writes if write.value == ABSENT and write.called > last.called]
        if not later:
            shown = Counter("absent" if value == ABSENT else str(value) for value in final)
            return Finding(Broken.LOST, f"{path} had {last.value}; the nodes read {dict(shown)}")
    return Finding(Broken.ORDER, wrong)


def judge_lists(reads: Mapping[str, Mapping[str, int | str]]) -> list[Finding]:
    """Check that all nodes list the same paths."""
    listed = {
        node: {path for path, value in values.items() if value != ABSENT}
        for node, values in reads.items()
        if not any(map(_is_of_list, values.values()))
    }
    every = set().union(*listed.values()) if listed else set()
    missing = {node: sorted(every - paths) for node, paths in listed.items() if paths != every}
    return [
        Finding(Broken.LISTS_DIFFER, f"{node} does not list {len(paths)} of {len(every)} paths: {paths[:3]}")
        for node, paths in missing.items()
    ]


def judge_replicas(replicas: Mapping[str, list[Replica]], wanted: Wanted) -> list[Finding]:
    """Check that each object has exactly the promised number of replicas, on different nodes, all equal."""
    findings = []
    for path, several in sorted(replicas.items()):
        nodes = [replica.node for replica in several]
        number = wanted.of(path)
        if len(nodes) != number or len(set(nodes)) != len(nodes):
            findings.append(Finding(Broken.REPLICAS, f"{path} is on {sorted(nodes)}, {number} are promised"))
        if not all(replica.same for replica in several):
            bad = sorted(replica.node for replica in several if not replica.same)
            kind = Broken.LISTS_DIFFER if path == THE_LIST else Broken.WRONG_BYTES
            findings.append(Finding(kind, f"the replicas of {path} on {bad} have other bytes"))
    return findings


def judge_orphans(notes: Notes, orphans: Mapping[str, list[str]]) -> list[Finding]:
    """Check that no object is left over of a put that was acknowledged, however it ended later.

    A put that failed, or whose program was killed, may leave objects that were never listed.
    """
    findings = []
    unknown: set[str] = set()
    for node, marks in sorted(orphans.items()):
        for mark in marks:
            value = notes.objects.get(mark)
            if value is None:
                unknown.add(mark)
            elif value in notes.acknowledged:
                path = notes.acknowledged[value]
                findings.append(Finding(Broken.LEFT_OVER, f"{mark} of {path} ({value}) on {node}"))
    if len(unknown) > notes.unnamed:
        findings.append(
            Finding(
                Broken.LEFT_OVER,
                f"{len(unknown)} objects that no program knows, at most {notes.unnamed} can be of "
                f"unfinished calls: {sorted(unknown)[:4]}",
            )
        )
    return findings
