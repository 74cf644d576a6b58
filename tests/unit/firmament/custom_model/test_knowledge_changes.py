"""A custom model sees the measured profiles: the copy answers as the original does, and is bounded."""

from __future__ import annotations

import random

import pytest

from dios import limits
from dios.firmament.custom_model import knowledge_changes, orders
from dios.firmament.custom_model.contract import answers, informed, same_answers
from dios.firmament.custom_model.example_clusters import example_cluster, example_knowledge
from dios.firmament.custom_model.knowledge_changes import KnowledgeSender, apply_knowledge
from dios.firmament.custom_model.state_changes import StateCopy, StateSender
from dios.firmament.knowledge.knowledge_base import KnowledgeBase
from dios.firmament.knowledge.samples import Metric, Sample
from dios.firmament.models.catalogue import make
from tests.support.firmament.custom_models import derived, opened

CLASSES, TYPES = ("sort", "serve", "grep"), ("type 0", "type 1")


def measure(base: KnowledgeBase, chance: random.Random, count: int) -> None:
    """Add random samples."""
    for _ in range(count):
        beside = tuple(chance.sample(CLASSES, chance.randint(0, 2)))
        values: dict[int, int] = {Metric.PS_PER_INSTRUCTION: chance.randint(100, 9000)}
        base.add(
            Sample(chance.choice(CLASSES), chance.choice(TYPES), "m0", chance.randint(1, 99), values, beside)
        )


def told(base: KnowledgeBase) -> list[object]:
    """All that models ask."""
    facts: list[object] = [base.position, base.classes(), sorted(base.pairs)]
    for name in CLASSES:
        for kind in TYPES:
            profile = base.profile(name, kind)
            facts.append(None if profile is None else (profile.score(), profile.samples, profile.finished))
            facts += [base.score_beside(name, beside, kind) for beside in ((), ("sort",), CLASSES)]
            facts += [base.slow_down(name, neighbour, kind) for neighbour in CLASSES]
    return facts


def test_the_copy_answers_as_the_original() -> None:
    """After any samples, through the bytes that are sent; without new samples nothing is sent."""
    chance = random.Random(3)  # noqa: S311 - a seed, not a secret
    state = example_cluster("mixed", 1)
    state.knowledge = base = KnowledgeBase("n0", 1)
    sender, copy = StateSender(), StateCopy()
    for _ in range(8):
        measure(base, chance, 5)
        order = orders.decode_order(orders.encode(orders.Ask("begin", [], sender.change(state))))
        assert isinstance(order, orders.Ask)
        assert order.change is not None
        copy.apply(order.change)
        assert copy.state.knowledge is not None
        assert told(copy.state.knowledge) == told(base)
    assert sender.change(state).knowledge is None


def test_whare_map_as_a_file_decides_as_that_of_the_catalogue() -> None:
    """The same vectors, also after further measurements."""
    state = example_cluster("mixed", 2)
    state.knowledge = base = example_knowledge()
    model, _ = opened(derived("whare", "WhareMCs"))
    here, there = informed(make("whare-mcs"), state), informed(model, state)
    without = answers(make("whare-mcs"), example_cluster("mixed", 2))
    chance = random.Random(4)  # noqa: S311 - a seed, not a secret
    for _ in range(3):
        expected = answers(here, state)
        assert same_answers(expected, answers(there, state))
        assert not same_answers(expected, without)
        measure(base, chance, 10)
        state.now += 60.0


def test_what_the_knowledge_base_dropped_leaves_the_copy() -> None:
    """A profile and a pair that made room for others are gone, and a new knowledge base begins afresh."""
    base = example_knowledge()
    sender = KnowledgeSender()
    change = sender.change(base)
    assert change is not None
    copy = apply_knowledge(None, change)
    base.profiles.forget(next(iter(base.profiles)))
    base.profiles.popitem(last=False)
    base.pairs.popitem(last=False)
    measure(base, random.Random(5), 1)  # noqa: S311 - a seed, not a secret
    change = sender.change(base)
    assert change is not None
    assert told(apply_knowledge(copy, change)) == told(base)
    other = KnowledgeBase("n1", 1)
    measure(other, random.Random(6), 3)  # noqa: S311 - a seed, not a secret
    change = sender.change(other)
    assert change is not None
    assert told(apply_knowledge(copy, change)) == told(other)


def test_large_knowledge_arrives_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """No change has more than its bounds; after some of them the copy is complete."""
    monkeypatch.setattr(knowledge_changes, "SCHED_MODEL_PROFILES_MAX", 2)
    monkeypatch.setattr(knowledge_changes, "SCHED_MODEL_PAIRS_MAX", 3)
    base, sender = KnowledgeBase("n0", 1), KnowledgeSender()
    measure(base, random.Random(7), 60)  # noqa: S311 - a seed, not a secret
    copy: KnowledgeBase | None = None
    changes = 0
    while (change := sender.change(base)) is not None:
        assert len(change.profiles) <= 2
        assert len(change.pairs) <= 3
        copy = apply_knowledge(copy, change)
        changes += 1
    assert copy is not None
    assert told(copy) == told(base)
    assert changes == -(-len(base.pairs) // 3)
    assert limits.SCHED_MODEL_PROFILES_MAX <= limits.KNOWLEDGE_PROFILES_MAX
