"""The generations of the cluster's secret: change it at an operator's request, and show which nodes have it.

The host makes, stores and passes on generations (``dios.transport.identity.generations``), also by itself
after a removal. The core uses a generation once it is stored.
"""

from __future__ import annotations

from dios.core import effects
from dios.core.events import SecretsStored
from dios.core.model.records import Holder, Pending
from dios.core.remote import node_list
from dios.core.step import Step
from dios.errors import Code
from dios.wire import messages


def rotate(step: Step, task: Holder, seq: int, call: messages.SetNode) -> None:
    """Make the next generation of the secret. The call is answered once this node has stored it."""
    row = Pending(task, seq, call, {})
    step.wait(row)
    step.emit(effects.RotateSecret(row.id))


def stored(step: Step, event: SecretsStored) -> None:
    """Use the secrets that this node has stored, announce that it has them, and answer the call for that."""
    cluster = step.require_cluster()
    if not event.failure:
        step.state.later_secrets = event.secrets
        cluster.withheld = frozenset(event.withheld)
        step.follow(cluster.membership.hold_secrets(step.now, event.mark))
        node_list.changed(step, cluster)
        step.audit_node("secret", "ok", cluster.here.name, f"generation {len(event.secrets)}")
    row = None if event.call is None else step.state.pending.find(event.call)
    if row is None:
        return
    step.state.pending.remove(row)
    if event.failure:
        step.answer(row.task, row.seq, messages.Failure(int(Code.EIO), event.failure))
    else:
        step.answer(row.task, row.seq, node_list.nodes(step))
