"""The coordination protocol: the messages between the cores of two nodes (thesis §4.8).

A *request* has a number and is answered by exactly one ``PeerReply`` with the same number, however often it
is repeated. A *notice* has no number and may be lost. No order is promised. New fields are added at the end
with a default, and a receiver ignores fields that it does not know. ``dios.core.remote.requests`` sends the
messages; ``dios.transport`` frames them and carries bulk bytes.
"""

from __future__ import annotations

from typing import Annotated, Final, TypeAlias

from msgspec import Meta, Struct

from dios import limits
from dios.ids import InternalName, Name, NodeId, ObjectId, RefId, TaskId
from dios.wire.calls import Copy, PlainCall, Run, Vector
from dios.wire.fields import U64, Text
from dios.wire.replies import PlainResult, Reference, Results, SelfEvent
from dios.wire.types import Brand, Buffering, ObjectType

_U63: Final = Meta(ge=0, le=2**63 - 1)
_WAITING: Final = Meta(max_length=limits.DCP_REQUESTS_MAX)
_NAME: Final = Meta(min_length=limits.NAME_BYTES, max_length=limits.NAME_BYTES)

Node: TypeAlias = Annotated[NodeId, _U63]
Object: TypeAlias = Annotated[ObjectId, _U63]
Ref: TypeAlias = Annotated[RefId, _U63]
Task: TypeAlias = Annotated[TaskId, _U63]
External: TypeAlias = Annotated[Name, _NAME]
Internal: TypeAlias = Annotated[InternalName, _NAME]


class Body(Struct, frozen=True, array_like=True):
    """The base class of requests and notices."""


class Caller(Struct, frozen=True, array_like=True):
    """The task or session that a request is made for, and the principal on whose behalf it runs."""

    task: Task
    principal: Text
    fingerprint: Text
    brand: Brand
    label: Text = ""


class HeldReference(Struct, frozen=True, array_like=True):
    """A reference as it will be in a task's table, and the node that has the object."""

    node: Node
    reference: Reference


class GroupName(Struct, frozen=True, array_like=True):
    """The name and the owner of a group: one that a task is a member of, or that an object is created in."""

    name: External
    owner: Text


class SharedReference(Struct, frozen=True, array_like=True):
    """A reference to delegate, narrowed to ``permissions``."""

    ref: Ref
    permissions: U64
    label: Text = ""
    lifetime_ns: U64 = 0


class HeldReferences(Struct, frozen=True, array_like=True):
    """The references of one task with ids from ``first`` to ``last``.

    Each has its id, the object, the rights, and a flag: True if the task obtained it on its own authority.
    """

    caller: Caller
    first: U64
    last: U64
    references: tuple[tuple[Ref, Object, U64, bool], ...]


# -- requests -------------------------------------------------------------------------------------
class Forward(Body, frozen=True, tag=1):
    """A call of a task on an object of this node; the answer is the result of the call.

    The bytes of a commit are inside the call or, if there are many, next to the message. ``groups``
    are those that a create names.
    """

    caller: Caller
    call: PlainCall | Vector
    groups: tuple[GroupName, ...] = ()


class Resolve(Body, frozen=True, tag=3):
    """Return references to the objects that have any of these internal names (§4.3.3)."""

    caller: Caller
    names: tuple[Internal, ...]
    limit: U64


class Offer(Body, frozen=True, tag=4):
    """Delegate references of the caller to a task of another node that is about to be started there."""

    caller: Caller
    shared: tuple[SharedReference, ...]
    receiver: Caller
    node: Node


class Delegate(Body, frozen=True, tag=5):
    """Delegate a reference of the caller to a task on ``node``, which is notified (§4.5.3).

    ``call`` is the delegation; its receiver is ignored. The answer is ``Offered`` if the receiver is a task
    of the asking node, else ``Done``.
    """

    caller: Caller
    call: Copy
    receiver: Caller
    node: Node


class ReferenceGiven(Body, frozen=True, tag=6):
    """Notify the receiving node: a task there got this reference from the task with fingerprint ``giver``."""

    receiver: Task
    giver: Text
    held: HeldReference


class Start(Body, frozen=True, tag=7):
    """Start a task here for the caller, with this id and these references.

    ``call`` has brand, arguments, label, limits and flags; references and groups are in the other fields.
    """

    caller: Caller
    child: Task
    name: External
    call: Run
    groups: tuple[GroupName, ...]
    program: HeldReference
    inputs: tuple[HeldReference, ...]
    outputs: tuple[HeldReference, ...]


class CreateReplica(Body, frozen=True, tag=8):
    """Create a physical object of this logical object; its bytes come next to the message (B.1.3).

    ``home`` is the node of the caller, if that is not the asking node.
    """

    caller: Caller
    name: External | None
    groups: tuple[GroupName, ...]
    owner: Text
    kind: ObjectType
    buffering: Buffering
    v_r: U64
    v_w: U64
    size: U64
    home: Node = NodeId(0)


class Release(Body, frozen=True, tag=9):
    """The task has dropped these references, or never received them."""

    task: Task
    refs: tuple[Ref, ...]


class TasksEnded(Body, frozen=True, tag=10):
    """These tasks of the asking node have ended."""

    tasks: tuple[Task, ...]


class DeliverEvent(Body, frozen=True, tag=11):
    """An event for a task's self-reference: a child has ended, or a reference was taken back."""

    task: Task
    event: SelfEvent


class ReconcileReferences(Body, frozen=True, tag=12):
    """The references that tasks of the asking node hold here, in one or several messages.

    The answer is ``UnknownReferences``: those that do not exist here. References of the given ranges that
    are older than a grace period and are not listed are dropped, and so is everything of tasks of that node
    that are not among ``tasks``, if those are given. ``epoch`` is the epoch in which the asked node granted
    the references: after a restart it grants those that were looked up or created again, if the object still
    exists. ``lost`` are tasks here that the asking node gave up; they are ended.
    """

    epoch: U64
    holdings: tuple[HeldReferences, ...]
    lost: tuple[Task, ...] = ()
    tasks: tuple[Task, ...] | None = None


class Disband(Body, frozen=True, tag=13):
    """The group was destroyed."""

    group: External


class Rows(Body, frozen=True, tag=14):
    """The tasks of a principal on this node; the answer is ``Tasks``."""

    caller: Caller


class KeepOutput(Body, frozen=True, tag=15):
    """The output of an ended task whose parent is on the receiving node; its bytes come with the message."""

    principal: Text
    name: External
    group: External
    size: U64


RequestBody: TypeAlias = (
    Forward
    | Resolve
    | Offer
    | Delegate
    | ReferenceGiven
    | Start
    | CreateReplica
    | Release
    | TasksEnded
    | DeliverEvent
    | ReconcileReferences
    | Disband
    | Rows
    | KeepOutput
)


# -- answers in addition to those of calls --------------------------------------------------------
class Offered(Struct, frozen=True, array_like=True, tag=30):
    """The answer to Offer: the new references, in order."""

    references: tuple[Reference, ...]


class Found(Struct, frozen=True, array_like=True, tag=31):
    """The answer to Resolve; ``groups`` are the ids and owners of the groups among the objects."""

    references: tuple[Reference, ...]
    owners: tuple[tuple[Object, Text], ...] = ()


class UnknownReferences(Struct, frozen=True, array_like=True, tag=32):
    """The answer to Claim: the references that do not exist here, and the objects of them that are gone."""

    refs: tuple[Ref, ...]
    objects: tuple[Object, ...]


class ReplicaCreated(Struct, frozen=True, array_like=True, tag=34):
    """The answer to a copy that created an object on another node: the reference to it, and that node."""

    held: HeldReference


class Working(Struct, frozen=True, array_like=True, tag=33):
    """The request has arrived and is not done yet; it need not be repeated soon."""


Answer: TypeAlias = PlainResult | Results | Offered | Found | UnknownReferences | Working | ReplicaCreated


# -- on the connection ----------------------------------------------------------------------------
class Ask(Struct, frozen=True, array_like=True, tag=40):
    """A request. Every request numbered below ``settled`` was answered; those answers need not be kept.

    ``waiting``, if it is not empty, lists the numbers of all open requests: every other number below the
    highest of them was answered as well.
    """

    number: U64
    settled: U64
    body: RequestBody
    waiting: Annotated[tuple[U64, ...], _WAITING] = ()


class PeerReply(Struct, frozen=True, array_like=True, tag=41):
    """The answer to a request."""

    number: U64
    result: Answer


class Published(Struct, frozen=True, array_like=True, tag=42):
    """The counters of an object that tasks of the receiving node refer to (§4.5.1)."""

    object: Object
    size: U64
    v_r: U64
    v_w: U64
    a_r: U64
    a_w: U64
    dirty: U64
    zombie: bool
    order: U64  # counts up with each message to this node; an older message changes nothing


class Gossip(Struct, frozen=True, array_like=True, tag=43):
    """Membership: a message of ``dios.wire.gossip``, encoded."""

    message: bytes


class PeerHello(Struct, frozen=True, array_like=True, tag=44):
    """The first message in each direction; the certificate must have the same id and name.

    A node speaks every version from ``oldest`` to ``newest``; both use the highest version that both speak.
    ``channel`` is 0 on the control connection and counts up for data connections, whose ``epoch`` must be
    that of the control connection.
    """

    oldest: int
    newest: int
    node: NodeId
    epoch: int
    name: Text
    rack: Text
    address: Text
    channel: int = 0


Message: TypeAlias = Ask | PeerReply | Published | Gossip | PeerHello
