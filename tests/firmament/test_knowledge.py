"""What the knowledge base answers, forwards, keeps and forgets (§6.5.3)."""

from __future__ import annotations

import random
import statistics

import pytest

from dios import limits
from dios.errors import InvalidError
from dios.firmament.aggregates import Aggregate, Moments
from dios.firmament.descriptors import FinalReport
from dios.firmament.knowledge import KnowledgeBase
from dios.firmament.places import Places
from dios.firmament.samples import (
    BadKnowledgeError,
    Batch,
    Entry,
    Mark,
    Metric,
    Placing,
    Sample,
    derived,
    of_report,
)

SECOND = 1_000_000_000
HOUR = 3600 * SECOND


def chances(seed: int) -> random.Random:
    """The same random numbers each time."""
    return random.Random(seed)  # noqa: S311 - a seed, not a secret


def sample(
    task_class: str = "sort",
    machine_type: str = "c",
    machine: str = "m1",
    at_s: int = 1,
    beside: tuple[str, ...] = (),
    **values: int,
) -> Sample:
    """A sample with these values by the metrics' names."""
    named = {Metric[name.upper()]: value for name, value in values.items()}
    return Sample.of(task_class, machine_type, machine, at_s * SECOND, named, beside=beside)


def noise(seed: int, count: int, node: str = "n1") -> KnowledgeBase:
    """A knowledge base with random samples of a few classes, and places of a few blocks."""
    rng = chances(seed)
    found = KnowledgeBase(node, 1)
    for number in range(count):
        task_class, machine = rng.choice("abc"), f"m{rng.randrange(3)}"
        beside = tuple(rng.sample("abcd", rng.randrange(3)))
        values = {m: rng.randrange(1 << rng.randrange(1, 50)) for m in rng.sample(list(Metric), 5)}
        if rng.random() < 0.3:
            report = FinalReport(rng.random() * 100 + 0.001, 1.0, rng.randrange(10**9))
            found.add(
                Sample.at_end(
                    task_class, "t" + machine, machine, rng.randrange(HOUR), report, number, beside=beside
                )
            )
        else:
            found.add(
                Sample.of(task_class, "t" + machine, machine, rng.randrange(HOUR), values, beside=beside)
            )
        if rng.random() < 0.2:
            found.place(bytes([rng.randrange(4)]), machine, rng.randrange(-1, 10_000))
    return found


def batches(source: KnowledgeBase, size: int) -> list[bytes]:
    """All that a knowledge base has, as batches of ``size`` entries."""
    entries = list(source.journal)
    return [
        Batch(Mark(1, 0), 0, more=False, entries=tuple(entries[at : at + size])).to_bytes()
        for at in range(0, len(entries), size)
    ]


def answers(base: KnowledgeBase) -> object:
    """Everything that it knows, whatever the order in which it came to know it."""
    return (
        {
            key: (p.samples, p.finished, p.recent, {m: a.pack() for m, a in p.aggregates.items()})
            for key, p in base.profiles.items()
        },
        {key: {m: moments.pack() for m, moments in found.items()} for key, found in base.pairs.items()},
        dict(base.latest),
        dict(base.reports),
        {block: base.places.of(block) for block in base.places.blocks},
        sorted(entry.identity for entry in base.journal),
    )


# -- aggregates ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(4))
def test_moments_and_quantiles_are_those_of_the_values(seed: int) -> None:
    """Count, mean, variance, least and most are exact; quantiles are within a bucket's width."""
    rng = chances(seed)
    values = [int(rng.lognormvariate(12, 0.5 + seed / 3)) for _ in range(2_000)]
    found = Aggregate()
    for value in values:
        found.add(value)
    assert found.moments.count == 2_000, seed
    assert found.moments.mean == pytest.approx(statistics.fmean(values)), seed
    assert found.moments.variance == pytest.approx(statistics.variance(values)), seed
    assert (found.moments.least, found.moments.most) == (min(values), max(values)), seed
    ordered = sorted(values)
    for share in (0.0, 0.01, 0.1, 0.5, 0.9, 0.99, 1.0):
        true = ordered[max(round(share * 2_000) - 1, 0)]
        assert found.quantile(share) == pytest.approx(true, rel=0.0625 * 2**found.level), (seed, share)


def test_huge_values_do_not_lose_a_bit() -> None:
    """Where floating point would see no variance, the exact sums do."""
    found = Moments()
    for value in (2**62, 2**62 + 2):
        found.add(value)
    assert found.variance == 2.0


@pytest.mark.parametrize("seed", range(6))
def test_aggregates_do_not_know_the_order(seed: int) -> None:
    """Split, shuffled and merged in any way, the packed aggregate is the same, buckets and level included."""
    rng = chances(seed)
    values = [rng.randrange(1 << rng.randrange(1, 63)) for _ in range(400)]
    whole = Aggregate()
    for value in values:
        whole.add(value)
    parts = [Aggregate() for _ in range(5)]
    rng.shuffle(values)
    for value in values:
        rng.choice(parts).add(value)
    merged = Aggregate()
    for part in parts:
        if part.moments.count:
            merged.merge(Aggregate.unpack(part.pack()))
    assert merged.pack() == whole.pack(), seed
    assert 1 < len(merged.buckets) <= limits.PROFILE_BUCKETS_MAX, seed
    assert merged.level > 0, seed


def test_small_values_are_exact() -> None:
    """Counts below 32 have a bucket each: their quantiles are themselves."""
    found = Aggregate()
    for value in range(32):
        found.add(value)
    assert [found.quantile((value + 1) / 32) for value in range(32)] == list(range(32))


def test_nothing_has_no_mean() -> None:
    """An empty aggregate answers zero, and does not divide by it."""
    assert (Moments().mean, Moments().variance, Aggregate().quantile(0.5)) == (0.0, 0.0, 0)


# -- samples ---------------------------------------------------------------------------------------------


def test_table_6_4_s_calculated_rows_are_calculated() -> None:
    """CPI, MAI and IPMA come from the counters; time per instruction is the run time by instructions."""
    found = of_report(FinalReport(2.0, 1.0, 4_000_000_000, 6_000_000_000, 20_000_000, 1 << 20))
    assert found[Metric.CPI_MILLI] == 1500
    assert found[Metric.MAI_MICRO] == 5_000
    assert found[Metric.IPMA] == 200
    assert found[Metric.PS_PER_INSTRUCTION] == 500
    assert found[Metric.INSTRUCTIONS_S] == 2_000_000_000
    assert found[Metric.RESIDENT] == 1 << 20


def test_what_was_not_measured_is_not_there() -> None:
    """A report without counters gives no value that needs them, rather than zeros."""
    assert set(of_report(FinalReport(2.0, 1.0))) == {Metric.RUNTIME_NS, Metric.CPU_NS}
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
        ("beside", Sample("c", "t", "m", 1, {}, ("x",) * 1000)),
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


# -- answers ---------------------------------------------------------------------------------------------


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


def test_interference_is_against_the_best_profile() -> None:
    """The latest samples on a machine are set against the best of its type, and of all types."""
    base = KnowledgeBase("n", 1)
    for _ in range(20):
        base.add(sample(machine_type="fast", machine="f", ps_per_instruction=100))
        base.add(sample(machine_type="slow", machine="s1", ps_per_instruction=200))
    for at_s in (2, 3):
        base.add(sample(machine_type="slow", machine="s2", at_s=at_s, ps_per_instruction=800))
    found = base.interference("sort", "s2", HOUR)
    assert found is not None
    assert found.slow_down == pytest.approx(4.0, rel=0.04)
    assert found.against_best == pytest.approx(8.0, rel=0.04)
    assert (found.samples, found.metric) == (2, Metric.PS_PER_INSTRUCTION)
    quiet = base.interference("sort", "f", HOUR)
    assert quiet is not None
    assert quiet.slow_down == pytest.approx(1.0, rel=0.04)
    assert base.interference("sort", "elsewhere", HOUR) is None


def test_interference_slides() -> None:
    """What was long before the newest sample on the machine does not count."""
    base = KnowledgeBase("n", 1)
    base.add(sample(at_s=1, ps_per_instruction=100))
    base.add(sample(at_s=100, ps_per_instruction=900))
    long, short = (base.interference("sort", "m1", window * SECOND) for window in (1000, 10))
    assert long is not None
    assert short is not None
    assert long.samples == 2
    assert short.samples == 1
    assert short.slow_down > long.slow_down


# -- forwarding ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(10))
def test_doubled_and_reordered_batches_change_nothing(seed: int) -> None:
    """However batches come, the parent knows what it would know had it measured all itself."""
    rng = chances(seed)
    child = noise(seed, 120)
    parts = batches(child, rng.randrange(1, 40)) + batches(child, rng.randrange(1, 40))
    rng.shuffle(parts)
    parent = KnowledgeBase("parent", 1)
    merged = [parent.merge(part) for part in parts]
    assert answers(parent) == answers(child), seed
    assert sum(each.new for each in merged) == sum(each.known for each in merged) == child.position, seed


def test_two_ways_to_one_grandparent_count_once() -> None:
    """In a graph of coordinators (§6.5.1) a sample that comes over two parents is one sample."""
    child, left, right, top = (
        noise(3, 60) if name == "n1" else KnowledgeBase(name, 1) for name in ("n1", "l", "r", "top")
    )
    for parent in (left, right):
        parent.merge(child.batch().to_bytes())
    top.merge(left.batch().to_bytes())
    assert top.merge(right.batch().to_bytes()).new == 0
    assert answers(top) == answers(child)
    # And back down, which a wrong configuration may do.
    assert child.merge(top.batch().to_bytes()).new == 0


def test_a_mark_brings_what_is_new_alone() -> None:
    """A batch holds what came after the mark, no more than the bound, and says whether there is more."""
    base = KnowledgeBase("n", 1)
    for number in range(limits.KNOWLEDGE_BATCH_MAX + 10):
        base.add(sample(at_s=number, resident=number))
    first = base.batch()
    assert (len(first.entries), first.more, first.lost) == (limits.KNOWLEDGE_BATCH_MAX, True, 0)
    second = base.batch(first.upto)
    assert (len(second.entries), second.more) == (10, False)
    assert base.batch(second.upto).entries == ()
    base.add(sample(resident=1))
    assert [entry.sequence for entry in base.batch(second.upto).entries] == [base.sequence - 1]


def test_what_the_journal_lost_is_said() -> None:
    """A parent that was away too long is told how much it missed, and gets what is left."""
    base = KnowledgeBase("n", 1)
    for number in range(limits.KNOWLEDGE_JOURNAL_MAX + 7):
        base.add(sample(at_s=number, resident=1))
    late = base.batch(Mark(1, 2))
    assert late.lost == 5
    assert late.entries[0].sequence == 7


def test_a_mark_from_the_future_is_refused() -> None:
    """A mark beyond all that ever was in this start is an error, as something was mixed up."""
    with pytest.raises(BadKnowledgeError, match="mark 5"):
        KnowledgeBase("n", 1).batch(Mark(1, 5))


def test_values_of_a_newer_version_are_handed_on() -> None:
    """A metric that this version does not know is in no profile, and still reaches the parent."""
    base = KnowledgeBase("n", 1)
    base.add(Sample("c", "t", "m", 1, {9_999: 3, int(Metric.RESIDENT): 4}))
    profile = base.profile("c", "t")
    assert profile is not None
    assert set(profile.aggregates) == {Metric.RESIDENT}
    what = Batch.from_bytes(base.batch().to_bytes()).entries[0].what
    assert isinstance(what, Sample)
    assert what.values[9_999] == 3


@pytest.mark.parametrize("seed", range(5))
def test_damaged_batches_are_refused_or_mean_something(seed: int) -> None:
    """Cut and flipped bytes raise the one error that is told, and change nothing; they never crash."""
    rng = chances(seed)
    data = noise(seed, 20).batch().to_bytes()
    refused = 0
    for _ in range(150):
        broken = bytearray(data[: rng.randrange(1, len(data) + 1)])
        broken[rng.randrange(len(broken))] ^= 1 << rng.randrange(8)
        base = KnowledgeBase("p", 1)
        try:
            base.merge(bytes(broken))
        except BadKnowledgeError:
            refused += 1
            assert base.position == 0, seed
    assert refused > 75, seed


def test_a_batch_of_another_version_is_refused_by_its_version() -> None:
    """The error says both versions."""
    data = Batch(Mark(), 0, more=False, entries=(), version=9).to_bytes()
    with pytest.raises(BadKnowledgeError, match=r"version 9.*version 1"):
        KnowledgeBase("p", 1).merge(data)


def test_a_batch_looks_on_the_wire_as_it_did() -> None:
    """A frozen vector: one sample and one placing."""
    base = KnowledgeBase("n", 2)
    base.add(sample(beside=("a",), resident=5))
    base.place(b"\x01", "m", 9)
    frozen = (
        "9592020200c2"
        "9294a16e02009a00a4736f7274a163a26d31ce3b9aca0081040591a161ffc2c3"
        "94a16e02019401c40101a16d0901"
    )
    assert base.batch().to_bytes().hex() == frozen
    assert Batch.from_bytes(bytes.fromhex(frozen)).entries == tuple(base.journal)


# -- keeping ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(4))
def test_a_new_start_knows_what_was_stored(seed: int) -> None:
    """From bytes comes all that went into them, and what is new then is new for everybody."""
    base = noise(seed, 150)
    again = KnowledgeBase.from_bytes(base.to_bytes(), "n1", 2)
    assert answers(again) == answers(base), seed
    parent = KnowledgeBase("p", 1)
    taken = base.batch()
    parent.merge(taken.to_bytes())
    again.add(sample(task_class="fresh", resident=1))
    merged = parent.merge(again.batch(taken.upto).to_bytes())
    assert (merged.new, merged.known) == (1, base.position), seed
    assert answers(parent) == answers(again), seed


def test_what_came_after_the_last_saving_is_not_mixed_up() -> None:
    """Samples of a start that died unsaved stay apart from those of the next one, though numbered alike."""
    base, parent = noise(1, 30), KnowledgeBase("p", 1)
    stored = base.to_bytes()
    base.add(sample(task_class="unsaved", resident=1))
    parent.merge(base.batch().to_bytes())
    again = KnowledgeBase.from_bytes(stored, "n1", 2)
    again.add(sample(task_class="later", resident=1))
    parent.merge(again.batch().to_bytes())
    assert {"unsaved", "later"} <= set(parent.classes())


def test_a_start_that_is_no_later_one_is_refused() -> None:
    """Restoring with the number of the start that stored it would give two samples one identity."""
    with pytest.raises(BadKnowledgeError, match="incarnation 1 must be over 1"):
        KnowledgeBase.from_bytes(noise(1, 3).to_bytes(), "n1", 1)


@pytest.mark.parametrize("seed", range(5))
def test_damaged_knowledge_is_refused_or_means_something(seed: int) -> None:
    """Cut and flipped bytes raise the one error that is told; they never crash."""
    rng = chances(seed)
    data = noise(seed, 30).to_bytes()
    refused = 0
    for _ in range(100):
        broken = bytearray(data[: rng.randrange(len(data) // 2, len(data) + 1)])
        for _ in range(3):
            broken[rng.randrange(len(broken))] ^= 1 << rng.randrange(8)
        try:
            KnowledgeBase.from_bytes(bytes(broken), "other", 1)
        except BadKnowledgeError:
            refused += 1
    assert refused > 50, seed


def test_sums_that_contradict_themselves_are_refused() -> None:
    """A stored aggregate whose buckets, bounds or sums do not fit its count is damage."""
    whole = Aggregate()
    for value in (3, 5):
        whole.add(value)
    packed = whole.pack()
    with pytest.raises(InvalidError, match="buckets"):
        Aggregate.unpack(type(packed)(packed.moments, 0, {3: 1}))
    with pytest.raises(InvalidError, match="not possible"):
        Aggregate.unpack(type(packed)(packed.moments, 0, {10**6: 2}))
    for wrong in ((0, b"\x08", b"\x22", 3, 5), (2, b"\x08", b"\x08", 3, 5), (2, b"\x08", b"\x22", 5, 5)):
        with pytest.raises(InvalidError, match="go together"):
            Moments.unpack(type(packed.moments)(*wrong))


# -- bounds ----------------------------------------------------------------------------------------------


def test_every_table_is_bounded_and_the_oldest_fall_out() -> None:
    """With more classes, machines and tasks than there is room for, the last ones are known."""
    base = KnowledgeBase("n", 1)
    count = limits.KNOWLEDGE_MACHINES_MAX + 100
    for number in range(count):
        base.add(
            Sample.at_end(
                f"c{number}", "t", f"m{number}", number, FinalReport(1.0), number, beside=(f"b{number}",)
            )
        )
    assert len(base.profiles) == len(base.classes()) == limits.KNOWLEDGE_PROFILES_MAX
    assert len(base.pairs) == limits.KNOWLEDGE_PAIRS_MAX
    assert len(base.latest) == limits.KNOWLEDGE_MACHINES_MAX
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
    kept = [entry.what.at_ns // SECOND for entry in profile.recent if isinstance(entry.what, Sample)]
    assert kept == list(range(200 - limits.PROFILE_SAMPLES_MAX, 200))
    latest = [e.what.at_ns // SECOND for e in base.latest["sort", "m1"] if isinstance(e.what, Sample)]
    assert latest == list(range(200 - limits.KNOWLEDGE_LATEST_MAX, 200))


def test_many_origins_and_gaps_are_bounded() -> None:
    """A coordinator that starts over and over, or counts with gaps, costs no more than the bounds."""
    base = KnowledgeBase("p", 1)
    what = sample(resident=1)
    for incarnation in range(limits.KNOWLEDGE_ORIGINS_MAX + 50):
        base.take(Entry("n", incarnation, 0, what))
    assert len(base.heard) == limits.KNOWLEDGE_ORIGINS_MAX
    for number in range(1000):
        base.take(Entry("gaps", 1, 2 * number, what))
    assert len(base.heard["gaps", 1].above) <= limits.KNOWLEDGE_GAPS_MAX
    assert not base.take(Entry("gaps", 1, 1998, what))


# -- places of blocks ------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(5))
def test_the_newest_word_on_a_block_counts(seed: int) -> None:
    """Told in any order, a block is where its holders last said it was."""
    told = [
        Entry("n", 1, 0, Placing(b"x", "m1", 100)),
        Entry("n", 1, 1, Placing(b"x", "m1", -1)),
        Entry("n", 1, 2, Placing(b"x", "m2", 70)),
        Entry("n", 2, 0, Placing(b"x", "m2", 80)),
        Entry("n", 1, 3, Placing(b"y", "m2", 5)),
    ]
    chances(seed).shuffle(told)
    places = Places()
    for entry in told:
        assert isinstance(entry.what, Placing)
        places.take(entry, entry.what)
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
        what = Placing(number.to_bytes(4, "big"), "m", 1)
        base.places.take(Entry("n", 2, number, what), what)
    assert len(base.places.blocks) == limits.KNOWLEDGE_BLOCKS_MAX
    assert base.places.of(b"x") == {}


@pytest.mark.parametrize(("block", "size"), [(b"", 1), (b"x" * 40, 1), (b"x", -2), (b"x", 2**63)])
def test_a_block_that_cannot_be_is_refused(block: bytes, size: int) -> None:
    """Fingerprints without or with too many bytes, and sizes that cannot be, raise."""
    with pytest.raises(BadKnowledgeError):
        KnowledgeBase("n", 1).place(block, "m", size)
