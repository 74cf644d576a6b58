"""What goes on when another node answers: continuations, and what a waiting call has gathered so far.

Both are plain data, so that a node's state can be printed, compared, stored and continued. A continuation
names everything by id. ``dios.core.remote.resume`` has the function for each type of continuation.
"""

from __future__ import annotations

from typing import TypeAlias

from msgspec import Struct

from dios.core.effects import Answer
from dios.core.model.records import CallId, ChildIdentity, Progress, Recipe
from dios.ids import InternalName, NodeId, ObjectId, PayloadId, RefId, TaskId
from dios.wire import dcp, messages


# -- continuations of calls: the call waits for this one answer ------------------------------------
class FitAnswer(Struct, frozen=True, tag=True):
    """Answer the call with the other node's answer, fitted to the task here."""

    call: CallId


class FitAttached(Struct, frozen=True, tag=True):
    """Answer an attach call; ``request`` is the request's number, by which the host connects the bytes."""

    call: CallId
    request: int


class FitCreated(Struct, frozen=True, tag=True):
    """Answer a create call that names a node."""

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
    """Enter one of several answers; the last one completes the call."""

    call: CallId
    place: int


class SelectAnswer(Struct, frozen=True, tag=True):
    """Enter one node's answer to a select call; ``indexes`` are the places of its references in the call."""

    call: CallId
    indexes: tuple[int, ...]


class SearchAnswer(Struct, frozen=True, tag=True):
    """Enter what one node found for a lookup call."""

    call: CallId
    node: NodeId


class OfferAnswer(Struct, frozen=True, tag=True):
    """Enter one node's offers to the child of a run call; ``places`` are those of the offered references."""

    call: CallId
    node: NodeId
    places: tuple[int, ...]


class StartAnswer(Struct, frozen=True, tag=True):
    """Answer a run call whose child ``child`` was to be started on another node."""

    call: CallId
    child: TaskId


# -- other continuations ----------------------------------------------------------------------------
class ConfirmNotice(Struct, frozen=True, tag=True):
    """Forget a notice that a node must hear, once it has heard it."""

    node: NodeId
    key: bytes | int


class ReconcileAnswer(Struct, frozen=True, tag=True):
    """Correct the references that another node does not know; ``round`` is the round of messages."""

    node: NodeId
    round: int


class AnswerRequest(Struct, frozen=True, tag=True):
    """Answer request ``number`` of the start ``epoch`` of a node."""

    node: NodeId
    number: int
    epoch: int


class HandedOver(Struct, frozen=True, tag=True):
    """Drop a remote task's reference if its own node did not take it, then go on with ``then``."""

    task: TaskId
    ref: RefId
    then: AnswerRequest | FitCopied


CallContinuation: TypeAlias = FitAnswer | FitAttached | FitCreated | FitDelegated | FitCopied | AnswerCaller
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
)


# -- the progress of a waiting call -----------------------------------------------------------------
class GatheredAnswer(Struct, frozen=True):
    """One of several answers, and the bytes that came with it."""

    answer: dcp.Answer
    payload: PayloadId


class VectorPlan(Struct, frozen=True):
    """How the answers to a vector are put together.

    ``remote`` has, for each node that was asked, the places of its calls; ``local`` the places of the calls
    of this node. ``refused`` has the answers to calls that were refused before anything was asked.
    """

    remote: tuple[tuple[int, ...], ...]
    local: tuple[int, ...]
    refused: dict[int, Answer]


class TaskListPlan(Struct, frozen=True):
    """A list of tasks: ``own`` are those of this node."""

    own: tuple[messages.TaskRow, ...]


class GatherProgress(Progress):
    """Answers of several nodes to one call; the bytes of ``kept`` were kept for the last answer."""

    plan: VectorPlan | TaskListPlan
    answers: list[GatheredAnswer | None]
    kept: list[PayloadId]
    missing: int


class SelectProgress(Progress):
    """A select call with references to objects of other nodes: ``silent`` nodes have not answered."""

    silent: int
    waits: bool


class SearchProgress(Progress):
    """A lookup: the objects found on this node, and what other nodes have found so far."""

    names: tuple[InternalName, ...]
    here: tuple[ObjectId, ...]
    found: list[tuple[NodeId, dcp.Found]]
    waiting: dict[NodeId, None]
    incomplete: bool = False
    cached: bool = False

    @property
    def count(self) -> int:
        """The number of references that were found."""
        return len(self.here) + sum(len(found.references) for _, found in self.found)


class StartProgress(Progress):
    """A start that concerns other nodes: what the child gets, and which nodes have offered it already.

    ``node`` is where the child will run, 0 for this node. ``scheduled`` says that the scheduler placed it.
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
