"""Cores with one rule of a cluster broken, each as somebody might break it.

Not for: being right. ``tests/sim/test_cluster.py`` shows that the simulator finds every one.
"""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from dios.core.calls import delegation, flows, io_steps, lifecycle, retirement
from dios.core.effects import Outcome
from dios.core.events import ObjectRecord
from dios.core.machine import Core
from dios.core.model.records import Holder, Pending, PhysicalObject, Task
from dios.core.model.secrecy import Label
from dios.core.model.work_items import Retirement
from dios.core.remote import (
    cached_reads,
    granted_leases,
    held_leases,
    reconciliation,
    replication,
    requests,
    serving,
)
from dios.core.remote.continuations import FitRead, ReadProgress
from dios.core.remote.lease_table import HeldLease
from dios.core.remote.peers import Cluster, Peer, PendingRequest, Proxy
from dios.core.step import Step
from dios.ids import RefId, TaskId, Ticket
from dios.wire import dcp, messages
from dios.wire.types import Permission


def answers_early(patch: pytest.MonkeyPatch) -> None:
    """An answer is sent before the disk has what it vouches for."""
    honest = Core.step

    def hasty(self: Core, event: object) -> Outcome:
        outcome = honest(self, event)  # type: ignore[arg-type] # it takes whatever the host gives
        outcome.wait_for = Ticket(0)
        return outcome

    patch.setattr(Core, "step", hasty)


def acts_twice(patch: pytest.MonkeyPatch) -> None:
    """A repeated request is done again."""

    def forgetful(step: Step, peer: Peer, asked: dcp.Ask) -> bool:
        del step
        peer.answers[asked.number] = None
        return True

    patch.setattr(requests, "is_new", forgetful)


def waits_for_ever(patch: pytest.MonkeyPatch) -> None:
    """Nobody gives up on a node that does not answer, or is dead."""

    def patient(question: object) -> int:
        del question
        return 10**9

    def none_fails(peer: Peer) -> list[PendingRequest]:
        del peer
        return []

    def never_silent(step: Step, cluster: Cluster, question: object) -> int:
        del step, cluster, question
        return 0

    patch.setattr(requests, "_patience_ms", patient)
    patch.setattr(requests, "_unconfirmed_ms_max", patient)
    patch.setattr(requests, "_silent_ms", never_silent)
    patch.setattr(requests, "take_all", none_fails)


def compares_nothing(patch: pytest.MonkeyPatch) -> None:
    """What a node hears of another's holdings changes nothing."""

    def idle(step: Step, peer: Peer, number: int, body: dcp.ReconcileReferences) -> None:
        del body
        requests.reply(step, peer, number, dcp.UnknownReferences((), ()))

    patch.setitem(serving._HANDLERS, dcp.ReconcileReferences, idle)


def gives_everything(patch: pytest.MonkeyPatch) -> None:
    """A delegation has every right of the giver."""

    def whole(held: Permission, wanted: int) -> Permission:
        del wanted
        return held

    patch.setattr(delegation, "narrowed", whole)


def takes_nothing_back(patch: pytest.MonkeyPatch) -> None:
    """Retiring answers, and leaves what was delegated."""
    honest = retirement.retire_some

    def nothing(step: Step, item: Retirement) -> bool:
        item.roots.clear()
        return honest(step, item)

    patch.setattr(retirement, "retire_some", nothing)


def tells_twice(patch: pytest.MonkeyPatch) -> None:
    """The end of a task that was taken for lost is told once more."""
    honest = serving._HANDLERS[dcp.DeliverEvent]

    def talkative(step: Step, peer: Peer, number: int, body: dcp.DeliverEvent) -> None:
        task = step.state.tasks.get(body.task)
        if task is not None and isinstance(body.event, messages.ChildEnded):
            task.remote_children[TaskId(body.event.object)] = (peer.node, "", "")
        honest(step, peer, number, body)  # type: ignore[arg-type] # each handler takes its own request

    patch.setitem(serving._HANDLERS, dcp.DeliverEvent, talkative)


def two_have_the_lock(patch: pytest.MonkeyPatch) -> None:
    """EXCL admits whoever comes, and every commit holds."""
    patch.setattr(io_steps, "admits", lambda target, level: True)  # noqa: ARG005 - whoever comes
    patch.setattr(io_steps, "holds", lambda buffer: True)  # noqa: ARG005 - likewise


def keeps_silent(patch: pytest.MonkeyPatch) -> None:
    """Nobody is told that a task which they started has ended."""

    def silent(step: Step, task: Task) -> None:
        del step
        task.parent.children.pop(task.id, None)

    patch.setattr(lifecycle, "_notify_parent", silent)


def keeps_what_the_dead_held(patch: pytest.MonkeyPatch) -> None:
    """When the grace of a dead node is over, everything stays."""

    def never(step: Step, peer: Peer) -> None:
        del step, peer

    patch.setattr(reconciliation, "end_remote_tasks", never)


def serves_unchecked(patch: pytest.MonkeyPatch) -> None:
    """Bytes of another node's object are read from the cache without asking that node."""
    honest = cached_reads._ask

    def hasty(step: Step, row: Pending, progress: ReadProgress) -> None:
        cache = step.require_cluster().versions
        version = cache.versions.get(progress.key)
        if version is None or not isinstance(row.call, messages.ReadOnce):
            honest(step, row, progress)
            return
        cache.use(version, step.now)
        progress.payload = version.payload
        step.payload_size = 0
        step.continue_with(FitRead(row.id), messages.Buffer(0, version.length, 0, version.v_w))

    patch.setattr(cached_reads, "_ask", hasty)


def confirms_old_versions(patch: pytest.MonkeyPatch) -> None:
    """An object's node confirms each version that another node has, as if it was the current one."""

    def gullible(step: Step, target: PhysicalObject) -> bool:
        del target
        return step.known is not None

    def trusting(
        step: Step, progress: ReadProgress, call: cached_reads.Read, answer: messages.Buffer
    ) -> tuple[messages.Buffer, int]:
        version = step.require_cluster().versions.kept[progress.payload]
        step.payload = version.payload
        return replace(answer, length=answer.size), call.offset - version.key.offset

    patch.setattr(io_steps, "is_known", gullible)
    patch.setattr(cached_reads, "_from_cache", trusting)


def forgets_waiting_readers(patch: pytest.MonkeyPatch) -> None:
    """The end of a fetch lets no waiting call go on."""
    patch.setattr(cached_reads, "_go_on", lambda step, cache, fetch, place: None)  # noqa: ARG005 - nothing


def calls_nothing_back(patch: pytest.MonkeyPatch) -> None:
    """Calls do not wait for the leases on their objects."""
    patch.setattr(granted_leases, "is_out", lambda step, cluster, target: False)  # noqa: ARG005 - never


def reads_after_the_end(patch: pytest.MonkeyPatch) -> None:
    """A node uses a lease until it is called back, however long ago it ended."""
    patch.setattr(held_leases, "is_valid", lambda lease, now: lease.ends > 0)  # noqa: ARG005 - no end


def takes_late_grants(patch: pytest.MonkeyPatch) -> None:
    """A node takes a lease that was called back before it came."""
    patch.setattr(held_leases, "is_older", lambda progress, target: False)  # noqa: ARG005 - never


def lends_leases(patch: pytest.MonkeyPatch) -> None:
    """A task reads under the lease of any reference to the object."""

    def any_lease(cluster: Cluster, target: Proxy, ref: int) -> HeldLease | None:
        refs = [*target.references, ref]
        leases = [cluster.leases.held.get((target.home, RefId(ref_id))) for ref_id in refs]
        return max(
            (lease for lease in leases if lease is not None), key=lambda lease: lease.ends, default=None
        )

    patch.setattr(held_leases, "lease_of", any_lease)


def forgets_its_leases(patch: pytest.MonkeyPatch) -> None:
    """A node that has restarted waits for no lease of its earlier start."""
    patch.setattr(granted_leases, "note_start", lambda step, cluster: None)  # noqa: ARG005 - nothing


# -- secrecy labels -----------------------------------------------------------------------------------------
def reads_leave_no_tag(patch: pytest.MonkeyPatch) -> None:
    """The label of a task does not go up with what it reads."""
    for kind in (messages.ReadOnce, messages.AcquireRead, messages.CommitAcquireRead):
        patch.setitem(flows._RULES, kind, (flows._no_flow, None))


def writes_anywhere(patch: pytest.MonkeyPatch) -> None:
    """A commit may go to an object without the tags of its task."""
    for kind in (messages.WriteOnce, messages.CommitWrite):
        patch.setitem(flows._RULES, kind, (flows._no_flow, None))


def delegates_to_anybody(patch: pytest.MonkeyPatch) -> None:
    """A task with tags delegates to tasks without them."""
    patch.setitem(flows._RULES, messages.Copy, (flows._no_flow, None))


def creates_without_label(patch: pytest.MonkeyPatch) -> None:
    """New objects of a task have the label that the call gives them, or none."""
    patch.setattr(flows, "_create", lambda step, task, call: call)  # noqa: ARG005 - unchanged


def children_begin_clean(patch: pytest.MonkeyPatch) -> None:
    """A child does not begin with the label of its parent."""

    def clean(step: Step, parent: Holder, child: Task, origin: object) -> None:
        del step, parent, child, origin

    patch.setattr(flows, "begin_child", clean)


def trusts_every_reference(patch: pytest.MonkeyPatch) -> None:
    """Each reference to an object with a tag is a right to declassify it."""

    def gullible(step: Step, task: Holder, tag: str) -> bool:
        del step
        return any(tag in held.object.secrecy for held in task.table)

    patch.setattr(flows, "may_declassify", gullible)


def labels_are_local(patch: pytest.MonkeyPatch) -> None:
    """The label of another node's object is not looked at."""
    honest = flows.label_of

    def local(step: Step, target: PhysicalObject) -> Label:
        return () if target.home else honest(step, target)

    patch.setattr(flows, "label_of", local)


def copies_lose_their_label(patch: pytest.MonkeyPatch) -> None:
    """A copy on another node has no label."""
    honest = replication.replica_requested

    def careless(step: Step, peer: Peer, number: int, body: dcp.CreateReplica) -> None:
        honest(step, peer, number, replace(body, secrecy=()))

    patch.setitem(serving._HANDLERS, dcp.CreateReplica, careless)


def restarts_forget_labels(patch: pytest.MonkeyPatch) -> None:
    """Objects that a node finds on its disk have no label."""
    honest = PhysicalObject.from_record.__func__  # type: ignore[attr-defined] # it is a class method

    def careless(cls: type, record: ObjectRecord, *accounts: object) -> PhysicalObject:
        restored = honest(cls, replace(record, secrecy=()), *accounts)
        assert isinstance(restored, PhysicalObject)
        return restored

    patch.setattr(PhysicalObject, "from_record", classmethod(careless))
