"""Samples and knowledge bases for tests: with given values, with random ones, and compared.

Not for: measuring anything.
"""

from __future__ import annotations

import random

from dios.firmament.descriptors import FinalReport
from dios.firmament.knowledge.knowledge_base import KnowledgeBase
from dios.firmament.knowledge.samples import BatchMark, KnowledgeBatch, Metric, Sample

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
    base = KnowledgeBase(node, 1)
    for number in range(count):
        task_class, machine = rng.choice("abc"), f"m{rng.randrange(3)}"
        beside = tuple(rng.sample("abcd", rng.randrange(3)))
        values = {m: rng.randrange(1 << rng.randrange(1, 50)) for m in rng.sample(list(Metric), 5)}
        if rng.random() < 0.3:
            report = FinalReport(rng.random() * 100 + 0.001, 1.0, rng.randrange(10**9))
            base.add(
                Sample.at_end(
                    task_class, "t" + machine, machine, rng.randrange(HOUR), report, number, beside=beside
                )
            )
        else:
            base.add(
                Sample.of(task_class, "t" + machine, machine, rng.randrange(HOUR), values, beside=beside)
            )
        if rng.random() < 0.2:
            base.place(bytes([rng.randrange(4)]), machine, rng.randrange(-1, 10_000))
    return base


def batches(source: KnowledgeBase, size: int) -> list[bytes]:
    """All that a knowledge base has, as batches of ``size`` entries."""
    entries = list(source.journal)
    return [
        KnowledgeBatch(BatchMark(1, 0), 0, more=False, entries=tuple(entries[at : at + size])).to_bytes()
        for at in range(0, len(entries), size)
    ]


def answers(base: KnowledgeBase) -> object:
    """Everything that it knows, whatever the order in which it came to know it."""
    return (
        {
            key: (p.samples, p.finished, p.recent, {m: a.pack() for m, a in p.aggregates.items()})
            for key, p in base.profiles.items()
        },
        {
            key: {m: moments.pack() for m, moments in aggregates.items()}
            for key, aggregates in base.pairs.items()
        },
        dict(base.reports),
        {block: base.places.of(block) for block in base.places.blocks},
        sorted(entry.identity for entry in base.journal),
    )
