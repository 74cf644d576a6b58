"""Groups of effects by what they touch: which must keep an order, and which run even after a failure.

``dios.host.loop.effector`` carries them out.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final, cast

from dios import limits
from dios.core import effects as fx
from dios.ids import NodeId, ObjectId, PayloadId, TaskId
from dios.wire import dcp
from dios.wire.messages import Reference, Welcome

ANSWER_EFFECTS: Final = (
    fx.Answer,
    fx.AnswerRead,
    fx.AnswerWrite,
    fx.AnswerBytes,
    fx.AnswerConsole,
    fx.AnswerVector,
    fx.AnswerAttach,
    fx.AnswerLog,
    fx.AnswerReceived,
    fx.AnswerAttachRemote,
)
CONTENT_EFFECTS: Final[frozenset[type]] = frozenset(
    {
        fx.AnswerRead,
        fx.AnswerWrite,
        fx.AnswerVector,
        fx.ApplyWrite,
        fx.DuplicateContent,
        fx.DiscardContent,
        fx.CloseBuffer,
        fx.AnswerReceived,
    }
)
RUN_DESPITE_FAILURE: Final = (
    fx.CloseBuffer,
    fx.UnbindSlot,
    fx.PublishCounters,
    fx.CloseStreamEnd,
    fx.OpenNetwork,
    fx.AdoptConnection,
    fx.CloseNetwork,
    fx.Kill,
    fx.PruneEnvironments,
    fx.CloseConnection,
    fx.BeginShutdown,
    fx.Audit,
    fx.KeepPayload,
    fx.DropPayload,
    fx.OpenRemoteTask,
    fx.CloseRemoteTask,
    fx.Contact,
    fx.HangUp,
    fx.RemoveNode,
    fx.StoreLabels,
    fx.StoreRegister,
    fx.RotateSecret,
    fx.SetRates,
    fx.EndConnection,
    fx.LogDefect,
)
MAY_OPEN: Final[frozenset[type]] = frozenset(
    {fx.AnswerRead, fx.AnswerWrite, fx.AnswerReceived, fx.AnswerVector}
)
"""Effects that may open buffers for a task, see ``opening``."""

ESSENTIAL: Final = (fx.Audit, fx.BeginShutdown)
"""Effects without which the node may not go on."""


def touches_contents(effects: list[fx.Effect]) -> bool:
    """Return True if any effect reads, changes or frees contents or buffers."""
    return any(
        type(effect) in CONTENT_EFFECTS
        or (type(effect) is fx.Send and effect.source is not None)
        or program_of(effect)
        for effect in effects
    )


def program_of(effect: fx.Effect) -> ObjectId:
    """Return the program that a Welcome or the start of a task on another node may carry; 0 for any other."""
    executable: Reference | None = None
    if type(effect) is fx.Answer:
        if type(effect.result) is Welcome:
            executable = effect.result.executable
    elif type(effect) is fx.Send and type(effect.message) is dcp.Ask:
        body = effect.message.body
        executable = body.program.reference if type(body) is dcp.Start else None
    if executable is None or not 0 < executable.size <= limits.WELCOME_PROGRAM_BYTES_MAX:
        return ObjectId(0)
    return ObjectId(executable.object)


def defers_volatile_changes(effects: list[fx.Effect]) -> bool:
    """Return True if deferring these effects defers a change that no object's ticket records.

    These are changes of volatile contents, duplicated contents, and buffers opened by a vector.
    """
    for effect in effects:
        kind = type(effect)
        if kind is fx.ApplyWrite:
            if not cast("fx.ApplyWrite", effect).durable:
                return True
        elif kind is fx.AnswerVector:
            parts = cast("fx.AnswerVector", effect).parts
            if any(isinstance(part, fx.AnswerRead | fx.AnswerWrite) for part in parts):
                return True
        elif kind is fx.DuplicateContent:
            return True
    return False


def payloads_used(effect: fx.Effect) -> Iterator[PayloadId]:
    """Yield the payloads of earlier events that an effect may need: those it answers with, or drops."""
    if isinstance(effect, fx.DropPayload | fx.AnswerReceived):
        yield effect.payload
    elif isinstance(effect, fx.AnswerVector):
        for part in effect.parts:
            if isinstance(part, fx.AnswerReceived):
                yield part.payload


def opening(effect: fx.Effect) -> Iterator[fx.AnswerRead | fx.AnswerWrite | fx.AnswerReceived]:
    """Yield the parts of an effect that open a buffer for a task."""
    for part in effect.parts if isinstance(effect, fx.AnswerVector) else (effect,):
        if isinstance(part, fx.AnswerRead | fx.AnswerWrite | fx.AnswerReceived) and part.result.buffer:
            yield part


def objects_of(effect: fx.Effect) -> tuple[ObjectId, ...]:
    """Return the objects whose content or counters an effect touches."""
    if isinstance(effect, fx.DuplicateContent):
        return (effect.object, effect.source)
    if isinstance(effect, fx.ApplyWrite):
        origin = effect.source.content_of
        return (effect.object, origin) if origin else (effect.object,)
    if isinstance(effect, fx.AnswerRead | fx.AnswerWrite | fx.DiscardContent | fx.PublishCounters):
        return (effect.object,)
    if isinstance(effect, fx.Send):
        origin = effect.source.content_of if effect.source else program_of(effect)
        return (origin,) if origin else ()
    if isinstance(effect, fx.BindSlot):
        return (ObjectId(effect.reference.object),)
    if isinstance(effect, fx.AnswerVector):
        return tuple(part.object for part in effect.parts if isinstance(part, fx.AnswerRead | fx.AnswerWrite))
    program = program_of(effect)
    return (program,) if program else ()


def parties_of(effect: fx.Effect, effects: Iterable[fx.Effect]) -> tuple[TaskId, NodeId, ObjectId]:
    """Return the task, the node and the object that an effect of a step is about; 0 for none."""
    task = getattr(effect, "task", None) or task_answered(effects)
    if isinstance(effect, fx.Send) and isinstance(effect.message, dcp.Ask):
        caller = getattr(effect.message.body, "caller", None)
        task = task if caller is None else caller.task
    return task, getattr(effect, "node", NodeId(0)), getattr(effect, "object", ObjectId(0))


def task_answered(effects: Iterable[fx.Effect]) -> TaskId:
    """Return the task on whose behalf a step runs: the first task that its effects answer, or 0."""
    return next((effect.task for effect in effects if isinstance(effect, ANSWER_EFFECTS)), TaskId(0))
