"""Long work that a step has begun and further steps continue: data, so that it can be stored and replayed.

A step does at most ``limits.STEP_UNITS`` units of such work. One unit is a dropped reference, a closed
buffer, a call that is tried again, or about a hundred lines of code. ``dios.core.work`` carries it out.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from dios.core.model.records import Holder, LocalHolder, Pending, PhysicalObject, Reference, RemoteTask, Task
from dios.core.remote.peers import PendingRequest, Proxy
from dios.ids import BufferId, InternalName, NodeId, ObjectId, RefId, TaskId
from dios.wire import dcp


class WorkItem:
    """The base of the items."""

    __slots__ = ()


class WokenCalls(WorkItem):
    """The calls that wait on a changed object; ``rows`` are those to be tried, the longest waiting last."""

    __slots__ = ("rows", "target")

    def __init__(self, target: PhysicalObject) -> None:
        self.target: Final = target
        self.rows: list[Pending] = []


class RetriedCalls(WorkItem):
    """Calls to try again for another reason than a change of one object, the first one last."""

    __slots__ = ("rows",)

    def __init__(self, rows: list[Pending]) -> None:
        self.rows: Final = rows


class AdmittedCalls(WorkItem):
    """Calls that have waited until no other node had a lease on their objects, the first one last."""

    __slots__ = ("rows",)

    def __init__(self, rows: list[Pending]) -> None:
        self.rows: Final = rows


class EndingHolder(WorkItem):
    """A task whose references, buffers and waiting calls are released; with ``ends`` it is over then."""

    __slots__ = ("ends", "holder")

    def __init__(self, holder: Holder, *, ends: bool) -> None:
        self.holder: Final = holder
        self.ends: Final = ends


class OrphanedTasks(WorkItem):
    """The children of a task that has ended, the first one last: most of them end, too."""

    __slots__ = ("children", "parent")

    def __init__(self, parent: Holder, children: list[Task]) -> None:
        self.parent: Final = parent
        self.children: Final = children


class Retirement(WorkItem):
    """The references that the retire call ``row`` takes back.

    The references derived from those in ``roots`` are taken back, from the last root on. With ``everyone``,
    these are the delegated ones of all references to an object, which are taken back themselves, except those
    of the caller. ``place`` is the reference below the last root where the next step continues.
    """

    __slots__ = ("count", "everyone", "place", "roots", "row")

    def __init__(self, row: Pending, roots: list[Reference], *, everyone: bool) -> None:
        self.row: Final = row
        self.roots: Final = roots
        self.everyone: Final = everyone
        self.place: Reference | None = None
        self.count = 0


class QueuedStarts(WorkItem):
    """The runs of the start queue that fit now."""

    __slots__ = ()


class NodeEnd(WorkItem):
    """The local tasks and sessions whose waiting calls are answered, and which then end with the node.

    ``holders`` are those that are not done; the last one is next.
    """

    __slots__ = ("holders",)

    def __init__(self, holders: list[LocalHolder]) -> None:
        self.holders: Final = holders


# -- other nodes ------------------------------------------------------------------------------------
class LostPeer(WorkItem):
    """The requests and tasks that end here because another node was found dead or restarted.

    First ``requests`` fail because of ``event``. Then each task of ``tasks`` loses buffers and children on
    that node. Last, the node's own tasks lose the waiting calls and buffers that are older than ``before``.
    """

    __slots__ = ("before", "event", "node", "remote_tasks", "requests", "tasks")

    def __init__(
        self,
        node: NodeId,
        event: str,
        requests: list[PendingRequest],
        tasks: list[tuple[LocalHolder, list[BufferId], list[TaskId]]],
        remote_tasks: list[RemoteTask],
        before: tuple[int, int],
    ) -> None:
        self.node: Final = node
        self.event: Final = event
        self.requests: Final = requests
        self.tasks: Final = tasks
        self.remote_tasks: Final = remote_tasks
        self.before: Final = before


class EndingRemoteTasks(WorkItem):
    """Tasks of another node that end."""

    __slots__ = ("node", "tasks")

    def __init__(self, node: NodeId, tasks: list[RemoteTask]) -> None:
        self.node: Final = node
        self.tasks: Final = tasks


class RepeatedNotices(WorkItem):
    """The keys of unconfirmed notices to send again."""

    __slots__ = ("keys", "node")

    def __init__(self, node: NodeId, keys: list[bytes | int]) -> None:
        self.node: Final = node
        self.keys: Final = keys


class HoldingsReport(WorkItem):
    """A round of reports to a node about the references of ``tasks`` to its objects.

    ``tasks`` is None before the first step of the round; ``part`` belongs to the next message, and has
    ``references``.
    """

    __slots__ = ("node", "part", "references", "round", "tasks")

    def __init__(self, node: NodeId, round_number: int) -> None:
        self.node: Final = node
        self.round: Final = round_number
        self.tasks: list[LocalHolder] | None = None
        self.part: list[dcp.HeldReferences] = []
        self.references = 0


class ReceivedReport(WorkItem):
    """Another node's report, which is compared with the references that its tasks hold here.

    ``holdings`` are not compared yet. ``drops`` are references to drop, and ``claims`` references that are
    not here; both come before the next holding. ``absent`` are the tasks that the report does not list, and
    ``shown`` those whose objects' counters are published at the end. ``refs`` and ``objects`` are the answer.
    """

    __slots__ = (
        "absent",
        "body",
        "claims",
        "drops",
        "epoch",
        "granted_before",
        "holdings",
        "node",
        "number",
        "objects",
        "refs",
        "restarted",
        "shown",
    )

    def __init__(
        self,
        node: NodeId,
        epoch: int,
        number: int,
        body: dcp.ReconcileReferences,
        granted_before: int,
        *,
        restarted: bool,
    ) -> None:
        self.node: Final = node
        self.epoch: Final = epoch
        self.number: Final = number
        self.body: Final = body
        self.granted_before: Final = granted_before
        self.restarted: Final = restarted
        self.holdings: Final = list(reversed(body.holdings))
        self.drops: list[Reference] = []
        self.claims: list[tuple[RemoteTask, tuple[RefId, ObjectId, int, bool]]] = []
        self.absent: list[RemoteTask] | None = None
        self.shown: list[RemoteTask] | None = None
        self.refs: list[RefId] = []
        self.objects: dict[ObjectId, None] = {}


class ReleasedReferences(WorkItem):
    """References that a task of another node has dropped."""

    __slots__ = ("holder", "refs")

    def __init__(self, holder: RemoteTask, refs: list[RefId]) -> None:
        self.holder: Final = holder
        self.refs: Final = refs


class LostReferences(WorkItem):
    """References that another node does not have, which are searched among ``proxies``."""

    __slots__ = ("proxies", "unknown")

    def __init__(self, proxies: list[Proxy], unknown: frozenset[RefId]) -> None:
        self.proxies: Final = proxies
        self.unknown: Final = unknown


class NameHandover(WorkItem):
    """The names of this node that are registered at other nodes, after a change of the members.

    ``parts`` is the number of parts of the table of names that were not read yet, and ``keys`` are the
    internal names that are left of the last one that was. ``links`` maps the other nodes to the generation
    of the link for which the names are queued. With ``own``, this node's own part of the index is filled,
    too.
    """

    __slots__ = ("keys", "links", "own", "parts", "round")

    def __init__(self, round_number: int, parts: int, links: dict[NodeId, int], *, own: bool) -> None:
        self.round: Final = round_number
        self.parts = parts
        self.keys: list[InternalName] = []
        self.links: Final = links
        self.own: Final = own


class WorkQueue:
    """The items that wait for further steps. They take turns, so that no item waits for a long one."""

    __slots__ = ("_items",)

    def __init__(self) -> None:
        self._items: deque[WorkItem] = deque()

    def __len__(self) -> int:
        return len(self._items)

    def put(self, item: WorkItem) -> None:
        """Add an item behind all others."""
        self._items.append(item)

    def put_first(self, item: WorkItem) -> None:
        """Add an item before all others."""
        self._items.appendleft(item)

    def take(self) -> WorkItem:
        """Remove and return the first item."""
        return self._items.popleft()

    def is_handing_over(self) -> bool:
        """Return True if names wait to be registered at other nodes."""
        return any(isinstance(item, NameHandover) for item in self._items)

    def ending(self) -> list[Holder]:
        """Return the holders that are being released."""
        return [item.holder for item in self._items if isinstance(item, EndingHolder)]
