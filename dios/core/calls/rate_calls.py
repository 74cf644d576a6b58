"""The call with which the scheduler sets the rates of links and of the store.

The core keeps the shares that coordinators send each other, and passes the rates to the host. The host adds
its meters to the answer.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import pairwise

from dios.core import effects
from dios.core.calls import scheduling_calls, submissions
from dios.core.calls.handlers import handles
from dios.core.model.records import Holder, Task
from dios.core.remote import forwarding, remote_calls
from dios.core.step import Step
from dios.errors import InvalidError
from dios.ids import TaskId
from dios.wire import messages
from dios.wire.rates import UNMEASURED


@handles(messages.Govern)
def govern(step: Step, task: Holder, seq: int, call: messages.Govern) -> None:
    """Enforce rates on this node, keep the newest shares, and answer with the amounts that were moved.

    Raises:
        NotPermittedError: the caller acts neither for the nodes' own user nor for root.
        InvalidError: rates without a lease, shares without a version, or an impossible guarantee.
    """
    scheduling_calls.require_cluster_user(step, task)
    peer = remote_calls.peer_named(step, call.host) if call.host else None
    if peer is not None:
        forwarding.pass_on(step, task, seq, call, peer)
        return
    if (call.rates or call.guarantees or call.parts) and not call.lease_ms:
        raise InvalidError("rates need a lease: give its length in milliseconds")
    for place, guarantee in enumerate(call.guarantees):
        times = [in_ms for in_ms, _ in guarantee.steps]
        if any(later <= earlier for earlier, later in pairwise(times)):
            raise InvalidError(f"the steps of guarantee {place} are not sorted by time")
        if not (guarantee.source or guarantee.target):
            raise InvalidError(f"guarantee {place} names no task; give a source or a target")
    if call.shares and not call.shares_version:
        raise InvalidError("shares need a version above 0, which shows which shares are newer")
    if call.lease_ms:
        held = tuple(_shares(step, call.parts))
        step.emit(effects.SetRates(call.rates, call.lease_ms, task.id, call.guarantees, held))
    table = step.state.queue
    if call.shares and table.keep_shares(call.shares_version, call.shares):
        submissions.changed(step)
    newer = table.shares_version > call.shares_version
    cluster = step.state.cluster
    node = 0 if cluster is None else cluster.here.node
    shares = table.shares if newer else b""
    step.answer(task, seq, messages.Metered(node, (), UNMEASURED, table.shares_version, shares))


def _shares(step: Step, parts: Iterable[messages.HeldPart]) -> Iterator[tuple[TaskId, effects.TaskShare]]:
    """Yield the shares of the living tasks that parts name, if they are members of jobs over time."""
    cluster = step.state.cluster
    if cluster is None:
        return
    cpus_milli, disk_io = cluster.here.cpus * 1000, cluster.here.disk_io
    for part in parts:
        task = step.state.tasks.get(TaskId(part.task))
        if isinstance(task, Task) and task.alive and task.recipe and task.recipe.work.reservation:
            yield (
                task.id,
                effects.TaskShare(
                    min(part.cpus_milli, cpus_milli), cpus_milli, part.disk_io, disk_io, replaces=True
                ),
            )
