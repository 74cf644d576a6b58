"""Runs that begin after others: how these are named, what they have to do, and what the supervisor does."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace as replace_dataclass

import pytest
from msgspec.structs import replace

from dios import limits
from dios.client.ops.cluster import Gathered, Member
from dios.client.ops.status import Status
from dios.errors import InvalidError, LimitError, UnreachableError
from dios.lib.supervised import records
from dios.lib.supervised.predecessors import (
    View,
    all_named,
    is_complete,
    missing_tasks,
    named,
    still_waiting,
    waiting_text,
)
from dios.lib.supervised.records import Condition, JobArray, JobEnd, JobState, Predecessor, ServiceRecord
from dios.wire.types import Cause, NodeStatus, TaskState
from tests.support.node.supervised_site import SPEC, Site, supervise

STARTED, SUCCEEDED, ENDED = Condition.STARTED, Condition.SUCCEEDED, Condition.ENDED


def job(name: str, *after: Predecessor, indices: tuple[int, ...] = ()) -> ServiceRecord:
    """A new kept job with one attempt."""
    array = JobArray(indices, 64) if indices else None
    return records.created({}, name, SPEC, 1, JobState(1, 5, b"s" * 32, b"g" * 32, after=after, array=array))


def done(record: ServiceRecord, status: int, index: int = 0) -> ServiceRecord:
    """The job after its only attempt."""
    return records.ended(record, JobEnd(Cause.EXITED, status, 9, "n1"), index)


def task(
    mark: str,
    title: str = "",
    state: TaskState = TaskState.RUNNING,
    *,
    cause: Cause = Cause.NONE,
    code: int = 0,
    began: int = 10,
    ended: int = 0,
) -> Status:
    """A task as the list has it."""
    return Status(mark, title, state, cause=cause, exit_code=code, started_ns=began, ended_ns=ended)


def over(mark: str, title: str = "", code: int = 0, *, began: int = 10, ended: int = 20) -> Status:
    """A task that has ended by itself."""
    return task(mark, title, TaskState.ENDED, cause=Cause.EXITED, code=code, began=began, ended=ended)


def view(*known: ServiceRecord, tasks: Sequence[Status] = (), complete: bool = True) -> View:
    """What a session sees."""
    return View({record.name: record for record in known}, tasks, complete)


def after(record: ServiceRecord, condition: Condition, index: int | None = None) -> Predecessor:
    """A condition on a job."""
    return Predecessor(record.name, condition, token=record.token, index=index)


# -- names ------------------------------------------------------------------------------------------
def test_a_word_names_a_job_an_element_or_tasks() -> None:
    """A kept job comes before a task with that title."""
    sweep = job("sweep", indices=(1, 7))
    there = view(sweep, tasks=[task("ab12", "train"), task("ab34", "sweep")])
    assert named(there, "sweep", ENDED) == (after(sweep, ENDED),)
    assert named(there, "sweep.7", STARTED) == (replace(after(sweep, STARTED, 7), run="sweep.7"),)
    assert named(there, "train", SUCCEEDED) == (Predecessor("train", SUCCEEDED, task="ab12"),)
    assert named(there, "AB3", SUCCEEDED) == (Predecessor("sweep", SUCCEEDED, task="ab34"),)
    for unknown in ("sweep.2", "other", "cd", ""):
        with pytest.raises(InvalidError, match="no run"):
            named(there, unknown, ENDED)
    with pytest.raises(InvalidError, match="more of the fingerprint"):
        named(there, "ab", ENDED)
    with pytest.raises(UnreachableError):
        named(view(complete=False), "other", ENDED)
    with pytest.raises(UnreachableError):
        named(View(None, (), complete=True), "other", ENDED)
    with pytest.raises(InvalidError, match="no run"):
        named(view(records.removed(sweep)), "sweep", ENDED)


def test_the_title_of_a_gang_names_all_its_tasks() -> None:
    """Those that have ended meanwhile, too; not those of an earlier run with the same title. In a list that
    may lack some, only a fingerprint names one.
    """
    earlier = over("e1", "gang", 1, began=1, ended=5)
    failed = over("f1", "gang", 1, began=10, ended=30)
    there = [earlier, failed, task("a1", "gang", began=11), task("b1", "gang", TaskState.WAITING, began=12)]
    assert [predecessor.task for predecessor in named(view(tasks=there), "gang", SUCCEEDED)] == [
        "f1",
        "a1",
        "b1",
    ]
    with pytest.raises(UnreachableError):
        named(view(tasks=there, complete=False), "gang", SUCCEEDED)
    assert [
        predecessor.task for predecessor in named(view(tasks=there, complete=False), "f1", SUCCEEDED)
    ] == ["f1"]
    last = [earlier, over("g1", "gang", began=10, ended=20), failed]
    assert [predecessor.task for predecessor in named(view(tasks=last), "gang", SUCCEEDED)] == ["g1", "f1"]


def test_the_runs_that_one_waits_for_are_bounded() -> None:
    """Each counts once."""
    tasks = [task(f"{number:04x}", "t") for number in range(limits.JOB_AFTER_MAX + 1)]
    with pytest.raises(LimitError):
        all_named(view(tasks=tasks), [("t", ENDED)])
    assert len(all_named(view(tasks=tasks[1:]), [("t", ENDED), ("t", ENDED)])) == limits.JOB_AFTER_MAX


def test_a_list_is_complete_unless_a_living_node_is_missing() -> None:
    """The tasks of a dead node are lost; one that is suspected may come back."""

    def nodes(status: NodeStatus) -> list[Member]:
        here = Member(1, "n1", "", "", NodeStatus.ALIVE, False, 1, 0, 0, 2, 0, here=True)
        return [here, Member(2, "n2", "", "", status, False, 1, 0, 0, 2, 0, here=False)]

    everything = Gathered[Status]([])
    some_silent = Gathered[Status]([], incomplete=True)
    some_dead = Gathered[Status]([], incomplete=True, dead_only=True)
    assert is_complete(nodes(NodeStatus.ALIVE), everything)
    assert not is_complete(nodes(NodeStatus.ALIVE), some_silent)
    assert not is_complete(nodes(NodeStatus.DEAD), some_silent)
    assert is_complete(nodes(NodeStatus.DEAD), some_dead)
    assert not is_complete(nodes(NodeStatus.SUSPECT), everything)


# -- conditions -------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("known", "met", "never"),
    [
        (task("ab", state=TaskState.WAITING), set(), set()),
        (task("ab", state=TaskState.STARTING), set(), set()),
        (task("ab"), {STARTED}, set()),
        (over("ab"), {STARTED, SUCCEEDED, ENDED}, set()),
        (over("ab", code=3), {STARTED, ENDED}, {SUCCEEDED}),
        (task("ab", state=TaskState.ENDED, cause=Cause.KILLED), {STARTED, ENDED}, {SUCCEEDED}),
        (None, {STARTED, ENDED}, {SUCCEEDED}),
    ],
)
def test_a_task_meets_a_condition_or_never_will(
    known: Status | None, met: set[Condition], never: set[Condition]
) -> None:
    """One that two views in a row lack is gone: it has ended, and the way is not known."""
    there = view(tasks=[] if known is None else [known])._replace(missed={"ab"})
    for condition in Condition:
        waiting = still_waiting(there, [Predecessor("t", condition, task="ab")])
        assert (condition in met, condition in never) == (not waiting.after, bool(waiting.never))


def test_a_task_that_may_be_on_a_silent_node_is_waited_for() -> None:
    """Unknown is not gone, and one look is not enough: a node may just pass it to another."""
    predecessor = Predecessor("t", SUCCEEDED, task="ab")
    silent = view(complete=False)._replace(missed={"ab"})
    assert still_waiting(silent, [predecessor]) == ((predecessor,), "")
    assert missing_tasks(silent, [predecessor]) == set()
    assert still_waiting(view(), [predecessor]) == ((predecessor,), "")
    assert missing_tasks(view(tasks=[task("cd")]), [predecessor, after(job("train"), ENDED)]) == {"ab"}
    assert missing_tasks(view(tasks=[task("ab")]), [predecessor]) == set()


def test_a_job_whose_record_may_be_on_a_silent_node_is_waited_for() -> None:
    """Unknown is not removed."""
    job_before = after(job("train"), SUCCEEDED)
    for unknown in (view(complete=False), View(None, (), complete=True)):
        assert still_waiting(unknown, [job_before]) == ((job_before,), "")


def test_a_job_meets_a_condition_or_never_will() -> None:
    """Its end is in its record; a new job of the same name is another one."""
    train = job("train")
    cases: list[tuple[View, set[Condition], set[Condition]]] = [
        (view(train), set(), set()),
        (view(train, tasks=[task("ab", train.label(0, 1), TaskState.WAITING)]), set(), set()),
        (view(train, tasks=[task("ab", train.label(0, 1))]), {STARTED}, set()),
        (view(done(train, 0)), set(Condition), set()),
        (view(done(train, 3)), {STARTED, ENDED}, {SUCCEEDED}),
        (view(records.stopped(train, 9)), {STARTED, ENDED}, {SUCCEEDED}),
        (view(records.removed(train)), {STARTED, ENDED}, {SUCCEEDED}),
        (view(job("train")), {STARTED, ENDED}, {SUCCEEDED}),
    ]
    for there, met, never in cases:
        for condition in Condition:
            waiting = still_waiting(there, [after(train, condition)])
            assert (condition in met, condition in never) == (not waiting.after, bool(waiting.never))


def test_an_element_is_waited_for_alone() -> None:
    """Its array goes on."""
    sweep = job("sweep", indices=(1, 2))
    for condition in Condition:
        first, two = after(sweep, condition, 1), after(sweep, condition, 2)
        assert still_waiting(view(done(sweep, 0, 1)), [first, two]) == ((two,), "")
    begun = view(sweep, tasks=[task("ab", sweep.label(2, 1))])
    assert still_waiting(begun, [after(sweep, STARTED, 1)]).after
    assert not still_waiting(begun, [after(sweep, STARTED, 2)]).after
    assert not still_waiting(begun, [after(sweep, STARTED)]).after
    assert still_waiting(view(done(sweep, 1, 1)), [after(sweep, SUCCEEDED, 1)]).never


def test_the_reason_names_the_runs() -> None:
    """For those that still may do what they have to, and for one that never will."""
    train, check = job("train"), job("check")
    both = [after(check, STARTED), after(train, SUCCEEDED)]
    assert waiting_text(both) == "the start of check, the success of train"
    never = still_waiting(view(done(train, 3), check), both).never
    assert never == "train ended with 3 (exited), and --after-ok needs its success"


# -- the supervisor ---------------------------------------------------------------------------------
def starts_of(site: Site) -> list[str]:
    """The jobs of the tasks, in the order of their starts."""
    return [row.label.split(".")[0] for row in site.replicas()]


def test_a_job_begins_when_the_runs_before_it_have_done_what_they_have_to() -> None:
    """What was seen stays so: the run may be forgotten, and another leader continue."""
    train = job("train")
    site = Site(train, job("next", after(train, SUCCEEDED)), start=lambda *_: None)
    supervise(site, lambda: bool(site.runs))
    assert starts_of(site) == ["train"]
    site.runs[0].end(Cause.EXITED)
    supervise(site, lambda: not site.records["next"].waits)
    site.change(records.removed(site.records["train"]))
    supervise(site, lambda: len(site.runs) == 2)
    assert starts_of(site) == ["train", "next"]


def test_a_job_that_can_never_begin_ends_with_the_reason_and_so_do_those_after_it() -> None:
    """Each names the run before it; one that takes any end begins."""
    train = job("train")
    following = job("next", after(train, SUCCEEDED))
    last = job("last", after(following, SUCCEEDED))
    anyway = job("anyway", after(following, ENDED))
    site = Site(
        train, following, last, anyway, start=lambda _, label: Cause.EXCEPTION if "train" in label else None
    )
    supervise(site, lambda: "anyway" in starts_of(site))
    ends = {name: record.job.end for name, record in site.records.items() if record.job is not None}
    assert starts_of(site) == ["train", "anyway"]
    assert ends["anyway"] is None
    for name, before in (("next", "train ended with 1"), ("last", "next ended with 125")):
        end = ends[name]
        assert end is not None
        assert (end.cause, end.exit_status) == (Cause.DEPENDENCY, 125)
        assert end.detail.startswith(before)


def test_a_job_begins_after_a_task() -> None:
    """A task is known by its fingerprint, and need not be kept. One list without it says nothing."""

    class OtherSite(Site):
        looks = 0

        async def tasks(self) -> Gathered[Status]:
            """The second list lacks all tasks."""
            self.looks += 1
            return Gathered([]) if self.looks == 2 else await super().tasks()

    site = OtherSite(job("next", Predecessor("t", STARTED, task="1")), start=lambda *_: None)
    run = site.add("t")
    waiting = run.row = replace_dataclass(run.row, state=TaskState.WAITING)
    supervise(site, lambda: site.looks == 5)
    assert starts_of(site) == ["t"]
    run.row = replace_dataclass(waiting, state=TaskState.RUNNING)
    supervise(site, lambda: "next" in starts_of(site))


def test_a_job_begins_after_a_task_that_is_gone() -> None:
    """Two lists lack it, so it has ended."""
    site = Site(job("next", Predecessor("t", ENDED, task="1")), start=lambda *_: None)
    supervise(site, lambda: starts_of(site) == ["next"])
