"""A core with a seeded source of entropy and a host that only remembers: for tests of the core."""

from __future__ import annotations

from typing import TypeVar

from blake3 import blake3

from dios.core import effects, events
from dios.core.effects import Outcome
from dios.core.events import ObjectRecord
from dios.core.machine import Core
from dios.core.model.accounts import Defaults
from dios.core.model.invariants import check
from dios.errors import Code
from dios.ids import Name, PayloadId, Principal, TaskId
from dios.wire import messages
from dios.wire.codec import decode_event
from dios.wire.types import Cause, NameKind, ObjectType, Permission
from tests.support.core.snapshot import snapshot

OWNER = Principal("uid:1000")
T = TypeVar("T")


class Entropy:
    """Deterministic bytes in place of the operating system's."""

    def __init__(self, seed: int = 0) -> None:
        self._seed = seed
        self._count = 0

    def __call__(self, size: int) -> bytes:
        """The next bytes."""
        self._count += 1
        return blake3(b"%d:%d" % (self._seed, self._count)).digest(length=size)


class Node:
    """Drives a core: makes calls, keeps answers by task and sequence number, checks invariants."""

    def __init__(self, seed: int = 0, *, restricted: bool = False, defaults: Defaults | None = None) -> None:
        self.core = Core(Entropy(seed), OWNER, restricted=restricted, defaults=defaults or Defaults())
        self.now = 1_000
        self.seq = 0
        self.payload = 0
        self.tasks = 1 << 50
        self.outcome = Outcome([], [], 0, 0, None)  # type: ignore[arg-type]
        self.answers: dict[tuple[int, int], object] = {}
        self.effects: list[object] = []
        self.history: list[tuple[Node, str, object]] = []
        """What this node has done: its number, and what it ``stored`` or ``did``."""
        self.stored: dict[int, ObjectRecord] = {}

    def step(self, event: events.Event) -> Outcome:
        """One step, then every invariant."""
        self.outcome = self.core.step(event)
        check(self.core.state)
        for operation in self.outcome.persist:
            self.history.append((self, "store ", operation))
            if isinstance(operation, effects.DropObject):
                self.stored.pop(operation.object, None)
            else:
                self.stored[operation.record.object] = operation.record
        for effect in self.outcome.after:
            self.effects.append(effect)
            self.history.append((self, "", effect))
            self._note(effect)
        return self.outcome

    def _note(self, effect: object) -> None:
        if isinstance(effect, (effects.AnswerVector, effects.AnswerBytes)):
            self.answers[effect.task, effect.seq] = effect
        elif isinstance(
            effect, effects.Answer | effects.AnswerRead | effects.AnswerWrite | effects.AnswerConsole
        ):
            self.answers[effect.task, effect.seq] = effect.result
        elif isinstance(effect, effects.AnswerAttach):
            self.answers[effect.task, effect.seq] = messages.Attached(effect.ring_bytes)

    def session(self, principal: Principal = OWNER, groups: tuple[bytes, ...] = ()) -> Client:
        """Open a session."""
        self.tasks += 1
        task = TaskId(self.tasks)
        names = tuple(Name(name) for name in groups)
        self.step(events.SessionOpened(self.now, task, 1, principal, names, "test", 42))
        welcome = self.answers.pop((task, 1))
        assert isinstance(welcome, messages.Welcome)
        return Client(self, task, welcome)

    def end(self, task: TaskId, cause: Cause = Cause.EXITED, exit_code: int = 0, *, cpu_ms: int = 0) -> None:
        """Tell the core that a task's process is gone."""
        self.step(events.TaskEnded(self.now, task, cause, exit_code, cpu_ms=cpu_ms))


class Client:
    """One task or session as seen from its socket."""

    def __init__(self, node: Node, task: TaskId, welcome: messages.Welcome) -> None:
        self.node = node
        self.task = task
        self.welcome = welcome
        self.self_ref = welcome.self_ref.ref
        self.groups = [reference.ref for reference in welcome.groups]

    def send(self, call: messages.AnyCall) -> int:
        """Make a call, return its sequence number."""
        node = self.node
        node.seq += 1
        node.payload += 100
        node.step(events.Called(node.now, self.task, node.seq, call, PayloadId(node.payload)))
        return node.seq

    def answer(self, seq: int) -> object:
        """The answer to a call, None while it waits."""
        return self.node.answers.get((self.task, seq))

    def call(self, call: messages.AnyCall) -> object:
        """Make a call that does not wait."""
        answer = self.answer(self.send(call))
        assert answer is not None, f"{call} waits"
        return answer

    def ask(self, kind: type[T], call: messages.AnyCall) -> T:
        """Make a call and expect this kind of answer."""
        answer = self.call(call)
        assert isinstance(answer, kind), answer
        return answer

    def refused(self, call: messages.AnyCall) -> int:
        """Make a call that must be refused; its error code. Nothing the core remembers may change."""
        before = snapshot(self.node.core.state)
        failure = self.ask(messages.Failure, call)
        assert failure.message
        after = snapshot(self.node.core.state)
        changed = [pair for pair in zip(before, after, strict=False) if pair[0] != pair[1]]
        assert after == before, f"a refusal of {call} changed the state: {changed[:5]}"
        assert not self.node.outcome.persist
        return failure.code

    def conflicts(self, call: messages.AnyCall) -> None:
        """Make a commit that must not hold: the request is over, the object's versions stay."""
        failure = self.ask(messages.Failure, call)
        assert failure.code == Code.ECANCELED
        assert not self.node.outcome.persist

    def lookup(self, name: bytes | None, group: int = 0) -> tuple[messages.Reference, ...]:
        """Resolve a name."""
        assert name is not None
        return self.ask(messages.References, messages.Lookup(name, group)).references

    def stat(self, ref: int) -> messages.Reference:
        """A reference's public part as of now."""
        return self.ask(messages.References, messages.Stat(ref)).references[0]

    def counters(self, ref: int) -> tuple[int, int, int, int]:
        """a_r, a_w, v_r and v_w of the object behind a reference."""
        seen = self.stat(ref)
        return seen.a_r, seen.a_w, seen.v_r, seen.v_w

    def delegate(self, ref: int, to: int, permissions: int = int(Permission.ALL)) -> None:
        """Delegate a reference as it is."""
        self.ask(messages.Done, messages.Copy(ref, to, permissions))

    def event(self) -> messages.SelfEvent:
        """The next event on the self-reference."""
        return decode_event(self.ask(effects.AnswerBytes, messages.ReadOnce(self.self_ref)).data)

    def given(self) -> messages.Reference:
        """The reference that the next event says was delegated to this task."""
        told = self.event()
        assert isinstance(told, messages.Delegated), told
        return told.reference

    def create(
        self,
        kind: ObjectType = ObjectType.SHMEM_BLOB,
        *,
        groups: tuple[int, ...] | None = None,
        name_kind: NameKind = NameKind.RANDOM,
        data: bytes | None = None,
    ) -> messages.Created:
        """Create an object, in the first of the task's groups unless told otherwise."""
        chosen = (self.groups[0],) if groups is None else groups
        return self.ask(messages.Created, messages.Create(kind, chosen, name_kind, data=data))

    def run(self, **options: object) -> Client:
        """Start a pure task and be it."""
        blob = self.create(name_kind=NameKind.ANONYMOUS, data=b"pass")
        seq = self.send(messages.Run(blob.reference.ref, **options))  # type: ignore[arg-type]
        spawn = next(
            effect for effect in reversed(self.node.outcome.after) if isinstance(effect, effects.Spawn)
        )
        welcome = self.node.answers[spawn.task, 0]
        assert isinstance(welcome, messages.Welcome)
        self.node.step(events.TaskStarted(self.node.now, spawn.task, 100))
        created = self.answer(seq)
        assert isinstance(created, messages.Created), created
        child = Client(self.node, spawn.task, welcome)
        child.reference = created.reference
        return child

    reference: messages.Reference
