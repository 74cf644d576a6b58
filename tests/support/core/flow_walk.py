"""Tasks that tell everything they know wherever the core lets them, and the record of what they learned.

Each task remembers all tags whose bytes it has seen, and puts all of them into everything that it writes. So
no program could leak more by the calls that the walk makes. Memory that two tasks have mapped passes on
everything at once, for as long as both live.
"""

from __future__ import annotations

import random

from dios.core import effects
from dios.errors import Code
from dios.wire import messages
from dios.wire.codec import decode_status
from dios.wire.types import Buffering, Mode, NameKind, ObjectType, Permission
from tests.support.core.harness import Client, Node

WORDS = ("red", "blue", "green")
OWNER = "uid:1000"
TASKS_MAX = 6


def tag(word: str) -> str:
    """The tag of the node's user with a word."""
    return f"{OWNER}/{word}"


class Thing:
    """An object: what it may contain, and what it may contain by what was written."""

    def __init__(self, number: int, kind: ObjectType, label: tuple[str, ...], *, raw: bool = False) -> None:
        self.number = number
        self.kind = kind
        self.label = frozenset(label)
        self.raw = raw
        self.content: set[str] = set(label)


class Person:
    """A task: its references by object, what it knows, and what it has mapped."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.refs: dict[int, int] = {}
        self.knows: set[str] = set()
        self.mapped: set[int] = set()
        self.keys: dict[str, int] = {}
        self.kept: set[str] = set()  # tags of keys that it had: memory that it has mapped stays mapped


class Walk:
    """One random history of a node with labelled objects and talkative tasks."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)  # noqa: S311 - a walk, not a secret
        self.node = Node(seed)
        self.owner = self.node.session()
        self.things: dict[int, Thing] = {}
        self.held: dict[int, int] = {}
        self.people: list[Person] = []
        self.refusals = self.writes = self.releases = 0
        for word in (*WORDS, ""):
            self.make((tag(word),) if word else ())
            self.make((tag(word),) if word else (), ObjectType.SHMEM_STREAM)
        for _ in range(3):
            self.begin()

    # -- what the owner does ---------------------------------------------------------------------------
    def make(
        self, label: tuple[str, ...], kind: ObjectType = ObjectType.SHMEM_BLOB, *, raw: bool = False
    ) -> None:
        """The owner creates an object with a label."""
        call = messages.CreateLabelled(
            kind,
            (self.owner.groups[0],),
            buffering=Buffering.RAW if raw else Buffering.DOUBLE,
            data=b"bytes" if kind is ObjectType.SHMEM_BLOB else None,
            secrecy=label,
        )
        reference = self.owner.ask(messages.Created, call).reference
        assert reference.secrecy == label
        self.things[reference.object] = Thing(reference.object, kind, label, raw=raw)
        self.held[reference.object] = reference.ref

    def begin(self, parent: Person | None = None) -> None:
        """The owner, or a task, starts a pure task."""
        if len(self.people) >= TASKS_MAX:
            return
        client = (self.owner if parent is None else parent.client).run()
        person = Person(client)
        if parent is not None:
            person.knows |= parent.knows
            # The owner resolves the child, to hand it things like all others.
            (reference,) = self.owner.lookup(client.welcome.name)
            client.reference = reference
        self.people.append(person)

    def hand(self, person: Person, number: int) -> None:
        """The owner delegates an object to a task."""
        if number not in person.refs:
            self.owner.delegate(self.held[number], person.client.reference.ref)
            person.refs[number] = self.delegated(person)

    def hand_key(self, person: Person, word: str) -> None:
        """The owner lets a task declassify a tag."""
        if tag(word) in person.keys:
            return
        call = messages.CreateLabelled(ObjectType.SHMEM_BLOB, name_kind=NameKind.ANONYMOUS, secrecy=(word,))
        key = self.owner.ask(messages.Created, call).reference
        assert key.permissions & Permission.DECLASSIFY
        self.owner.delegate(key.ref, person.client.reference.ref, int(Permission.DECLASSIFY))
        person.keys[tag(word)] = key.ref
        self.delegated(person)

    def take_key(self, person: Person) -> None:
        """The owner takes a right to declassify back."""
        if person.keys:
            word, ref = person.keys.popitem()
            person.kept.add(word)
            self.owner.ask(messages.Done, messages.Retire(ref))
            assert isinstance(person.client.event(), messages.Retired)

    def delegated(self, person: Person) -> int:
        """The reference that a task was given last; its other events are read, too."""
        while True:
            event = person.client.event()
            if isinstance(event, messages.Delegated):
                return event.reference.ref

    # -- what tasks do ---------------------------------------------------------------------------------
    def free(self, person: Person) -> set[str]:
        """The tags that a task may release now."""
        return set(person.keys)

    def told(self, person: Person) -> set[str]:
        """What a task writes that was not released on purpose."""
        return person.knows - self.free(person)

    def expect(self, person: Person, call: messages.PlainCall, *, allowed: bool) -> bool:
        """Make a call; it must be refused if and only if the rules forbid its flow."""
        before = self.label(person)
        answer = person.client.call(call)
        denied = isinstance(answer, messages.Failure) and answer.code == Code.EPERM
        assert denied is not allowed, f"{call} by a task with {before}: {answer}"
        if isinstance(answer, messages.Failure):
            self.refusals += 1
            assert self.label(person) == before
            return False
        return True

    def label(self, person: Person) -> set[str]:
        """The label that the core gives a task."""
        return set(self.node.core.state.tasks[person.client.task].secrecy)

    def may_learn(self, person: Person, label: frozenset[str]) -> bool:
        """Whether a task may read what has this label."""
        new = set(label) - self.label(person) - self.free(person)
        return all(new <= self.things[number].label for number in person.mapped)

    def may_write(self, person: Person, label: frozenset[str]) -> bool:
        """Whether a task may write to what has this label."""
        return self.label(person) - self.free(person) <= label

    def read(self, person: Person, thing: Thing) -> None:
        """A task reads a blob."""
        call = messages.ReadOnce(person.refs[thing.number])
        if self.expect(person, call, allowed=self.may_learn(person, thing.label)):
            person.knows |= thing.content

    def write(self, person: Person, thing: Thing) -> None:
        """A task writes everything that it knows to a blob."""
        call = messages.WriteOnce(person.refs[thing.number], b"all that I know")
        if self.expect(person, call, allowed=self.may_write(person, thing.label)):
            thing.content |= self.told(person)
            self.writes += 1
            self.releases += bool(person.knows - thing.label)

    def map(self, person: Person, thing: Thing) -> None:
        """A task attaches to a stream, or maps the memory of a raw object to write it."""
        may = self.may_write(person, thing.label) and self.may_learn(person, thing.label)
        ref = person.refs[thing.number]
        if thing.raw:
            done = self.expect(person, messages.AcquireWrite(ref), allowed=may)
        else:
            mode = self.rng.choice(list(Mode))
            answer = person.client.call(messages.Attach(ref, mode))
            if isinstance(answer, messages.Failure) and answer.code != Code.EPERM:
                return  # the end is another task's
            assert isinstance(answer, messages.Attached) is may, answer
            done = may
        if done:
            person.mapped.add(thing.number)

    def create(self, person: Person) -> None:
        """A task creates an object, with its own label or none."""
        bare = self.rng.random() < 0.3
        call = (
            messages.CreateLabelled(ObjectType.SHMEM_BLOB, name_kind=NameKind.ANONYMOUS, data=b"x")
            if bare
            else messages.Create(ObjectType.SHMEM_BLOB, name_kind=NameKind.ANONYMOUS, data=b"x")
        )
        allowed = not bare or self.may_write(person, frozenset())
        if not self.expect(person, call, allowed=allowed):
            return
        created = self.node.answers[person.client.task, self.node.seq]
        assert isinstance(created, messages.Created)
        thing = Thing(created.reference.object, ObjectType.SHMEM_BLOB, created.reference.secrecy)
        thing.content |= self.told(person)
        self.things[thing.number] = thing
        person.refs[thing.number] = created.reference.ref
        control = self.control(person, None)
        if thing.label == self.label(person) and self.expect(
            person,
            messages.Copy(created.reference.ref, control),
            allowed=True,  # the session of the owner of all tags may learn everything
        ):
            given = self.owner.event()
            while not isinstance(given, messages.Delegated):
                given = self.owner.event()
            self.held[thing.number] = given.reference.ref

    def control(self, giver: Person, receiver: Person | None) -> int:
        """A reference of one task to another, or to the owner's session."""
        ref = self.owner.self_ref if receiver is None else receiver.client.reference.ref
        self.owner.delegate(ref, giver.client.reference.ref)
        return self.delegated(giver)

    def delegate(self, giver: Person, receiver: Person, thing: Thing) -> None:
        """A task delegates a reference to another, which thereby learns what the first chose."""
        if giver is receiver or thing.number in receiver.refs:
            return
        call = messages.Copy(giver.refs[thing.number], self.control(giver, receiver))
        if self.expect(giver, call, allowed=self.may_write(giver, frozenset(self.label(receiver)))):
            receiver.knows |= self.told(giver)
            receiver.refs[thing.number] = self.delegated(receiver)

    def status(self, reader: Person, other: Person) -> None:
        """A task reads the status of another one, which could be its exit code."""
        if reader is other:
            return
        ref = self.control(reader, other)
        call = messages.ReadOnce(ref, flags=1)
        if self.expect(reader, call, allowed=self.may_learn(reader, frozenset(self.label(other)))):
            answer = self.node.answers[reader.client.task, self.node.seq]
            assert isinstance(answer, effects.AnswerBytes)
            assert set(decode_status(answer.data).secrecy) == self.label(other)
            reader.knows |= self.told(other)

    # -- the walk ----------------------------------------------------------------------------------------
    def step(self) -> None:
        """Do something, then compare."""
        rng, person = self.rng, self.rng.choice(self.people)
        thing = self.things[rng.choice(list(person.refs or self.held))]
        choice = rng.randrange(16)
        if choice == 0:
            self.begin(rng.choice([None, person]))
        elif choice == 1:
            label = tuple(sorted(tag(word) for word in rng.sample(WORDS, rng.randrange(3))))
            raw = rng.random() < 0.3
            kind = (
                ObjectType.SHMEM_BLOB if raw else rng.choice([ObjectType.SHMEM_BLOB, ObjectType.SHMEM_STREAM])
            )
            self.make(label, kind, raw=raw)
        elif choice == 2:
            self.hand_key(person, rng.choice(WORDS))
        elif choice == 3:
            self.take_key(person)
        elif choice in {4, 5}:
            self.hand(person, rng.choice(list(self.held)))
        elif choice == 6:
            self.create(person)
        elif thing.number not in person.refs:
            self.hand(person, thing.number)
        elif choice == 7:
            self.delegate(person, rng.choice(self.people), thing)
        elif choice == 8:
            self.status(person, rng.choice(self.people))
        elif thing.kind is ObjectType.SHMEM_STREAM or (thing.raw and choice > 11):
            self.map(person, thing)
        elif choice % 2:
            self.read(person, thing)
        else:
            self.write(person, thing)
        self.share_mapped()
        self.compare()

    def share_mapped(self) -> None:
        """Memory that is mapped passes on everything, without a call."""
        for _ in range(len(self.people)):
            for person in self.people:
                for number in person.mapped:
                    self.things[number].content |= self.told(person) - person.kept
                    person.knows |= self.things[number].content

    def compare(self) -> None:
        """Nothing is where its tags forbid it, and the core knows what each task knows."""
        for thing in self.things.values():
            assert thing.content <= thing.label, f"{thing.content - thing.label} leaked"
        for person in self.people:
            assert person.knows <= self.label(person), (
                f"{person.knows - self.label(person)} is not in the label"
            )
