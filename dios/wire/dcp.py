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
from dios.wire.calls import Copy, Run
from dios.wire.fields import (
    U63,
    Address,
    ByteCount,
    Count,
    Counter,
    Epoch,
    Fingerprint,
    Identifier,
    Label,
    Permissions,
    ProgramBytes,
    Secrecy,
    Text,
    TraceContext,
    TraceSpans,
    User,
)
from dios.wire.mandates import MandateBytes
from dios.wire.replies import PlainResult, Reference, Results, SelfEvent
from dios.wire.requests import PlainCall, Vector
from dios.wire.types import Brand, Buffering, ObjectType, Permission

OFFERED_MAX: Final = 2 * limits.ARGUMENTS_MAX + 1
"""The references of a new task: its inputs, its outputs and its program."""

SECRECY_VERSION: Final = 4
"""The first version of the messages with secrecy labels. No older node is shown a labelled object."""

TIME_VERSION: Final = 6
"""The first version of the messages with bounds of the times of runs, and with promised starts."""

RESOLVED_NAMES_MAX: Final = 16 * 1024
"""The names of one request: a session in more groups looks a name up in the first ones."""

_U63: Final = Meta(ge=0, le=2**63 - 1)
_WAITING: Final = Meta(max_length=limits.DCP_REQUESTS_MAX)
_TASKS: Final = Meta(max_length=limits.REMOTE_TASKS_PER_NODE_MAX)
_HELD_BY_TASK: Final = Meta(max_length=limits.REFERENCES_PER_TASK_MAX)
_RECONCILED: Final = Meta(max_length=limits.RECONCILE_REFERENCES_MAX)
_FOUND: Final = Meta(max_length=limits.LOOKUP_REFERENCES_MAX)
_GIVEN: Final = Meta(max_length=limits.ARGUMENTS_MAX)
_OFFERED: Final = Meta(max_length=OFFERED_MAX)
_DIGESTS: Final = Meta(max_length=limits.INDEX_DIGEST_BYTES * limits.INDEX_DIGESTS_PER_MESSAGE)
_MANDATES: Final = Meta(max_length=limits.MANDATES_PER_REQUEST_MAX)
_NAME: Final = Meta(min_length=limits.NAME_BYTES, max_length=limits.NAME_BYTES)

Node: TypeAlias = Annotated[NodeId, _U63]
Object: TypeAlias = Annotated[ObjectId, _U63]
Ref: TypeAlias = Annotated[RefId, _U63]
Task: TypeAlias = Annotated[TaskId, _U63]
External: TypeAlias = Annotated[Name, _NAME]
Internal: TypeAlias = Annotated[InternalName, _NAME]
HeldByTask: TypeAlias = Annotated[tuple[Ref, ...], _HELD_BY_TASK]


class Body(Struct, frozen=True, array_like=True):
    """The base class of requests and notices."""


class Caller(Struct, frozen=True, array_like=True):
    """The task or session that a request is made for, and the principal on whose behalf it runs."""

    task: Task
    principal: User
    fingerprint: Fingerprint
    brand: Brand
    label: Text = ""


class HeldReference(Struct, frozen=True, array_like=True):
    """A reference as it will be in a task's table, and the node that has the object."""

    node: Node
    reference: Reference


class GroupName(Struct, frozen=True, array_like=True):
    """The name and the owner of a group: one that a task is a member of, or that an object is created in."""

    name: External
    owner: User


GroupNames: TypeAlias = Annotated[tuple[GroupName, ...], Meta(max_length=2 * limits.GROUPS_PER_CALL_MAX)]


class SharedReference(Struct, frozen=True, array_like=True):
    """A reference to delegate, narrowed to ``permissions``."""

    ref: Ref
    permissions: U63
    label: Text = ""
    lifetime_ns: U63 = 0


class HeldReferences(Struct, frozen=True, array_like=True):
    """The references of one task with ids from ``first`` to ``last``.

    Each has its id, the object, the rights, and a flag: True if the task obtained it on its own authority.
    """

    caller: Caller
    first: U63
    last: U63
    references: Annotated[tuple[tuple[Ref, Object, Permissions, bool], ...], _RECONCILED]


# -- requests -------------------------------------------------------------------------------------
class Forward(Body, frozen=True, tag=1):
    """A call of a task on an object of this node; the answer is the result of the call.

    The bytes of a commit are inside the call or, if there are many, next to the message. ``groups``
    are those that a create names. ``known`` is the ``v_w`` of a version of which the asking node has all
    bytes that the call reads: if it is the current one, the answer may come without them. With ``lease``,
    the asking node wants to answer the next reads through the same reference itself, see ``Leased``.
    """

    caller: Caller
    call: PlainCall | Vector
    groups: GroupNames = ()
    known: Counter | None = None
    lease: bool = False


class Resolve(Body, frozen=True, tag=3):
    """Return references to the objects that have any of these internal names (§4.3.3).

    If the caller reads by a share, the references have the right to read alone, and end after
    ``lifetime_ns``.
    """

    caller: Caller
    names: Annotated[tuple[Internal, ...], Meta(max_length=RESOLVED_NAMES_MAX)]
    limit: U63
    permissions: U63 = int(Permission.ALL)
    lifetime_ns: U63 = 0


class Offer(Body, frozen=True, tag=4):
    """Delegate references of the caller to a task of another node that is about to be started there."""

    caller: Caller
    shared: Annotated[tuple[SharedReference, ...], _OFFERED]
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
    """Notify the receiving node: a task there got this reference from the task with fingerprint ``giver``.

    ``by`` is the giving task and ``home`` its node. The receiving node believes it only if that task holds
    a reference to the receiver there with the right to write.
    """

    receiver: Task
    giver: Fingerprint
    held: HeldReference
    by: Task = TaskId(0)
    home: Node = NodeId(0)


class Start(Body, frozen=True, tag=7):
    """Start a task here for the caller, with this id and these references.

    ``call`` has brand, arguments, label, limits and flags; references and groups are in the other fields.
    ``source`` is the content of the program, if the sending node has it and it is small. ``secrecy`` is the
    label with which the task begins. ``scheduled`` is True if the scheduler chose this node for it.
    """

    caller: Caller
    child: Task
    name: External
    call: Run
    groups: GroupNames
    program: HeldReference
    inputs: Annotated[tuple[HeldReference, ...], _GIVEN]
    outputs: Annotated[tuple[HeldReference, ...], _GIVEN]
    source: ProgramBytes | None = None
    secrecy: Secrecy = ()
    scheduled: bool = False


class CreateReplica(Body, frozen=True, tag=8):
    """Create a physical object of this logical object; its bytes come next to the message (B.1.3).

    ``home`` is the node of the caller, if that is not the asking node.
    """

    caller: Caller
    name: External | None
    groups: GroupNames
    owner: User
    kind: ObjectType
    buffering: Buffering
    v_r: Counter
    v_w: Counter
    size: ByteCount
    home: Node = NodeId(0)
    secrecy: Secrecy = ()


class Release(Body, frozen=True, tag=9):
    """The task has dropped these references, or never received them."""

    task: Task
    refs: HeldByTask


class TasksEnded(Body, frozen=True, tag=10):
    """These tasks of the asking node have ended."""

    tasks: Annotated[tuple[Task, ...], _TASKS]


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

    epoch: Epoch
    holdings: Annotated[tuple[HeldReferences, ...], Meta(max_length=limits.RECONCILE_TASKS_MAX)]
    lost: Annotated[tuple[Task, ...], _TASKS] = ()
    tasks: Annotated[tuple[Task, ...], _TASKS] | None = None


class Disband(Body, frozen=True, tag=13):
    """The group was destroyed."""

    group: External


class Rows(Body, frozen=True, tag=14):
    """The tasks of a principal on this node; the answer is ``Tasks``."""

    caller: Caller


class KeepOutput(Body, frozen=True, tag=15):
    """The output of an ended task whose parent is on the receiving node; its bytes come with the message."""

    principal: User
    name: External
    group: External
    size: ByteCount
    secrecy: Secrecy = ()


class ConfirmRemoval(Body, frozen=True, tag=16):
    """Answer with Done if the receiving node has stored that ``node`` is removed from the cluster."""

    node: Node


class Register(Body, frozen=True, tag=17):
    """The asking node's names that belong to the receiving node's part of the index of names.

    ``added`` and ``removed`` are digests of names. The asking node registers its names for the members that
    ``view`` is the digest of. With ``restart``, everything that it had registered before is void. With
    ``complete``, the receiving node has everything now. With ``always``, nothing is registered, and the
    asking node must be asked for every name. A message whose ``order`` is not above that of an earlier one
    changes nothing.
    """

    order: Counter
    view: Annotated[bytes, Meta(max_length=limits.INDEX_VIEW_BYTES)]
    restart: bool
    complete: bool
    always: bool
    added: Annotated[bytes, _DIGESTS] = b""
    removed: Annotated[bytes, _DIGESTS] = b""


class FindNames(Body, frozen=True, tag=18):
    """Return the nodes that have registered any of these digests of names at the receiving node."""

    view: Annotated[bytes, Meta(max_length=limits.INDEX_VIEW_BYTES)]
    digests: Annotated[bytes, Meta(max_length=limits.INDEX_DIGEST_BYTES * RESOLVED_NAMES_MAX)]


class CallBack(Body, frozen=True, tag=19):
    """Return every lease on this object of the asking node: the answer is Done when no read uses one."""

    object: Object


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
    | ConfirmRemoval
    | Register
    | FindNames
    | CallBack
)


# -- answers in addition to those of calls --------------------------------------------------------
class Offered(Struct, frozen=True, array_like=True, tag=30):
    """The answer to Offer: the new references, in order."""

    references: Annotated[tuple[Reference, ...], _OFFERED]


class Found(Struct, frozen=True, array_like=True, tag=31):
    """The answer to Resolve; ``groups`` are the ids and owners of the groups among the objects."""

    references: Annotated[tuple[Reference, ...], _FOUND]
    owners: Annotated[tuple[tuple[Object, User], ...], _FOUND] = ()


class UnknownReferences(Struct, frozen=True, array_like=True, tag=32):
    """The answer to Claim: the references that do not exist here, and the objects of them that are gone."""

    refs: Annotated[tuple[Ref, ...], _RECONCILED]
    objects: Annotated[tuple[Object, ...], _RECONCILED]


class ReplicaCreated(Struct, frozen=True, array_like=True, tag=34):
    """The answer to a copy that created an object on another node: the reference to it, and that node."""

    held: HeldReference


class Working(Struct, frozen=True, array_like=True, tag=33):
    """The request has arrived and is not done yet; it need not be repeated soon.

    ``also`` lists the numbers of further requests of the receiving node for which the same is true. The
    sender reports them again within ``again_ms``.
    """

    also: Annotated[tuple[Identifier, ...], _WAITING] = ()
    again_ms: Annotated[int, Meta(ge=0, le=limits.DCP_WORKING_PERIOD_MS_MAX)] = 0


class NameNodes(Struct, frozen=True, array_like=True, tag=35):
    """The answer to FindNames.

    If it is not ``known``, all nodes must be asked: the two nodes know different members, or some have not
    registered all their names yet.
    """

    known: bool
    nodes: Annotated[tuple[Node, ...], Meta(max_length=limits.NODES_MAX)] = ()


Answer: TypeAlias = (
    PlainResult | Results | Offered | Found | UnknownReferences | Working | ReplicaCreated | NameNodes
)


# -- on the connection ----------------------------------------------------------------------------
class Ask(Struct, frozen=True, array_like=True, tag=40):
    """A request. Every request numbered below ``settled`` was answered; those answers need not be kept.

    ``waiting``, if it is not empty, lists the numbers of all open requests: every other number below the
    highest of them was answered as well. A request with a ``trace`` is answered with the times of its parts.
    ``mandates`` are those of the principals that it is made for, until the receiving node has them, and
    ``extensions`` those with which the receiving node acts for them in turn.
    """

    number: Identifier
    settled: Identifier
    body: RequestBody
    waiting: Annotated[tuple[Identifier, ...], _WAITING] = ()
    trace: TraceContext | None = None
    mandates: Annotated[tuple[MandateBytes, ...], _MANDATES] = ()
    extensions: Annotated[tuple[MandateBytes, ...], _MANDATES] = ()


class PeerReply(Struct, frozen=True, array_like=True, tag=41):
    """The answer to a request."""

    number: Identifier
    result: Answer
    spans: TraceSpans = ()


class Published(Struct, frozen=True, array_like=True, tag=42):
    """The counters of an object that tasks of the receiving node refer to (§4.5.1)."""

    object: Object
    size: ByteCount
    v_r: Counter
    v_w: Counter
    a_r: Count
    a_w: Count
    dirty: Counter
    zombie: bool
    order: Counter  # counts up with each message to this node; an older message changes nothing


class Gossip(Struct, frozen=True, array_like=True, tag=43):
    """Membership: a message of ``dios.wire.gossip``, encoded."""

    message: Annotated[bytes, Meta(max_length=limits.FRAME_BYTES_MAX)]


class PeerHello(Struct, frozen=True, array_like=True, tag=44):
    """The first message in each direction; the certificate must have the same id and name.

    A node speaks every version from ``oldest`` to ``newest``; both use the highest version that both speak.
    ``channel`` is 0 on the control connection and counts up for data connections, whose ``epoch`` must be
    that of the control connection.
    """

    oldest: Count
    newest: Count
    node: Annotated[NodeId, Meta(ge=1, le=2**63 - 1)]
    epoch: Epoch
    name: Label
    rack: Label
    address: Address
    channel: Count = 0


class Leased(Struct, frozen=True, array_like=True, tag=45):
    """Request ``number`` of the receiving node got the lease that it wanted. It comes before the answer.

    The receiving node may answer reads through the reference of that call itself, from the version that the
    answer confirms, for ``LEASE_MS`` from the time when it first sent the request, or until a ``CallBack``.
    """

    number: Identifier


Message: TypeAlias = Ask | PeerReply | Published | Gossip | PeerHello | Leased
