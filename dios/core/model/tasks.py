"""Tasks as the core knows them: identity, memberships, tables, events, and how they ended (§4.1, §4.4).

Not for: processes, which are the host's.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from dios import limits
from dios.core.model.accounts import Account
from dios.core.model.io_requests import Buffer
from dios.core.model.objects import PhysicalObject
from dios.core.model.pending import Pending
from dios.core.model.recipes import Recipe, Reserved
from dios.core.model.reference_table import ReferenceTable
from dios.core.model.references import Reference
from dios.core.remote.remote_buffers import AwayBuffer
from dios.ids import BufferId, Name, NodeId, Principal, TaskId
from dios.wire import messages
from dios.wire.types import Brand, Cause, TaskState


class Task:
    """A task or a person's session. Memberships are fixed at start, but for what a session creates
    itself: the node, as the cluster manager, makes it a member (ADR 0003).
    """

    __slots__ = (
        "abroad",
        "account",
        "away",
        "bounds",
        "brand",
        "buffers",
        "cause",
        "children",
        "children_away",
        "console",
        "cpu_ms",
        "created_groups",
        "defaults",
        "detail",
        "deterministic_count",
        "ended_ns",
        "events",
        "exit_code",
        "guessed",
        "home",
        "id",
        "is_session",
        "label",
        "lost_events",
        "member_accounts",
        "memberships",
        "memory_bytes",
        "name",
        "object",
        "parent",
        "pending",
        "pid",
        "principal",
        "recipe",
        "reserved",
        "self_ref",
        "signal",
        "spawn_count",
        "started_ns",
        "state",
        "table",
    )

    def __init__(
        self,
        own: PhysicalObject,
        console: PhysicalObject,
        name: Name,
        principal: Principal,
        brand: Brand,
        memberships: tuple[Name, ...],
        account: Account,
        *,
        parent: Task | None,
        is_session: bool,
        label: str,
        now: int,
    ) -> None:
        self.id: Final = TaskId(own.id)
        self.object: Final = own
        self.console: Final = console
        self.name: Final = name
        self.principal = principal
        self.brand = brand
        self.memberships: dict[Name, None] = dict.fromkeys(memberships)
        self.account = account
        self.member_accounts: tuple[Account, ...] = ()
        self.bounds = Reserved()  # of its own process
        self.reserved = Reserved()
        self.recipe: Recipe | None = None
        self.created_groups: set[Name] = set()
        self.parent: Final = parent
        self.is_session: Final = is_session
        self.label = label
        self.table: Final = ReferenceTable()
        self.buffers: dict[BufferId, Buffer] = {}
        self.pending: dict[int, Pending] = {}
        self.children: dict[TaskId, Task] = {}
        self.defaults: tuple[Reference, ...] = ()  # itself, its console, its groups
        self.guessed = False  # a deputy of which it is not known whom its task acts for
        self.home = NodeId(0)  # of a deputy: the node that has the task itself
        self.abroad: set[NodeId] = set()  # nodes that know of it
        self.away: dict[BufferId, AwayBuffer] = {}
        self.children_away: dict[TaskId, tuple[NodeId, str, str]] = {}  # node, fingerprint, label
        self.events: deque[messages.SelfEvent] = deque()
        self.lost_events = 0
        self.deterministic_count = 0
        self.spawn_count = 0
        self.self_ref = 0
        self.state = TaskState.STARTING
        self.pid = 0
        self.started_ns = now
        self.ended_ns = 0
        self.cause = Cause.NONE
        self.exit_code = 0
        self.signal = 0
        self.detail = ""
        self.cpu_ms = 0
        self.memory_bytes = 0

    @property
    def alive(self) -> bool:
        """Whether it can still make calls."""
        return self.state is not TaskState.ENDED

    def leave(self, group: Name) -> None:
        """The group is no more."""
        self.memberships.pop(group, None)
        self.created_groups.discard(group)

    def push_event(self, event: messages.SelfEvent) -> None:
        """Queue a notification on the self-reference; over the bound the loss itself is told (§4.5.3)."""
        if len(self.events) >= limits.EVENTS_PER_TASK_MAX:
            self.lost_events += 1
            return
        self.events.append(event)

    def pop_event(self) -> messages.SelfEvent | None:
        """The next notification, oldest first; losses are told once the queue has room again."""
        if self.events:
            return self.events.popleft()
        if self.lost_events:
            lost = messages.Lost(self.lost_events)
            self.lost_events = 0
            return lost
        return None

    @property
    def has_event(self) -> bool:
        """Whether a read of the self-reference would not wait."""
        return bool(self.events) or self.lost_events > 0

    def row(self, node: str = "") -> messages.TaskRow:
        """The status record, as the node of this name tells it to another."""
        return messages.TaskRow(
            name=self.name,
            fingerprint=self.object.fingerprint,
            label=self.label,
            state=self.state,
            brand=self.brand,
            principal=self.principal,
            pid=self.pid,
            started_ns=self.started_ns,
            ended_ns=self.ended_ns,
            cause=self.cause,
            exit_code=self.exit_code,
            signal=self.signal,
            detail=self.detail,
            parent="" if self.parent is None else self.parent.object.fingerprint,
            node=node,
        )
