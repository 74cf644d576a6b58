"""What the knowledge base answers, and what it forgets (§6.5.3)."""

from __future__ import annotations

import pytest

from dios import limits
from dios.firmament.cluster.block_locations import BlockLocations
from dios.firmament.descriptors import FinalReport
from dios.firmament.knowledge.knowledge_base import KnowledgeBase
from dios.firmament.knowledge.samples import (
    BadKnowledgeError,
    KnowledgeEntry,
    Metric,
    Placing,
    Sample,
    derived,
    of_report,
)
from tests.support.firmament.samples import SECOND, answers, chances, sample


def test_table_6_4_s_calculated_rows_are_calculated() -> None:
    """CPI, MAI and IPMA come from the counters; time per instruction is the run time by instructions."""
    metrics = of_report(FinalReport(2.0, 1.0, 4_000_000_000, 6_000_000_000, 20_000_000, 1 << 20))
    assert metrics[Metric.CPI_MILLI] == 1500
    assert metrics[Metric.MAI_MICRO] == 5_000
    assert metrics[Metric.IPMA] == 200
    assert metrics[Metric.PS_PER_INSTRUCTION] == 500
    assert metrics[Metric.INSTRUCTIONS_S] == 2_000_000_000
    assert metrics[Metric.RESIDENT] == 1 << 20


def test_what_was_not_measured_is_not_there() -> None:
    """A report without counters gives no value that needs them, rather than zeros."""
    metrics = of_report(FinalReport(2.0, 0.5))
    assert metrics == {Metric.RUNTIME_NS: 2 * SECOND, Metric.CPU_NS: SECOND // 2}
    assert derived({}, 5) == {}
    assert Metric.STRETCH_MILLI not in derived({Metric.WAIT_NS: 5}, 5)


def test_waiting_for_a_processor_stretches() -> None:
    """A task that waited as long as it ran has twice the stretch."""
    assert derived({Metric.CPU_NS: 7, Metric.WAIT_NS: 7}, 14)[Metric.STRETCH_MILLI] == 2000


@pytest.mark.parametrize(
    ("field", "bad"),
    [
        ("task_class", Sample("", "t", "m", 1, {})),
        ("machine_type", Sample("c", "t" * 300, "m", 1, {})),
        ("machine", Sample("c", "t", "", 1, {})),
        ("at_ns", Sample("c", "t", "m", -1, {})),
        ("RESIDENT", Sample("c", "t", "m", 1, {int(Metric.RESIDENT): -5})),
        ("RUNTIME_NS", Sample("c", "t", "m", 1, {int(Metric.RUNTIME_NS): 2**63})),
        ("beside", Sample("c", "t", "m", 1, {}, ("",))),
        ("neighbours", Sample("c", "t", "m", 1, {}, ("x",) * 1000)),
        ("values", Sample("c", "t", "m", 1, dict.fromkeys(range(1000), 1))),
        ("identifier", Sample("c", "t", "m", 1, {}, final=True)),
    ],
)
def test_a_sample_that_cannot_be_meant_is_refused(field: str, bad: Sample) -> None:
    """The error names the field, and nothing is changed."""
    base = KnowledgeBase("n", 1)
    with pytest.raises(BadKnowledgeError, match=field):
        base.add(bad)
    assert answers(base) == answers(KnowledgeBase("n", 1))


def test_a_sample_as_large_as_it_may_be_is_taken() -> None:
    """As many co-runners, values and letters as the bounds allow."""
    base = KnowledgeBase("n", 1)
    beside = tuple(f"b{number}" for number in range(limits.PROFILE_NEIGHBOURS_MAX))
    text = "x" * limits.PROFILE_TEXT_BYTES_MAX
    base.add(Sample(text, text, text, 0, dict.fromkeys(range(2 * len(Metric)), 2**63 - 1), beside))
    assert len(base.pairs) == len(beside)


def test_a_profile_is_of_a_class_on_a_type_of_machine() -> None:
    """Samples meet in the profile of their class and type; asked without a type, all types count."""
    base = KnowledgeBase("n", 1)
    for machine_type, resident in (("c", 100), ("c", 300), ("m", 1000)):
        base.add(sample(machine_type=machine_type, resident=resident))
    on_c, on_all = base.profile("sort", "c"), base.profile("sort")
    assert on_c is not None
    assert on_all is not None
    assert on_c.mean(Metric.RESIDENT) == 200
    assert on_c.quantile(Metric.RESIDENT, 1.0) == 300
    assert on_all.samples == 3
    assert on_all.mean(Metric.RESIDENT) == pytest.approx(1400 / 3)
    assert on_c.mean(Metric.IPMA) is None
    assert base.profile("sort", "x") is None
    assert base.profile("other") is None
    assert base.classes() == ["sort"]
    # What was merged for the answer changed nothing.
    assert on_c.samples == 2


def test_time_per_instruction_scores_before_run_time() -> None:
    """The score is the best known measure: instructions, else run times, else waiting."""
    base = KnowledgeBase("n", 1)
    base.add(sample(stretch_milli=1500))
    profile = base.profile("sort", "c")
    assert profile is not None
    assert profile.score() == (Metric.STRETCH_MILLI, 1500)
    base.add(sample(runtime_ns=7))
    assert profile.score() == (Metric.RUNTIME_NS, 7)
    base.add(sample(ps_per_instruction=400))
    assert profile.score() == (Metric.PS_PER_INSTRUCTION, 400)


def test_a_task_that_failed_says_nothing_about_run_times() -> None:
    """The run time of a failed task is in its report, and not in the profile."""
    base = KnowledgeBase("n", 1)
    base.add(Sample.at_end("sort", "c", "m", 9, FinalReport(0.5, completed=False), 7))
    profile, report = base.profile("sort", "c"), base.report(7)
    assert profile is not None
    assert report is not None
    assert (profile.samples, profile.finished, profile.score()) == (1, 0, None)
    assert report.metrics[Metric.RUNTIME_NS] == SECOND // 2
    assert base.report(8) is None


def test_of_two_reports_of_a_task_the_later_stays() -> None:
    """A race of coordinators may end a task twice; in either order of hearing of it the later end counts."""
    ends = [
        KnowledgeEntry(name, 1, 0, Sample.at_end("sort", "c", "m", at_ns, FinalReport(float(at_ns)), 7))
        for name, at_ns in (("a", 2), ("b", 1))
    ]
    for order in (ends, ends[::-1]):
        base = KnowledgeBase("p", 1)
        for entry in order:
            base.take(entry)
        report = base.report(7)
        assert report is not None
        assert report.at_ns == 2


def test_what_failed_disturbs_nobody_s_figures() -> None:
    """The score of a failed task is in no pair with a co-runner."""
    base = KnowledgeBase("n", 1)
    base.add(sample(beside=("a",), ps_per_instruction=100))
    failed = FinalReport(9.0, 1.0, 9_000_000_000, completed=False)
    base.add(Sample.at_end("sort", "c", "m", 1, failed, 7, beside=("a",)))
    assert base.pairs["sort", "a", "c"][Metric.PS_PER_INSTRUCTION].count == 1
    assert set(base.pairs["sort", "a", "c"]) == {Metric.PS_PER_INSTRUCTION}


def test_co_runners_slow_down_what_they_disturb() -> None:
    """Beside a stream a sort takes twice as long, beside a spinner as long as alone; both together add up."""
    base = KnowledgeBase("n", 1)
    for beside, score in (((), 100), (("stream",), 200), (("spin",), 100), (("disk",), 150)):
        base.add(sample(beside=beside, ps_per_instruction=score))
    assert base.slow_down("sort", "stream", "c") == 2.0
    assert base.slow_down("sort", "spin", "c") == 1.0
    assert base.score_beside("sort", ("disk", "stream"), "c") == 250.0
    assert base.slow_down("sort", "stream", "m") is None


def test_whare_mcs_stands_around_whare_m() -> None:
    """Min Xi <= Psi <= max Xi over all sets of co-runners seen (§7.2.1)."""
    base = KnowledgeBase("n", 1)
    rng = chances(7)
    for number in range(200):
        beside = ((), ("a",), ("b",))[number % 3]
        base.add(sample(beside=beside, ps_per_instruction=100 * (1 + number % 3) + rng.randrange(50)))
    profile = base.profile("sort", "c")
    assert profile is not None
    psi = profile.mean(Metric.PS_PER_INSTRUCTION)
    scores = [base.score_beside("sort", beside, "c") for beside in ((), ("a",), ("b",))]
    known = [score for score in scores if score is not None]
    assert psi is not None
    assert len(known) == 3
    assert min(known) < psi < max(known)


def test_a_class_never_alone_is_compared_with_its_best() -> None:
    """Without a sample taken alone, the best known stands for it; unknown co-runners cost the mean."""
    base = KnowledgeBase("n", 1)
    base.add(sample(beside=("a",), ps_per_instruction=100))
    base.add(sample(beside=("b",), ps_per_instruction=300))
    assert base.score_beside("sort", (), "c") == 100
    assert base.slow_down("sort", "b", "c") == 3.0
    assert base.score_beside("sort", ("new",), "c") == 200


def test_every_table_is_bounded_and_the_oldest_fall_out() -> None:
    """With more classes, machines and tasks than there is room for, the last ones are known."""
    base = KnowledgeBase("n", 1)
    count = limits.KNOWLEDGE_PAIRS_MAX + 100
    for number in range(count):
        base.add(
            Sample.at_end(
                f"c{number}", "t", f"m{number}", number, FinalReport(1.0), number, beside=(f"b{number}",)
            )
        )
    assert len(base.profiles) == len(base.classes()) == limits.KNOWLEDGE_PROFILES_MAX
    assert len(base.pairs) == limits.KNOWLEDGE_PAIRS_MAX
    assert len(base.reports) == limits.KNOWLEDGE_REPORTS_MAX
    assert len(base.journal) == limits.KNOWLEDGE_JOURNAL_MAX
    assert base.profile("c0") is None
    assert base.profile(f"c{count - 1}") is not None
    assert base.report(count - 1) is not None


def test_a_profile_keeps_its_newest_samples() -> None:
    """The ring of one profile holds the newest by time, in whatever order they came."""
    base, rng = KnowledgeBase("n", 1), chances(5)
    times = list(range(200))
    rng.shuffle(times)
    for at_s in times:
        base.add(sample(at_s=at_s, resident=at_s))
    profile = base.profile("sort", "c")
    assert profile is not None
    kept = [entry.content.at_ns // SECOND for entry in profile.recent if isinstance(entry.content, Sample)]
    assert kept == list(range(200 - limits.PROFILE_SAMPLES_MAX, 200))


def test_many_origins_and_gaps_are_bounded() -> None:
    """A coordinator that starts over and over, or counts with gaps, costs no more than the bounds."""
    base = KnowledgeBase("p", 1)
    measured = sample(resident=1)
    for incarnation in range(limits.KNOWLEDGE_ORIGINS_MAX + 50):
        base.take(KnowledgeEntry("n", incarnation, 0, measured))
    assert len(base.heard) == limits.KNOWLEDGE_ORIGINS_MAX
    for number in range(1000):
        base.take(KnowledgeEntry("gaps", 1, 2 * number, measured))
    assert len(base.heard["gaps", 1].above) <= limits.KNOWLEDGE_GAPS_MAX
    assert not base.take(KnowledgeEntry("gaps", 1, 1998, measured))


@pytest.mark.parametrize("seed", range(5))
def test_the_newest_word_on_a_block_counts(seed: int) -> None:
    """Told in any order, a block is where its holders last said it was."""
    told = [
        KnowledgeEntry("n", 1, 0, Placing(b"x", "m1", 100)),
        KnowledgeEntry("n", 1, 1, Placing(b"x", "m1", -1)),
        KnowledgeEntry("n", 1, 2, Placing(b"x", "m2", 70)),
        KnowledgeEntry("n", 2, 0, Placing(b"x", "m2", 80)),
        KnowledgeEntry("n", 1, 3, Placing(b"y", "m2", 5)),
    ]
    chances(seed).shuffle(told)
    places = BlockLocations()
    for entry in told:
        assert isinstance(entry.content, Placing)
        places.take(entry, entry.content)
    assert places.of(b"x") == {"m2": 80}, seed
    assert places.local([b"x", b"y", b"z"]) == {"m2": 85}, seed
    places.forget("m2")
    assert places.local([b"x", b"y"]) == {}, seed
    assert b"y" not in places.blocks, seed


def test_places_are_bounded() -> None:
    """More holders or blocks than there is room for: those that are gone go first, then the oldest."""
    base = KnowledgeBase("n", 1)
    base.place(b"x", "m0", 1)
    base.place(b"x", "m1", -1)
    for number in range(2, limits.KNOWLEDGE_HOLDERS_MAX + 2):
        base.place(b"x", f"m{number}", 1)
    holders = base.places.of(b"x")
    assert len(holders) == limits.KNOWLEDGE_HOLDERS_MAX
    assert "m0" not in holders
    for number in range(limits.KNOWLEDGE_BLOCKS_MAX):
        placing = Placing(number.to_bytes(4, "big"), "m", 1)
        base.places.take(KnowledgeEntry("n", 2, number, placing), placing)
    assert len(base.places.blocks) == limits.KNOWLEDGE_BLOCKS_MAX
    assert base.places.of(b"x") == {}


@pytest.mark.parametrize(("block", "size"), [(b"", 1), (b"x" * 40, 1), (b"x", -2), (b"x", 2**63)])
def test_a_block_that_cannot_be_is_refused(block: bytes, size: int) -> None:
    """Fingerprints without or with too many bytes, and sizes that cannot be, raise."""
    with pytest.raises(BadKnowledgeError):
        KnowledgeBase("n", 1).place(block, "m", size)
