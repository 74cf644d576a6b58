"""What is kept is divided among principals and their jobs: nobody pushes out another's equal share."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from dios.core.model.history import History
from dios.ids import Principal, TaskId

EACH, TOTAL = 10, 24
ENTRIES = st.lists(st.tuples(st.sampled_from("abcd"), st.integers(1, 4), st.integers(1, 3)), max_size=120)


def keep(history: History[int], who: str, job: int, thing: int, size: int = 1) -> list[int]:
    """Keep one more thing; what was given up for it."""
    history.keep(Principal(who), TaskId(job), thing, size)
    return list(history.excess(Principal(who), EACH, TOTAL))


def test_the_oldest_goes_first() -> None:
    """With one principal and one job, or a job for each thing, the first thing that was kept goes first."""
    for jobs in (1, 100):
        history = History[int]()
        given_up = [gone for number in range(30) for gone in keep(history, "a", number % jobs + 1, number)]
        assert given_up == list(range(20))
        assert len(history) == EACH


def test_a_principal_keeps_its_equal_share() -> None:
    """A flood of others' things takes nothing from a principal that keeps less than they do."""
    history = History[int]()
    for number in range(TOTAL // 4):
        assert keep(history, "victim", number, number) == []
    for number in range(100, 400):
        assert all(gone >= 100 for gone in keep(history, "abc"[number % 3], number, number))
    assert len(history) == TOTAL


def test_a_job_keeps_its_equal_share() -> None:
    """A flood of one job takes nothing from another one of its principal that keeps less."""
    history = History[int]()
    for number in range(4):
        keep(history, "a", 1, number)
    for number in range(100, 200):
        assert all(gone >= 100 for gone in keep(history, "a", 2, number))


def test_a_small_job_keeps_its_newest_things_beside_many_jobs_of_one_thing() -> None:
    """The end of a second task of a job does not cost the job its first one while older things are kept."""
    history, who = History[int](), Principal("a")
    for number in range(64):
        history.keep(who, TaskId(number), number)
    for number in (100, 101, 102, 103):
        history.keep(who, TaskId(1_000), number)
    assert list(history.excess(who, 64, 1_000)) == [0, 1, 2, 3]
    history.keep(who, TaskId(1_000), 104)
    assert list(history.excess(who, 64, 1_000)) == [100], "one of more than a sixteenth gives up its own"


def test_shares_of_jobs_are_shares_of_the_size() -> None:
    """Where things have sizes, a flood of small or large things of one job takes nothing from a small job."""
    for size in (100, 1_000):
        history, who = History[int](), Principal("a")
        history.keep(who, TaskId(1), 0, 500)
        for number in range(100, 400):
            history.keep(who, TaskId(2), number, size)
            assert 0 not in history.excess(who, 16_000, 64_000)


def test_a_thing_is_counted_as_often_as_it_is_kept() -> None:
    """One thing that is kept twice counts twice, and once after one of them was given up."""
    history, thing = History[object](), object()
    for _ in range(2):
        history.keep(Principal("a"), TaskId(1), thing)
    history.keep(Principal("b"), TaskId(1), thing)
    assert history.count(thing) == 3
    assert list(history.excess(Principal("a"), 1, 10)) == [thing]
    assert history.count(thing) == 2


@given(ENTRIES)
def test_the_bounds_hold_and_shares_are_equal(entries: list[tuple[str, int, int]]) -> None:
    """Whatever is kept, the sizes are within the bounds, and only a principal with the most gives up."""
    history = History[int]()
    sizes: Counter[str] = Counter()
    kept: dict[int, tuple[str, int]] = {}
    for number, (who, job, size) in enumerate(entries):
        history.keep(Principal(who), TaskId(job), number, size)
        kept[number] = (who, size)
        sizes[who] += size
        for gone in history.excess(Principal(who), EACH, TOTAL):
            owner, freed = kept.pop(gone)
            assert sizes[owner] > EACH or sizes[owner] == max(sizes.values())
            sizes[owner] -= freed
        assert max(sizes.values()) <= EACH
        assert sizes.total() <= TOTAL
        assert len(history) == len(kept)


@given(st.lists(st.tuples(st.integers(1, 6), st.integers(0, 9)), max_size=150))
def test_the_largest_job_gives_up_or_else_the_one_with_the_oldest_thing(
    entries: list[tuple[int, int]],
) -> None:
    """Compared with a search through all jobs, whose time would grow with their number."""
    history, who, each_max = History[int](), Principal("a"), 32
    kept: dict[int, tuple[int, int]] = {}
    for number, (job, size) in enumerate(entries):
        history.keep(who, TaskId(job), number, size)
        kept[number] = job, size
        for gone in history.excess(who, each_max, 1_000):
            sizes: Counter[int] = Counter()
            for of, amount in kept.values():
                sizes[of] += amount
            expected = min(kept)
            if max(sizes.values()) > each_max // 16:
                largest = min(sizes, key=lambda job_number: (-sizes[job_number], job_number))
                expected = min(thing for thing, (of, _) in kept.items() if of == largest)
            assert gone == expected
            del kept[gone]
    assert list(history) == [] or sorted(history) == sorted(kept)


def test_an_old_thing_does_not_make_a_history_grow() -> None:
    """While a small job keeps its thing, the tables about a large one stay small."""
    history, who = History[int](), Principal("a")
    history.keep(who, TaskId(1), 0, 1)
    for number in range(1, 5_000):
        history.keep(who, TaskId(2), number, 2)
        assert 0 not in history.excess(who, 64, 1_000)
    assert len(history._by_age[who]) + len(history._by_size[who]) < 200
