"""The runs after which another one begins: how a word names them, and if they have done what they have to.

The supervisor asks for kept jobs, and the command of a run for that run; both see the same records and lists
of tasks. A run that cannot be seen because a node does not answer is unknown: it is waited for.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Final, NamedTuple

from dios import limits
from dios.errors import InvalidError, LimitError, UnreachableError
from dios.lib.supervised.records import Condition, JobEnd, Predecessor, ServiceRecord, found_element
from dios.wire.types import Cause, NodeStatus, TaskState

if TYPE_CHECKING:
    from dios.client.ops.cluster import Gathered, Member
    from dios.client.ops.status import Status

_BEGUN: Final = frozenset({TaskState.RUNNING, TaskState.PAUSED, TaskState.ENDED})
_OPTIONS: Final = {
    Condition.STARTED: "--after",
    Condition.SUCCEEDED: "--after-ok",
    Condition.ENDED: "--after-any",
}


class View(NamedTuple):
    """The runs of a user as one session sees them: the records of kept jobs, and the tasks.

    ``services`` is None if no record was found and a node that may have some does not answer. ``complete`` is
    False while a task may be missing, because its node does not answer. ``missed`` are the
    fingerprints of the tasks that the view before lacked: one that a node just passes to another may be in
    the list of neither.
    """

    services: Mapping[str, ServiceRecord] | None
    tasks: Sequence[Status]
    complete: bool
    missed: Collection[str] = ()


class Waiting(NamedTuple):
    """The runs that are still waited for, and why one of them can never do what it has to; "" if all can."""

    after: tuple[Predecessor, ...]
    never: str = ""


def is_complete(members: Iterable[Member], tasks: Gathered[Status]) -> bool:
    """Return False if a living node is missing in a list of tasks. The tasks of a dead node are lost."""
    if any(member.status is NodeStatus.SUSPECT for member in members):
        return False
    return tasks.dead_only or not tasks.incomplete


# -- names ------------------------------------------------------------------------------------------
def named(view: View, word: str, condition: Condition) -> tuple[Predecessor, ...]:
    """Return the runs that a word means: a kept job, an element of one, or tasks as ``dios ps`` lists them.

    Of several tasks with one title, such as those of a gang, it means all that run or wait and those that ran
    at the same time; if all have ended, the last one and those. So a title needs the list of all tasks; the
    beginning of a fingerprint names one that was seen.

    Raises:
        InvalidError: there is no such run.
        UnreachableError: a node that may have such a run does not answer.
    """
    with suppress(InvalidError):
        record, index = found_element(view.services or {}, word)
        return (Predecessor(word, condition, token=record.token, index=index),)
    tasks = _tasks_marked(view.tasks, word) or (_tasks_titled(view.tasks, word) if view.complete else [])
    if tasks:
        return tuple(Predecessor(_word_for(task), condition, task=task.fingerprint) for task in tasks)
    if not view.complete or view.services is None:
        raise UnreachableError(
            f"cannot list the runs {word!r}: a node that may have some does not answer. Give the beginning "
            "of a fingerprint, or try again later."
        )
    raise InvalidError(f"there is no run {word!r}. `dios ps --all` and `dios job ls` list your runs.")


def all_named(view: View, words: Iterable[tuple[str, Condition]]) -> tuple[Predecessor, ...]:
    """Return the runs that these words mean, each with its condition; errors as of ``named``."""
    runs = tuple(dict.fromkeys(run for word, condition in words for run in named(view, word, condition)))
    if len(runs) > limits.JOB_AFTER_MAX:
        raise LimitError(f"a run waits for at most {limits.JOB_AFTER_MAX} others, not {len(runs)}")
    return runs


def _word_for(task: Status) -> str:
    return (task.label or task.fingerprint)[: limits.NODE_NAME_BYTES_MAX]


def _tasks_marked(tasks: Sequence[Status], word: str) -> list[Status]:
    marked = [task for task in tasks if word and task.fingerprint.startswith(word.lower())]
    if len(marked) > 1:
        raise InvalidError(f"{len(marked)} tasks begin with {word!r}. Give more of the fingerprint.")
    return marked


def _tasks_titled(tasks: Sequence[Status], word: str) -> list[Status]:
    titled = [task for task in tasks if word and task.label == word]
    living = [task for task in titled if not task.ended]
    first = living or sorted(titled, key=lambda task: task.ended_ns)[-1:]
    since = min((task.started_ns for task in first), default=0)
    return [task for task in titled if task in first or task.ended_ns > since]


# -- conditions -------------------------------------------------------------------------------------
def still_waiting(view: View, after: Iterable[Predecessor]) -> Waiting:
    """Return which of these runs are still waited for, and why one of them can never do what it has to."""
    waiting: list[Predecessor] = []
    for predecessor in after:
        met, never = _outcome(view, predecessor)
        if never:
            return Waiting(
                (*waiting, predecessor), f"{never}, and {_OPTIONS[predecessor.condition]} needs its success"
            )
        if not met:
            waiting.append(predecessor)
    return Waiting(tuple(waiting))


def missing_tasks(view: View, after: Iterable[Predecessor]) -> frozenset[str]:
    """Return the tasks among these runs that a complete list lacks."""
    if not view.complete:
        return frozenset()
    return frozenset(predecessor.task for predecessor in after if predecessor.task).difference(
        task.fingerprint for task in view.tasks
    )


def waiting_text(after: Iterable[Predecessor]) -> str:
    """Return what a run waits for, in a few words."""
    words = {
        Condition.STARTED: "the start of",
        Condition.SUCCEEDED: "the success of",
        Condition.ENDED: "the end of",
    }
    return ", ".join(
        dict.fromkeys(f"{words[predecessor.condition]} {predecessor.run}" for predecessor in after)
    )


def _outcome(view: View, predecessor: Predecessor) -> tuple[bool, str]:
    """Return True if a run has done what it has to, and why it never will; "" if it may."""
    if predecessor.task:
        return _task_outcome(view, predecessor)
    services = view.services or {}
    record = next((record for record in services.values() if record.token == predecessor.token), None)
    if record is None and (view.services is None or not view.complete):
        return False, ""
    if record is None or record.removed or record.job is None:
        return _gone(predecessor, f"{predecessor.run} was removed before its end was seen")
    end = record.job.end
    if predecessor.index is not None and record.job.array is not None:
        end = record.job.array.elements()[predecessor.index].end or end
    if end is None:
        return predecessor.condition is Condition.STARTED and _has_begun(view, predecessor, record), ""
    if predecessor.condition is Condition.SUCCEEDED and end.exit_status:
        return False, f"{predecessor.run} {_end_text(end)}"
    return True, ""


def _has_begun(view: View, predecessor: Predecessor, record: ServiceRecord) -> bool:
    """Return True if a job that has not ended has begun."""
    array = None if record.job is None else record.job.array
    attempts = [record.generation] if array is None else [element.attempt for element in array.changed]
    if predecessor.index is not None and array is not None:
        attempts = [array.elements()[predecessor.index].attempt]
    places = (record.place(task.label) for task in view.tasks if task.state in _BEGUN)
    return any(
        place is not None and (predecessor.index is None or place[0] == predecessor.index) for place in places
    ) or any(attempt > 1 for attempt in attempts)


def _task_outcome(view: View, predecessor: Predecessor) -> tuple[bool, str]:
    task = next((task for task in view.tasks if task.fingerprint == predecessor.task), None)
    if task is None:
        # A task stays listed for long after its end, unless its node is lost.
        why = f"{predecessor.run} ({predecessor.task}) is gone, and how it ended is not known"
        return _gone(predecessor, why) if view.complete and predecessor.task in view.missed else (False, "")
    if not task.ended:
        return predecessor.condition is Condition.STARTED and task.state in _BEGUN, ""
    if predecessor.condition is Condition.SUCCEEDED and not task.ok:
        how = "was moved" if task.cause is Cause.MOVED else f"ended with {task.exit_status}"
        return False, f"{predecessor.run} ({predecessor.task}) {how} ({task.cause.name.lower()})"
    return True, ""


def _gone(predecessor: Predecessor, why: str) -> tuple[bool, str]:
    return (False, why) if predecessor.condition is Condition.SUCCEEDED else (True, "")


def _end_text(end: JobEnd) -> str:
    return f"ended with {end.exit_status} ({end.cause.name.lower()})"
