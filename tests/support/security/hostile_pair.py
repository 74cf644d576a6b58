"""Outside the tasks: a node with a victim, a hostile task and its confederate, whose strings the tests pull.

Every frame that a ``Puppet`` is told to send comes from a real pure task, over the socket it inherited. Not
for: programs that try the machine instead of the calls (``escape``).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final, TypeVar

import capability_puppet as inside
import pytest

import dios
from dios.client.sync.node import Group, Task
from dios.errors import Code
from dios.host.audit.log import AuditRecord
from dios.host.audit.reader import AuditReader
from dios.host.confinement.mechanisms import obstacle_to_pure, probe
from dios.wire import messages
from dios.wire.codec import decode_event, decode_reply, decode_status, encode_request
from dios.wire.types import Cause, Flag, NameKind, ObjectType, Permission
from tests.support.node.raw_client import RawClient, create, read
from tests.support.node.running_node import RunningNode, running_node, wait_until
from tests.support.security.places import TASK, WAIT_S, GoneError, Place, require

T = TypeVar("T")
SECRET: Final = b"what no other task may read"
SEQ_FIRST: Final = 1 << 20
DENIED: Final = frozenset({Code.EPERM, Code.EBADF})


class Puppet:
    """One pure task, or session, that does what it is told; see ``places``."""

    def __init__(self, stage: Stage, name: str, *groups: Group) -> None:
        self.stage = stage
        self.name = name
        self._hands = stage.place.open(stage.director, name, groups)
        self.task: Task = self._hands.task
        self.seq = SEQ_FIRST
        first = decode_reply(self._hands.first()).result
        assert isinstance(first, messages.Welcome)
        self.welcome: messages.Welcome = first
        self.self_ref = first.self_ref.ref
        self.own_group = first.groups[0].ref
        self.knows: dict[int, int] = {}
        self.mine = self.ask(messages.Created, anonymous(b"its own")).reference.ref

    # -- frames -----------------------------------------------------------------------------------
    def any(self, call: messages.AnyCall) -> messages.AnyResult:
        """Make a call over the task's socket, whatever comes of it."""
        self.seq += 1
        return self.bare(encode_request(self.seq, call))

    def bare(self, frame: bytes) -> messages.AnyResult:
        """Send bytes over the task's socket; the next reply, or GoneError."""
        self._hands.order(inside.ASK + frame)
        return self._reply()

    def breaks_the_rules(self, frame: bytes) -> None:
        """Send what ends the connection; the node may say so before it does."""
        try:
            last = self.bare(frame)
        except GoneError:
            return
        assert isinstance(last, messages.Failure), last
        assert last.code == Code.EPROTO, last

    def send(self, call: messages.AnyCall, seq: int = 0) -> int:
        """Make a call and wait for nothing; its sequence number."""
        self.seq += 1
        self._hands.order(inside.SEND + encode_request(seq or self.seq, call))
        return seq or self.seq

    def take(self) -> messages.AnyResult:
        """The next reply to what was sent."""
        self._hands.order(inside.TAKE)
        return self._reply()

    def bytes_for(self, call: messages.AnyCall) -> bytes:
        """Make a call, always under the same number; the bytes that the task gets for it."""
        self._hands.order(inside.ASK + encode_request(SEQ_FIRST, call))
        return self._body()

    def _reply(self) -> messages.AnyResult:
        return decode_reply(self._body()).result

    def _body(self) -> bytes:
        said = self._hands.answer()
        if said == inside.GONE:
            raise GoneError(self.name)
        assert said != inside.LATE, f"{self.name} got no answer"
        return said[1:]

    def does(self, source: str) -> str:
        """Run source text in the task; what it leaves in ``said``. GoneError where it did not survive it."""
        self.begins(source)
        return self.has_done()

    def begins(self, source: str) -> None:
        """Let the task run source text, and wait for nothing."""
        self._hands.order(inside.DO + source.encode())

    def has_done(self) -> str:
        """What the source text that was begun left in ``said``."""
        said = self._hands.answer().decode()
        assert not said.startswith("failed: "), said
        return said

    # -- calls ------------------------------------------------------------------------------------
    def ask(self, kind: type[T], call: messages.AnyCall) -> T:
        """Make a call that must be answered so."""
        result = self.any(call)
        assert isinstance(result, kind), (call, result)
        return result

    def refused(self, call: messages.AnyCall, code: Code) -> messages.Failure:
        """Make a call that must be refused with ``code``; the record of a denial is asked for at the end."""
        failure = self.ask(messages.Failure, call)
        assert failure.code == code, (call, failure)
        if code in DENIED:
            self.stage.expect_denial(self, call, failure)
        return failure

    def create(
        self, data: bytes | None = SECRET, kind: ObjectType = ObjectType.SHMEM_BLOB, *groups: int
    ) -> messages.Created:
        """A new object in groups, its own if none is said."""
        call = messages.Create(kind, groups or (self.own_group,), data=data)
        return self.ask(messages.Created, call)

    def read(self, ref: int) -> bytes:
        """Few bytes of an object."""
        return self.ask(messages.Buffer, messages.ReadOnce(ref)).data or b""

    def read_some(self, ref: int, size: int = 8) -> bytes:
        """The first bytes of an object."""
        return self.ask(messages.Buffer, messages.ReadOnce(ref, size)).data or b""

    def stat(self, ref: int) -> messages.Reference:
        """A reference's public part."""
        return self.ask(messages.References, messages.Stat(ref)).references[0]

    def finds(self, name: bytes | None, group: int = 0) -> tuple[messages.Reference, ...]:
        """What a name resolves to."""
        assert name is not None
        return self.ask(messages.References, messages.Lookup(name, group)).references

    def given(self, target: int = 0) -> messages.Reference:
        """The reference that an event tells of, to the object ``target`` if that is said."""
        while True:
            event = decode_event(self.read(self.self_ref))
            if isinstance(event, messages.Delegated) and target in {0, event.reference.object}:
                return event.reference

    def gives(self, ref: int, other: Puppet, rights: int = int(Permission.ALL)) -> int:
        """Delegate; the number of the reference in the other's table."""
        self.ask(messages.Done, messages.Copy(ref, self.stage.introduce(self, other), rights))
        return other.given(self.stat(ref).object).ref

    @property
    def fingerprint(self) -> str:
        """How the audit log calls this task."""
        return self.welcome.self_ref.fingerprint

    @property
    def alive(self) -> bool:
        """Whether it still runs."""
        return self.task.status().cause is Cause.NONE

    def ends_as_protocol(self) -> None:
        """It broke the rules of the wire, which costs it its life."""
        status = self.task.wait(timeout=WAIT_S)
        assert status.cause is Cause.PROTOCOL, status
        self.stage.expect_record("disconnect", self, status.detail.split("\n", 1)[0])

    def end(self) -> None:
        """End the task and let go of its strings."""
        self._hands.end()


class Stage:
    """A node, who directs, who suffers and who attacks."""

    def __init__(
        self, folder: Path, stack: ExitStack, place: Place, module: str, flags: dict[str, str]
    ) -> None:
        self.place = place
        settings = {"accept_weaker_sandbox": "no", **place.settings, **flags}
        self.running: RunningNode = stack.enter_context(
            running_node(folder / "data", module=module, **settings)
        )
        self.director = stack.enter_context(dios.connect(self.running.place, groups=()))
        self.neighbour = RawClient(self.running.running.socket)
        stack.callback(self.neighbour.close)
        self._audit = AuditReader(folder / "data" / "audit")
        self._records: list[AuditRecord] = []
        self._expected: list[tuple[str, str, str]] = []
        self._stack = stack
        self.victim = Puppet(self, "victim")
        self.mallory = Puppet(self, "mallory")
        self.confederate = Puppet(self, "confederate")
        self.secret: messages.Created
        self._before: messages.Reference
        self.neighbours: int = create(self.neighbour, ObjectType.SHMEM_BLOB, SECRET).reference.ref

    def puppet(self, name: str, *groups: Group) -> Puppet:
        """One more, for a test that it may not survive, or that needs a member of some group."""
        return Puppet(self, name, *groups)

    def introduce(self, puppet: Puppet, other: Puppet, rights: str = "write") -> int:
        """Give one task a reference to another, to delegate to; its number there."""
        target = other.welcome.self_ref.object
        if rights == "write" and target in puppet.knows:
            return puppet.knows[target]
        other.task.delegate(puppet.task, *rights.split())
        ref = puppet.given(target).ref
        if rights == "write":
            puppet.knows[target] = ref
        return ref

    # -- what the audit log must show --------------------------------------------------------------
    def expect_denial(self, puppet: Puppet, call: messages.AnyCall, failure: messages.Failure) -> None:
        """A record of this refusal must be in the log in the end."""
        self.expect_record(type(call).__name__.lower(), puppet, failure.message)

    def expect_record(self, action: str, puppet: Puppet, detail: str) -> None:
        """A record of this denial must be in the log in the end."""
        self._expected.append((action, puppet.fingerprint, detail))

    def _denials_are_recorded(self) -> bool:
        self._records += [entry.record for entry in self._audit.poll() if entry.record.outcome == "denied"]
        for record in self._records:
            denial = (record.action, record.task, record.detail)
            for _ in range(record.count):
                if denial in self._expected:
                    self._expected.remove(denial)
        self._records.clear()
        return not self._expected

    def next_record(self, action: str, puppet: Puppet) -> AuditRecord:
        """The newest record of that action by a task; waits for one that was not there before."""
        records: list[AuditRecord] = []

        def came() -> bool:
            records.extend(
                entry.record
                for entry in self._audit.poll()
                if (entry.record.action, entry.record.task) == (action, puppet.fingerprint)
            )
            return bool(records)

        wait_until(came, f"a record of {action}")
        return records[-1]

    @contextmanager
    def attempt(self) -> Iterator[Stage]:
        """A fresh secret before, and the victim unharmed after."""
        self.begin()
        yield self
        self.unharmed()

    # -- before and after each attempt --------------------------------------------------------------
    def begin(self) -> None:
        """Give the victim something to lose."""
        for role in ("victim", "mallory", "confederate"):
            if not getattr(self, role).alive:
                setattr(self, role, Puppet(self, role))
        self.secret = self.victim.create()
        self._before = self.victim.stat(self.secret.reference.ref)

    def unharmed(self) -> None:
        """The victim lives and has what it had, the neighbour is served, and every denial is on record."""
        ref = self.secret.reference.ref
        after = self.victim.stat(ref)
        before = self._before
        assert (after.v_w, after.a_w, after.a_r) == (before.v_w, 0, 0), (before, after)
        assert self.victim.read(ref) == SECRET
        assert read(self.neighbour, self.neighbours) == SECRET
        self.victim.ask(messages.Done, messages.Delete(ref))
        wait_until(self._denials_are_recorded, "every denial is in the audit log")


@contextmanager
def open_stage(folder: Path, place: Place = TASK, /, *, module: str = "", **flags: str) -> Iterator[Stage]:
    """A stage, gone at the end with all that it started; ``flags`` are settings of its node.

    ``module`` runs in place of the daemon's. The test is skipped where tasks cannot be confined: then there
    is nothing to break out of.
    """
    missing = obstacle_to_pure(probe())
    if missing:
        pytest.skip(f"pure tasks cannot be confined here: {missing}")
    require(place)
    with ExitStack() as stack:
        yield Stage(folder, stack, place, module, flags)


def anonymous(data: bytes | None = SECRET) -> messages.Create:
    """An object without a name."""
    return messages.Create(ObjectType.SHMEM_BLOB, name_kind=NameKind.ANONYMOUS, data=data)


def status_of(puppet: Puppet, ref: int) -> messages.TaskRow:
    """The status record behind a TASK reference, as it is now."""
    call = messages.ReadOnce(ref, flags=int(Flag.NON_BLOCKING))
    return decode_status(puppet.ask(messages.Buffer, call).data or b"")
