"""Kept jobs that are arrays: their text, their records, and how the supervisor runs their elements."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from dios import limits
from dios.errors import InvalidError, LimitError
from dios.lib.supervised import records
from dios.lib.supervised.arrays import ArrayShape, array_text, parse_array
from dios.lib.supervised.records import JobArray, JobEnd, JobState, ServiceRecord
from dios.wire.types import Cause, TaskState
from tests.support.node.supervised_site import SPEC, Site, closed_room, supervise


def array_job(*indices: int, at_once: int = 64, attempts: int = 2, name: str = "sweep") -> ServiceRecord:
    """A new array."""
    state = JobState(attempts, 5, b"s" * 32, b"g" * 32, array=JobArray(indices, at_once))
    return records.created({}, name, SPEC, 1, state)


def end(status: int, at: int = 9) -> JobEnd:
    """The end of an attempt on n1."""
    return JobEnd(Cause.EXITED, status, at, "n1")


# -- text -------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("text", "indices", "at_once"),
    [
        ("7", (7,), 64),
        ("1-4", (1, 2, 3, 4), 64),
        ("0-9:4%2", (0, 4, 8), 2),
        ("5,1-3, 3,9%64", (1, 2, 3, 5, 9), 64),
    ],
)
def test_an_array_is_ranges_lists_and_steps(text: str, indices: tuple[int, ...], at_once: int) -> None:
    """Each index occurs once, in ascending order; without % the bound of all arrays holds."""
    assert parse_array(text) == (indices, at_once)


@pytest.mark.parametrize(
    "text",
    ["", "a", "²", "1.5", "-3", "3-", "3-1", "1-9:0", "1,,2", "1-10000", "0-1000", "1-999999999"],
)
def test_what_is_no_array_is_refused(text: str) -> None:
    """So is one with too many elements, or a larger index than may be."""
    with pytest.raises(InvalidError):
        parse_array(text)


@pytest.mark.parametrize("at_once", ["", "0", "65", "%2", "-1", "two"])
def test_what_is_no_number_of_elements_at_once_is_refused(at_once: str) -> None:
    """It is at least one, and at most a bound."""
    with pytest.raises(InvalidError):
        parse_array(f"1-9%{at_once}")


@given(
    st.sets(st.integers(0, limits.JOB_INDEX_MAX), min_size=1, max_size=40).map(sorted),
    st.integers(1, limits.JOB_ARRAY_AT_ONCE_MAX),
)
def test_the_text_of_an_array_means_the_array(indices: list[int], at_once: int) -> None:
    """Whatever its indices are."""
    shape = ArrayShape(tuple(indices), at_once)
    assert parse_array(array_text(shape)) == shape


def test_the_text_of_an_array_is_short() -> None:
    """Long runs of indices are ranges."""
    assert array_text(parse_array("1-100%8")) == "1-100%8"
    assert array_text(parse_array("1,2,10-20:2,30")) == "1,2,10-20:2,30"


# -- records ----------------------------------------------------------------------------------------
def test_each_element_has_attempts_of_its_own() -> None:
    """The array ends with its last element, as the worst of them; the others go on after a failure."""
    record = array_job(1, 2, 3)
    assert [record.attempt(index) for index in (0, 1, 2, 3, 4)] == [None, 1, 1, 1, None]
    record = records.ended(record, end(3), 2)
    assert (record.attempt(2), record.job is not None and record.job.end) == (2, None)
    for index, status in ((2, 4), (1, 0)):
        record = records.ended(record, end(status), index)
        assert record.attempt(index) is None
        assert record.replicas == 1
    record = records.ended(record, end(0, at=77), 3)
    assert record.job is not None
    assert record.job.end == JobEnd(Cause.EXITED, 4, 77, "n1", "1 of its 3 elements failed: 2")
    assert record.replicas == 0
    assert record.attempt(3) is None


def test_an_element_or_the_whole_is_stopped() -> None:
    """A stopped element has ended; one that has ended, or a job that has, stays as it is."""
    record = array_job(1, 2)
    changed = records.stopped(record, 9, 1)
    assert (changed.attempt(1), changed.attempt(2)) == (None, 1)
    assert changed.version > record.version
    assert records.stopped(changed, 9, 1) is changed
    assert records.stopped(changed, 9, 7) is changed
    whole = records.stopped(record, 9)
    assert (whole.attempt(1), whole.attempt(2)) == (None, None)
    assert records.stopped(whole, 9, 2) is whole
    last = records.ended(changed, end(0), 2)
    assert last.job is not None
    assert last.job.end is not None
    assert (last.job.end.cause, last.job.end.exit_status) == (Cause.KILLED, 137)


def test_elements_are_found_by_their_index() -> None:
    """Only those that the array has, and only of arrays."""
    plain = records.created({}, "plain", SPEC, 1, JobState(1, 5, b"s" * 32, b"g" * 32))
    known = {record.name: record for record in (array_job(1, 20), plain)}
    assert records.found_element(known, "sweep.20") == (known["sweep"], 20)
    assert records.found_element(known, "sweep") == (known["sweep"], None)
    for name in ("sweep.2", "plain.0", "plain.1", "sweep.x", "other.1", ".1"):
        with pytest.raises(InvalidError):
            records.found_element(known, name)


def test_arrays_are_in_the_third_version_of_the_stored_form() -> None:
    """Records without them have the form that earlier releases read. Their bytes are frozen."""
    plain = records.created({}, "plain", SPEC, 1, JobState(1, 5, b"s" * 32, b"g" * 32))
    before = msgspec.msgpack.decode(records.encode([plain]))
    assert (before[0], len(before[1][0][12])) == (2, 4)
    job = array_job(1, 3, at_once=2).job
    assert job is not None
    assert job.array is not None
    changed = job.array.with_element(records.JobElement(3, 2, end(1)))
    waits = records.Predecessor("train", records.Condition.SUCCEEDED, token="ab12")  # noqa: S106 - no password
    state = replace(job, array=changed, after=(waits,))
    assert msgspec.msgpack.encode(state).hex() == (
        "970205c420" + "73" * 32 + "c420" + "67" * 32 + "c0"
        "9195a5747261696e01a0a461623132c0"
        "9392010302919303029601010"
        "9a26e31a0c0"
    )
    stored = records.encode([replace(array_job(1, 3), job=state), plain])
    assert msgspec.msgpack.decode(stored)[0] == 3
    assert records.decode(stored)["sweep"].job == state


def test_the_elements_of_all_listed_arrays_are_bounded() -> None:
    """So are the records that every node keeps."""
    half = range(limits.JOB_ELEMENTS_MAX // 2)
    arrays = [array_job(*half, name=name) for name in ("a", "b")]
    whole = JobEnd(Cause.EXCEPTION, 1, 2**62, "n" * 63, "x" * limits.JOB_ELEMENT_DETAIL_MAX, b"o" * 32)
    for number, record in enumerate(arrays):
        assert record.job is not None
        elements = tuple(records.JobElement(index, 1000, whole) for index in half)
        state = replace(record.job, array=JobArray(tuple(half), 64, elements))
        arrays[number] = replace(record, job=state)
    assert len(records.encode(arrays)) < limits.SERVICE_RECORDS_BYTES_MAX
    with pytest.raises(LimitError, match="dios job rm"):
        records.encode([*arrays, array_job(1, name="c")])


# -- the supervisor ---------------------------------------------------------------------------------
def running(site: Site) -> list[str]:
    """The labels of the tasks that run."""
    return [row.label for row in site.replicas() if row.state is TaskState.RUNNING]


def waiting(site: Site) -> set[str]:
    """The elements that wait for the scheduler."""
    return {label.split("/")[0] for label in site.waiting}


def test_an_array_runs_each_element_and_never_more_at_once_than_it_may() -> None:
    """Each element finds its index in its last argument; a failed one has its further attempt."""
    site = Site(array_job(1, 2, 3, 4, 5, at_once=2), start=lambda *_: None)
    most, seen = 0, set()

    def ends_one() -> bool:
        nonlocal most
        most = max(most, len(running(site)))
        for run in site.runs:
            if not run.row.ended:
                seen.add(run.row.label.rpartition("/")[0])
                run.end(Cause.EXITED, exit_code=int(run.row.label.startswith("sweep.3/1/")))
                break
        return site.record.job is not None and site.record.job.end is not None

    supervise(site, ends_one)
    assert most == 2
    assert seen == {"sweep.1/1", "sweep.2/1", "sweep.3/1", "sweep.3/2", "sweep.4/1", "sweep.5/1"}
    assert {label.split("/")[0]: args for label, args in site.arguments.items()} == {
        f"sweep.{index}": (str(index),) for index in range(1, 6)
    }
    job = site.record.job
    assert job is not None
    assert job.end is not None
    assert (job.end.exit_status, job.end.detail) == (0, "")


def test_a_stopped_element_ends_and_the_next_one_takes_its_place() -> None:
    """The whole array is stopped in the same way. Another leader continues where the records stand."""
    site = Site(array_job(1, 2, 3, at_once=1), start=lambda *_: None)
    supervise(site, lambda: len(site.runs) == 1)
    site.change(records.stopped(site.record, 9, 1))
    supervise(site, lambda: len(site.runs) == 2)
    assert [row.cause for row in site.replicas()] == [Cause.KILLED, Cause.NONE]
    site.change(records.stopped(site.record, 9))
    supervise(site, lambda: not running(site))
    assert len(site.runs) == 2


def test_jobs_wait_in_the_queue_of_the_scheduler_and_are_withdrawn_from_it() -> None:
    """The scheduler chooses the node. What was stopped while it waited for a place never starts."""
    site = Site(array_job(1, 2, 3, at_once=2), start=lambda *_: None)
    site.room = closed_room()
    supervise(site, lambda: waiting(site) == {"sweep.1", "sweep.2"})
    # The supervisor that ended has withdrawn them; the next one submits them again.
    assert not waiting(site)

    def stop_then_make_room() -> bool:
        if waiting(site) == {"sweep.1", "sweep.2"}:
            site.change(records.stopped(site.record, 9, 1))
        if waiting(site) == {"sweep.2", "sweep.3"} and site.room is not None:
            site.room.set()
        return len(running(site)) == 2

    supervise(site, stop_then_make_room)
    assert sorted(row.label.split("/")[0] for row in site.replicas()) == ["sweep.2", "sweep.3"]
    assert [row.node for row in site.replicas()] == ["n1", "n1"]


def test_an_element_that_pauses_holds_no_place() -> None:
    """The next ones run between the attempts of one that fails."""
    site = Site(
        array_job(1, 2, 3, at_once=1, attempts=3),
        start=lambda _, label: Cause.EXCEPTION if label.startswith("sweep.1/") else Cause.EXITED,
    )
    supervise(site, lambda: site.record.job is not None and site.record.job.end is not None)
    labels = [run.row.label.rpartition("/")[0] for run in site.runs]
    assert sorted(labels) == ["sweep.1/1", "sweep.1/2", "sweep.1/3", "sweep.2/1", "sweep.3/1"]
    assert labels.index("sweep.1/3") > labels.index("sweep.2/1")
