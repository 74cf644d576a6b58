"""run: start a child with exactly the memberships, references and limits that it is given (B.1.5).

A run waits in the submission queue (``submissions``) or starts at once. A start builds the child's recipe
(``run_orders``), checks its limits (``admission``), and creates the child (``starting``). If other nodes
are involved, ``dios.core.remote.remote_run`` does these steps when those nodes have offered the child's
references.
"""

from __future__ import annotations

from typing import Final, cast

from msgspec.structs import replace

from dios import limits
from dios.core import lifetimes
from dios.core.calls import (
    admission,
    lifecycle,
    own_rule,
    rights,
    run_orders,
    starting,
    submissions,
    waiting_starts,
)
from dios.core.calls.delegation import end_of
from dios.core.calls.handlers import handles
from dios.core.model.records import (
    ChildIdentity,
    FormerEntry,
    Holder,
    Pending,
    Provenance,
    earlier,
)
from dios.core.model.start_queue import QueuedStart
from dios.core.model.submission_queue import QueuedRun
from dios.core.model.work_items import QueuedStarts
from dios.core.remote import remote_calls, remote_run
from dios.core.remote.continuations import StartAnswer, StartProgress
from dios.core.remote.peers import Peer
from dios.core.step import Step
from dios.errors import (
    DiosError,
    InvalidError,
    NotSupportedError,
    TooLargeError,
    TooManyCallsError,
    UnreachableError,
    WouldBlockError,
)
from dios.ids import NodeId, Principal
from dios.wire import dcp, messages
from dios.wire.types import Brand, Flag, Isolation, Permission, Resource

_OWN_STARTS_MAX: Final = 16
NO_SCHEDULER: Final = (
    "no node of the cluster runs a scheduler. It needs the extra 'cluster' on one node; the logs of "
    "the nodes say why they run none (`dios node logs`)."
)


@handles(messages.Run)
def run(step: Step, task: Holder, seq: int, call: messages.Run) -> None:
    """dios_run: start a child at once, or let the run wait for the scheduler.

    It starts at once if there is no scheduler. If the caller chose the node, it starts at once unless its
    principal has a quota, or others wait for their turn.
    """
    submissions.require_sound(call.work)
    if _is_scheduled(step, task, call):
        _submit(step, task, seq, call)
    else:
        start(step, task, seq, call)


def _is_scheduled(step: Step, task: Holder, call: messages.Run) -> bool:
    """Return True if the run waits for the scheduler, False if it is placed at once.

    Raises:
        UnreachableError: the run needs a scheduler, and there is none.
        InvalidError: the run needs a scheduler, but the node has no cluster or the caller chose the node.
    """
    flags, cluster, work = Flag(call.flags), step.state.cluster, call.work
    if cluster is None:
        if work.particular:
            raise InvalidError(
                "this node belongs to no cluster, so it cannot schedule or reserve anything; `dios-node "
                "init` or `dios up` creates a cluster"
            )
        return False
    attended = step.state.queue.attended(step.now)
    if call.host or call.like or flags & Flag.SPAWN_LOCAL or step.parts is not None:
        if work.choosy:
            raise InvalidError(
                "gangs, bounds of jobs, affinity and constraints need the scheduler: leave out the host, and "
                "do not send the run in a vector"
            )
        return attended and not call.like and step.parts is None and _takes_turn(step, task, call)
    if not work.particular:
        return attended and (not flags & Flag.NON_BLOCKING or _takes_turn(step, task, call))
    if not (attended or cluster.here.coordinator or step.state.queue.barred(step.now)):
        raise UnreachableError(f"{NO_SCHEDULER} Without one, choose a host and reserve nothing.")
    return True


def _takes_turn(step: Step, task: Holder, call: messages.Run) -> bool:
    """Return True if a run waits for its turn although its caller chose the node, or would not wait.

    Its principal has a quota of the cluster, or runs of other principals wait. Until this node has learned
    the quotas, all principals but the nodes' own may have one.
    """
    if admission.is_coordinator(call.brand, call.label, call.work):
        return False
    known = step.state.admission
    if known is None:
        return not rights.is_nodes_own(step.state, task)
    return task.principal in known.quotas or known.others_wait(task.principal, step.now)


def _submit(step: Step, task: Holder, seq: int, call: messages.Run) -> None:
    """Put a run in the submission queue. A wrong run is refused at once."""
    table = step.state.queue
    own, principals = table.count_of(task.principal), len(table.by_principal.keys() | {task.principal})
    if own >= max(limits.SUBMISSIONS_MAX // max(principals, 2), 1):
        raise TooManyCallsError(
            f"cannot submit the run now: {own} runs of {task.principal} and {len(table.waiting)} of all wait "
            "on this node for the scheduler. Make the call again later; the Python clients do so."
        )
    inputs = run_orders.ordered(step, task, call).recipe.inputs
    chosen = _identity_for(step, task, call)
    call = replace(call, host=chosen.host)
    submissions.wait(step, task, seq, submissions.near_inputs(call, inputs), chosen)


def _identity_for(step: Step, task: Holder, call: messages.Run) -> ChildIdentity:
    """Return the identity of the child of a run that waits, with the node that its caller chose."""
    host, cluster = call.host, step.state.cluster
    if cluster is not None and call.flags & Flag.SPAWN_LOCAL:
        host = cluster.here.name
    elif cluster is not None and host:
        peer = remote_calls.peer_named(step, host)
        host = cluster.here.name if peer is None else peer.name
    return replace(lifecycle.fresh_identity(step, rights.local(task)), host=host)


def start(
    step: Step,
    task: Holder,
    seq: int,
    call: messages.Run,
    chosen: ChildIdentity | None = None,
    waited: Pending | None = None,
) -> None:
    """Start a child now, on this node or on another one, or let the run wait for room on this node.

    ``chosen`` is the child's identity, if it is fixed already. If the scheduler has placed the run and the
    node cannot reserve what it needs, the run is not refused: this raises WouldBlockError, or the run waits
    in the submission queue again. ``waited`` is the call if it has waited for room; it then remains waiting,
    and this raises NoRoomError, if there is still none.
    """
    flags = rights.flags_of(
        call.flags,
        Flag.NON_BLOCKING
        | Flag.SPAWN_LOCAL
        | Flag.WITH_SESSION
        | Flag.FORKABLE
        | Flag.FORK
        | Flag.WITH_NETWORK
        | Flag.SANDBOX
        | Flag.GVISOR,
    )
    step.spend(4 + len(call.inputs) + len(call.outputs) + len(call.groups))
    peer = _place(step, call, flags)
    order = _order(step, task, call, flags)
    if sum(len(text.encode()) for text in order.recipe.arguments) > limits.ARGUMENT_BYTES_MAX:
        raise TooLargeError(
            f"the arguments have more than {limits.ARGUMENT_BYTES_MAX} bytes; use an input object"
        )
    if flags & (Flag.FORK | Flag.FORKABLE) and (peer is not None or _uses_remote_objects(order)):
        raise NotSupportedError("a task that can be forked, or is a fork, runs on this node with its objects")
    if order.recipe.isolation is Isolation.GVISOR and (peer is not None or _uses_remote_objects(order)):
        raise NotSupportedError(
            "a task in gVisor runs on this node with its objects: copy the inputs, or leave out isolation"
        )
    if peer is not None or _uses_remote_objects(order):
        if waited is not None:
            step.state.pending.remove(waited)
        remote_run.run_offered(step, task, seq, call, order, peer, chosen)
        return
    was_submitted = chosen is not None and waited is None
    submissions.require_fit(step, order.recipe.work, order.recipe.brand, scheduled=was_submitted)
    given = (*order.recipe.inputs, *order.recipe.outputs)
    ends = [earlier(end_of(step, item.lifetime_ns), item.expires_ns) for item in given]
    task.table.require_room()
    try:
        scheduled = was_submitted and chosen is not None and chosen.placed_by is not None
        admission.require_quota(step, task, order.recipe, order.label, scheduled=scheduled)
        budget = admission.admit(step, task, order)
        if waited is None and not admission.is_coordinator(
            order.recipe.brand, order.label, order.recipe.work
        ):
            waiting_starts.require_turn(step, task, call)
    except admission.NoRoomError:
        if waited is not None or not waiting_starts.may_wait(step, task, call):
            raise
        _wait_for_room(step, task, seq, call, chosen)
        return
    if waited is not None:
        step.state.pending.remove(waited)
    if not flags & Flag.NON_BLOCKING:
        if step.parts is not None:
            raise InvalidError("cannot wait for a task in a vector. Add NON_BLOCKING, or send the run alone.")
        step.state.pending.require_room(task)
    child = starting.begin(step, task, order, budget, chosen)
    if chosen is not None:
        submissions.note_started(step, chosen)
    child.ends_with_session = bool(flags & Flag.WITH_SESSION)
    starting.welcome_child(step, child, order, ends)
    reference = lifetimes.grant(step, task, child.object, Permission.ALL, Provenance.CREATED)
    step.audit(task, "run", "ok", child.object.fingerprint, f"{order.recipe.brand.name} {order.label}")
    if flags & Flag.NON_BLOCKING:
        step.answer(task, seq, messages.Created(child.name, reference.public()))
    else:
        step.wait(Pending(task, seq, call, {child.object: ()}))


def _wait_for_room(
    step: Step, task: Holder, seq: int, call: messages.Run, chosen: ChildIdentity | None
) -> None:
    waiting_starts.require_place(step, task.principal)
    row = Pending(task, seq, call, {})
    step.wait(row)
    identity = chosen or _identity_for(step, task, call)
    waiting_starts.wait(step, row, replace(identity, entry=identity.entry or FormerEntry(step.now)))


# -- the start queue --------------------------------------------------------------------------------
def start_queued(step: Step, item: QueuedStarts) -> bool:
    """Start runs that wait for room, the principals in turns; return True when there is no more room."""
    del item
    queue = step.state.starts
    blocked: set[Principal] = set()
    while True:
        principal = next((candidate for candidate in queue.by_principal if candidate not in blocked), None)
        if principal is None:
            queue.is_served = False
            return True
        if step.exhausted:
            return False
        step.spend(1)
        queued = queue.next_of(principal)
        has_room = queued is not None and queued.row.task.account.left(Resource.TASKS) > 0
        if queued is None or not has_room or not _start_one(step, queued):
            blocked.add(principal)
        else:
            queue.end_turn(principal)


def _start_one(step: Step, queued: QueuedStart) -> bool:
    """Start or refuse a run that waits for room. Return False if there is still no room for it."""
    row = queued.row
    task, seq = row.task, row.seq
    try:
        if isinstance(row.progress, StartProgress):
            remote_run.start_offered(step, row, row.progress)
        elif queued.body is not None:
            peer = step.require_cluster().peer(queued.node)
            remote_run.start_for_node(step, peer, seq, queued.body, row)
        else:
            start(step, task, seq, cast("messages.Run", row.call), queued.chosen, row)
    except admission.NoRoomError as error:
        queued.reason = error.message
        return False
    except WouldBlockError as error:
        _leave_queue(step, row)
        if queued.body is None and row.progress is None and step.state.queue.attended(step.now):
            call = replace(cast("messages.Run", row.call), host=queued.chosen.host)
            submissions.wait(step, task, seq, call, queued.chosen)
        else:
            step.refuse(task, seq, error)
    except DiosError as error:
        _leave_queue(step, row)
        step.refuse(task, seq, error)
    return True


def _leave_queue(step: Step, row: Pending) -> None:
    if step.state.pending.has(row):
        step.state.pending.remove(row)


def _order(step: Step, task: Holder, call: messages.Run, flags: Flag) -> run_orders.Order:
    if flags & Flag.FORK:
        return run_orders.forked(step, task, call)
    return run_orders.repeated(step, task, call) if call.like else run_orders.ordered(step, task, call)


def _place(step: Step, call: messages.Run, flags: Flag) -> Peer | None:
    """Return the node for the child, or None for this node."""
    cluster = step.state.cluster
    if flags & Flag.SPAWN_LOCAL:
        return None
    if call.host:
        return remote_calls.peer_named(step, call.host)
    if cluster is None or step.parts is not None or call.like:
        return None
    if run_orders.stays_here(step.state, call.brand):
        return None
    candidates = [
        cluster.expected_load(member)
        for member in cluster.membership.alive()
        if cluster.peer(member.node).is_reachable(on_demand=not cluster.membership.probes_all)
    ]
    own = cluster.membership.own
    busy = sum(1 for _ in step.state.living_tasks())
    own = replace(own, load=replace(own.load, tasks=busy))
    pure = call.brand is Brand.PURE or step.state.restricted
    chosen = cluster.placement.choose(candidates, own, call.limits, pure=pure)
    return None if chosen.node == cluster.here.node else cluster.peer(chosen.node)


def answer_started(step: Step, then: StartAnswer, answer: dcp.Answer) -> None:
    """Answer a run call after the request to start its child on another node, or place the run again."""
    row = remote_run.answer_started(step, then, answer)
    if row is not None:
        try:
            start(step, row.task, row.seq, cast("messages.Run", row.call))
        except DiosError as error:
            step.refuse(row.task, row.seq, error)


def _uses_remote_objects(order: run_orders.Order) -> bool:
    """Return True if the child gets references to objects of other nodes, which must offer them first."""
    handed = (order.program_origin, *order.origins)
    return any(origin is not None and origin.object.home for origin in handed)


# -- submissions ------------------------------------------------------------------------------------
def lease_over(step: Step, row: Pending) -> None:
    """Handle the end of a submission's lease.

    If the node still has a scheduler, the submission gets another lease. Otherwise it is placed at once, or
    waits until this node itself has room for it.
    """
    table = step.state.queue
    queued = table.of_call(row)
    if queued is None:
        return
    work = queued.call.work
    try:
        if queued.call.host:
            remote_calls.peer_named(step, queued.call.host)
    except DiosError as error:
        take(step, queued)
        step.refuse(row.task, row.seq, error)
        return
    if own_rule.review(step):
        _start_own_runs(step)
    if table.of_call(row) is None:
        return
    stays = table.attended(step.now) or work.particular
    if stays or admission.over_quota(step, row.task.principal, work, scheduled=False):
        submissions.wait_on(step, queued)
        return
    take(step, queued)
    start_submission(step, queued, queued.call)


def _start_own_runs(step: Step) -> None:
    """Start waiting runs on this node by its own rule, some of them in one step."""
    name = step.require_cluster().here.name
    for _ in range(_OWN_STARTS_MAX):
        queued = None if step.exhausted else own_rule.next_run(step)
        if queued is None:
            return
        take(step, queued)
        step.audit(queued.row.task, "place", "ok", queued.fingerprint, "here, by the node's own rule")
        start_submission(step, queued, replace(queued.call, host=name))


def take(step: Step, queued: QueuedRun) -> None:
    """Remove a submission from the queue. The caller of this function must answer its call."""
    step.state.queue.take(queued)
    step.state.pending.remove(queued.row)
    submissions.changed(step)


def start_submission(
    step: Step, queued: QueuedRun, call: messages.Run, placed_by: NodeId | None = None
) -> None:
    """Start a run that has waited; if there is no room for it, let it wait again.

    ``placed_by`` is the node whose scheduler has placed it, or None if this node starts it by itself.
    """
    task, seq = queued.row.task, queued.row.seq
    entry = FormerEntry(queued.since, queued.fits_since, queued.row.deadline, placed_by)
    chosen = replace(queued.chosen, entry=entry)
    try:
        start(step, task, seq, call, chosen)
    except WouldBlockError:
        submissions.wait(step, task, seq, queued.call, chosen)
    except UnreachableError as error:
        # Nothing was started. If the scheduler chose the node, it will choose another one.
        if call.host == queued.call.host:
            step.refuse(task, seq, error)
        else:
            submissions.wait(step, task, seq, queued.call, chosen)
    except DiosError as error:
        step.refuse(task, seq, error)
