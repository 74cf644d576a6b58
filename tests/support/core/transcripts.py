"""Two runs that differ in a secret alone, and all that parties without its label see in them.

A task that has read the secret makes the same calls in both runs. Every value that it can choose in a call
depends on the secret, so that a core which shows one of them to others shows two transcripts that differ.
"""

from __future__ import annotations

import random
from typing import Final

from dios import limits
from dios.core import effects, events
from dios.core.model.names import deterministic_name
from dios.host.content.public_pages import PublicPages, TaskPage
from dios.ids import Name, Principal
from dios.wire import messages
from dios.wire.page import read_slot
from dios.wire.types import (
    Brand,
    Cause,
    Flag,
    NameKind,
    NodeWish,
    ObjectType,
    Permission,
    Resource,
    Scope,
)
from tests.support.core.cluster import Citizen, Cluster
from tests.support.core.harness import OWNER, Client

STRANGER: Final = Principal("uid:1001")
READ: Final = int(Permission.READ)
TABLES: Final = ("objects", "tasks", "references", "waiting", "accounts", "tasks@n1", "accounts@n1")
"""An administrator, who reads them, could also read the memory of the node."""
_LETTERS: Final = "abcdefghijklmnopqrstuvwxyz"


class Run:
    """Two nodes, an owner of a secret, a task that has read it, and the parties that have not.

    The owner of the secret is the nodes' own user or another one. Its own sessions may know the secret.
    """

    def __init__(self, secret: int, owner: Principal) -> None:
        self.secret: Final = secret
        self.rng: Final = random.Random(secret)  # noqa: S311 - values of a test
        self.cluster: Final = Cluster(("r1", "r1"))
        self.here, self.away = self.cluster.nodes
        self.away.let_limbo_in()
        self.owner: Final = self.here.session(owner)
        self.administrator: Final = self.here.session(OWNER)
        self.parties: Final[dict[str, Citizen]] = {
            "stranger": self.here.session(STRANGER if owner == OWNER else Principal("uid:1002")),
            "limbo task": self.child_of(self.administrator, brand=Brand.LIMBO, host="n1"),
            "limbo task of another node": self.child_of(self.administrator, brand=Brand.LIMBO, host="n2"),
            "parent": self.child_of(self.owner, groups=(self.owner.groups[0],), host="n1"),
        }
        if owner != OWNER:
            self.parties["administrator"] = self.administrator
        else:
            groups = (self.owner.groups[0],)
            self.parties["limbo parent"] = self.child_of(
                self.owner, brand=Brand.LIMBO, groups=groups, host="n1"
            )
        self.transcript: Final[list[tuple[str, str]]] = []
        self.public: Final = self.owner.create(data=b"public").reference.ref
        self.hidden: Final = self.labelled(b"hidden")
        self.twins: Final = (self.labelled(b"twin"), self.labelled(b"twin"))
        self.names: Final[list[bytes]] = []

    # -- the world ---------------------------------------------------------------------------------------
    def child_of(self, parent: Citizen, **options: object) -> Citizen:
        """Start a task and be it."""
        program = parent.create(groups=(), name_kind=NameKind.ANONYMOUS, data=b"pass").reference.ref
        seq = parent.send(messages.Run(program, **options))  # type: ignore[arg-type] # fields of Run
        self.cluster.settle()
        started = self.cluster.start_spawned()
        created = self.cluster.wait(parent, seq)
        assert isinstance(created, messages.Created), created
        (child,) = started
        child.reference = created.reference
        return child

    def labelled(self, data: bytes) -> int:
        """Create an object with the label, as the owner."""
        call = messages.CreateLabelled(
            ObjectType.SHMEM_BLOB, (self.owner.groups[0],), data=data, secrecy=("payroll",)
        )
        return self.owner.ask(messages.Created, call).reference.ref

    def word(self, length: int = 8) -> str:
        """Return a word that depends on the secret."""
        return "".join(self.rng.choices(_LETTERS, k=length))

    def number(self, bound: int = 1_000) -> int:
        """Return a number that depends on the secret, and is not 0."""
        return self.rng.randrange(1, bound)

    # -- the tasks that know the secret -------------------------------------------------------------------
    def choose_all(self) -> None:
        """Let tasks that know the secret choose every value that they can."""
        parent = self.parties["parent"]
        handed = []
        for ref in (self.hidden, *self.twins, self.public):
            self.owner.delegate(ref, parent.reference.ref)
            handed.append(messages.Handed(parent.given().ref, int(Permission.ALL)))
        innocent = self.child_of(parent, inputs=tuple(handed), host="n1")
        knowing = self.child_of(
            parent,
            groups=(parent.groups[0],),
            inputs=tuple(handed),
            host="n1",
        )
        self.names.extend(deterministic_name(Name(knowing.welcome.name), number) for number in range(5))
        hidden, *twins, public = (reference.ref for reference in knowing.welcome.inputs)
        knowing.read(hidden)
        parent.delegate(parent.self_ref, knowing.reference.ref)
        self.create(knowing)
        self.write(knowing, hidden, public)
        self.count(knowing, twins)
        row = parent.call(messages.Describe(innocent.reference.ref))
        self.transcript.append(("parent", f"Describe: {row}"))
        self.delegate(knowing)
        if "limbo parent" in self.parties:
            for host in ("n1", "n2"):
                self.fill(self.parties["limbo parent"], host)
        self.start(knowing)
        self.others(knowing)
        self.observe()
        self.leave(knowing)

    def create(self, knowing: Client) -> None:
        """Choose the tags and the bytes of objects that others find by their names."""
        group, data = (knowing.groups[0],), self.word().encode()
        for secrecy in (("payroll",), ("payroll", self.word()), (self.word(),), ()):
            knowing.call(
                messages.CreateLabelled(
                    ObjectType.SHMEM_BLOB, group, NameKind.DETERMINISTIC, data=data, secrecy=secrecy
                )
            )
        knowing.call(messages.Create(ObjectType.SHMEM_BLOB, group, NameKind.DETERMINISTIC, data=data))

    def write(self, knowing: Citizen, hidden: int, public: int) -> None:
        """Choose bytes, places and options of writes."""
        data = self.word().encode()
        for ref in (hidden, public):
            knowing.call(messages.WriteOnce(ref, data))
            buffer = knowing.call(messages.AcquireWrite(ref, len(data)))
            if isinstance(buffer, messages.Buffer):
                knowing.call(messages.CommitWrite(ref, buffer.buffer, data=data))
                knowing.call(messages.ReleaseWrite(ref, buffer.buffer))
        knowing.call(messages.Retire(public, int(Flag.EVERYONE), self.word()))
        knowing.call(messages.Delete(public, int(Flag.DESTROY)))

    def count(self, knowing: Citizen, twins: list[int]) -> None:
        """Choose which of two equal objects to read, to change and to keep in use.

        Their sums, which everybody sees in the use of the node, are the same for each secret.
        """
        ref = twins[self.secret % 2]
        for size in range(10):
            knowing.call(messages.WriteOnce(ref, b"x" * size, flags=int(Flag.REPLACE)))
            knowing.read(ref)
            knowing.call(messages.AcquireRead(ref, 1))
            knowing.call(messages.AcquireWrite(ref, 1))

    def fill(self, parent: Citizen, host: str) -> None:
        """Let two children of a limbo task, which may set their limits, choose what each of them uses."""
        self.owner.delegate(self.hidden, parent.reference.ref)
        hidden = messages.Handed(parent.given().ref, int(Permission.ALL))
        options = {"groups": (parent.groups[0],), "inputs": (hidden,), "host": host}
        children = [self.child_of(parent, brand=Brand.PURE, **options) for _ in range(2)]
        for child in children:
            child.read(child.welcome.inputs[0].ref)
        for number in range(10):
            child = children[number < 3 + self.secret]
            child.create(groups=(), name_kind=NameKind.ANONYMOUS, data=b"x")
        self.observe()

    def delegate(self, knowing: Client) -> None:
        """Choose the references of a task that does not know the secret."""
        given = knowing.event()
        assert isinstance(given, messages.Delegated)
        ref = knowing.create(groups=(), name_kind=NameKind.ANONYMOUS, data=b"x").reference.ref
        knowing.call(messages.Copy(ref, given.reference.ref, READ, lifetime_ns=self.number(10**15)))
        knowing.call(messages.Pause(given.reference.ref))
        knowing.call(messages.Delete(given.reference.ref, int(Flag.DESTROY)))

    def start(self, knowing: Citizen) -> None:
        """Choose the description of a child that runs, and of one that waits for the scheduler."""
        work = messages.Work(
            equivalence=self.word(),
            member=self.word(),
            copy_of=self.word(),
            moves=self.number(),
            restarts=self.number(),
            kept_bytes=self.number(),
        )
        options = {
            "label": self.word(),
            "arguments": (self.word(),),
            "limits": messages.Limits(objects=100 + self.number(), total_cpu_ms=100_000 + self.number()),
            "work": work,
        }
        child = self.child_of(knowing, host="n1", **options)
        child.call(messages.ReportProgress(self.number()))
        sibling = self.child_of(knowing, host="n1", **options)
        for _ in range(limits.SUM_STEP):
            (child, sibling)[self.secret % 2].create(groups=(), name_kind=NameKind.ANONYMOUS, data=b"x")
        self.end(self.child_of(knowing, host="n1", **options))
        self.end(self.child_of(knowing, host="n1", **options), Cause.EXITED)
        self.administrator.call(messages.ReadQueue(attend=True))  # from now on, runs wait for this scheduler
        program = knowing.create(groups=(), name_kind=NameKind.ANONYMOUS, data=b"pass").reference.ref
        knowing.send(messages.Run(program, **options))  # type: ignore[arg-type] # fields of Run
        self.cluster.settle()
        (run,) = self.administrator.ask(messages.QueueRows, messages.ReadQueue()).waiting
        kept = messages.PromisedStart(run.id, "n2", 60_000)
        self.administrator.ask(messages.Placed, messages.KeepRooms(promised=(kept,)))

    def others(self, knowing: Client) -> None:
        """Make calls that only others than tasks may make, or that everybody would see."""
        for call in (
            messages.ReportProgress(self.number()),
            messages.Report(self.word().encode()),
            messages.AskScheduler(self.word().encode()),
            messages.SetNode(self.word(), self.rng.choice(list(NodeWish))),
            messages.LabelNode("n1", ((self.word(), self.word()),)),
            messages.Lookup(self.word(32).encode()),
            messages.Present((self.word(32).encode(),)),
            messages.ShareGroup(knowing.groups[0], self.word(32).encode(), "uid:1002", self.number()),
        ):
            knowing.call(call)

    def end(self, task: Citizen, cause: Cause = Cause.SIGNAL) -> None:
        """Choose the end of a task of this cause; one that exits does so with 0 or not."""
        self.here.step(
            events.TaskEnded(
                self.here.now,
                task.task,
                cause,
                exit_code=self.number(100) if cause is Cause.SIGNAL else self.secret % 2,
                signal=self.number(30),
                detail=self.word(),
            )
        )
        self.cluster.settle()

    def leave(self, knowing: Citizen) -> None:
        """End, with a chosen status."""
        knowing.send(messages.Leave(self.word()))
        self.end(knowing)
        self.observe()

    # -- the parties without the label ---------------------------------------------------------------------
    def observe(self) -> None:
        """Let every party make all calls by which it may learn something, and read its events."""
        for name, party in self.parties.items():
            for call in (
                messages.ListTasks(),
                messages.ListLimits(),
                messages.ReadQueue(),
                messages.ReadQueue(host="n1"),
                messages.ListNodes(),
                messages.NodeInfo(),
                *(() if name == "administrator" else map(messages.ReadTable, TABLES)),
                *map(messages.Lookup, self.names),
                messages.ReadOnce(party.self_ref, flags=int(Flag.NON_BLOCKING)),
                messages.ReadOnce(party.self_ref, flags=int(Flag.NON_BLOCKING)),
            ):
                self.transcript.append((name, f"{type(call).__name__}: {party.call(call)}"))
            for reference in list(party.node.core.state.tasks[party.task].table):
                self.transcript.append((name, f"Stat: {party.call(messages.Stat(reference.id))}"))
                if reference.object.type is ObjectType.SHMEM_BLOB and reference.object.secrecy:
                    self.write_blindly(name, party, reference.id)
                if reference.object.type is ObjectType.TASK:
                    limit = messages.SetLimits(
                        Scope.TASK, (messages.Bound(Resource.OBJECTS, 900),), reference.id
                    )
                    self.transcript.append((name, f"SetLimits: {party.call(limit)}"))
                if reference.object.type is ObjectType.SHMEM_BLOB and not reference.object.secrecy:
                    self.transcript.append((name, f"bytes: {party.read(reference.id)!r}"))

    def write_blindly(self, name: str, party: Citizen, ref: int) -> None:
        """Write to what the party may not read; a buffer as large as the object would count as a read."""
        for call in (
            messages.WriteOnce(ref, b"up"),
            messages.AcquireWrite(ref, 2, flags=int(Flag.BLANK)),
        ):
            self.transcript.append((name, f"{type(call).__name__}: {party.call(call)}"))

    def pushed(self) -> None:
        """Add all that reached the parties without a call: pages, events, descriptors."""
        for name, party in self.parties.items():
            own = (effect for effect in party.node.effects if getattr(effect, "task", None) == party.task)
            self.transcript.extend((name, str(effect)) for effect in own)
            self.transcript.extend((name, slot) for slot in slots_shown(party))


def slots_shown(party: Citizen) -> list[str]:
    """Return the slots of a party's page in words, as the host of its node has written them."""
    memory = memoryview(bytearray(limits.PUBLIC_PAGE_BYTES))
    page = TaskPage(memory)
    pages = PublicPages(lambda: page)
    pages.open(party.task)
    for number, effect in enumerate(party.node.effects):
        if isinstance(effect, effects.BindSlot):
            pages.bind(effect, number)
        elif isinstance(effect, effects.UnbindSlot):
            pages.unbind(effect)
        elif isinstance(effect, effects.PublishCounters):
            pages.publish(effect, number)
    return [f"slot {slot}: {read_slot(memory, slot)}" for slot in sorted(page.bound)]


def transcript(secret: int, owner: Principal) -> list[tuple[str, str]]:
    """Return all that parties without the label see in a run with this secret, each with its name."""
    run = Run(secret, owner)
    run.choose_all()
    run.pushed()
    return run.transcript
