"""A node with full tables, whose steps are measured: for tests of the bound on the work of a step."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Final

from dios import limits
from dios.core import events
from dios.core.effects import Outcome
from dios.core.model.invariants import check
from dios.ids import PayloadId, Principal
from dios.wire import messages
from dios.wire.types import Flag, Mode, NameKind, ObjectType, Permission
from labs.sim.step_work import lines_of
from tests.support.core.harness import Client, Node

ALL = int(Permission.ALL)


class FullNode(Node):
    """A node that measures its steps while ``measured`` is set, and checks invariants when asked."""

    def __init__(self) -> None:
        super().__init__()
        self.measured = False
        self.most = 0
        self.steps: Counter[str] = Counter()

    def step(self, event: events.Event) -> Outcome:
        """Make one step, without a check of the large tables."""
        if self.measured:
            self.outcome, lines = lines_of(lambda: self.core.step(event))
            self.most = max(self.most, lines)
            self.steps[type(event).__name__] += 1
        else:
            self.outcome = self.core.step(event)
        for effect in self.outcome.after:
            self._note(effect)
        return self.outcome

    def settle(self) -> None:
        """Fire the timer while the core has work left."""
        while self.outcome.deadline is not None and self.outcome.deadline <= self.now:
            self.step(events.TimerFired(self.now))

    def measure(self, event: events.Event) -> int:
        """Make a step and all further ones that it needs; return the most lines of one of them."""
        self.settle()
        self.measured, self.most = True, 0
        self.step(event)
        self.settle()
        self.measured = False
        check(self.core.state)
        assert self.most <= limits.STEP_WORK_MAX, f"{self.most} lines in a step, {self.steps}"
        return self.most

    def measure_call(self, client: Client, call: messages.AnyCall) -> int:
        """Measure a call."""
        self.seq += 1
        self.payload += 2_000
        return self.measure(events.Called(self.now, client.task, self.seq, call, PayloadId(self.payload)))

    # -- filling ------------------------------------------------------------------------------------
    def anonymous(self, client: Client, kind: ObjectType = ObjectType.SHMEM_BLOB, size: int = 0) -> int:
        """Create an object without a name; return the reference."""
        call = messages.Create(kind, (), NameKind.ANONYMOUS, size=size)
        return client.ask(messages.Created, call).reference.ref

    def many(self, client: Client, count: int, kind: ObjectType = ObjectType.SHMEM_BLOB) -> list[int]:
        """Create objects without names; return the references."""
        return [self.anonymous(client, kind) for _ in range(count)]

    def copies(self, client: Client, ref: int, count: int, to: int = 0) -> list[int]:
        """Delegate a reference to the task itself, or to another one, many times."""
        receiver = to or client.self_ref
        refs: list[int] = []
        for _ in range(count):
            answer = client.call(messages.Copy(ref, receiver, ALL))
            if isinstance(answer, messages.References):
                refs.append(answer.references[0].ref)
        return refs

    def room(self, client: Client) -> int:
        """Return the number of references that fit the table of a task."""
        return limits.REFERENCES_PER_TASK_MAX - len(self.core.state.tasks[client.task].table)

    def wait_with(self, client: Client, calls: Iterable[messages.AnyCall]) -> list[int]:
        """Make calls that wait; return their sequence numbers."""
        seqs = [client.send(call) for call in calls]
        assert all(client.answer(seq) is None for seq in seqs)
        return seqs


class Scene:
    """A session with full tables of references, buffers, waiting calls and groups, next to many sessions."""

    def __init__(self) -> None:
        self.node: Final = FullNode()
        node = self.node
        client = node.session()
        self.client: Final = client
        self.name: Final = b"?" * 32
        self.blob: Final = client.create(data=b"x" * 100).reference.ref
        self.groups: Final = [
            client.create(ObjectType.GROUP).reference.ref for _ in range(limits.GROUPS_PER_CALL_MAX)
        ]
        for _ in range(limits.MEMBERSHIPS_PER_TASK_MAX // 2):
            client.create(ObjectType.GROUP)
        self.child: Final = client.run().reference.ref
        for number in range(400):
            node.session(Principal(f"uid:{3_000 + number}"))
        self.streams: Final = node.many(client, limits.SELECT_REFERENCES_MAX, ObjectType.SHMEM_STREAM)
        self.waiting: list[int] = []
        self.read: list[tuple[int, int]] = []
        self.written: list[tuple[int, int]] = []
        self._copies: list[int] = []

    def refresh(self) -> None:
        """Fill the tables again after calls have changed them, with room for one more vector."""
        node, client = self.node, self.client
        node.settle()
        task = node.core.state.tasks[client.task]
        most, room = limits.BUFFERS_PER_TASK_MAX // 3, limits.VECTOR_CALLS_MAX + 64
        for mode, kind in ((Mode.READ, messages.AcquireRead), (Mode.WRITE, messages.AcquireWrite)):
            open_buffers = [buffer for buffer in task.buffers.values() if buffer.mode is mode]
            for buffer in open_buffers[most:]:
                release = messages.ReleaseRead if mode is Mode.READ else messages.ReleaseWrite
                client.call(release(buffer.reference.id, buffer.id))
            for _ in range(most - len(open_buffers)):
                client.call(kind(self.blob))
        self.read, self.written = (
            [
                (int(held_buffer.reference.id), int(held_buffer.id))
                for held_buffer in task.buffers.values()
                if held_buffer.mode is mode
            ]
            for mode in Mode
        )
        while node.room(client) < room and self._copies:
            client.call(messages.Delete(self._copies.pop(), int(Flag.HANDLE_ONLY)))
        self._copies += node.copies(client, self.blob, node.room(client) - room)
        call = messages.Select(tuple(self.streams), Mode.READ, None)
        missing = limits.PENDING_PER_TASK_MAX - 1 - len(task.pending)
        self.waiting = [*task.pending, *node.wait_with(client, [call] * missing)]
        node.answers.clear()

    def take(self, count: int) -> list[int]:
        """Return references that the caller may drop."""
        taken, self._copies = self._copies[-count:], self._copies[:-count]
        return taken
