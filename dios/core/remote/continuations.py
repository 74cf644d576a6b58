"""Define continuations, the next steps after answers of other nodes, and the progress of waiting calls.

Both are plain data, so that the state of a node can be printed, compared, stored and continued. A
continuation refers to everything by id. ``dios.core.remote.resume`` has the function for each type.
"""

from __future__ import annotations

from typing import TypeAlias

from msgspec import Struct, field

from dios.core.effects import Answer
from dios.core.model.records import CallId, ChildIdentity, Progress, Recipe
from dios.core.remote.version_cache import ReadKey
from dios.ids import InternalName, NodeId, ObjectId, PayloadId, Principal, RefId, TaskId
from dios.wire import dcp, messages


# -- continuations of calls that wait for a single answer ------------------------------------------
class FitAnswer(Struct, frozen=True, tag=True):
    """Answer the call with the other node's answer, translated for the local task."""

    call: CallId


class FitRead(Struct, frozen=True, tag=True):
    """Answer a read with the bytes of the other node, or with the cached ones that it has confirmed."""

    call: CallId


class FitAttached(Struct, frozen=True, tag=True):
    """Answer an attach call. The host uses ``request``, the request's number, to connect the bytes."""

    call: CallId
    request: int


class FitCreated(Struct, frozen=True, tag=True):
    """Answer a create call on a named node."""

    call: CallId
    node: NodeId


class FitDelegated(Struct, frozen=True, tag=True):
    """Answer a copy call on an object of node ``home``; the task ``receiver`` is on ``node``."""

    call: CallId
    home: NodeId
    node: NodeId
    receiver: TaskId


class FitCopied(Struct, frozen=True, tag=True):
    """Answer a copy call on an object of this node."""

    call: CallId


class AnswerCaller(Struct, frozen=True, tag=True):
    """Answer a call about another node with that node's answer."""

    call: CallId


# -- continuations of calls that gather several answers ---------------------------------------------
class GatherAnswer(Struct, frozen=True, tag=True):
    """Store one of several answers; the last one completes the call."""

    call: CallId
    place: int


class SelectAnswer(Struct, frozen=True, tag=True):
    """Handle one node's answer to a select call; ``indexes`` are the places of its references in the call."""

    call: CallId
    indexes: tuple[int, ...]


class SearchAnswer(Struct, frozen=True, tag=True):
    """Store the references that a node found for a lookup call."""

    call: CallId
    node: NodeId


class OfferAnswer(Struct, frozen=True, tag=True):
    """Store one node's offers to the child of a run call; ``places`` are those of the offered references."""

    call: CallId
    node: NodeId
    places: tuple[int, ...]


class StartAnswer(Struct, frozen=True, tag=True):
    """Answer a run call after the request to start ``child`` on another node."""

    call: CallId
    child: TaskId


# -- other continuations ----------------------------------------------------------------------------
class ConfirmNotice(Struct, frozen=True, tag=True):
    """Forget a notice once the node has confirmed it."""

    node: NodeId
    key: bytes | int


class ReconcileAnswer(Struct, frozen=True, tag=True):
    """Drop the references that another node does not know; ``round`` numbers the reconciliation round."""

    node: NodeId
    round: int


class AnswerRequest(Struct, frozen=True, tag=True):
    """Answer request ``number`` of a node, if the node still runs its start ``epoch``."""

    node: NodeId
    number: int
    epoch: int


class HandedOver(Struct, frozen=True, tag=True):
    """Drop a remote task's reference if the task's node did not accept it, then continue with ``then``."""

    task: TaskId
    ref: RefId
    then: AnswerRequest | FitCopied
    asker: NodeId


class RemovalAnswer(Struct, frozen=True, tag=True):
    """Store a node's confirmation that it has stored a removal; the last one answers the call."""

    call: CallId
    node: NodeId


class IndexAnswer(Struct, frozen=True, tag=True):
    """Store the nodes that an index node names for a lookup call."""

    call: CallId
    node: NodeId


class RegisterAnswer(Struct, frozen=True, tag=True):
    """Note that a node has registered names, and send it the next ones.

    ``order`` is that of the message, ``generation`` that of the link. With ``complete``, the node has all
    names then.
    """

    node: NodeId
    order: int
    generation: int
    complete: bool


class EndRead(Struct, frozen=True, tag=True):
    """End a read whose call is over: let the next reader fetch the bytes, and unpin the cached ones.

    ``principal`` is that of the reader.
    """

    progress: ReadProgress
    principal: Principal


class LeaseReturned(Struct, frozen=True, tag=True):
    """Note that a node has returned its leases on an object, after the call-back numbered ``round``."""

    node: NodeId
    object: ObjectId
    round: int


CallContinuation: TypeAlias = (
    FitAnswer | FitRead | FitAttached | FitCreated | FitDelegated | FitCopied | AnswerCaller
)
Continuation: TypeAlias = (
    CallContinuation
    | GatherAnswer
    | SelectAnswer
    | SearchAnswer
    | OfferAnswer
    | StartAnswer
    | ConfirmNotice
    | ReconcileAnswer
    | AnswerRequest
    | HandedOver
    | RemovalAnswer
    | IndexAnswer
    | RegisterAnswer
    | EndRead
    | LeaseReturned
)


# -- the progress of a waiting call -----------------------------------------------------------------
class GatheredAnswer(Struct, frozen=True):
    """One of several answers, and the bytes that came with it."""

    answer: dcp.Answer
    payload: PayloadId


class VectorPlan(Struct, frozen=True):
    """The plan for merging the answers to a vector.

    ``remote`` has the places of the forwarded calls, one tuple for each request. ``local`` has the places of
    the calls on this node. ``refused`` maps the places of calls that were refused before any request was sent
    to their answers.
    """

    remote: tuple[tuple[int, ...], ...]
    local: tuple[int, ...]
    refused: dict[int, Answer]


class TaskListPlan(Struct, frozen=True):
    """The plan for a list of tasks; ``own`` has the rows of this node's tasks."""

    own: tuple[messages.TaskRow, ...]


class GatherProgress(Progress):
    """The answers of several nodes to one call. ``kept`` has the payloads that the host keeps until the last
    answer arrives; ``missing`` is the number of answers still to come.
    """

    plan: VectorPlan | TaskListPlan
    answers: list[GatheredAnswer | None]
    kept: list[PayloadId]
    missing: int


class ReadProgress(Progress):
    """The progress of a read of an object of another node, of the range ``key``.

    A read that is ``fetching`` brings the bytes, also for other calls of its principal. ``payload`` are the
    cached bytes that the other node may confirm, 0 for none. A read with neither waits for a fetch.
    ``asked_ns`` is the time before its request was first sent; ``is_leased`` is set once the other node has
    granted a lease with it.
    """

    call: CallId
    key: ReadKey
    fetching: bool = False
    payload: PayloadId = PayloadId(0)
    asked_ns: int = 0
    is_leased: bool = False


class EntranceProgress(Progress):
    """A call that is not handled yet, because other nodes have leases on objects that it changes.

    The bytes of the call are in ``payloads``; ``attached`` is the number of those that came next to it.
    """

    payloads: tuple[PayloadId, ...]
    attached: int


class SelectProgress(Progress):
    """The progress of a select call with remote references.

    ``silent`` is the number of nodes that have not answered. ``waits`` is True if the call blocks.
    """

    silent: int
    waits: bool


class SearchProgress(Progress):
    """The progress of a lookup: the objects found on this node, and the answers of other nodes so far.

    ``cached`` is True during the first search, which covers only the nodes in the lookup cache. ``indexing``
    are the index nodes that have not answered yet, ``holders`` the nodes to ask after the last of them, and
    ``asked`` the nodes with a request since the cache. A session that reads by a share has the reference
    ``share`` to its record, and one that accepts a share looks for its record.
    """

    names: tuple[InternalName, ...]
    here: tuple[ObjectId, ...]
    answers: list[tuple[NodeId, dcp.Found]]
    waiting: dict[NodeId, None]
    incomplete: bool = False
    cached: bool = False
    indexing: dict[NodeId, None] = field(default_factory=dict)
    holders: dict[NodeId, None] = field(default_factory=dict)
    asked: dict[NodeId, None] = field(default_factory=dict)
    share: RefId = RefId(0)
    accepts: messages.AcceptShare | None = None

    @property
    def count(self) -> int:
        """The number of references that were found."""
        return len(self.here) + sum(len(answer.references) for _, answer in self.answers)


class StartProgress(Progress):
    """The progress of a task's start that involves other nodes: the references for the child, and the offers.

    ``node`` is the node that will run the child, or 0 for this node. ``scheduled`` is True if the scheduler
    chose it, and ``since`` the time when the start began. ``held`` has a place for each reference in
    ``shared``; ``granted`` lists the references to withdraw if the start fails. ``ended`` is the child's end,
    if it is reported before the answer.
    """

    recipe: Recipe
    label: str
    node: NodeId
    child: dcp.Caller
    identity: ChildIdentity
    shared: tuple[dcp.SharedReference, ...]
    held: list[dcp.HeldReference | None]
    granted: list[tuple[NodeId, RefId]]
    scheduled: bool
    missing: int = 0
    failure: messages.Failure | None = None
    ended: messages.TaskRow | None = None
    since: int = 0


class RemovalProgress(Progress):
    """The progress of a call that removes a node from the cluster.

    ``missing`` is the number of confirmations still to come; ``failed`` names the nodes without the removal.
    """

    node: NodeId
    name: str
    missing: int
    failed: list[str]
