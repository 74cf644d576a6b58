"""The coordination protocol: what the cores of two nodes say to each other (thesis §4.8).

Not for: framing and bulk bytes (``dios.transport``), or when something is said
(``dios.core.remote.requests``).
A *request* has a number and is answered by exactly one ``Reply`` with the same number, however often it is
repeated; a *notice* has none and may be lost. Nothing promises an order. Fields are added at the end with
a default, and a receiver leaves out what it does not know.
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
    """What is asked, or told."""


class Caller(Struct, frozen=True, array_like=True):
    """For whom a node asks: one of its tasks or sessions, and whom that acts for."""

    task: Task
    principal: Text
    fingerprint: Text
    brand: Brand
    label: Text = ""


class Held(Struct, frozen=True, array_like=True):
    """A reference as it will be in a task's table, and the node that has the object."""

    node: Node
    reference: Reference


class GroupName(Struct, frozen=True, array_like=True):
    """A group that a task is a member of, or that an object shall be in, and whose it is."""

    name: External
    owner: Text


class Sharing(Struct, frozen=True, array_like=True):
    """One reference to be handed on, narrowed to ``permissions``."""

    ref: Ref
    permissions: U64
    label: Text = ""
    lifetime_ns: U64 = 0


class Holding(Struct, frozen=True, array_like=True):
    """What one task holds of the references with ids from ``first`` to ``last``: reference, object, rights,
    and whether it came by it on its own authority.
    """

    caller: Caller
    first: U64
    last: U64
    references: tuple[tuple[Ref, Object, U64, bool], ...]


# -- requests -------------------------------------------------------------------------------------
class Forward(Body, frozen=True, tag=1):
    """A task's call on what this node has, made in the task's name; answered with the call's result.

    The bytes of a commit travel inside the call or, when they are many, beside the message. ``groups``
    are those that a create names.
    """

    caller: Caller
    call: PlainCall | Vector
    groups: tuple[GroupName, ...] = ()


class Resolve(Body, frozen=True, tag=3):
    """References for the caller to the objects that stand under any of these internal names (§4.3.3)."""

    caller: Caller
    names: tuple[Internal, ...]
    limit: U64


class Offer(Body, frozen=True, tag=4):
    """Delegate references of the caller's to a task of another node, which is about to be started there."""

    caller: Caller
    shared: tuple[Sharing, ...]
    receiver: Caller
    node: Node


class Delegate(Body, frozen=True, tag=5):
    """Delegate a reference of the caller's to a task on ``node``, which is told of it (§4.5.3).

    ``call`` says what is delegated; its own receiver means nothing here. Answered by ``Offered`` where
    the receiver is the asking node's, else by ``Done``.
    """

    caller: Caller
    call: Copy
    receiver: Caller
    node: Node


class Give(Body, frozen=True, tag=6):
    """A task of yours was delegated this reference, by the task with fingerprint ``giver``."""

    receiver: Task
    giver: Text
    held: Held


class Start(Body, frozen=True, tag=7):
    """Start a task here for the caller: its id, and everything that it is handed.

    ``call`` has brand, arguments, label, limits and flags; its references and groups stand beside it.
    """

    caller: Caller
    child: Task
    name: External
    call: Run
    groups: tuple[GroupName, ...]
    program: Held
    inputs: tuple[Held, ...]
    outputs: tuple[Held, ...]


class Plant(Body, frozen=True, tag=8):
    """Make a physical object of this logical object here; its bytes come beside the message (B.1.3).

    ``home`` is the node of the caller, where it is not the asking one.
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
    """The task has dropped these references, or was never given them."""

    task: Task
    refs: tuple[Ref, ...]


class Gone(Body, frozen=True, tag=10):
    """These tasks of the asking node are over."""

    tasks: tuple[Task, ...]


class Tell(Body, frozen=True, tag=11):
    """An event for a task's self-reference: its child has ended, or a reference was taken back."""

    task: Task
    event: SelfEvent


class Claim(Body, frozen=True, tag=12):
    """What tasks of the asking node hold here, in one or several messages.

    Answered by ``Unknown``: those that are not, or no longer, there. What has been here for a while in the
    ranges that are told of, and is not named, is dropped. So is everything of tasks of that node that are
    not among ``tasks``, where those are given. ``epoch`` is the asked node's as of the grants:
    where it has started anew since, references that were looked up or created are granted again, if the
    object is still there. ``lost`` are tasks there that were taken for lost; they shall end.
    """

    epoch: U64
    holdings: tuple[Holding, ...]
    lost: tuple[Task, ...] = ()
    tasks: tuple[Task, ...] | None = None


class Disband(Body, frozen=True, tag=13):
    """The group was destroyed."""

    group: External


class Rows(Body, frozen=True, tag=14):
    """The tasks of a principal on this node; answered by ``Tasks``."""

    caller: Caller


class Keep(Body, frozen=True, tag=15):
    """What a task of yours has started here and is over has written; its bytes come beside the message."""

    principal: Text
    name: External
    group: External
    size: U64


RequestBody: TypeAlias = (
    Forward
    | Resolve
    | Offer
    | Delegate
    | Give
    | Start
    | Plant
    | Release
    | Gone
    | Tell
    | Claim
    | Disband
    | Rows
    | Keep
)


# -- answers beside those of calls ----------------------------------------------------------------
class Offered(Struct, frozen=True, array_like=True, tag=30):
    """Answer to Offer: the new references, in order."""

    references: tuple[Reference, ...]


class Found(Struct, frozen=True, array_like=True, tag=31):
    """Answer to Resolve. ``groups`` are the ids of those among the objects that are groups, with owners."""

    references: tuple[Reference, ...]
    owners: tuple[tuple[Object, Text], ...] = ()


class Unknown(Struct, frozen=True, array_like=True, tag=32):
    """Answer to Claim: the references that are not there, and of those the objects that are gone."""

    refs: tuple[Ref, ...]
    objects: tuple[Object, ...]


class Planted(Struct, frozen=True, array_like=True, tag=34):
    """Answer to a copy that made an object on another node: the reference to it, and which node."""

    held: Held


class Working(Struct, frozen=True, array_like=True, tag=33):
    """The request is here and not done yet: nobody need repeat it soon."""


Answer: TypeAlias = PlainResult | Results | Offered | Found | Unknown | Working | Planted


# -- on the connection ----------------------------------------------------------------------------
class Ask(Struct, frozen=True, array_like=True, tag=40):
    """A request. Everything numbered below ``settled`` was answered: its answers need not be kept.

    ``waiting``, where it is not empty, are the numbers of all requests that wait for an answer: of what is
    numbered below the highest of them all else was answered as well.
    """

    number: U64
    settled: U64
    body: RequestBody
    waiting: Annotated[tuple[U64, ...], _WAITING] = ()


class Reply(Struct, frozen=True, array_like=True, tag=41):
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
    order: U64  # counts up with each message to this node: an older one changes nothing


class Gossip(Struct, frozen=True, array_like=True, tag=43):
    """Membership: a message of ``dios.wire.gossip``, encoded."""

    message: bytes


class PeerHello(Struct, frozen=True, array_like=True, tag=44):
    """The first message on a connection, each way; the certificate must say the same id and name.

    A node speaks every version from ``oldest`` to ``newest``; the higher of the two newest that both speak
    counts. ``channel`` is 0 on the control connection and counts up for data connections, whose ``epoch``
    must be the control connection's.
    """

    oldest: int
    newest: int
    node: NodeId
    epoch: int
    name: Text
    rack: Text
    address: Text
    channel: int = 0


Message: TypeAlias = Ask | Reply | Published | Gossip | PeerHello
