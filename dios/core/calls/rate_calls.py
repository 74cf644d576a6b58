"""The call by which the scheduler divides what is shared at a rate: links and the store.

The core keeps the shares that coordinators send each other, and passes the rates to the host, which adds its
meters to the answer.
"""

from __future__ import annotations

from itertools import pairwise

from dios.core import effects
from dios.core.calls import scheduling_calls, submissions
from dios.core.model.records import Holder
from dios.core.remote import forwarding, remote_calls
from dios.core.step import Step
from dios.errors import InvalidError
from dios.wire import messages
from dios.wire.rates import UNMEASURED


def govern(step: Step, task: Holder, seq: int, call: messages.Govern) -> None:
    """Keep to rates here, keep the newest shares, and tell what was moved.

    Raises:
        NotPermittedError: the caller is not the nodes' own user, nor root.
        InvalidError: rates without a lease, shares without a version, or a guarantee that makes no sense.
    """
    scheduling_calls.require_cluster_user(step, task)
    peer = remote_calls.peer_named(step, call.host) if call.host else None
    if peer is not None:
        forwarding.pass_on(step, task, seq, call, peer)
        return
    if (call.rates or call.guarantees) and not call.lease_ms:
        raise InvalidError("rates hold for a lease; say for how many milliseconds")
    for place, guarantee in enumerate(call.guarantees):
        times = [in_ms for in_ms, _ in guarantee.steps]
        if any(later <= earlier for earlier, later in pairwise(times)):
            raise InvalidError(f"the steps of guarantee {place} are not in order of time")
        if not (guarantee.source or guarantee.target):
            raise InvalidError(f"guarantee {place} names no task, neither as source nor as target")
    if call.shares and not call.shares_version:
        raise InvalidError("shares need a version over 0, by which newer ones are known")
    if call.lease_ms:
        step.emit(effects.SetRates(call.rates, call.lease_ms, task.id, call.guarantees))
    table = step.state.queue
    if call.shares and table.keep_shares(call.shares_version, call.shares):
        submissions.changed(step)
    newer = table.shares_version > call.shares_version
    cluster = step.state.cluster
    node = 0 if cluster is None else cluster.here.node
    shares = table.shares if newer else b""
    step.answer(task, seq, messages.Metered(node, (), UNMEASURED, table.shares_version, shares))
