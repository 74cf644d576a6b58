"""A simulated client that works with secrecy labels, and shows each of its requests to the flow ledger."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Final, Protocol

from dios.core.model.secrecy import is_owned
from dios.ids import NodeId, TaskId
from dios.wire import messages
from dios.wire.codec import decode_event, decode_status
from dios.wire.types import NameKind, ObjectType, Permission, TaskState
from labs.sim.cluster.client_actions import CooperatingClient
from labs.sim.cluster.flow_ledger import NOTHING, TELLING, FlowLedger, Tags
from labs.sim.cluster.promises import Key
from labs.sim.cluster.simulated_client import BLOBS, AnswerHandler, ClientEnvironment, ignore_answer

WORDS: Final = ("blue", "green", "red")
_READS: Final = (messages.ReadOnce, messages.AcquireRead)


class LabelledEnvironment(ClientEnvironment, Protocol):
    """The simulated cluster, as a client with labels sees it."""

    @property
    def flows(self) -> FlowLedger:
        """The tags of each value, and the knowledge of each task."""

    def secrecy_of(self, task: int) -> tuple[str, ...] | None:
        """Return the label that the core gives a task, or None if that cannot be known now."""


class LabelledClient(CooperatingClient):
    """A client whose objects have labels, and which hands out rights to declassify."""

    def __init__(
        self, rng: Random, environment: LabelledEnvironment, node: NodeId, task: TaskId, who: str
    ) -> None:
        self._labelled: Final = environment
        self._flows: Final = environment.flows
        self._bare = False
        super().__init__(rng, environment, node, task, who)

    def choices(self) -> list[tuple[int, Callable[[], None]]]:
        """Return the possible actions with their weights."""
        mine = [(15, self._run), (20, self._delegate)]
        if self.label:
            mine += [(25, self._read), (25, self._write), (10, self._create), (20, self._acquire)]
            mine += [(30, self._finish_buffer), (40, self._confide)]
        else:
            mine += [(15, self._hand_key), (40, self._introduce)]
        return [*super().choices(), *mine]

    # -- labels and rights -------------------------------------------------------------------------------
    def create(
        self, kind: ObjectType, name_kind: NameKind = NameKind.RANDOM, host: str = "", *, lock: bool = False
    ) -> None:
        """Ask for an object, mostly one with a label. Locks have none."""
        self._bare = lock
        super().create(kind, name_kind, host, lock=lock)

    def _create_call(self, call: messages.Create) -> messages.Create:
        """Return a create call with a label: a session's own tags; some or none of those of a task."""
        rng = self._rng
        principal = self._flows.principal(self.task)
        tags: tuple[str, ...] | None = None
        if not self._bare and principal is not None and rng.random() < 0.6:
            tags = tuple(sorted(f"{principal}/{word}" for word in rng.sample(WORDS, rng.choice((1, 1, 2)))))
        elif principal is None and rng.random() < 0.3:
            known = sorted(self._flows.known(self))
            tags = tuple(rng.sample(known, rng.randint(0, len(known))))
        if call.data is not None:
            self._flows.write(self, call.data, NOTHING if tags is None else frozenset(tags))
        return call if tags is None else messages.labelled(call, tags)

    def _may_have(self, key: Key) -> None:
        principal = self._flows.principal(self.task)
        label = self._flows.label_of_key(key)
        owned = principal is not None and all(is_owned(tag, principal) for tag in label)
        rights = Permission.EVERY if label and owned else Permission.ALL
        self._promises.allow(self.task, key, int(rights))

    def _hand_key(self) -> None:
        """Give a task the right to declassify what has the tags of an object."""
        candidates = [
            candidate
            for candidate in self.held.values()
            if candidate.permissions & Permission.DECLASSIFY and candidate.permissions & Permission.DELEGATE
        ]
        if candidates and self.tasks:
            reference = self._rng.choice(candidates)
            if reference.object in self._promises.keys:
                to = self._rng.choice(list(self.tasks.values()))
                mask = self._rng.choice((Permission.EVERY, Permission.DECLASSIFY))
                self.give(reference, to, int(mask))

    def _introduce(self) -> None:
        """Give a task a reference to another one, to which it may then delegate."""
        if len(self.tasks) > 1:
            task, other = self._rng.sample(list(self.tasks.values()), 2)
            self._call(messages.Copy(task.ref, other.ref), ignore_answer, about=(task, other))

    def _confide(self) -> None:
        """Delegate a reference to another task, if that teaches the other a secret of this task."""
        reference = self._some(Permission.DELEGATE)
        others = [task for task in self.tasks.values() if task.object != self.task]
        if reference is None or not others or reference.object not in self._promises.keys:
            return
        if self._flows.known(self):
            self.give(reference, self._rng.choice(others), int(Permission.READ))

    def _writing(self, reference: messages.Reference, value: bytes) -> AnswerHandler:
        self._flows.write(self, value, frozenset(reference.secrecy))
        return super()._writing(reference, value)

    # -- what it learns ----------------------------------------------------------------------------------
    def begin(self, welcome: messages.Welcome) -> None:
        """Start with the node's welcome message, and with what the parent knew."""
        self._flows.begin(self)
        self._learn(self._flows.known(self))
        super().begin(welcome)

    def _call(
        self,
        call: messages.AnyCall,
        then: AnswerHandler,
        *,
        about: tuple[messages.Reference, ...] = (),
        waits: bool = False,
        everybody: bool = False,
    ) -> None:
        if isinstance(call, messages.Create) and call.object_type in BLOBS:
            call = self._create_call(call)
        elif isinstance(call, messages.Run):
            self._flows.start(self, call.label, self._content_of(call.executable))
        observe = self._observer(call)

        def both(result: messages.AnyResult, data: list[bytes | None]) -> None:
            if not isinstance(result, messages.Failure):
                observe(result, data)
            then(result, data)

        super()._call(call, both, about=about, waits=waits, everybody=everybody)

    def _content_of(self, ref: int) -> Tags:
        """Return the tags that all possible values of an object have."""
        reference = self.held.get(ref)
        register = None if reference is None else self._promises.registers.get(reference.object)
        values = [] if register is None else [self._flows.tags_of(write.value) for write in register.writes]
        return NOTHING.union(*values[:1]).intersection(*values) if values else NOTHING

    def _observer(self, call: messages.AnyCall) -> AnswerHandler:
        """Return a function that shows the answer to a call to the flow ledger."""
        told = self._flows.told(self)
        if isinstance(call, messages.Copy) and not call.host:
            to = self.tasks.get(call.task)
            if to is not None and told:
                return lambda result, data: self._tell(to.object, told)  # noqa: ARG005 - any answer is success
        elif isinstance(call, messages.Vector):
            parts = [self._observer(part) for part in call.calls]
            return lambda result, data: self._vector_answered(parts, result, data)
        elif isinstance(call, _READS):
            assert self.welcome is not None  # noqa: S101 - it reads with a reference
            if call.ref == self.welcome.self_ref.ref:
                return self._event_read
            if call.ref in self.tasks:
                return self._status_read
            return self._value_read
        return self._references_received

    def _learn(self, tags: Tags) -> None:
        self._flows.learn(self.task, tags, self._labelled.secrecy_of(self.task))

    def _tell(self, receiver: int, told: Tags) -> None:
        """Record a delegation, by which the receiver learns what the giver chose."""
        tags = self._flows.still_told(self, told)
        self._flows.learn(receiver, tags, self._labelled.secrecy_of(receiver))

    def _vector_answered(
        self, parts: list[AnswerHandler], result: messages.AnyResult, data: list[bytes | None]
    ) -> None:
        if isinstance(result, messages.Results):
            for part, part_result, part_data in zip(parts, result.results, data, strict=True):
                if not isinstance(part_result, messages.Failure):
                    part(part_result, [part_data])

    def _value_read(self, result: messages.AnyResult, data: list[bytes | None]) -> None:
        if isinstance(result, messages.Buffer) and data[0] is not None:
            self._learn(self._flows.tags_of(data[0]))

    def _status_read(self, result: messages.AnyResult, data: list[bytes | None]) -> None:
        if isinstance(result, messages.Buffer) and data[0] is not None:
            self._rows_received((decode_status(data[0]),))

    def _event_read(self, result: messages.AnyResult, data: list[bytes | None]) -> None:
        if not isinstance(result, messages.Buffer) or data[0] is None:
            return
        event = decode_event(data[0])
        if isinstance(event, messages.ChildEnded):
            self._rows_received((event.status,))
        elif isinstance(event, messages.Delegated):
            self._flows.show(event.reference.object, event.reference.secrecy)

    def _rows_received(self, rows: tuple[messages.TaskRow, ...]) -> None:
        """Learn from the exit codes of tasks that have ended."""
        for row in rows:
            if row.state is TaskState.ENDED and row.exit_code == TELLING:
                self._learn(self._flows.told_at_end(row.label))

    def _references_received(self, result: messages.AnyResult, data: list[bytes | None]) -> None:
        del data
        match result:
            case messages.References():
                shown = result.references
            case messages.Created():
                shown = (result.reference,)
                key: Key = result.reference.object if result.name is None else result.name
                self._flows.name(key, result.reference.secrecy)
            case messages.Tasks():
                self._rows_received(result.tasks)
                return
            case messages.TaskDetail():
                self._rows_received((result.status,))
                return
            case _:
                return
        for reference in shown:
            if reference.type in BLOBS:
                self._flows.show(reference.object, reference.secrecy)
