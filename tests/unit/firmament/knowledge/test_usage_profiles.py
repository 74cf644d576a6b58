"""The courses of tasks: recorded, joined, bounded, exchanged and kept (Packer paper, profiling)."""

from __future__ import annotations

from collections import defaultdict

import pytest
from msgspec.structs import replace

from dios import limits
from dios.firmament.knowledge.knowledge_base import KnowledgeBase
from dios.firmament.knowledge.samples import BadKnowledgeError, KnowledgeBatch
from dios.firmament.knowledge.storage import decode, encode
from dios.firmament.knowledge.usage_profile import (
    UsageChannel,
    UsageProfile,
    UsageRecording,
    fault_of,
    highest,
)
from tests.support.firmament.samples import batches, chances, noise
from tests.support.firmament.usage_profiles import course, some_course


def known(base: KnowledgeBase) -> object:
    """All that a base answers of courses, whatever came first."""
    return {
        (principal, job): (
            base.usage_profiles.runs(principal, job),
            base.usage_profiles.members(principal, job),
        )
        for principal in ("uid:0", "uid:1")
        for job in sorted(base.usage_profiles.jobs(principal))
    }


def filled(seed: int, count: int, node: str = "n1") -> KnowledgeBase:
    """A base with random courses, few enough that nothing falls out but old runs."""
    rng, base = chances(seed), KnowledgeBase(node, 1)
    for number in range(count):
        base.add_usage_profile(some_course(rng, number=number))
    return base


@pytest.mark.parametrize("seed", range(30))
def test_an_instant_has_the_most_of_all_spans_that_touch_it(seed: int) -> None:
    """Recorded spans are, instant by instant, those of a model that keeps every millisecond's values."""
    rng = chances(seed)
    scale = rng.choice([1, 1, 40, 700])
    recording, model = UsageRecording(), defaultdict[UsageChannel, dict[int, int]](dict)
    at = 0
    for _ in range(rng.randrange(1, 30)):
        begin, at = max(0, at - rng.randrange(300)), at + scale * rng.randrange(1, 2_000)
        values = {channel: rng.randrange(10**6) for channel in rng.sample(list(UsageChannel), 2)}
        recording.span(begin, at, values)
        for channel, value in values.items():
            for second in range(begin // 1000, max(begin // 1000 + 1, -(-at // 1000))):
                model[channel][second] = max(value, model[channel].get(second, 0))
    length_ms = at + rng.choice([0, 0, 10, 5_000])
    instant_s, values_by_channel = recording.values(length_ms)
    seconds = -(-length_ms // 1000)
    assert instant_s == 1 or seconds > limits.USAGE_PROFILE_INSTANTS_MAX * instant_s // 2, seed
    assert set(values_by_channel) == {int(channel) for channel in model}, seed
    for channel, by_second in model.items():
        expected = [0] * -(-seconds // instant_s)
        for second, value in by_second.items():
            expected[second // instant_s] = max(expected[second // instant_s], value)
        assert list(values_by_channel[int(channel)]) == expected, seed
        assert len(expected) <= limits.USAGE_PROFILE_INSTANTS_MAX, seed


def test_what_was_seen_after_the_end_stands_at_the_end() -> None:
    """Clocks may tell that a look was after the task had ended: nothing of it is lost."""
    recording = UsageRecording()
    recording.span(0, 1_000, {UsageChannel.CPU_MILLI: 5})
    recording.span(1_000, 2_100, {UsageChannel.CPU_MILLI: 9})
    assert recording.values(1_000) == (1, {1: (9,)})


@pytest.mark.parametrize("seed", range(20))
def test_the_highest_of_courses_is_that_of_each_second(seed: int) -> None:
    """Courses with instants of several lengths join to the most that any took in any part of an instant."""
    rng = chances(seed)
    some = [some_course(rng, number=number) for number in range(rng.randrange(1, 6))]
    peak = highest(some)
    assert peak.instant_s == max(usage_profile.instant_s for usage_profile in some), seed
    model: dict[UsageChannel, dict[int, int]] = defaultdict(dict)
    for profile in some:
        for channel, values in profile.channels.items():
            for at, value in enumerate(values):
                instant = at * profile.instant_s // peak.instant_s
                model[channel][instant] = max(value, model[channel].get(instant, 0))
    assert peak.values == {channel: [by[at] for at in range(len(by))] for channel, by in model.items()}, seed


def test_of_each_task_the_last_runs_count() -> None:
    """When there are more runs than are kept, the one that began first is forgotten, whichever came last."""
    base = KnowledgeBase("n1", 1)
    count = limits.USAGE_PROFILE_RUNS_MAX + 1
    for run in [*range(1, count), 0]:
        base.add_usage_profile(course(run=run, began_s=run, cpu_milli=[1000 + (100 if run == 0 else 0)]))
    (member,) = base.usage_profiles.members("uid:1", "words")
    assert (member.runs, member.highest.values) == (
        limits.USAGE_PROFILE_RUNS_MAX,
        {UsageChannel.CPU_MILLI: [1000]},
    )


def test_a_task_begins_so_long_after_its_job() -> None:
    """A member starts as late as in the run in which it began latest after the run's first task."""
    base = KnowledgeBase("n1", 1)
    for run, late in ((1, 3.0), (2, 4.5)):
        base.add_usage_profile(course("map.0", run=run, began_s=100 * run, cpu_milli=[1]))
        base.add_usage_profile(course("reduce", run=run, task=2, began_s=100 * run + late, cpu_milli=[1, 2]))
    # It failed and was started again in the second run.
    base.add_usage_profile(course("reduce", run=2, task=3, began_s=290, completed=False, memory=[7]))
    mapper, reducer = base.usage_profiles.members("uid:1", "words")
    assert (mapper.start_s, mapper.runs, mapper.completed) == (0, 2, 2)
    assert (reducer.start_s, reducer.runs, reducer.completed, reducer.length_s) == (4.5, 2, 2, 2.0)
    assert reducer.highest.values == {UsageChannel.CPU_MILLI: [1, 2], UsageChannel.MEMORY: [7]}
    assert base.usage_profiles.runs("uid:1", "words") == 2


def test_what_went_between_nodes_is_joined_to_a_run() -> None:
    """A course of flows alone, of another coordinator's clock, adds them and is no run of its own."""
    base = KnowledgeBase("n1", 1)
    base.add_usage_profile(course(run=1, began_s=9, sent=[3, 4], received=[0, 1]))
    assert not base.usage_profiles.jobs("uid:1")
    assert not base.usage_profiles.members("uid:1", "words")
    assert not base.usage_profiles.knows("uid:1", "words", "map.0", 1)
    base.add_usage_profile(course(run=1, began_s=100, cpu_milli=[5, 5], received=[2, 0], completed=False))
    (member,) = base.usage_profiles.members("uid:1", "words")
    assert (member.runs, member.completed, member.start_s) == (1, 0, 0)
    assert member.highest.values == {
        UsageChannel.CPU_MILLI: [5, 5], UsageChannel.SENT: [3, 4], UsageChannel.RECEIVED: [2, 1],
    }  # fmt: skip


def test_courses_are_of_their_principal() -> None:
    """Two users' jobs of one name are two jobs."""
    base = KnowledgeBase("n1", 1)
    base.add_usage_profile(course(principal="uid:1", cpu_milli=[1]))
    base.add_usage_profile(course(principal="uid:2", cpu_milli=[2]))
    base.add_usage_profile(course(principal="uid:2", job="ranks", cpu_milli=[3]))
    assert base.usage_profiles.jobs("uid:1") == ["words"]
    assert base.usage_profiles.jobs("uid:2") == ["ranks", "words"]
    assert base.usage_profiles.members("uid:1", "words")[0].highest.values == {UsageChannel.CPU_MILLI: [1]}
    assert base.usage_profiles.members("uid:1", "ranks") == []


def test_courses_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Over the bound in members, or in bytes, what was touched longest ago is forgotten."""
    monkeypatch.setattr(limits, "USAGE_PROFILE_MEMBERS_MAX", 3)
    monkeypatch.setattr(limits, "USAGE_PROFILES_BYTES_MAX", 1_000)
    base = KnowledgeBase("n1", 1)
    for name in ("a", "b", "c", "a", "d"):
        base.add_usage_profile(course(name, cpu_milli=[1]))
    assert [key.member for key in base.usage_profiles.kept] == ["c", "a", "d"]
    base.add_usage_profile(course("large", cpu_milli=[10**9] * 188))
    assert [key.member for key in base.usage_profiles.kept] == ["large"]
    assert 900 < base.usage_profiles.bytes < 1_000
    base.add_usage_profile(course("huge", cpu_milli=[10**9] * 256))
    assert (len(base.usage_profiles.kept), base.usage_profiles.bytes) == (0, 0)


@pytest.mark.parametrize(
    ("field", "bad"),
    [
        ("principal", course(principal="", cpu_milli=[1])),
        ("job", course(job="x" * 300, cpu_milli=[1])),
        ("member", course("", cpu_milli=[1])),
        ("run", course(run=-1, cpu_milli=[1])),
        ("began_ns", course(began_s=-1, cpu_milli=[1])),
        ("instant_s", course(instant_s=3, cpu_milli=[1])),
        ("instant_s", course(instant_s=2**40, cpu_milli=[1])),
        ("2 values; 1 instants", course(length_ms=900, cpu_milli=[1, 2])),
        ("CPU_MILLI holds -1", course(cpu_milli=[1, -1])),
        ("MEMORY holds", course(memory=[2**63])),
        ("instants, over 256", course(cpu_milli=[1] * 257)),
        ("channels", replace(course(), values=dict.fromkeys(range(9), (1,)))),
    ],
)
def test_a_course_that_cannot_be_meant_is_refused(field: str, bad: UsageProfile) -> None:
    """The error names what is wrong, and nothing is changed."""
    base = KnowledgeBase("n1", 1)
    with pytest.raises(BadKnowledgeError, match=field):
        base.add_usage_profile(bad)
    assert (base.position, len(base.usage_profiles.kept)) == (0, 0)


@pytest.mark.parametrize("seed", range(20))
def test_what_is_recorded_can_be_meant(seed: int) -> None:
    """No recording makes a course that is refused."""
    rng = chances(seed)
    assert all(not fault_of(some_course(rng, number=number)) for number in range(20)), seed


def test_the_largest_course_fits_a_report() -> None:
    """A course with all that it may have goes inline between nodes, beside who it is from."""
    text = "x" * limits.PROFILE_TEXT_BYTES_MAX
    most = (2**63 - 1,) * limits.USAGE_PROFILE_INSTANTS_MAX
    base = KnowledgeBase(text, 2**63 - 1)
    largest = UsageProfile(
        text, text, text, text, *(2**63 - 1,) * 3, limits.USAGE_PROFILE_INSTANTS_MAX * 1000, 1,
        {2**63 - 1 - number: most for number in range(limits.USAGE_PROFILE_CHANNELS_MAX)},
    )  # fmt: skip
    base.add_usage_profile(largest)
    assert len(base.batch().to_bytes()) < limits.INLINE_BYTES_MAX - 1024


@pytest.mark.parametrize("seed", range(5))
def test_courses_are_exchanged_like_samples(seed: int) -> None:
    """Batches in any order, and twice, over another coordinator, bring what was measured and nothing else."""
    rng, child, top = chances(seed), filled(seed, 40), KnowledgeBase("top", 1)
    between = KnowledgeBase("between", 1)
    parts = batches(child, 7) + batches(child, 3)
    rng.shuffle(parts)
    for part in parts:
        between.merge(part)
    mark = None
    while (batch := between.batch(mark, 20_000)).entries:
        mark = batch.upto
        top.merge(batch.to_bytes())
    assert known(top) == known(between) == known(child), seed
    assert known(child)


def test_courses_are_kept() -> None:
    """A new start knows the courses that were stored, their order, and how many bytes they have."""
    base = filled(7, 60)
    again = KnowledgeBase.from_bytes(base.to_bytes(), "n1", 2)
    assert known(again) == known(base)
    assert list(again.usage_profiles.kept) == list(base.usage_profiles.kept)
    assert again.usage_profiles.bytes == base.usage_profiles.bytes > 0
    profile = next(iter(base.usage_profiles.entries())).content
    assert isinstance(profile, UsageProfile)
    assert again.usage_profiles.knows(profile.principal, profile.job, profile.member, profile.task)
    assert not again.usage_profiles.knows(profile.principal, profile.job, profile.member, 10**6)


def test_knowledge_without_courses_is_still_read() -> None:
    """What the version before has stored, which has no field for them, is taken in."""
    stored = replace(decode(noise(3, 20).to_bytes()), version=1)
    # The field of courses is the last one, and was not there.
    older = encode(stored).replace(b"\x9d", b"\x9c", 1)[:-1]
    assert encode(stored)[-1:] == b"\x90", "no courses"
    again = KnowledgeBase.from_bytes(older, "n1", 2)
    assert again.classes() == noise(3, 20).classes()
    assert again.usage_profiles.kept == {}
    again.add_usage_profile(course(cpu_milli=[1]))
    assert KnowledgeBase.from_bytes(again.to_bytes(), "n1", 3).usage_profiles.jobs("uid:1") == ["words"]


def test_a_course_looks_on_the_wire_as_it_did() -> None:
    """A frozen vector: one course."""
    base = KnowledgeBase("n", 2)
    base.add_usage_profile(course("m", run=3, task=4, began_s=1, cpu_milli=[500, 0], memory=[7, 8]))
    frozen = (
        "9592020100c29194a16e02009c02a57569643a31a5776f726473a16da26e310304ce3b9aca00cd07d001"
        "8201 92cd01f400 02920708 c301".replace(" ", "")
    )
    assert base.batch().to_bytes().hex() == frozen
    assert KnowledgeBatch.from_bytes(bytes.fromhex(frozen)).entries == tuple(base.journal)


@pytest.mark.parametrize("seed", range(3))
def test_damaged_courses_are_refused_or_mean_something(seed: int) -> None:
    """Cut and flipped bytes raise the one error that is told; they never crash."""
    rng, data, refused = chances(seed), filled(seed, 12).batch().to_bytes(), 0
    for _ in range(100):
        broken = bytearray(data[: rng.randrange(1, len(data) + 1)])
        broken[rng.randrange(len(broken))] ^= 1 << rng.randrange(8)
        try:
            KnowledgeBase("p", 1).merge(bytes(broken))
        except BadKnowledgeError:
            refused += 1
    assert refused > 40, seed
