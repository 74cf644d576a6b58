"""The operations of a node: creating, looking up and running objects, and vectors of calls (thesis §4.6).

The operations are written once for both clients. ``dios.client.sync.node`` and ``dios.client.aio.node`` wait
for the answers, and have streams and ``select``, which wait differently.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, Generic, TypeAlias, TypeVar, cast

from dios.client.buffers import memory_of
from dios.client.ops import traced_tasks
from dios.client.ops.attributes import ClientLink, Handed, Handle
from dios.client.ops.cluster import ClusterOps, Gathered
from dios.client.ops.handles import Data, nanoseconds, write_whole
from dios.client.ops.requests import WriteOps, finish_together
from dios.client.ops.status import ChildEnded, Delegated, Lost, Retired, Status, status_of
from dios.client.program import Program, ProgramText, encode_program, is_wasm, with_files
from dios.client.session import Answer, Operation, expect, expect_buffer, vector
from dios.client.tracing import active
from dios.errors import DiosError, InvalidError, NotPermittedError, TimeLimitError
from dios.ids import Name
from dios.limits import (
    GROUPS_PER_CALL_MAX,
    INLINE_BYTES_MAX,
    LOOKUP_REFERENCES_MAX,
    MOVE_WAIT_MS_MAX,
    PROGRESS_WHOLE,
    SECRECY_TAGS_MAX,
)
from dios.wire import messages
from dios.wire.codec import decode_event
from dios.wire.fields import TAG, TRACE_OUTPUT
from dios.wire.messages import PlainCall
from dios.wire.nametext import PREFIX, fingerprint, parse_name
from dios.wire.types import (
    Brand,
    Buffering,
    Deletion,
    Flag,
    Isolation,
    Mode,
    NameKind,
    ObjectType,
    Permission,
    Semantics,
)

if TYPE_CHECKING:
    from dios.wire.sealed_tokens import SealedToken, TokenGrant

R = TypeVar("R", bound=Handle)
T = TypeVar("T", bound=Handle)
G = TypeVar("G", bound=Handle)
S = TypeVar("S", bound=Handle)
C = TypeVar("C", bound=Handle)

Given: TypeAlias = "Handle | Handed"
HandedOver: TypeAlias = "Sequence[Given] | Mapping[str, Given]"

_FAILURE_CHARS_MAX: Final = 1_000


class NodeOps(ClusterOps, Generic[R, T, G, S, C]):
    """The operations of a node; the type variables are the client's classes of handles."""

    def __init__(self, link: ClientLink, welcome: messages.Welcome, *, ambient: bool = False) -> None:
        super().__init__(link, welcome, ambient=ambient)
        self.self: Final = cast("T", self.handle(welcome.self_ref, welcome.name))
        """This task itself: read it for events, delegate it to tasks that shall delegate to this one."""
        self.console: Final = cast("C", self.handle(welcome.console))
        self.groups = tuple(cast("G", self.handle(info)) for info in welcome.groups)
        """The groups of which this task is a member, without those that were not presented yet."""
        self.present_later: Callable[[], Sequence[Name]] | None = None
        """Returns further groups of the user's keyring, which are presented when a lookup needs them."""
        self.inputs: Final = tuple(cast("R", self.handle(info)) for info in welcome.inputs)
        given = welcome.outputs
        if given and given[-1].label.startswith(TRACE_OUTPUT):
            given = given[:-1]  # the blob for the spans of this task
        self.outputs: Final = tuple(cast("R", self.handle(info)) for info in given)
        self.executable: Final = (
            None if welcome.executable is None else cast("R", self.handle(welcome.executable))
        )
        self.home: Final = next(
            (group for group in self.groups if welcome.home and group.ref == welcome.home.ref), None
        )
        """The home group of the user whose process this is; None in a task."""
        self.devices: Final = {grant.kind: grant for grant in welcome.devices if grant.names}
        """The devices of this task by kind, with their names and files."""

    @property
    def held_calls(self) -> int:
        """The number of calls of this client that wait in it, because 256 others wait at the node."""
        return self.link.held_calls

    def input(self, label: str) -> R:
        """Return the input with the label ``label``."""
        return _labelled(self.inputs, label, "input")

    def output(self, label: str) -> R:
        """Return the output with the label ``label``."""
        return _labelled(self.outputs, label, "output")

    # -- create -----------------------------------------------------------------------------------
    def create_op(
        self,
        object_type: ObjectType,
        *,
        groups: Iterable[Handle] = (),
        data: Data | None = None,
        size: int = 0,
        naming: NameKind = NameKind.RANDOM,
        deletion: Deletion | None = None,
        buffering: Buffering = Buffering.DOUBLE,
        host: str = "",
        flags: Flag = Flag.NONE,
        secrecy: Iterable[str] | None = None,
    ) -> Operation[R]:
        """Create an object in ``groups`` and return a reference with every right (B.1.1).

        ``data`` are the first bytes of a blob; ``size`` is the ring of a stream in bytes, or the delay of a
        timer in nanoseconds; ``host`` is the name of the node for the object, by default this node. A durable
        object is on disk when this returns. ``flags`` are those of the call (``Flag.SERVICES``). ``secrecy``
        are the tags of its label, such as "payroll" or "uid:1000/payroll"; without them it has those of the
        caller.
        """
        view = None if data is None else memoryview(data).cast("B")
        large = view is not None and view.nbytes > INLINE_BYTES_MAX
        call = messages.Create(
            object_type,
            refs_of(groups),
            naming,
            deletion,
            size,
            buffering,
            data=None if view is None or large else bytes(view),
            host=host,
            flags=int(flags),
        )
        call = labelled_call(call, secrecy)
        created = expect(messages.Created, (yield call))
        handle = cast("R", self.handle(created.reference, created.name))
        if view is not None and large:
            yield from self._first_bytes(handle, view)
        return handle

    def _first_bytes(self, handle: R, view: memoryview) -> Operation[None]:
        request = WriteOps(handle, view.nbytes, 0, Semantics.ANY, blank=True, replace=True)
        try:
            yield from write_whole(request, view)
        except DiosError:
            # An object without its bytes is useless.
            yield messages.Delete(handle.ref, int(Flag.DESTROY))
            raise

    def create_group_op(self, *, parents: Iterable[Handle] | None = None) -> Operation[G]:
        """Create a group; this task may create in it and grant membership (Table 4.2).

        Its ``parents`` are by default the home group of a user's process, so that it outlives the node. The
        group of a task without a home exists as long as references to it.
        """
        home = self.home
        refs = (home.ref,) if parents is None and home is not None else refs_of(parents or ())
        created = expect(messages.Created, (yield messages.Create(ObjectType.GROUP, refs)))
        return cast("G", self.handle(created.reference, created.name))

    def declassifier_op(self, tags: Iterable[str]) -> Operation[R]:
        """Return a reference with the right to declassify these tags of the caller's user.

        It is to an empty object with this label. A task gets the right with
        ``reference.restrict("declassify")`` among its inputs, as long as its reference exists.

        Raises:
            NotPermittedError: the caller may not declassify these tags.
        """
        handle = yield from self.create_op(ObjectType.SHMEM_BLOB, naming=NameKind.ANONYMOUS, secrecy=tags)
        if not handle.permissions & Permission.DECLASSIFY:
            yield messages.Delete(handle.ref)
            raise NotPermittedError(
                f"cannot get the right to declassify {', '.join(handle.secrecy)}: only processes of the "
                "owner of all these tags have it"
            )
        return handle

    def create_stream_op(
        self,
        *,
        groups: Iterable[Handle] = (),
        ring_bytes: int = 0,
        host: str = "",
        secrecy: Iterable[str] | None = None,
    ) -> Operation[S]:
        """Create a stream in shared memory between two tasks; it is anonymous if it is in no group.

        ``host`` is the node for the stream, best that of the reading task; ``ring_bytes`` 0 is the default.
        ``secrecy`` are the tags of what it may carry; both its tasks get them.
        """
        refs = refs_of(groups)
        naming = NameKind.RANDOM if refs else NameKind.ANONYMOUS
        call = messages.Create(ObjectType.SHMEM_STREAM, refs, naming, size=ring_bytes, host=host)
        created = expect(messages.Created, (yield labelled_call(call, secrecy)))
        return cast("S", self.handle(created.reference, created.name))

    def create_timer_op(self, seconds: float) -> Operation[R]:
        """Create a timer that becomes ready for ``select`` once, after ``seconds``."""
        delay = max(1, nanoseconds(seconds) or 0)
        call = messages.Create(ObjectType.TIMER_BLOB, name_kind=NameKind.ANONYMOUS, size=delay)
        created = expect(messages.Created, (yield call))
        return cast("R", self.handle(created.reference, created.name))

    # -- groups -----------------------------------------------------------------------------------
    def group_op(self, name: bytes | str) -> Operation[G | None]:
        """Return the group with this name or alias of the keyring; None if the node knows no such group.

        A user's process becomes a member of it by this, if the group is of the same user.
        """
        raw = Name(name) if isinstance(name, bytes) else _group_named(name)
        mark = fingerprint(raw)
        known = next((group for group in self.groups if group.fingerprint == mark), None)
        if known is not None or self.ambient:
            return known
        presented = yield from self._present((raw,))
        return presented[0] if presented else None

    def present_all_op(self) -> Operation[None]:
        """Become a member of all groups of the user's keyring that a session can have."""
        names, self.present_later = () if self.present_later is None else self.present_later(), None
        for start in range(0, len(names), GROUPS_PER_CALL_MAX):
            yield from self._present(names[start : start + GROUPS_PER_CALL_MAX])

    def _present(self, names: Sequence[Name]) -> Operation[tuple[G, ...]]:
        answer = expect(messages.References, (yield messages.Present(tuple(names))))
        presented = tuple(cast("G", self.handle(info)) for info in answer.references)
        self.groups = (*self.groups, *presented)
        return presented

    def share_group_op(self, group: Handle, reader: str, *, nonce: bytes, expires_ns: int) -> Operation[R]:
        """Let the processes of another user (``uid:1000``) read what is in a group, until ``expires_ns``.

        Return the record of the share: destroying it withdraws the share. The reader needs ``nonce``, 32
        random bytes. Raises NotPermittedError for a task, and if the caller is no member of the
        group.
        """
        call = messages.ShareGroup(refs_of((group,))[0], nonce, reader, expires_ns)
        created = expect(messages.Created, (yield call))
        return cast("R", self.handle(created.reference, created.name))

    def accept_share_op(self, group: bytes, *, nonce: bytes, issuer: str, expires_ns: int) -> Operation[G]:
        """Return a group that ``issuer`` shares with this user, for lookups in it.

        Objects in it can be read, and neither written nor delegated. Raises NotPermittedError if the
        share is for another user, over, or withdrawn.
        """
        call = messages.AcceptShare(group, nonce, issuer, expires_ns)
        answer = expect(messages.References, (yield call))
        return cast("G", self.handle(answer.references[0], group))

    def issue_token_op(self, group: Handle, grant: TokenGrant) -> Operation[R]:
        """Record the grant of a sealed token for a group; return the record.

        Its name seals the token (``dios.wire.sealed_tokens.seal_grant``), and its destruction revokes all
        tokens of the grant. Raises NotPermittedError for a task, and if the caller is no member of the group,
        InvalidError if the node is in no cluster or the grant is not for this group.
        """
        from dios.wire.sealed_tokens import encode_grant  # noqa: PLC0415 - few tasks need it

        call = messages.IssueToken(refs_of((group,))[0], encode_grant(grant))
        created = expect(messages.Created, (yield call))
        return cast("R", self.handle(created.reference, created.name))

    def redeem_token_op(self, token: SealedToken, *, cluster: bytes = b"", user: str = "") -> Operation[G]:
        """Return the group of a sealed token of this cluster, for lookups in it.

        Objects in it can be read, and neither written nor delegated. The node's own user names the holder of
        another cluster with ``cluster`` and ``user``. Raises NotPermittedError if the token was changed or
        revoked, is over, or is for somebody else.
        """
        from dios.wire.sealed_tokens import encode_token  # noqa: PLC0415 - as above

        call = messages.RedeemToken(encode_token(token), cluster, user)
        answer = expect(messages.References, (yield call))
        return cast("G", self.handle(answer.references[0], token.grant.group))

    # -- lookup -----------------------------------------------------------------------------------
    def lookup_op(
        self,
        name: bytes | str,
        *,
        group: Handle | None = None,
        limit: int = LOOKUP_REFERENCES_MAX,
        local_only: bool = False,
    ) -> Operation[Gathered[R]]:
        """Return references to the physical objects of a name, in one group or all of this task's (B.1.2).

        The list is empty both for a name that does not exist and for one in other groups. Close each of its
        handles. Its ``incomplete`` is True if a node that may have more could not be asked.
        """
        raw = name_bytes(name)
        flags = int(Flag.LOCAL_ONLY) if local_only else 0
        call = messages.Lookup(raw, 0 if group is None else refs_of((group,))[0], limit, flags)
        if group is None and limit > 1:
            yield from self.present_all_op()
        answer = expect(messages.References, (yield call))
        if group is None and not answer.references and self.present_later is not None:
            yield from self.present_all_op()
            answer = expect(messages.References, (yield call))
        handles = [cast("R", self.handle(info, raw)) for info in answer.references]
        return Gathered(handles, incomplete=answer.incomplete)

    def find_op(self, name: bytes | str, *, group: Handle | None = None) -> Operation[R | None]:
        """Return one reference to a name, or None."""
        handles = yield from self.lookup_op(name, group=group, limit=1)
        return handles[0] if handles else None

    # -- run --------------------------------------------------------------------------------------
    def create_program_op(
        self,
        program: ProgramText,
        *,
        modules: Mapping[str, str | Path] | None = None,
        groups: Iterable[Handle] = (),
        durable: bool = False,
    ) -> Operation[R]:
        """Create an executable object that can be run any number of times; anonymous if it is in no group."""
        inside = tuple(groups)
        return (
            yield from self.create_op(
                ObjectType.DURABLE_BLOB if durable else ObjectType.SHMEM_BLOB,
                groups=inside,
                data=encode_program(program, modules),
                naming=NameKind.RANDOM if inside else NameKind.ANONYMOUS,
            )
        )

    def run_op(
        self,
        program: ProgramText | R | None = None,
        *,
        groups: Iterable[Handle] = (),
        inputs: HandedOver = (),
        outputs: HandedOver = (),
        args: Iterable[str] = (),
        label: str = "",
        brand: Brand | str = Brand.PURE,
        limits: messages.Limits | None = None,
        modules: Mapping[str, str | Path] | None = None,
        like: Handle | None = None,
        wait: bool = True,
        host: str = "",
        local: bool = False,
        work: messages.Work | None = None,
        detach: bool = False,
        files: Collection[str] = (),
        template: str = "",
        forkable: bool = False,
        fork_of: Handle | None = None,
        network: bool = False,
        sandbox: bool = False,
        isolation: Isolation | str = Isolation.KERNEL,
    ) -> Operation[T]:
        """Start a task as a member of ``groups`` with exactly these references, and return it (B.1.5).

        ``program`` is a path to a .py or .wasm file, source or module as bytes, a ``Program``, or a reference
        to an executable object. A WebAssembly module runs as a pure task only. With ``wait`` the task's
        process runs when this returns; otherwise its status shows a failure to start. The task runs on the
        node called ``host``, else with ``local`` on this node, else where the scheduler places it; then this
        returns when it is placed. If the user has a quota of the cluster, or runs of others wait for their
        turn, it waits for its own turn in each case. ``work`` are its needs, from ``dios.work(...)``. A task
        that a user's process started ends with its connection, unless another task refers to it, or it was
        started with ``detach``.

        ``files`` are labels of inputs and outputs that a pure task finds as files: it reads the input "csv"
        as ``/inputs/csv``, and the file that it leaves in ``/outputs/LABEL`` when it ends with 0 becomes the
        content of that output. Then ``program`` must not be a reference. A WebAssembly module finds all its
        inputs and outputs as files, without a copy of the inputs.

        ``template`` names a template in the node's settings: modules that are loaded already when the task
        starts, in memory that all its tasks share. It may name an environment, too: packages that are
        installed for the caller's tasks alone (``dios.lib.environments``). Raises NotSupportedError with the
        reason if the node has none of that name, or it cannot be loaded.

        With ``isolation="gvisor"`` a pure task makes its system calls to gVisor, a kernel in a process of its
        own, and not to the kernel of the machine. It has no template and no objects of other nodes. Raises
        NotSupportedError with the reason if the node cannot start gVisor.

        With ``sandbox`` the task is held to the node's limits for sessions of sandboxes, too.

        With ``network`` the task may create network streams on the node where it runs. Only the processes of
        the nodes' own user and of root may give that.

        ``like`` is a task to repeat, with the same program unless one is given; ``inputs`` are added
        to those of that task, and the other arguments must be left out.

        A pure task with ``forkable`` can be forked while it runs: ``fork_of`` is such a task, and the new one
        begins with its memory and the given ``inputs``, with the same program and limits. The program of the
        task has to take part in it, as the sessions of ``dios.Sandbox`` do.
        """
        if fork_of is not None and (program is not None or like is not None):
            raise InvalidError("a fork has the program of its origin; leave out program and like", call="run")
        like = like if fork_of is None else fork_of
        if program is None and like is None:
            raise InvalidError("give a program, or a task to repeat (like)", call="run")
        name = label or _label_of(program)
        _require_pure_for_wasm(program, brand)
        if files:
            program = _with_files(program, files, _handed(inputs), _handed(outputs), brand)
        own, executable = 0, program.ref if isinstance(program, Handle) else 0
        if program is not None and not isinstance(program, Handle):
            own_program = yield from self.create_program_op(program, modules=modules)
            executable = own = own_program.ref
        drop = messages.Delete(own, int(Flag.HANDLE_ONLY))
        given, started = _handed(outputs), None
        if active.recorder is not None and like is None and not detach:
            started = yield from traced_tasks.begin_op(name, given)
        try:
            call = messages.Run(
                executable,
                refs_of(groups),
                _handed(inputs),
                given if started is None else (*given, traced_tasks.output_of(started)),
                tuple(args),
                name,
                _brand_of(brand),
                limits=messages.Limits() if limits is None else limits,
                flags=(Flag.NONE if wait else Flag.NON_BLOCKING)
                | (Flag.SPAWN_LOCAL if local else Flag.NONE)
                | (Flag.NONE if detach or self.ambient else Flag.WITH_SESSION)
                | (Flag.FORKABLE if forkable else Flag.NONE)
                | (Flag.FORK if fork_of is not None else Flag.NONE)
                | (Flag.WITH_NETWORK if network else Flag.NONE)
                | (Flag.SANDBOX if sandbox else Flag.NONE)
                | (Flag.GVISOR if isolation_of(isolation) is Isolation.GVISOR else Flag.NONE),
                like=0 if like is None else refs_of((like,))[0],
                host=host,
                work=messages.Work() if work is None else work,
                template=template,
            )
            answer = (yield call) if started is None else (yield from traced_tasks.within_op(started, call))
            created = expect(messages.Created, answer)
        except DiosError:
            if own:
                yield drop
            if started is not None:
                yield from traced_tasks.drop_op(started)
            raise
        if started is not None:
            self.traced_tasks[created.reference.fingerprint] = started
        if own:
            # The task has its own reference to its program.
            yield drop
        return cast("T", self.handle(created.reference, created.name))

    # -- events -----------------------------------------------------------------------------------
    def next_event_op(
        self, timeout: float | None = None
    ) -> Operation[Delegated[R] | ChildEnded | Retired | Lost]:
        """Wait for the next event on the self-reference: a delegation, its end, or the end of a child.

        Raises TimeLimitError after ``timeout`` seconds.
        """
        own = self.self_info.ref
        if timeout is not None:
            ready = expect(
                messages.Selected, (yield messages.Select((own,), Mode.READ, nanoseconds(timeout)))
            )
            if ready.index < 0:
                raise TimeLimitError("no event came in time", call="next_event")
        result, fd = expect_buffer((yield messages.ReadOnce(own)))
        event = decode_event(memory_of(result, fd, writable=False).read())
        if isinstance(event, messages.Delegated):
            return Delegated(cast("R", self.handle(event.reference, None)), event.sender)
        if isinstance(event, messages.ChildEnded):
            return ChildEnded(event.object, status_of(event.status))
        if isinstance(event, messages.Retired):
            return Retired(event.ref, event.object, event.fingerprint, event.label, event.expired)
        return Lost(event.count)

    # -- in bulk, and about the node --------------------------------------------------------------
    def vector_op(self, calls: Iterable[PlainCall]) -> Operation[list[Answer | DiosError]]:
        """Make independent calls, none of which may wait, in the smallest number of messages.

        Returns, for each call, its result and descriptors, or the exception of its refusal.
        """
        return (yield from vector(calls))

    def finish_writes_op(self, sizes: Mapping[WriteOps, int]) -> Operation[dict[WriteOps, DiosError | None]]:
        """Commit the first bytes of several requests, this number of each, and release them, in few messages.

        Returns the error of each commit, or None.
        """
        return (yield from finish_together(sizes))

    def tasks_op(self, *, local_only: bool = False) -> Operation[Gathered[Status]]:
        """Return the status of every task of the caller's principal, oldest first; refused to pure tasks.

        It asks all nodes, or with ``local_only`` this one. ``incomplete`` is True if a node could not be
        asked, and ``dead_only`` if all of those are dead.
        """
        flags = int(Flag.LOCAL_ONLY) if local_only else 0
        answer = expect(messages.Tasks, (yield messages.ListTasks(flags)))
        rows = [status_of(row) for row in answer.tasks]
        return Gathered(rows, incomplete=answer.incomplete, dead_only=answer.dead_only)

    def shutdown_op(self) -> Operation[None]:
        """End the node; for its own user and root."""
        expect(messages.Done, (yield messages.Shutdown()))

    def wait_move_op(self, timeout: float | None = None) -> Operation[float | None]:
        """Wait until this task is asked to leave its node; return the seconds until it is ended.

        Returns None if it was not asked within ``timeout`` seconds. ``dios.checkpointed`` does this for a
        program whose state is saved by a function.
        """
        until = None if timeout is None else time.monotonic() + timeout
        while True:
            left = MOVE_WAIT_MS_MAX if until is None else max(0, round((until - time.monotonic()) * 1000))
            asked = expect(messages.Done, (yield messages.AwaitMove(min(left, MOVE_WAIT_MS_MAX)))).value
            if asked:
                return asked / 1000
            if left < MOVE_WAIT_MS_MAX:
                return None

    def leave_op(self, failure: str = "") -> Operation[None]:
        """End this task, which was asked to leave its node and has saved its state.

        A ``failure`` is the reason why it could not save its state. Raise InvalidError if the node has not
        asked this task to leave.
        """
        text = failure.encode(errors="replace").decode()[:_FAILURE_CHARS_MAX]
        expect(messages.Done, (yield messages.Leave(text)))

    def progress_op(self, fraction: float) -> Operation[None]:
        """Report the share of its work that this task has done, from 0 to 1.

        `dios ps` shows it, and cost models that compare tasks of a job use it. Raise InvalidError for a
        session, and for a share out of range.
        """
        if not 0 <= fraction <= 1:
            raise InvalidError(f"the progress of a task is {fraction}; it is a share and must be from 0 to 1")
        expect(messages.Done, (yield messages.ReportProgress(int(fraction * PROGRESS_WHOLE))))

    def pause_op(self) -> Operation[None]:
        """Suspend this task until another task resumes it (B.1.6)."""
        expect(messages.Done, (yield messages.Pause(self.self_info.ref)))


def name_bytes(name: bytes | str) -> Name:
    """Return a name given as bytes or text; InvalidError if it is mistyped."""
    return parse_name(name) if isinstance(name, str) else Name(bytes(name))


def _group_named(text: str) -> Name:
    if text.lower().startswith(PREFIX):
        return parse_name(text)
    from dios.client.keyring import Keyring  # noqa: PLC0415 - tasks have no keyring, and start faster without

    return Keyring.load().name_of(text)


def mode_of(mode: str | Mode) -> Mode:
    """Return a mode given by its name, "read" or "write"."""
    try:
        return mode if isinstance(mode, Mode) else Mode[mode.upper()]
    except KeyError:
        raise InvalidError(f"select waits to 'read' or to 'write', not to {mode!r}") from None


def select_op(references: Sequence[Handle], mode: Mode, timeout: float | None) -> Operation[int]:
    """Return the index of a reference that is ready for I/O, -1 after ``timeout`` seconds (B.1.13)."""
    call = messages.Select(refs_of(references), mode, nanoseconds(timeout))
    return expect(messages.Selected, (yield call)).index


def _labelled(references: tuple[R, ...], label: str, kind: str) -> R:
    for reference in references:
        if reference.label == label:
            return reference
    raise InvalidError(f"this task has no {kind} with the label {label!r}")


def _brand_of(brand: Brand | str) -> Brand:
    if isinstance(brand, Brand):
        return brand
    try:
        return Brand[brand.upper()]
    except KeyError:
        raise InvalidError(f"a program runs as 'pure' or 'limbo', not as {brand!r}") from None


def _with_files(
    program: object,
    files: Collection[str],
    inputs: Iterable[messages.Handed],
    outputs: Iterable[messages.Handed],
    brand: Brand | str,
) -> Program:
    if program is None or isinstance(program, Handle):
        raise InvalidError("files need the program itself, not a reference to it", call="run")
    if _brand_of(brand) is not Brand.PURE:
        raise InvalidError("only pure tasks have inputs and outputs as files", call="run")
    read = [handed.label for handed in inputs if handed.label in files]
    written = [handed.label for handed in outputs if handed.label in files]
    for label in files:
        if written.count(label) + (label in read) != 1:
            raise InvalidError(
                f"an input, or several as its parts, or exactly one output must have the label {label!r}",
                call="run",
            )
    return with_files(cast("ProgramText", program), dict.fromkeys(read), written)


def _require_pure_for_wasm(program: object, brand: Brand | str) -> None:
    if program is None or isinstance(program, Handle) or _brand_of(brand) is Brand.PURE:
        return
    if is_wasm(cast("ProgramText", program)):
        raise InvalidError("a WebAssembly module runs as a pure task only, not in limbo", call="run")


def isolation_of(isolation: Isolation | str) -> Isolation:
    """Return the kernel with a name: "kernel" or "gvisor". Raise InvalidError for another one."""
    names = {str(known): known for known in Isolation}
    if str(isolation) not in names:
        raise InvalidError(f"isolation is {' or '.join(map(repr, names))}, not {isolation!r}", call="run")
    return names[str(isolation)]


def _label_of(program: object) -> str:
    return Path(program).name if isinstance(program, str | Path) else ""


def refs_of(handles: Iterable[Handle]) -> tuple[int, ...]:
    """Return the numbers of references for a call; InvalidError if one is a name or an alias."""
    try:
        return tuple([handle.ref for handle in handles])
    except AttributeError:
        raise InvalidError(
            "a call takes references, not names or aliases: use `node.groups` for your groups, "
            "and `node.lookup` for the references to a name"
        ) from None


def labelled_call(call: messages.Create, secrecy: Iterable[str] | None) -> messages.Create:
    """Return the call with these tags for the new object; None leaves the label to the node."""
    return call if secrecy is None else messages.labelled(call, require_tags(secrecy))


def require_tags(secrecy: Iterable[str]) -> tuple[str, ...]:
    """Return the tags of a label, each once. Raise InvalidError if they cannot be the tags of a label."""
    tags = tuple(dict.fromkeys(secrecy))
    for tag in tags:
        if not TAG.match(tag):
            raise InvalidError(
                f"{tag!r} is no secrecy tag: a tag is a word of at most 32 small letters, digits and . _ -, "
                "perhaps with its owner before it, as uid:1000/payroll"
            )
    if len(tags) > SECRECY_TAGS_MAX:
        raise InvalidError(f"a secrecy label has at most {SECRECY_TAGS_MAX} tags")
    return tags


def _handed(given: HandedOver) -> tuple[messages.Handed, ...]:
    if isinstance(given, Mapping):
        return tuple(_one_handed(item, label).message() for label, item in given.items())
    return tuple(_one_handed(item, "").message() for item in given)


def _one_handed(item: Given, label: str) -> Handed:
    if isinstance(item, Handed):
        return Handed(item.reference, item.permissions, label or item.label, item.lifetime_ns)
    refs_of((item,))
    return Handed(item, item.permissions & Permission.ALL, label)
