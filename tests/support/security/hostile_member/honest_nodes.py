"""Three real nodes, a user on each, and what must be true of them after any play.

Members are admitted with real tokens, and removed as an operator does it.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple, TypeVar

import msgspec

from dios.errors import Code
from dios.host.audit.reader import AuditReader
from dios.ids import NodeId
from dios.node import daemon, local_cluster
from dios.node.local_cluster import LocalCluster, LocalNode
from dios.transport.identity import identity, joining, tokens
from dios.transport.identity.identity import Identity
from dios.wire import gossip, messages
from dios.wire.node_roles import NodeRole
from dios.wire.types import NodeStatus, NodeWish, ObjectType, Permission
from tests.fuzz.neighbour import Neighbour
from tests.fuzz.watch import BAD
from tests.support.node.raw_client import RawClient, create, read
from tests.support.node.running_node import exists
from tests.support.security.hostile_member.member import Victim

T = TypeVar("T")
SETTLED_S: Final = 30.0
SETTINGS: Final = {"accept_weaker_sandbox": "yes", "pool_size": "1", "coordinator": "off"}
LOST: Final = re.compile(r" a node is disconnected\b.*\bpeer=(\S+)")
REFUSED: Final = re.compile(r" a node's connection was refused\b.*\bpeer=(\S+)")


class ReferenceSeen(NamedTuple):
    """One reference in a table, as the node's own user sees it."""

    task: str
    object: str
    permissions: int
    home: int


class Person:
    """The user of one node: sessions with objects here and references to those of the other nodes."""

    def __init__(self, at: LocalNode) -> None:
        self.at: Final = at
        self.neighbour: Final = Neighbour(at.socket, host=at.name)
        self.client: Final = RawClient(at.socket)
        self.content: Final = f"of {at.name}".encode() * 20
        self.created: Final = create(self.client, ObjectType.SHMEM_BLOB, self.content)
        self.far: Final[list[tuple[int, bytes]]] = []
        """References to the objects of the other persons, and their contents."""

    def looks_up(self, other: Person) -> None:
        """Keep a reference to another person's object."""
        assert other.created.name is not None
        (reference,) = self.client.ask(messages.Lookup(other.created.name), messages.References).references
        self.far.append((reference.ref, other.content))

    def is_served(self) -> None:
        """Work, here and with the other nodes; AssertionError for a wrong answer."""
        self.neighbour.turn()
        self.neighbour.run()
        for ref, content in ((self.created.reference.ref, self.content), *self.far):
            assert read(self.client, ref) == content, f"the user of {self.at.name} reads something else"

    def table(self, name: str) -> list[tuple[int | str, ...]]:
        """Return all rows of a table of the node."""
        rows: list[tuple[int | str, ...]] = []
        start = 0
        while True:
            told = self.client.ask(messages.ReadTable(name, start), messages.TableRows)
            rows += told.rows
            if not told.following:
                return rows
            start = told.following

    def tasks(self) -> dict[str, tuple[str, str]]:
        """Return brand and principal of each of the node's own tasks and sessions, by fingerprint."""
        return {
            str(row[0]): (str(row[4]), str(row[6]))
            for row in self.table("tasks")
            if row[1] in {"task", "session"} and row[3] != "ENDED"
        }

    def references(self) -> set[ReferenceSeen]:
        """Return the references of this person's sessions."""
        mine = {client.welcome.self_ref.fingerprint for client in (self.client, self.neighbour._client)}
        return {
            ReferenceSeen(str(row[0]), str(row[1]), int(row[2]), int(row[5]))
            for row in self.table("references")
            if row[0] in mine
        }

    def numbers(self) -> list[tuple[str, int]]:
        """Return the ids that are worth nothing to others: those of tasks, objects and references."""
        pairs = [("task", self.client.welcome.self_ref.object), ("ref", self.created.reference.ref)]
        pairs += [("object", self.created.reference.object), *(("ref", ref) for ref, _ in self.far)]
        return pairs + [("ref", ref) for ref in self.neighbour.refs]

    def close(self) -> None:
        """Leave."""
        self.neighbour.close()
        self.client.close()


class HonestNodes:
    """The running nodes with a person on each."""

    def __init__(self, cluster: LocalCluster) -> None:
        self.nodes: Final = cluster.nodes
        self.persons: Final = [Person(node) for node in cluster.nodes]
        for person in self.persons:
            for other in self.persons:
                if other is not person:
                    person.looks_up(other)
        self.pids: Final = {name: running.pid for name, running in cluster.running().items()}
        self.names: Final = frozenset(node.name for node in cluster.nodes)
        self._audits: Final = [AuditReader(node.data / "audit") for node in cluster.nodes]
        self._logs: Final = [Log(node.data / daemon.LOG_NAME) for node in cluster.nodes]
        self._ids: Final = {node.name: identity_of(node).node for node in cluster.nodes}
        self._hexadecimal: Final = {f"{node:x}" for node in self._ids.values()}
        self._members: Final = self._rows(self.persons[0])
        self._revoked: set[int] = set()
        self._met: Final = set(self._ids.values())
        self._tasks: Final = [person.tasks() for person in self.persons]
        self._references: Final = [person.references() for person in self.persons]
        self.own: Final = next(iter(self._tasks[0].values()))[1]
        """The principal of the nodes' own user."""
        for log in self._logs:
            log.new()
        self.is_intact()

    @property
    def victims(self) -> list[Victim]:
        """The nodes as a member sees them."""
        rows = [self._members[self._ids[node.name]] for node in self.nodes]
        return [
            Victim(node, gossip.MemberRow(NodeId(row.node), row.name, row.rack, row.address, row.epoch))
            for node, row in zip(self.nodes, rows, strict=True)
        ]

    def _rows(self, person: Person) -> dict[int, messages.NodeRow]:
        """Return the honest nodes as one of them sees them, by id."""
        told = person.client.ask(messages.ListNodes(), messages.Nodes)
        return {
            row.node: msgspec.structs.replace(
                row, since_ns=0, tasks=0, cpus=0, memory_bytes=0, here=False, clock=None
            )
            for row in told.nodes
            if row.node in self._ids.values()
        }

    def names_at(self, name: str) -> set[str]:
        """Return the names of the nodes that one node knows to be usable."""
        (person,) = (candidate for candidate in self.persons if candidate.at.name == name)
        told = person.client.ask(messages.ListNodes(), messages.Nodes)
        return {row.name for row in told.nodes if row.status is NodeStatus.ALIVE}

    # -- members ------------------------------------------------------------------------------------
    async def admit(self, folder: Path, name: str, at: int = 0) -> Identity:
        """Admit a member with a token of one of the nodes; it may sign others, which is the most there is."""
        node = self.nodes[at]
        token = tokens.issue(identity_of(node), role=NodeRole.AUTHORITY)
        member = await joining.join(node.address, token, name=name, directory=folder)
        self._met.add(member.node)
        return member

    def forget(self, liar: Identity, at: int) -> None:
        """Remove a member at one node, and wait until all nodes have it on disk.

        A node that the liar made up does not confirm the removal. The operator is told so, and repeats it
        until nobody counts that node as alive any more.
        """
        call = messages.SetNode(liar.name, NodeWish.FORGET)

        def removed() -> tuple[messages.NodeRow, ...]:
            told = self.persons[at].client.any(call)
            if isinstance(told, messages.Failure) and told.code == Code.EHOSTUNREACH:
                return ()
            assert isinstance(told, messages.Nodes), told
            return told.nodes

        left = until(removed, "every node that counts as alive confirms the removal")
        assert liar.name not in {row.name for row in left}
        self._revoked.add(liar.node)
        until(lambda: all(liar.node in self.revoked_at(node) for node in self.nodes), "all have revoked it")

    def token(self, victim: Victim) -> str:
        """Return a token of a node, for one machine."""
        return tokens.issue(identity_of(victim.at))

    def forget_met(self, sleepers: Sequence[Identity]) -> None:
        """Remove the nodes that a member had admitted, at each node that knows them."""
        for sleeper in sleepers:
            for person in self.persons:
                person.client.any(messages.SetNode(f"{sleeper.node:x}", NodeWish.FORGET))

    @staticmethod
    def revoked_at(node: LocalNode) -> frozenset[int]:
        """Return the revocations that a node has on disk."""
        return frozenset(identity_of(node).revoked)

    # -- the invariant ------------------------------------------------------------------------------
    def is_intact(self) -> None:
        """Check everything that a play may not change; AssertionError with the reason."""
        try:
            self._is_alive()
            for person in self.persons:
                person.is_served()
            settle(self._disagreements)
            self._nobody_gained()
            self._is_clean()
        except Exception as error:
            error.add_note("\n".join(self._last_words()))
            raise

    def _is_alive(self) -> None:
        for name, pid in self.pids.items():
            assert exists(pid), f"{name} has ended"

    def _disagreements(self) -> list[str]:
        """Return what the honest nodes hold about each other that is not so."""
        differences = []
        for person in self.persons:
            rows, name = self._rows(person), person.at.name
            for node, meant in self._members.items():
                if rows.get(node) != meant:
                    differences.append(f"{name} has {rows.get(node)} for {meant}")
            # Members may remove nodes that never were; these removals last, in bounds.
            revoked = self.revoked_at(person.at) & self._met
            if revoked != self._revoked:
                differences.append(f"{name} has other revocations: {sorted(revoked ^ self._revoked)[:5]}")
        return differences

    def _nobody_gained(self) -> None:
        for person, tasks, references in zip(self.persons, self._tasks, self._references, strict=True):
            now = person.tasks()
            changed = {task: now.get(task) for task, seen in tasks.items() if now.get(task) != seen}
            assert not changed, f"tasks of {person.at.name} ended or changed: {changed}"
            more = person.references() ^ references
            assert not more, f"references at {person.at.name} came or went: {more}"
            for row in person.table("references"):
                assert not int(row[2]) & ~int(Permission.ALL), f"a right that does not exist: {row}"

    def _is_clean(self) -> None:
        for node, audit, log in zip(self.nodes, self._audits, self._logs, strict=True):
            bad = [line for line in log.new() if self._is_bad(line)]
            assert not bad, f"{node.name} logs:\n" + "\n".join(bad)
            for entry in audit.poll():
                record = entry.record
                who = record.principal.removeprefix("node:")
                assert record.outcome != "denied" or who not in self.names, f"{node.name} blames {record}"
                gone = record.action == "node" and record.outcome in {"forgotten", "left"}
                # Made-up nodes may have the name of an honest one, but not its id.
                which = record.detail.partition(",")[0]
                honest = which in self._hexadecimal or "removed this node" in record.detail
                assert not (gone and honest), f"{node.name} lost {record}"

    def _is_bad(self, line: str) -> bool:
        if BAD.search(line):
            return True
        lost = LOST.search(line)
        if lost is not None and lost[1] in self.names:
            return True
        refused = REFUSED.search(line)
        return refused is not None and refused[1] in self.names

    def _last_words(self) -> list[str]:
        lines = []
        for node, log in zip(self.nodes, self._logs, strict=True):
            lines += [f"{node.name}: {line}" for line in log.last(12)]
        return lines

    def close(self) -> None:
        """Leave."""
        for person in self.persons:
            person.close()


def identity_of(node: LocalNode) -> Identity:
    """Return the identity of a node, as it is on disk."""
    loaded = identity.load(node.data)
    assert loaded is not None
    return loaded


class Log:
    """The log of a node, read piece by piece."""

    def __init__(self, path: Path) -> None:
        self._path: Final = path
        self._offset = 0

    def new(self) -> list[str]:
        """Return the lines since the last call."""
        with self._path.open("rb") as file:
            file.seek(self._offset)
            data = file.read()
        self._offset += len(data)
        return data.decode(errors="replace").splitlines()

    def last(self, count: int) -> list[str]:
        """Return the last lines."""
        return self._path.read_text(errors="replace").splitlines()[-count:]


def until(condition: Callable[[], T], goal: str) -> T:
    """Wait until something is true, and return it."""
    deadline = time.monotonic() + SETTLED_S
    while not (outcome := condition()):
        assert time.monotonic() < deadline, f"not within {SETTLED_S} s: {goal}"
        time.sleep(0.02)
    return outcome


def settle(problems: Callable[[], list[str]]) -> None:
    """Wait until there are no problems any more."""
    deadline = time.monotonic() + SETTLED_S
    while remaining := problems():
        assert time.monotonic() < deadline, f"after {SETTLED_S} s still: " + "; ".join(remaining)
        time.sleep(0.02)


@contextmanager
def honest_nodes(folder: Path) -> Iterator[HonestNodes]:
    """Three nodes of one cluster as processes, for the length of a context."""
    cluster = local_cluster.make(folder / "cluster", nodes=3, settings=SETTINGS)
    try:
        local_cluster.start(cluster)
        nodes = HonestNodes(cluster)
        try:
            yield nodes
        finally:
            nodes.close()
    finally:
        local_cluster.stop(cluster)
