"""References of tasks to objects: the rows of a node, their retirement, and the story of one object."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from dios.client.ops.status import Status
from dios.client.plain_text import plain
from dios.client.sync.node import Node, Reference
from dios.errors import DiosError, InvalidError, NotPermittedError
from dios.host.audit.log import AuditRecord, segments
from dios.host.audit.reader import AuditReader
from dios.web.observation.cluster_view import Row, number
from dios.web.observation.objects import read_files
from dios.wire.types import Permission

REFERENCES_MAX: Final = 5_000
STORY_MAX: Final = 500
SEGMENTS_MAX: Final = 4
"""Segments of the audit log in which a story is looked for; each has about 16 MiB."""


class HeldReference(NamedTuple):
    """A reference at the asked node. Tasks and objects are fingerprints.

    ``giver`` is the task that delegated it, empty for a reference that came by another way, as ``provenance``
    says. It is valid until ``until_ns``, since 1970, 0 for as long as its holder lives. ``requests`` is the
    number of its open I/O requests, and ``passed_on`` that of references that were delegated from it.
    ``secrecy`` has the tags of the object's label, separated by blanks.
    """

    task: str
    object: str
    rights: str
    provenance: str
    giver: str
    until_ns: int
    requests: int
    passed_on: int
    secrecy: str = ""

    @property
    def is_delegated(self) -> bool:
        """Return True if it can be retired."""
        return self.provenance == "delegated"


class AuditLine(NamedTuple):
    """A record of the audit log as a sentence; the time is in nanoseconds since 1970."""

    record: int
    time_ns: int
    text: str
    user: str
    refused: bool


def read_references(node: Node) -> tuple[list[HeldReference], str]:
    """Return the references at the asked node, and the reason why some or all are missing."""
    try:
        rows: list[Row] = list(node.read_table("references"))
    except NotPermittedError:
        return [], "Only the node's own user and root can see the references of all tasks."
    problem = (
        f"Only {REFERENCES_MAX} of {len(rows)} references are shown." if len(rows) > REFERENCES_MAX else ""
    )
    return [_held(row) for row in rows[:REFERENCES_MAX]], problem


def _held(row: Row) -> HeldReference:
    return HeldReference(
        plain(str(row.get("task"))),
        plain(str(row.get("object"))),
        rights_text(row.get("permissions")),
        plain(str(row.get("provenance"))),
        plain(str(row.get("origin", ""))),
        int(number(row.get("expires_ns"))),
        int(number(row.get("buffers"))),
        int(number(row.get("descendants"))),
        plain(str(row.get("secrecy", ""))),
    )


def rights_text(value: object) -> str:
    """Return the words for the bits of rights."""
    held = Permission(value) if isinstance(value, int) else Permission(0)
    return ", ".join(right.name.lower() for right in Permission if right.name and right in held)


# -- retirement -------------------------------------------------------------------------------------
def retire(node: Node, tasks: Sequence[Status], mark: str, holder: str = "") -> int:
    """Retire the delegated references to an object, all or those of one holder; return their number.

    The user needs a name of the object: of a task of theirs, a group or a file of the keyring.

    Raises:
        InvalidError: the user has no name of the object.
        NotPermittedError: the user may not delete the object.
    """
    reference = _find(node, tasks, mark)
    try:
        return reference.retire(everyone=True, holder=holder)
    finally:
        if not any(reference is group for group in node.groups):
            reference.close()


def _find(node: Node, tasks: Sequence[Status], mark: str) -> Reference:
    name = next((task.name for task in tasks if task.fingerprint == mark), None)
    if name is None:
        node.present_all()
        group = next((group for group in node.groups if group.fingerprint == mark), None)
        if group is not None:
            return group
        files, _ = read_files(node)
        name = next((file.name for file in files if file.fingerprint == mark), None)
    reference = None if name is None else node.find(name)
    if reference is None:
        raise InvalidError(
            f"cannot retire references to {plain(mark)}: it is no task of yours, and no group or file of "
            "your keyring. A program that holds a reference to it can retire those that came from it."
        )
    return reference


# -- the audit log ----------------------------------------------------------------------------------
def read_story(data: Path, mark: str, labels: Mapping[str, str]) -> tuple[list[AuditLine], str]:
    """Return the newest records about a fingerprint, and a sentence about what is missing.

    ``data`` is the data directory of the node; ``labels`` are those of tasks by fingerprint. At most
    SEGMENTS_MAX segments of the log are read.
    """
    folder = data / "audit"
    try:
        count = len(segments(folder))
        if not count:
            return [], "The audit log of the node cannot be read from here."
        newest: deque[tuple[int, AuditRecord]] = deque(maxlen=STORY_MAX)
        for entry in AuditReader(folder, segments_max=SEGMENTS_MAX).poll():
            if is_about(entry.record, mark):
                newest.append((entry.index, entry.record))
    except (DiosError, OSError) as error:
        return [], f"The audit log cannot be read: {plain(str(error))}"
    place = f"the newest {SEGMENTS_MAX} of {count} segments" if count > SEGMENTS_MAX else "the audit log"
    problem = "" if newest else f"There is no record of it in {place}."
    if newest and count > SEGMENTS_MAX:
        problem = f"The story begins in {place}; `dios audit --subject {plain(mark)}` reads all."
    return [story_line(index, record, mark, labels) for index, record in newest], problem


def is_about(record: AuditRecord, mark: str) -> bool:
    """Return True if a record is about the task or object with this fingerprint."""
    return mark in {record.task, record.subject} or mark in record.detail.split()


def story_line(index: int, record: AuditRecord, mark: str, labels: Mapping[str, str]) -> AuditLine:
    """Return a record as a sentence, in which the thing with the fingerprint ``mark`` is "it"."""

    def called(word: str) -> str:
        if word == mark:
            return "it"
        return f"{plain(labels[word])} ({word})" if labels.get(word) else plain(word)

    detail = record.detail.split("\n", 1)[0]
    subject = called(record.subject) if record.subject != record.task or not record.task else "itself"
    rights = _rights_at_start(detail)
    action = "delegate at start" if record.action == "delegate" and rights else record.action
    template = _SENTENCES.get((action, record.outcome)) or _SENTENCES.get((action, "any"), _OTHER)
    text = template.format(
        who=called(record.task) if record.task else "the node",
        subject=subject,
        last=called(detail.rpartition(" ")[2]),
        rest=f", {plain(detail)}" if detail else "",
        rights=rights,
        action=plain(record.action),
        outcome=plain(record.outcome),
    )
    if record.count > 1:
        text += f", {record.count} times"
    return AuditLine(
        index,
        record.now,
        text[0].upper() + text[1:] if text.startswith(("it ", "the ")) else text,
        plain(record.principal),
        record.outcome == "denied",
    )


def _rights_at_start(detail: str) -> str:
    number_of_rights = detail.rpartition(" ")[2]
    is_start = detail.startswith("at start") and number_of_rights.isdecimal()
    return rights_text(int(number_of_rights)) if is_start else ""


_OTHER: Final = "{who}: {action} of {subject}{rest}: {outcome}"
_SENTENCES: Final[Mapping[tuple[str, str], str]] = {
    ("create", "ok"): "{who} created {subject}{rest}",
    ("lookup", "ok"): "{who} found {subject} by its name{rest}",
    ("lookup", "empty"): "{who} looked for the name of {subject} and found nothing",
    ("delegate", "ok"): "{who} delegated a reference to {subject} to {last}",
    ("delegate at start", "ok"): "{who} got a reference to {subject} at its start, with the rights {rights}",
    ("retire", "ok"): "{who} retired the reference of {last} to {subject}",
    ("expire", "ok"): "the time of the reference of {who} to {subject} was over",
    ("delete", "ok"): "{who} deleted {subject}{rest}",
    ("run", "ok"): "{who} started {subject}{rest}",
    ("place", "ok"): "{who} placed {subject}{rest}",
    ("end", "ok"): "{who} ended {subject}{rest}",
    ("ended", "any"): "{who} ended: {outcome}{rest}",
    ("pause", "ok"): "{who} paused {subject}",
    ("resume", "ok"): "{who} resumed {subject}",
    ("attach", "ok"): "{who} attached itself to {subject}{rest}",
    ("exec", "ok"): "{who} started a program in {subject}{rest}",
    ("exec", "ended"): "a program that {who} started in {subject} ended{rest}",
    ("forward", "ok"): "{who} connected to a port of {subject}{rest}",
    ("session", "ok"): "{who} began as a session{rest}",
    ("request", "denied"): "{who} was refused a request on {subject}{rest}",
    ("replicate", "ok"): "{who} made a replica of {subject}{rest}",
}
