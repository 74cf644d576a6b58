"""The kinds of greedy neighbours: each does one thing as much as the node lets it.

A kind is a generator. It makes calls through a ``Greedy`` and yields after each small part, so that a test
can run it next to others without threads. It never ends by itself, and it ignores refusals: a full table or
an exhausted limit is a part of its work.
"""
# ruff: noqa: D103 - the description of a kind is in its decorator, because the table of results shows it

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple, Protocol, TypeAlias

from dios import limits
from dios.core.model.names import NETWORK, TIMER, special_name
from dios.wire import messages
from dios.wire.messages import AnyCall, AnyResult, Created, PlainCall, References, Vector
from dios.wire.types import (
    Buffering,
    Flag,
    Mode,
    NameKind,
    ObjectType,
    Permission,
    Resource,
    Scope,
    Semantics,
)

_ALL: Final = int(Permission.ALL)
_LARGE: Final = 16 * limits.MIB
_GIB: Final = limits.GIB
_SHORT_NS: Final = 1_000_000
_PART: Final = 64
_CROWD: Final = 171
"""The connections of one of three clients, so that all of them have more than 512."""


class Greedy(Protocol):
    """A connection of a greedy neighbour."""

    @property
    def table(self) -> int:
        """The number of references with which it fills a table."""

    @property
    def welcome(self) -> messages.Welcome:
        """The node's greeting of the present connection."""

    def ask(self, call: AnyCall) -> AnyResult:
        """Make a call and wait for its answer."""

    def post(self, call: AnyCall) -> int:
        """Make a call that may wait, and return its number; its answer is dropped."""

    def leave(self, label: str = "") -> None:
        """Disconnect without a farewell, and connect again."""

    def cut(self) -> None:
        """Disconnect in the middle of a frame, and connect again."""

    def crowd(self, call: AnyCall, count: int) -> None:
        """Make a call on each of ``count`` further connections, before the first answer is read."""

    def deafen(self, call: AnyCall, count: int) -> None:
        """Make calls without reading any answer, as far as the node takes them; then connect again."""

    def linger(self, seconds: float) -> None:
        """Let started tasks work for a moment. A core without a clock gets the events of their work."""


Kind: TypeAlias = Callable[[Greedy], Iterator[None]]


class KindRow(NamedTuple):
    """A kind, and its description in the table of results.

    An ``owner`` acts as the node's own user, who may do more than others.
    """

    kind: Kind
    text: str
    owner: bool = False


KINDS: Final[dict[str, KindRow]] = {}


def _kind(text: str, *, owner: bool = False) -> Callable[[Kind], Kind]:
    def enter(kind: Kind) -> Kind:
        KINDS[kind.__name__.replace("_", "-")] = KindRow(kind, text, owner)
        return kind

    return enter


# -- parts of kinds -----------------------------------------------------------------------------------
def _create(me: Greedy, kind: ObjectType = ObjectType.SHMEM_BLOB, **options: object) -> int:
    """Create an object without a name; return the reference, or 0 if there is no room."""
    options.setdefault("name_kind", NameKind.ANONYMOUS)
    answer = me.ask(messages.Create(kind, **options))  # type: ignore[arg-type]
    return answer.reference.ref if isinstance(answer, Created) else 0


def _named(me: Greedy, kind: ObjectType, **options: object) -> Created | None:
    """Create an object with a random name in the home group, or return None if there is no room."""
    home = me.welcome.home
    groups = () if home is None else (home.ref,)
    answer = me.ask(messages.Create(kind, groups, **options))  # type: ignore[arg-type]
    return answer if isinstance(answer, Created) else None


def _myself(me: Greedy) -> int:
    return me.welcome.self_ref.ref


def _vectors(me: Greedy, calls: Iterator[PlainCall]) -> Iterator[list[AnyResult]]:
    """Make calls in vectors of a moderate size; yield the answers of each vector."""
    while part := tuple(itertools.islice(calls, _PART)):
        answer = me.ask(Vector(part))
        yield list(answer.results) if isinstance(answer, messages.Results) else []


def _fill(me: Greedy, ref: int, lifetime_ns: int = 0) -> Iterator[None]:
    """Fill the table of the neighbour with references to one object."""
    copy = messages.Copy(ref, _myself(me), _ALL, lifetime_ns=lifetime_ns)
    for _ in _vectors(me, itertools.repeat(copy, me.table)):
        yield


def _streams(me: Greedy, count: int = limits.SELECT_REFERENCES_MAX) -> list[int]:
    refs = [_create(me, ObjectType.SHMEM_STREAM, size=limits.STREAM_RING_BYTES_MIN) for _ in range(count)]
    return [ref for ref in refs if ref]


def _repeat(me: Greedy, call: AnyCall) -> Iterator[None]:
    while True:
        me.ask(call)
        yield


def _start(me: Greedy, program: int, **options: object) -> int:
    flags = int(Flag.NON_BLOCKING)
    answer = me.ask(messages.Run(program, flags=flags, **options))  # type: ignore[arg-type]
    return answer.reference.ref if isinstance(answer, Created) else 0


def _destroy(me: Greedy, ref: int) -> None:
    if ref:
        me.ask(messages.Delete(ref, int(Flag.DESTROY)))
        me.ask(messages.Delete(ref, int(Flag.HANDLE_ONLY)))


def _programs(source: bytes, at_once: int = 2) -> Kind:
    """Run pure tasks with a program, again and again."""

    def run(me: Greedy) -> Iterator[None]:
        program = _create(me, data=source)
        while True:
            started = [_start(me, program) for _ in range(at_once)]
            yield
            me.linger(0.5)
            for ref in started:
                _destroy(me, ref)
            yield

    return run


def _program(name: str, text: str, source: bytes, at_once: int = 2) -> None:
    KINDS[name] = KindRow(_programs(source, at_once), text)


# -- calls and messages ---------------------------------------------------------------------------------
@_kind("vectors of 1,024 `stat` calls")
def stat_vectors(me: Greedy) -> Iterator[None]:
    call = messages.Stat(_myself(me))
    return _repeat(me, Vector((call,) * limits.VECTOR_CALLS_MAX))


@_kind("queues of short calls whose answers are not awaited")
def pipelines(me: Greedy) -> Iterator[None]:
    call = messages.Stat(_myself(me))
    while True:
        for _ in range(_PART):
            me.post(call)
        yield


@_kind("answers of many bytes that are never read")
def deaf(me: Greedy) -> Iterator[None]:
    calls: tuple[PlainCall, ...] = (messages.ListLimits(), messages.NodeInfo(), messages.ListTasks())
    while True:
        me.deafen(Vector(calls * 8), 500)
        yield


@_kind("connections that end in the middle of a frame")
def half_frames(me: Greedy) -> Iterator[None]:
    while True:
        me.cut()
        yield


@_kind("sessions with a long label that leave at once")
def aborted_sessions(me: Greedy) -> Iterator[None]:
    while True:
        me.leave("x" * limits.TEXT_BYTES_MAX)
        yield


@_kind(f"{_CROWD} connections of each client that all call")
def crowds(me: Greedy) -> Iterator[None]:
    while True:
        me.crowd(messages.Stat(_myself(me)), _CROWD)
        yield


@_kind("calls on references that do not exist")
def unknown_references(me: Greedy) -> Iterator[None]:
    return _repeat(me, Vector(tuple(messages.Stat(1 + number) for number in range(512))))


@_kind("denied calls, each with an audit record of its own")
def denied_calls(me: Greedy) -> Iterator[None]:
    for number in itertools.count():
        me.ask(
            messages.SetLimits(
                Scope.PRINCIPAL, (messages.Bound(Resource.TASKS, 1),), principal=f"uid:{number}"
            )
        )
        me.ask(messages.Delete(1 + number))
        yield


# -- waiting calls --------------------------------------------------------------------------------------
@_kind("250 waiting selects of 1,024 streams each; one stream is destroyed, and the client leaves")
def selects(me: Greedy) -> Iterator[None]:
    while True:
        streams = _streams(me)
        if len(streams) > 2:
            for _ in range(limits.PENDING_PER_TASK_MAX - 6):
                me.post(messages.Select(tuple(streams)))
                yield
            for ref in streams[:2]:
                me.ask(messages.Delete(ref, int(Flag.DESTROY)))
        me.leave()
        yield


@_kind("selects whose time is over at once")
def select_timeouts(me: Greedy) -> Iterator[None]:
    streams = _streams(me, 64)
    call = messages.Select(tuple(streams) or (1,), timeout_ns=_SHORT_NS)
    while True:
        for _ in range(_PART):
            me.post(call)
        yield
        me.ask(messages.Stat(_myself(me)))
        yield


@_kind("waiting calls that are cancelled")
def cancels(me: Greedy) -> Iterator[None]:
    streams = _streams(me, 256)
    while True:
        seq = me.post(messages.Select(tuple(streams) or (1,)))
        me.post(messages.Cancel(seq))
        yield
        me.ask(messages.Stat(_myself(me)))


@_kind("timers that are created, selected and dropped")
def timers(me: Greedy) -> Iterator[None]:
    name = special_name(TIMER)
    while True:
        answer = me.ask(messages.Lookup(name))
        if isinstance(answer, References) and answer.references:
            ref = answer.references[0].ref
            me.post(messages.Select((ref,), timeout_ns=_SHORT_NS))
            me.ask(messages.Delete(ref, int(Flag.HANDLE_ONLY)))
        yield


# -- references -----------------------------------------------------------------------------------------
@_kind("a table full of references to one stream, whose holder leaves")
def stream_references(me: Greedy) -> Iterator[None]:
    while True:
        stream = _create(me, ObjectType.SHMEM_STREAM, size=limits.STREAM_RING_BYTES_MIN)
        for mode in Mode:
            me.ask(messages.Attach(stream, mode))
        yield from _fill(me, stream)
        me.leave()
        yield


@_kind("an object with a table full of references, which is written and read all the time")
def shown_counters(me: Greedy) -> Iterator[None]:
    ref = _create(me, data=b"x")
    yield from _fill(me, ref)
    yield from _repeat(me, messages.WriteOnce(ref, b"y"))


@_kind("an object with a table full of references and 4,000 buffers, which is destroyed")
def full_destroys(me: Greedy) -> Iterator[None]:
    while True:
        ref = _create(me, data=b"x")
        yield from _fill(me, ref)
        acquire = messages.AcquireRead(ref)
        for _ in _vectors(me, itertools.repeat(acquire, limits.BUFFERS_PER_TASK_MAX)):
            yield
        me.ask(messages.Delete(ref, int(Flag.DESTROY)))
        me.leave()
        yield


@_kind("delegations in a long chain, which are taken back")
def retired_chains(me: Greedy) -> Iterator[None]:
    while True:
        first = last = _create(me, data=b"x")
        for number in range(me.table // 2):
            answer = me.ask(messages.Copy(last, _myself(me), _ALL))
            if not isinstance(answer, References):
                break
            last = answer.references[0].ref
            if not number % 16:
                yield
        me.ask(messages.Retire(first))
        yield
        me.ask(messages.Retire(first, int(Flag.EVERYONE)))
        me.ask(messages.Delete(first))


@_kind("a table full of delegations of one object, which are taken back at once")
def retired_copies(me: Greedy) -> Iterator[None]:
    while True:
        ref = _create(me, data=b"x")
        yield from _fill(me, ref)
        me.ask(messages.Retire(ref, int(Flag.EVERYONE)))
        me.leave()
        yield


@_kind("references that expire, all at about the same time")
def expiries(me: Greedy) -> Iterator[None]:
    ref = _create(me, data=b"x")
    while True:
        yield from _fill(me, ref, 20 * _SHORT_NS)


@_kind("delegations to another session, whose events nobody reads")
def events(me: Greedy) -> Iterator[None]:
    ref = _create(me, data=b"x")
    copy = messages.Copy(ref, _myself(me), 0)
    while True:
        for answers in _vectors(me, itertools.repeat(copy, _PART)):
            refs = [answer.references[0].ref for answer in answers if isinstance(answer, References)]
            for _ in _vectors(me, (messages.Delete(handle) for handle in refs)):
                yield


@_kind("lookups of a name, each of which makes references")
def lookups(me: Greedy) -> Iterator[None]:
    created = _named(me, ObjectType.SHMEM_BLOB, data=b"x")
    name = bytes(32) if created is None or created.name is None else created.name
    while True:
        for _ in _vectors(me, itertools.repeat(messages.Lookup(name), me.table)):
            yield
        me.leave()


@_kind("lookups of an unknown name in 100 groups")
def group_lookups(me: Greedy) -> Iterator[None]:
    for _ in range(100):
        if _named(me, ObjectType.GROUP) is None:
            break
        yield
    call = Vector((messages.Lookup(b"?" * limits.NAME_BYTES),) * 32)
    while True:
        me.ask(call)
        yield


# -- objects --------------------------------------------------------------------------------------------
@_kind("vectors of creations, and the deletion of all that")
def creations(me: Greedy) -> Iterator[None]:
    create = messages.Create(ObjectType.SHMEM_BLOB, name_kind=NameKind.ANONYMOUS, data=b"x")
    while True:
        answer = me.ask(Vector((create,) * 512))
        yield
        results = answer.results if isinstance(answer, messages.Results) else ()
        refs = [created.reference.ref for created in results if isinstance(created, Created)]
        for _ in _vectors(me, (messages.Delete(ref) for ref in refs)):
            yield


@_kind("streams that are created, attached and dropped")
def stream_churn(me: Greedy) -> Iterator[None]:
    while True:
        ref = _create(me, ObjectType.SHMEM_STREAM)
        for mode in Mode:
            me.ask(messages.Attach(ref, mode))
        me.ask(messages.Delete(ref))
        yield


@_kind("streams with rings of 256 MiB")
def large_streams(me: Greedy) -> Iterator[None]:
    while True:
        ref = _create(me, ObjectType.SHMEM_STREAM, size=limits.STREAM_RING_BYTES_MAX)
        me.ask(messages.Attach(ref, Mode.WRITE))
        me.ask(messages.Delete(ref))
        yield


@_kind("groups, and objects in 32 groups at a time")
def groups(me: Greedy) -> Iterator[None]:
    while True:
        created_groups = [_named(me, ObjectType.GROUP) for _ in range(limits.GROUPS_PER_CALL_MAX)]
        refs = tuple(group.reference.ref for group in created_groups if group is not None)
        yield
        for _ in range(100):
            me.ask(messages.Create(ObjectType.SHMEM_BLOB, refs, data=b"x"))
            yield
        for ref in refs:
            _destroy(me, ref)
            yield
        me.leave()


@_kind("durable objects that are created and destroyed")
def catalogue_writes(me: Greedy) -> Iterator[None]:
    while True:
        blobs = [_named(me, ObjectType.DURABLE_BLOB, data=b"x" * 100) for _ in range(8)]
        yield
        for blob in blobs:
            if blob is not None:
                me.ask(messages.Delete(blob.reference.ref, int(Flag.DESTROY)))
        yield


@_kind("small durable writes in long queues")
def durable_writes(me: Greedy) -> Iterator[None]:
    blob = _named(me, ObjectType.DURABLE_BLOB, data=b"x")
    ref = 1 if blob is None else blob.reference.ref
    while True:
        for _ in range(_PART):
            me.post(messages.WriteOnce(ref, b"z" * 1_000))
        yield
        me.ask(messages.Stat(_myself(me)))


@_kind("durable writes of 16 MiB")
def large_durable_writes(me: Greedy) -> Iterator[None]:
    return _writes(me, _named(me, ObjectType.DURABLE_BLOB))


@_kind("entries of a durable stream")
def log_entries(me: Greedy) -> Iterator[None]:
    stream = _named(me, ObjectType.DURABLE_STREAM)
    ref = 1 if stream is None else stream.reference.ref
    while True:
        for _ in range(16):
            me.post(messages.WriteOnce(ref, b"e" * 1_000))
        yield
        me.ask(messages.Stat(_myself(me)))


# -- bytes ----------------------------------------------------------------------------------------------
def _writes(me: Greedy, created: Created | None, size: int = _LARGE, offset: int = 0) -> Iterator[None]:
    ref = 1 if created is None else created.reference.ref
    while True:
        got = me.ask(messages.AcquireWrite(ref, size, offset, Semantics.ANY))
        yield
        if isinstance(got, messages.Buffer):
            me.ask(messages.CommitWrite(ref, got.buffer))
            me.ask(messages.ReleaseWrite(ref, got.buffer))
        yield


@_kind("writes of 16 MiB")
def large_writes(me: Greedy) -> Iterator[None]:
    return _writes(me, _named(me, ObjectType.SHMEM_BLOB))


@_kind("reads of 16 MiB")
def large_reads(me: Greedy) -> Iterator[None]:
    blob = _named(me, ObjectType.SHMEM_BLOB)
    ref = 1 if blob is None else blob.reference.ref
    got = me.ask(messages.AcquireWrite(ref, _LARGE))
    if isinstance(got, messages.Buffer):
        me.ask(messages.CommitWrite(ref, got.buffer))
        me.ask(messages.ReleaseWrite(ref, got.buffer))
    while True:
        read = me.ask(messages.AcquireRead(ref))
        if isinstance(read, messages.Buffer):
            me.ask(messages.ReleaseRead(ref, read.buffer))
        yield


@_kind("raw memory of 16 MiB, written all the time")
def raw_memory(me: Greedy) -> Iterator[None]:
    return _writes(me, _named(me, ObjectType.SHMEM_BLOB, buffering=Buffering.RAW))


@_kind("writes far beyond the end of an object, which are refused")
def distant_writes(me: Greedy) -> Iterator[None]:
    while True:
        blob = _named(me, ObjectType.SHMEM_BLOB)
        for _ in range(4):
            yield from itertools.islice(_writes(me, blob, 100, _GIB), 2)
        if blob is not None:
            _destroy(me, blob.reference.ref)
        yield


@_kind("objects of 256 MiB that are mostly holes, with small writes and reads at many places")
def sparse_objects(me: Greedy) -> Iterator[None]:
    size = _GIB // 4
    while True:
        blob = _named(me, ObjectType.SHMEM_BLOB)
        yield
        if blob is None:
            continue
        ref = blob.reference.ref
        got = me.ask(messages.AcquireWrite(ref, size, flags=int(Flag.BLANK)))
        if isinstance(got, messages.Buffer):
            me.ask(messages.CommitWrite(ref, got.buffer))
            me.ask(messages.ReleaseWrite(ref, got.buffer))
        for offset in range(0, size, size // _PART):
            me.ask(messages.WriteOnce(ref, b"s" * 100, offset))
            me.ask(messages.ReadOnce(ref, 100, offset // 2))
            yield
        _destroy(me, ref)


@_kind("4,000 buffers that are acquired and abandoned")
def abandoned_buffers(me: Greedy) -> Iterator[None]:
    while True:
        ref = _create(me, data=b"x" * 1_000)
        pair: tuple[PlainCall, ...] = (messages.AcquireRead(ref), messages.AcquireWrite(ref))
        for _ in _vectors(me, itertools.islice(itertools.cycle(pair), limits.BUFFERS_PER_TASK_MAX)):
            yield
        me.leave()


@_kind("buffers that are committed and acquired again in one call")
def commit_cycles(me: Greedy) -> Iterator[None]:
    ref = _create(me, data=b"x" * 10_000)
    got = me.ask(messages.AcquireWrite(ref))
    while True:
        if not isinstance(got, messages.Buffer):
            got = me.ask(messages.AcquireWrite(ref))
        else:
            got = me.ask(messages.CommitAcquireWrite(ref, got.buffer, data=b"y" * 10_000))
        yield


@_kind("copies between objects of another kind")
def copies_of_bytes(me: Greedy) -> Iterator[None]:
    ref = _create(me, data=b"x" * 30_000)
    while True:
        answer = me.ask(messages.Copy(ref, _myself(me), _ALL, buffering=Buffering.RAW))
        if isinstance(answer, References):
            me.ask(messages.Delete(answer.references[0].ref))
        yield


# -- tasks ----------------------------------------------------------------------------------------------
@_kind("children that are started and killed at once")
def killed_children(me: Greedy) -> Iterator[None]:
    program = _create(me, data=b"import time; time.sleep(60)")
    while True:
        started = [_start(me, program) for _ in range(4)]
        yield
        for ref in started:
            _destroy(me, ref)
        yield


@_kind("children with 250 inputs and long labels, which are described")
def described_children(me: Greedy) -> Iterator[None]:
    program = _create(me, data=b"import time; time.sleep(60)")
    blob = _create(me, data=b"x")
    inputs = tuple(messages.Handed(blob, 1, f"{number}" * 20) for number in range(250))
    label = "long" * (limits.TEXT_BYTES_MAX // 4)
    while True:
        child = _start(me, program, inputs=inputs, label=label)
        for _ in range(50):
            me.ask(Vector((messages.Describe(child or _myself(me)),) * 16))
            yield
        _destroy(me, child)


@_kind("children that are paused and continued")
def paused_children(me: Greedy) -> Iterator[None]:
    child = _start(me, _create(me, data=b"while True: pass"))
    for number in itertools.count():
        me.ask(messages.Pause(child) if number % 2 else messages.Resume(child))
        yield


@_kind("runs that wait for a place")
def waiting_runs(me: Greedy) -> Iterator[None]:
    program = _create(me, data=b"pass")
    work = messages.Work(cpus_milli=10**9, priority=2**40)
    while True:
        seqs = [me.post(messages.Run(program, work=work)) for _ in range(_PART)]
        yield
        for seq in seqs:
            me.post(messages.Cancel(seq))
        me.ask(messages.Stat(_myself(me)))
        yield


_program("cpu-burners", "8 tasks that compute", b"while True: pass", 8)
_program("output-floods", "tasks that print as much as they can", b"while True: print('\\x1b[2J' * 20_000)")
_program(
    "thread-bombs",
    "tasks that start threads until they are refused",
    b"import threading, time\nwhile True:\n try: threading.Thread(target=time.sleep, args=(9,)).start()\n"
    b" except RuntimeError: time.sleep(0.01)\n",
)
_program(
    "memory-eaters",
    "tasks that fill 64 MiB of memory again and again",
    b"while True:\n    block = bytearray(64 << 20)\n"
    b"    for place in range(0, len(block), 4096): block[place] = 1\n",
)
_program(
    "stream-pumps",
    "tasks that send and receive through a stream of their own",
    b"import dios\nstream = dios.create_stream()\n"
    b"while True:\n    stream.send(b'x' * 60_000)\n    stream.receive()\n",
)
_program(
    "failures",
    "tasks that fail with an exception, in a storm",
    b"raise ValueError('x' * 5_000)",
    8,
)


# -- the network, and questions ---------------------------------------------------------------------------
@_kind("listeners of TCP, and connections to nobody", owner=True)
def network_opens(me: Greedy) -> Iterator[None]:
    me.ask(messages.Lookup(special_name(NETWORK)))
    while True:
        for kind, address in (
            (ObjectType.TCP_ACCEPT_STREAM, "127.0.0.1:0"),
            (ObjectType.TCP_STREAM, "127.0.0.1:9"),
            (ObjectType.UDP_STREAM, "127.0.0.1:0"),
        ):
            me.post(messages.Create(kind, name_kind=NameKind.ANONYMOUS, address=address))
            yield
        me.ask(messages.Stat(_myself(me)))


@_kind("questions about the node, its tasks and its limits", owner=True)
def statistics(me: Greedy) -> Iterator[None]:
    calls: tuple[PlainCall, ...] = (messages.NodeInfo(), messages.ListTasks(), messages.ListLimits())
    return _repeat(me, Vector((*calls, messages.ListNodes()) * 32))


@_kind("questions to the scheduler", owner=True)
def scheduler_questions(me: Greedy) -> Iterator[None]:
    question = messages.AskScheduler(b" " * limits.SCHEDULER_QUESTION_BYTES_MAX)
    while True:
        for _ in range(8):
            me.post(question)
        yield
        me.ask(messages.ReadQueue())
        me.ask(messages.ReadTable("references"))
        yield
