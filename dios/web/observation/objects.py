"""Objects as the user may see them: files, replicas, the objects in use at a node, and waiting calls."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from dios.client.keyring import Keyring
from dios.client.plain_text import plain
from dios.client.sync.node import Node, Reference
from dios.errors import DiosError, NotPermittedError
from dios.lib.files.catalogue_places import KeyringCatalogue
from dios.lib.files.group_files import GroupFiles
from dios.lib.kept.promises import Promises
from dios.web.observation.cluster_view import Row, number
from dios.wire.nametext import fingerprint
from dios.wire.types import ObjectType, Permission

FILES_MAX: Final = 20_000
OBJECTS_MAX: Final = 2_000
WAITS_MAX: Final = 1_000
_AWAITED_MAX: Final = 5

FOR_OWNER_ONLY: Final = "Only the node's own user and root can see the objects and calls of all tasks."


@dataclass(frozen=True, slots=True)
class StoredFile:
    """One file of a group: a durable object with an entry in the group's catalogue; ``name`` is a secret.

    ``group_secrecy`` has the tags of the group's label, separated by blanks; the file may have more.
    """

    group: str
    path: str
    size: int
    name: bytes = field(repr=False)
    group_secrecy: str = ""

    @property
    def fingerprint(self) -> str:
        """The fingerprint of the object's name, which may be shown."""
        return fingerprint(self.name)


class Replica(NamedTuple):
    """A physical object of a name: its node, rack and persistence, its size in bytes, and its versions.

    ``v_r`` and ``v_w`` are the numbers of committed reads and writes, ``a_r`` and ``a_w`` those of open ones.
    ``secrecy`` has the tags of its label, separated by blanks.
    """

    node: str
    rack: str
    persistence: str
    size: int
    v_r: int
    v_w: int
    a_r: int
    a_w: int
    secrecy: str = ""


class LiveObject(NamedTuple):
    """An object in the memory of the asked node, with its counters like those of a replica.

    ``secrecy`` has the tags of its label, separated by blanks. A node of an earlier release does not send it.
    """

    fingerprint: str
    type: str
    persistence: str
    size: int
    v_r: int
    v_w: int
    a_r: int
    a_w: int
    references: int
    waiting: int
    secrecy: str = ""


class Wait(NamedTuple):
    """A waiting call: its task, its object, and the tasks that can end the wait.

    ``reason`` says why these. All are fingerprints; ``object`` is empty for a call that waits for the answer
    of another node or for no object.
    """

    task: str
    call: str
    object: str
    awaited: Sequence[str]
    reason: str


def read_files(node: Node) -> tuple[list[StoredFile], list[str]]:
    """Return the files of the user's groups, and sentences about groups that cannot be read."""
    keyring = Keyring.load()
    node.present_all()
    known = {group.fingerprint: group for group in node.groups}
    stored_files: list[StoredFile] = []
    problems: list[str] = []
    for alias, name in keyring.groups.items():
        group = known.get(fingerprint(name))
        if group is None:
            problems.append(f"this node does not know group {plain(alias)}")
            continue
        try:
            files = GroupFiles(node, group, KeyringCatalogue(node, keyring, alias, group))
            entries, secrecy = files.entries(), plain(" ".join(files.secrecy))
        except DiosError as error:
            problems.append(f"group {plain(alias)}: {plain(error.message)}")
            continue
        stored_files += [
            StoredFile(plain(alias), plain(entry.file), entry.size, entry.name, secrecy)
            for entry in entries[: FILES_MAX - len(stored_files)]
        ]
    if len(stored_files) >= FILES_MAX:
        problems.append(f"only the first {FILES_MAX} files are shown")
    return stored_files, problems


def read_replicas(node: Node, name: bytes) -> tuple[list[Replica], str]:
    """Return the replicas of a name, the nearest first, and a sentence about what is missing."""
    references = node.lookup(name)
    try:
        replicas = [_replica(entry) for entry in references]
    finally:
        for reference in references:
            reference.close()
    problem = "A node that may have more replicas did not answer." if references.incomplete else ""
    return replicas, problem


def _replica(reference: Reference) -> Replica:
    return Replica(
        plain(reference.node) or "this node",
        plain(reference.rack),
        reference.persistence.name.lower(),
        reference.size,
        reference.v_r,
        reference.v_w,
        reference.a_r,
        reference.a_w,
        plain(" ".join(reference.secrecy)),
    )


def broken_promise(node: Node, mark: str) -> str:
    """Return a sentence if fewer replicas of the object than promised are current; else the empty text."""
    try:
        short = next(
            (candidate for candidate in Promises(node).short_objects() if candidate.fingerprint == mark), None
        )
    except DiosError:
        return ""
    if short is None:
        return ""
    return f"{short.current} of {short.wanted} promised replicas are current: {plain(short.reason)}"


def read_objects(node: Node) -> tuple[list[LiveObject], str]:
    """Return the objects in the memory of the asked node, and the reason why some or all are missing."""
    try:
        rows = node.read_table("objects")
    except NotPermittedError:
        return [], FOR_OWNER_ONLY
    objects = [
        LiveObject(
            plain(str(row["fingerprint"])),
            plain(str(row["type"])).lower(),
            plain(str(row["persistence"])).lower(),
            int(row["size"]),
            int(row["v_r"]),
            int(row["v_w"]),
            int(row["a_r"]),
            int(row["a_w"]),
            int(row["references"]),
            int(row["waiters"]),
            plain(str(row.get("secrecy", ""))),
        )
        for row in rows[:OBJECTS_MAX]
    ]
    problem = f"Only {OBJECTS_MAX} of {len(rows)} objects are shown." if len(rows) > OBJECTS_MAX else ""
    return objects, problem


def read_waits(node: Node) -> list[Wait]:
    """Return the calls that wait at the asked node; none for users who may not see them."""
    try:
        waiting: list[Row] = list(node.read_table("waiting")[:WAITS_MAX])
        references: list[Row] = list(node.read_table("references")) if waiting else []
        objects: list[Row] = list(node.read_table("objects")) if waiting else []
    except NotPermittedError:
        return []
    return waits(waiting, references, {str(row.get("fingerprint")): str(row.get("type")) for row in objects})


def waits(waiting: Iterable[Row], references: Iterable[Row], types: Mapping[str, str]) -> list[Wait]:
    """Return the waiting calls, from the rows of a node's tables and the types of objects.

    A task that waits for another one waits for its end. All other waits are ended by a task with an open
    request on the object. If no task has such a request, a task that may write the object ends it.
    """
    holders: dict[str, list[Row]] = {}
    for row in references:
        holders.setdefault(str(row.get("object")), []).append(row)
    pending: list[Wait] = []
    for row in waiting:
        task, call = plain(str(row.get("task"))), plain(str(row.get("call")))
        marks = str(row.get("objects", "")).split()
        if not marks:
            away = (
                "another node has to answer" if number(row.get("requests")) else "the node ends it by itself"
            )
            pending.append(Wait(task, call, "", (), away))
        for mark in marks:
            if types.get(mark) == ObjectType.TASK.name:
                pending.append(Wait(task, call, mark, (mark,), "it has to end"))
                continue
            pending.append(_wait_for_holders(task, call, mark, holders.get(mark, ())))
    return pending


def _wait_for_holders(task: str, call: str, mark: str, holders: Iterable[Row]) -> Wait:
    others = [row for row in holders if row.get("task") != task]
    active = [row for row in others if number(row.get("buffers"))]
    writers = [row for row in others if int(number(row.get("permissions"))) & Permission.WRITE]
    awaited = tuple(dict.fromkeys(str(row.get("task")) for row in active or writers))
    reason = "nobody here can end it"
    if awaited:
        reason = "it has an open request on the object" if active else "it may write the object"
    if len(awaited) > _AWAITED_MAX:
        reason += f"; {len(awaited) - _AWAITED_MAX} more tasks, too"
    return Wait(task, call, mark, awaited[:_AWAITED_MAX], reason)
