"""The nodes of a cluster: the list of them, and changes of their state.

``dios.transport.identity.joining`` admits nodes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from enum import Enum
from typing import Final, TypeVar

from dios.client.ops.notebook_html import table
from dios.client.ops.scheduling import SchedulingOps
from dios.client.session import Operation, expect
from dios.errors import InvalidError
from dios.limits import NAME_BYTES
from dios.wire import messages
from dios.wire.nametext import fingerprint
from dios.wire.node_labels import check, labels_of
from dios.wire.node_roles import NodeRight, may_be_chosen
from dios.wire.types import Fitness, NodeStatus, NodeWish, SecretState

T = TypeVar("T")


def _shown(value: object) -> object:
    """Return a value of a table's cell; names are shown by their fingerprints."""
    if isinstance(value, bytes):
        return fingerprint(value) if len(value) == NAME_BYTES else repr(value)
    return value.name if isinstance(value, Enum) else value


class Gathered(list[T]):
    """The results of several nodes, as an ordinary list.

    ``incomplete`` is True if a node that may have more could not be asked. In lists of tasks ``dead_only`` is
    True if all of those nodes are dead.
    """

    __slots__ = ("dead_only", "incomplete")

    def __init__(self, items: list[T], *, incomplete: bool = False, dead_only: bool = False) -> None:
        super().__init__(items)
        self.incomplete = incomplete
        self.dead_only = dead_only

    def _repr_html_(self) -> str:
        """Return the results as a table for a notebook."""
        note = ", incomplete: a node did not answer" if self.incomplete else ""
        title = f"{len(self)} results{note}"
        first = self[0] if self else None
        if is_dataclass(first) and not isinstance(first, type):
            # A field without a place in the text form is a secret.
            columns = [dataclass_field.name for dataclass_field in fields(first) if dataclass_field.repr]
            rows = [[_shown(getattr(item, name, "")) for name in columns] for item in self]
            return table(title, columns, rows)
        return table(title, ("result",), [(repr(item),) for item in self])


@dataclass(frozen=True, slots=True)
class Member:
    """One node of the cluster, as the asked node knows it.

    ``since_ns`` is the time of its last change of status, by the clock of the asked node, 0 if it is not
    known; ``here`` is True for the asked node itself. ``tasks``, ``cpus`` and free ``memory_bytes`` are its
    last report. ``fitness`` is its ability to run pure tasks. ``barred`` are the nodes whose schedulers have
    lost their lease on its queue, because they placed no run. ``roles`` are the words in its
    certificate; there are none for a node that never connected to the asked one.
    ``secret`` says if it has the present generation of the cluster's secret.
    Its clock is ahead of the asked node's by ``clock_offset_ns``, give or take
    ``clock_error_ns``, both None if that was not measured.
    """

    node: int
    name: str
    rack: str
    address: str
    status: NodeStatus
    draining: bool
    epoch: int
    since_ns: int
    tasks: int
    cpus: int
    memory_bytes: int
    here: bool
    coordinated: bool = False
    labels: Mapping[str, str] = field(default_factory=dict, hash=False)
    clock_offset_ns: int | None = None
    clock_error_ns: int | None = None
    fitness: Fitness = Fitness.FIT
    barred: tuple[int, ...] = ()
    roles: tuple[str, ...] = ()
    secret: SecretState = SecretState.CURRENT

    @property
    def fit(self) -> bool:
        """Return True if it is known to be able to run pure tasks."""
        return self.fitness is Fitness.FIT

    @property
    def condition(self) -> str:
        """The status in words, with what keeps new tasks from the node."""
        is_alive = self.status is NodeStatus.ALIVE
        words = [] if is_alive and self.draining else [self.status.name.lower()]
        words += ["draining"] if self.draining else []
        words += [_FITNESS_WORDS[self.fitness]] if is_alive and not self.fit else []
        words += ["scheduler barred"] if is_alive and self.barred else []
        words += ["old secret"] if is_alive and self.secret is SecretState.WAITING else []
        return ", ".join(words)

    def may(self, right: NodeRight) -> bool:
        """Return True if its roles give it a right, or are not known, because it has not connected so far."""
        return may_be_chosen(",".join(self.roles), right)

    @property
    def keeps(self) -> bool:
        """Return True if replicas are to be there: its roles let it hold some, and it is not drained."""
        return not self.draining and self.may(NodeRight.KEEP)

    @property
    def usable(self) -> bool:
        """Return True if it answers, as far as is known."""
        return self.here or self.status is NodeStatus.ALIVE


_FITNESS_WORDS: Final = {Fitness.UNKNOWN: "fitness unknown", Fitness.UNFIT: "unfit"}


class ClusterOps(SchedulingOps):
    """The operations on the cluster."""

    def nodes_op(self) -> Operation[list[Member]]:
        """Return the nodes of the cluster: the asked one first, then by name; refused to pure tasks."""
        return _members(expect(messages.Nodes, (yield messages.ListNodes())))

    def changed_nodes_op(self, known: int, *, wait_ms: int) -> Operation[tuple[int, list[Member]]]:
        """Return the version of the list of nodes and the list, once that is not the version ``known``.

        Return after ``wait_ms`` anyway. The load of a node does not change the version.
        """
        listing = expect(messages.Nodes, (yield messages.ListNodes(known, wait_ms)))
        return listing.version, _members(listing)

    def set_node_op(self, host: str, wish: NodeWish | str) -> Operation[list[Member]]:
        """Change the node called ``host``, and return the cluster as it is then.

        With "drain" no new task is placed there, "undrain" reverts that, "forget" revokes its certificate for
        good: to come back it must be admitted again. "restore" forgets it, too, and makes the nodes that it
        had removed members again. Both raise UnreachableError, which names the nodes, if a live node has not
        stored the removal. The cluster's secret changes after both; ``Member.secret`` shows which nodes have
        it. "rotate" changes it alone, and is sent to the node that it names. For the node's own user, and
        root.
        """
        if not host:
            raise InvalidError("give the name of a node; `nodes` lists them", call="set_node")
        call = messages.SetNode(host, wish_of(wish))
        return _members(expect(messages.Nodes, (yield call)))

    def label_node_op(self, host: str, labels: Mapping[str, str | None]) -> Operation[list[Member]]:
        """Set labels of the node called ``host``, None to remove one; return the cluster as it is then.

        The label "rack" is the node's fault domain. The labels are stored, and count more than the
        settings of the node's next starts. For the nodes' own user, and root.
        """
        given = tuple((key, value) for key, value in labels.items() if value is not None)
        removed = tuple(key for key, value in labels.items() if value is None)
        for key, value in labels.items():
            check(key, value or "")
        return _members(expect(messages.Nodes, (yield messages.LabelNode(host, given, removed))))

    def info_op(self, *, host: str = "") -> Operation[messages.Info]:
        """Return counts and guarantees of the node, or of the one called ``host``; refused to pure tasks."""
        return expect(messages.Info, (yield messages.NodeInfo(host)))

    def read_state_op(self) -> Operation[dict[str, list[dict[str, int | str]]]]:
        """Return the tables of the node by name, each a list of rows; only the node's user and root may.

        Rows have fingerprints and never names. A table is read in parts: if it changes meanwhile, a row may
        be missing or there twice.
        """
        names = expect(messages.TableRows, (yield messages.ReadTable())).tables
        tables: dict[str, list[dict[str, int | str]]] = {}
        for name in names:
            tables[name] = yield from self.read_table_op(name)
        return tables

    def read_table_op(self, name: str, *, start: int = 0) -> Operation[list[dict[str, int | str]]]:
        """Return the rows of one table of the node from a position on; for those who may read its state.

        ``TABLE@NODE`` is the table of another node of the cluster.
        """
        rows: list[dict[str, int | str]] = []
        position: int | None = start
        while position is not None:
            part = expect(messages.TableRows, (yield messages.ReadTable(name, position)))
            rows += [dict(zip(part.columns, row, strict=True)) for row in part.rows]
            position = part.following or None
        return rows

    def read_register_op(self) -> Operation[messages.Enrolled]:
        """Return the register of users with keys, empty if there is none, and the cluster's digest."""
        return expect(messages.Enrolled, (yield messages.ReadRegister()))

    def enrol_op(self, register: bytes) -> Operation[None]:
        """Replace the register of users with keys, on all nodes, by a newer one of the same administrator."""
        expect(messages.Done, (yield messages.Enrol(register)))

    def mandate_terms_op(self, *, host: str = "") -> Operation[messages.MandateWanted]:
        """Return what this user signs a mandate for a node with; without terms if the user has no key."""
        return expect(messages.MandateWanted, (yield messages.ReadMandateTerms(host)))

    def vouch_op(self, mandate: bytes, *, host: str = "") -> Operation[None]:
        """Give the node, or the one called ``host``, a mandate with which it acts for a user elsewhere."""
        expect(messages.Done, (yield messages.Vouch(mandate, host)))

    def prune_environments_op(self, digest: str = "", *, unused_s: float = 0) -> Operation[None]:
        """Begin to remove environments of the node in which no task runs; for its own user and root.

        ``digest`` names one; otherwise they are those that were not used for ``unused_s`` seconds.
        """
        expect(messages.Done, (yield messages.PruneEnvironments(digest, round(unused_s * 1000))))


def wish_of(wish: NodeWish | str) -> NodeWish:
    """Return a change by its name: "drain", "undrain", "forget" or "restore"."""
    try:
        return wish if isinstance(wish, NodeWish) else NodeWish[wish.upper()]
    except KeyError:
        known = ", ".join(item.name.lower() for item in NodeWish)
        raise InvalidError(f"cannot {wish!r} a node; known: {known}", call="set_node") from None


def _members(listing: messages.Nodes) -> list[Member]:
    return Gathered(
        [
            Member(
                row.node,
                row.name,
                row.rack,
                row.address,
                row.status,
                row.draining,
                row.epoch,
                row.since_ns,
                row.tasks,
                row.cpus,
                row.memory_bytes,
                row.here,
                row.coordinated,
                labels_of(row.labels),
                None if row.clock is None else row.clock.offset_ns,
                None if row.clock is None else row.clock.error_ns,
                row.fitness,
                row.barred,
                tuple(filter(None, row.roles.split(","))),
                row.secret,
            )
            for row in listing.nodes
        ]
    )
