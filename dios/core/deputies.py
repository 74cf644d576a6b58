"""Deputies: what stands here for tasks of other nodes that refer to objects of this one (§4.5.3, §4.8).

Not for: calls made in their names (``dios.core.serving``). A deputy is a task without a process: its
table holds the references that count, so that every check, counter, limit and retirement is as for any
task here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dios.core import effects, lifecycle
from dios.core.accounts import Account
from dios.core.objects import PhysicalObject
from dios.core.references import Provenance, Reference
from dios.core.tasks import Task
from dios.errors import ProtocolError
from dios.ids import Name, ObjectId, Principal, RefId
from dios.wire import dcp
from dios.wire.types import Brand, Deletion, ObjectType, Permission, Scope, TaskState

if TYPE_CHECKING:
    from dios.core.peers import Peer
    from dios.core.step import Step


def deputy_of(step: Step, peer: Peer, caller: dcp.Caller) -> Task:
    """The deputy of another node's task; made when it is needed first."""
    state = step.state
    found = state.deputies.get(caller.task)
    if found is not None:
        if found.home != peer.node:
            raise ProtocolError("a task is said to be on two nodes")
        return found
    if caller.task in state.tasks:
        raise ProtocolError("a task of this node is said to be on another")
    principal = Principal(caller.principal)
    own = PhysicalObject(
        ObjectId(caller.task),
        ObjectType.TASK,
        None,
        (),
        principal,
        deletion=Deletion.REFERENCE_COUNTED,
        shown=caller.fingerprint,
    )
    account = Account(Scope.TASK, caller.fingerprint, (), state.account_of(principal))
    deputy = Task(
        own,
        own,
        Name(b""),
        principal,
        caller.brand,
        (),
        account,
        parent=None,
        is_session=False,
        label=caller.label,
        now=step.now,
    )
    deputy.home = peer.node
    deputy.state = TaskState.RUNNING
    state.deputies[deputy.id] = deputy
    peer.deputies[deputy.id] = deputy
    step.emit(effects.OpenDeputy(deputy.id, peer.node, principal))
    return deputy


def end(step: Step, peer: Peer, deputy: Task) -> None:
    """The task is over, or its node: all that it held here goes, and children that nobody else knows."""
    deputy.state = TaskState.ENDED
    deputy.ended_ns = step.now
    lifecycle.release_everything(step, deputy)
    if deputy.brand is not Brand.LEGACY:
        # What a person's process has started lives on, wherever it is.
        lifecycle.end_orphans(step, deputy)
    peer.deputies.pop(deputy.id, None)
    step.state.deputies.pop(deputy.id, None)
    step.emit(effects.CloseDeputy(deputy.id))


def grant_again(
    step: Step, deputy: Task, target: PhysicalObject, ref: RefId, permissions: Permission
) -> Reference:
    """A reference that this node knew before it was started anew."""
    reference = step.state.add_reference(
        deputy, target, permissions, Provenance.RESOLVED, ref_id=ref, now=step.now
    )
    step.seen(target)
    step.audit(deputy, "claim", "ok", target.fingerprint)
    return reference
