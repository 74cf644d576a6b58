"""How coordinators forward what they know, and keep it (§6.5.3)."""

from __future__ import annotations

import msgspec
import pytest
from msgspec.structs import replace

from dios import limits
from dios.firmament.knowledge.knowledge_base import KnowledgeBase
from dios.firmament.knowledge.samples import (
    BadKnowledgeError,
    BatchMark,
    KnowledgeBatch,
    KnowledgeEntry,
    Metric,
    Sample,
)
from dios.firmament.knowledge.storage import decode, encode
from tests.support.firmament.samples import answers, batches, chances, noise, sample


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
    assert sum(merge.new for merge in merged) == sum(merge.known for merge in merged) == child.position, seed


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


@pytest.mark.parametrize("bytes_max", [1, 500, 3_000, 32_768])
def test_batches_are_as_large_as_they_may_be(bytes_max: int) -> None:
    """Cut to any size nothing is lost: the next batch begins where the last one ended."""
    base, parent = noise(2, 60), KnowledgeBase("p", 1)
    mark, sizes = None, []
    while parent.position < base.position:
        batch = base.batch(mark, bytes_max)
        data = batch.to_bytes()
        assert len(data) <= bytes_max or len(batch.entries) == 1
        assert batch.more == (parent.position + len(batch.entries) < base.position)
        parent.merge(data)
        mark = batch.upto
        sizes.append(len(batch.entries))
    assert answers(parent) == answers(base)
    assert (len(sizes) == 1) == (bytes_max == 32_768), sizes


def test_the_largest_entry_fits_a_small_message() -> None:
    """A sample with all that it may have still goes inline between nodes."""
    beside = tuple(
        f"{number:0{limits.PROFILE_TEXT_BYTES_MAX}}" for number in range(limits.PROFILE_NEIGHBOURS_MAX)
    )
    text = "x" * limits.PROFILE_TEXT_BYTES_MAX
    values = dict.fromkeys(range(2 * len(Metric)), 2**63 - 1)
    base = KnowledgeBase(text, 2**63 - 1)
    base.add(Sample(text, text, text, 2**63 - 1, values, beside, 2**63 - 1, final=True))
    assert len(base.batch().to_bytes()) < limits.INLINE_BYTES_MAX


def test_what_the_journal_lost_is_said() -> None:
    """A parent that was away too long is told how much it missed, and gets what is left."""
    base = KnowledgeBase("n", 1)
    for number in range(limits.KNOWLEDGE_JOURNAL_MAX + 7):
        base.add(sample(at_s=number, resident=1))
    late = base.batch(BatchMark(1, 2))
    assert late.lost == 5
    assert late.entries[0].sequence == 7
    again = KnowledgeBase.from_bytes(base.to_bytes(), "n", 2)
    assert again.position == base.position
    assert again.batch().entries == base.batch().entries


def test_a_mark_from_the_future_is_refused() -> None:
    """A mark beyond all that ever was in this start is an error, as something was mixed up."""
    with pytest.raises(BadKnowledgeError, match="mark 5"):
        KnowledgeBase("n", 1).batch(BatchMark(1, 5))


def test_values_of_a_newer_version_are_handed_on() -> None:
    """A metric that this version does not know is in no profile, and still reaches the parent."""
    base = KnowledgeBase("n", 1)
    base.add(Sample("c", "t", "m", 1, {9_999: 3, int(Metric.RESIDENT): 4}))
    profile = base.profile("c", "t")
    assert profile is not None
    assert set(profile.aggregates) == {Metric.RESIDENT}
    decoded = KnowledgeBatch.from_bytes(base.batch().to_bytes()).entries[0].content
    assert isinstance(decoded, Sample)
    assert decoded.values[9_999] == 3


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


def test_a_batch_over_the_bound_is_refused() -> None:
    """One that is as large as it may be is taken."""
    entries = tuple(
        KnowledgeEntry("n", 1, at, sample(resident=1)) for at in range(limits.KNOWLEDGE_BATCH_MAX + 1)
    )
    full = KnowledgeBatch(BatchMark(), 0, more=False, entries=entries[1:])
    assert KnowledgeBase("p", 1).merge(full.to_bytes()).new == limits.KNOWLEDGE_BATCH_MAX
    with pytest.raises(BadKnowledgeError, match="at most 512"):
        KnowledgeBase("p", 1).merge(replace(full, entries=entries).to_bytes())


@pytest.mark.parametrize(("node", "incarnation", "sequence"), [("", 1, 1), ("n", -1, 1), ("n", 1, -1)])
def test_an_entry_without_an_identity_is_refused(node: str, incarnation: int, sequence: int) -> None:
    """Node, start and number must be possible, or entries could not be told apart."""
    entry = KnowledgeEntry(node, incarnation, sequence, sample(resident=1))
    with pytest.raises(BadKnowledgeError):
        KnowledgeBase("p", 1).merge(KnowledgeBatch(BatchMark(), 0, more=False, entries=(entry,)).to_bytes())


def test_a_batch_of_another_version_is_refused_by_its_version() -> None:
    """The error says both versions."""
    data = KnowledgeBatch(BatchMark(), 0, more=False, entries=(), version=9).to_bytes()
    with pytest.raises(BadKnowledgeError, match=r"version 9.*reads 1"):
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
    assert KnowledgeBatch.from_bytes(bytes.fromhex(frozen)).entries == tuple(base.journal)


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


def test_stored_entries_are_checked() -> None:
    """An entry that could not have been added is damage when it is stored, and so is an index of none."""
    base = KnowledgeBase("n", 1)
    base.take(KnowledgeEntry("n", 1, 0, sample(task_class="", resident=1)))
    with pytest.raises(BadKnowledgeError, match="task_class"):
        KnowledgeBase.from_bytes(base.to_bytes(), "n", 2)
    whole = decode(noise(1, 5).to_bytes())
    for index in (-1, len(whole.entries)):
        with pytest.raises(BadKnowledgeError, match="damaged"):
            KnowledgeBase.from_bytes(encode(replace(whole, journal=[index])), "n", 2)
    with pytest.raises(BadKnowledgeError, match="version 7"):
        KnowledgeBase.from_bytes(encode(replace(whole, version=7)), "n", 2)


def test_what_earlier_releases_kept_of_machines_is_passed_over() -> None:
    """A stored knowledge base with the latest samples of each machine is read without them."""
    base = noise(1, 5)
    stored = msgspec.msgpack.decode(base.to_bytes())
    assert stored[6] == []
    stored[6] = [["sort", "m1", [0, 1]]]
    again = KnowledgeBase.from_bytes(msgspec.msgpack.encode(stored), "other", 1)
    assert answers(again) == answers(base)
