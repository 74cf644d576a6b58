"""Clients that load a node, and record its acknowledgements in a journal outside of it."""

from __future__ import annotations

import contextlib
import random
import threading
from collections.abc import Callable
from typing import Final

from msgspec import Struct

import dios
from dios.errors import NotExecutableError, NotSupportedError, OutOfMemoryError, WouldBlockError
from dios.ids import Name

LIVE_MAX: Final = 24
GROUPS_MAX: Final = 3
# With the index row, near both limits of the content of a frame, and in extent files.
SIZES: Final = (48, 700, 9_000, 16_384, 16_385, 33_000, 60_000, 250_000)
HEAD_BYTES: Final = 48

TASK: Final = b"""
import sys
import dios
size, head = int(sys.argv[1]), sys.argv[2].encode()
with dios.connect() as node:
    node.input("it").write_bytes((head * (size // len(head) + 1))[:size])
"""


class Value(Struct, frozen=True):
    """One version of an object's content; every 48 bytes of it identify the writer and the version."""

    writer: int
    serial: int
    size: int

    def head(self) -> bytes:
        """The part that is repeated in the content."""
        return b"%016d%016d%016d" % (self.writer, self.serial, self.size)

    def data(self) -> bytes:
        """The whole content."""
        head = self.head()
        return (head * (self.size // len(head) + 1))[: self.size]


def whole_value(data: bytes) -> Value | None:
    """Return the version of a content, or None if the content is not complete."""
    with contextlib.suppress(ValueError):
        value = Value(int(data[:16]), int(data[16:32]), int(data[32:48]))
        if value.data() == data:
            return value
    return None


def named_groups(node: dios.Node) -> list[tuple[Name, dios.Group]]:
    """Return the groups of a connection except its home group, with their names."""
    return [(Name(group.read_name()), group) for group in node.groups[1:]]


class Doubt(Struct):
    """The last request without an acknowledgement; it may have happened or not."""

    name: Name | None = None
    value: Value | None = None
    creates: bool = False
    deletes: bool = False
    makes_group: bool = False


class Journal:
    """The acknowledgements to one client: the version of each object, deletions, and groups."""

    def __init__(self, number: int) -> None:
        self.number: Final = number
        self.live: dict[Name, Value] = {}
        self.deleted: set[Name] = set()
        self.groups: list[Name] = []
        self.group_of: dict[Name, Name] = {}
        self.doubt: Doubt | None = None
        self.told: set[tuple[str, str]] = set()
        """The changes since the last round, by fingerprint, for the comparison with the audit log."""
        self.acknowledged = 0
        self.serial = 0


class Client:
    """A client in a thread that writes until its node is gone."""

    def __init__(self, journal: Journal, rng: random.Random, *, runs_tasks: bool) -> None:
        self.journal: Final = journal
        self.unexpected: BaseException | None = None
        """The error that ended it while the node was running."""
        self._rng: Final = rng
        self._runs_tasks: Final = runs_tasks
        self._node: dios.Node
        self._groups: list[tuple[Name, dios.Group]] = []
        self._told: Callable[[], None]

    def write_until_killed(self, place: str, told: Callable[[], None], killing: threading.Event) -> None:
        """Write at full speed; ``told`` is called after each acknowledgement."""
        self._told = told
        self.unexpected = None
        try:
            with dios.connect(place, groups=self.journal.groups) as node:
                self._node = node
                self._groups = named_groups(node)
                while not killing.is_set():
                    self._one()
        except (dios.DiosError, OSError) as error:
            if not killing.is_set():
                self.unexpected = error
                told()

    def _one(self) -> None:
        journal, roll = self.journal, self._rng.random()
        if len(journal.live) < 4 or (roll < 0.35 and len(journal.live) < LIVE_MAX):
            self._create()
        elif roll < 0.6:
            self._replace(self._any())
        elif roll < 0.85:
            self._delete(self._any())
        elif roll < 0.88 and len(journal.groups) < GROUPS_MAX:
            self._make_group()
        elif roll < 0.9:
            self._drop_group()
        elif self._runs_tasks:
            self._let_a_task_write(self._any())
        else:
            self._replace(self._any())

    def _done(self) -> None:
        self.journal.doubt = None
        self.journal.acknowledged += 1
        self._told()

    def _value(self) -> Value:
        self.journal.serial += 1
        return Value(self.journal.number, self.journal.serial, self._rng.choice(SIZES))

    def _any(self) -> Name:
        return self._rng.choice(list(self.journal.live))

    def _found(self, name: Name) -> dios.Reference:
        (reference, *_) = self._node.lookup(name)
        return reference

    def _create(self) -> None:
        journal, value = self.journal, self._value()
        journal.doubt = Doubt(value=value, creates=True)
        home = self._node.groups[0]
        # A group that was deleted since the connection began is still in its list.
        mine = [(name, group) for name, group in self._groups if name in journal.groups]
        in_group, group = self._rng.choice([(None, home), *mine])
        blob = self._node.create(dios.DURABLE_BLOB, groups=[group], data=value.data())
        if blob.name is None:
            raise AssertionError("a created object has a name")
        name = Name(blob.name)
        blob.close()
        journal.live[name] = value
        if in_group is not None:
            journal.group_of[name] = in_group
        journal.told.add(("create", blob.fingerprint))
        self._done()

    def _replace(self, name: Name) -> None:
        value = self._value()
        self.journal.doubt = Doubt(name, value)
        with contextlib.closing(self._found(name)) as reference:
            reference.write_bytes(value.data())
        self.journal.live[name] = value
        self._done()

    def _delete(self, name: Name) -> None:
        self.journal.doubt = Doubt(name, deletes=True)
        reference = self._found(name)
        reference.delete()
        self.journal.told.add(("delete", reference.fingerprint))
        del self.journal.live[name]
        self.journal.deleted.add(name)
        self._done()

    def _make_group(self) -> None:
        self.journal.doubt = Doubt(makes_group=True)
        name = self._node.create_group().name
        if name is None:
            raise AssertionError("a created group has a name")
        self.journal.groups.append(Name(name))
        self._done()

    def _drop_group(self) -> None:
        """Delete a group without objects."""
        journal = self.journal
        used = {journal.group_of[name] for name in journal.live if name in journal.group_of}
        for name, group in self._groups:
            if name in journal.groups and name not in used:
                journal.doubt = Doubt(name, deletes=True)
                group.delete()
                journal.told.add(("delete", group.fingerprint))
                journal.groups.remove(name)
                self._done()
                return

    def _let_a_task_write(self, name: Name) -> None:
        """Delegate an object to a task; its write counts as acknowledged when the task has succeeded."""
        value = self._value()
        self.journal.doubt = Doubt(name, value)
        with contextlib.closing(self._found(name)) as reference:
            arguments = (str(value.size), value.head().decode())
            given = {"it": reference.restrict("read", "write")}
            try:
                task = self._node.run(TASK, inputs=given, args=arguments, label="writer")
            except (NotExecutableError, OutOfMemoryError, NotSupportedError, WouldBlockError):
                # The starting process was killed, so nothing has happened.
                self._done()
                return
            ended = task.wait(timeout=30)
            task.close()
            if ended.ok:
                self.journal.live[name] = value
            else:
                # The task was killed; the object has the old or the new content.
                held = whole_value(bytes(reference.read_bytes()))
                if held not in {self.journal.live[name], value}:
                    raise AssertionError(f"a task that was killed left {held}")
                if held is not None:
                    self.journal.live[name] = held
        self._done()
