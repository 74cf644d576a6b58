"""Limits set by the node's own user, and what is refused over them: for tests of the core.

Not for: limits of a real node, which ``dios.client`` sets.
"""

from __future__ import annotations

from dios.core import effects
from dios.errors import Code
from dios.wire import messages
from dios.wire.messages import Bound
from dios.wire.types import Flag, NameKind, ObjectType, Resource, Scope
from tests.support.core.harness import Client, Node

SCOPES = (Scope.TASK, Scope.GROUP, Scope.PRINCIPAL)
"""Whose limits are set by call."""


class Office:
    """The session of the node's own user, who sets limits, and a group and a task to set them for."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.admin = node.session()
        group = self.admin.create(ObjectType.GROUP, groups=(self.admin.groups[0],))
        self.group_ref = group.reference.ref
        assert group.name is not None
        self.group_name = group.name
        self.group_print = group.reference.fingerprint
        self.worker = self.admin.run(groups=(self.group_ref,))

    def row(
        self, scope: Scope, *bounds: Bound, task: Client | None = None, principal: str = "uid:1000"
    ) -> messages.LimitRow:
        """Set limits; the account as it is then."""
        chosen = task or self.worker
        ref = {Scope.TASK: 0, Scope.GROUP: self.group_ref, Scope.PRINCIPAL: 0}[scope]
        if scope is Scope.TASK:
            ref = self.ref_of(chosen)
        who = principal if scope is Scope.PRINCIPAL else ""
        return self.admin.ask(messages.LimitRows, messages.SetLimits(scope, bounds, ref, who)).rows[0]

    def ref_of(self, task: Client) -> int:
        """A reference of the node's own user to any task of its principal."""
        references = self.admin.lookup(task.welcome.name)
        return references[0].ref

    def used(
        self, scope: Scope, resource: Resource, *, task: Client | None = None, principal: str = "uid:1000"
    ) -> int:
        """How much of a resource an account uses now."""
        return self.shown(scope, task=task, principal=principal).used[resource]

    def shown(
        self, scope: Scope, *, task: Client | None = None, principal: str = "uid:1000"
    ) -> messages.LimitRow:
        """An account as the node's own user sees it."""
        subject = {
            Scope.TASK: (task or self.worker).welcome.self_ref.fingerprint,
            Scope.GROUP: self.group_print,
            Scope.PRINCIPAL: principal,
        }[scope]
        rows = self.admin.ask(messages.LimitRows, messages.ListLimits()).rows
        (row,) = [row for row in rows if (row.scope, row.subject) == (scope, subject)]
        return row

    def leave(
        self,
        scope: Scope,
        resource: Resource,
        room: int,
        *,
        task: Client | None = None,
        principal: str = "uid:1000",
    ) -> int:
        """Let an account use just ``room`` more than it does now; its limit."""
        bound = self.used(scope, resource, task=task, principal=principal) + room
        self.row(scope, Bound(resource, bound), task=task, principal=principal)
        return bound


def over(client: Client, call: messages.AnyCall) -> str:
    """Make a call that is over a limit: refused, audited, and nothing changed. What is said."""
    assert client.refused(call) == Code.EDQUOT
    (record,) = [effect for effect in client.node.outcome.after if isinstance(effect, effects.Audit)]
    assert record.outcome == "denied"
    answer = client.answer(client.node.seq)
    assert isinstance(answer, messages.Failure)
    assert record.detail == answer.message
    return answer.message


def ordered(executable: int, *groups: int, **limits: int) -> messages.Run:
    """A run call that does not wait."""
    return messages.Run(executable, groups, limits=messages.Limits(**limits), flags=int(Flag.NON_BLOCKING))


def anonymous(data: bytes = b"", kind: ObjectType = ObjectType.SHMEM_BLOB) -> messages.Create:
    """A call that makes an object in no group."""
    return messages.Create(kind, (), NameKind.ANONYMOUS, data=data)


def started(client: Client, call: messages.Run) -> Client:
    """Start a task with a call that does not wait, and be it."""
    created = client.ask(messages.Created, call)
    spawn = next(effect for effect in client.node.outcome.after if isinstance(effect, effects.Spawn))
    welcome = client.node.answers[spawn.task, 0]
    assert isinstance(welcome, messages.Welcome)
    child = Client(client.node, spawn.task, welcome)
    child.reference = created.reference
    return child


def destroyed(ref: int) -> messages.Delete:
    """A call that destroys an object."""
    return messages.Delete(ref, int(Flag.DESTROY))
