"""Courses reach whoever schedules, whenever that is: they are told again and again."""

from __future__ import annotations

import msgspec

from dios import limits
from dios.firmament.coordinator.observer import MeasurementReport, Observer
from dios.firmament.knowledge.knowledge_base import KnowledgeBase
from tests.support.firmament.samples import chances, sample
from tests.support.firmament.usage_profiles import course, some_course


def told(observer: Observer, count: int) -> list[MeasurementReport]:
    """What is in so many reports in turn."""
    packed_reports = [observer.report("n1") for _ in range(count)]
    assert all(len(data) <= limits.INLINE_BYTES_MAX for data in packed_reports if data)
    return [msgspec.msgpack.decode(data, type=MeasurementReport) for data in packed_reports if data]


def filled(count: int) -> KnowledgeBase:
    """A node's base with courses of its own."""
    rng, base = chances(1), KnowledgeBase("n1", 1)
    for number in range(count):
        base.add_usage_profile(some_course(rng, number=number))
    return base


def test_a_scheduler_that_comes_late_learns_all_courses() -> None:
    """Whoever misses the first reports has all courses of a node in the end, and nothing of them twice."""
    base = filled(60)
    observer = Observer(base)
    try:
        told(observer, 60)
        late = KnowledgeBase("n2", 1)
        new = sum(late.merge(report.batch).new for report in told(observer, 200))
        again = sum(late.merge(report.batch).new for report in told(observer, 100))
    finally:
        observer.close()
    kept = {entry.identity for entry in base.usage_profiles.entries()}
    assert {entry.identity for entry in late.usage_profiles.entries()} == kept
    assert (new, again) == (len(kept), 0)


def test_courses_of_others_are_theirs_to_tell() -> None:
    """A node tells again what it measured itself, and what is new beside it."""
    base = filled(0)
    other = KnowledgeBase("n2", 1)
    other.add_usage_profile(course(cpu_milli=[1]))
    base.merge(other.batch().to_bytes())
    observer = Observer(base)
    try:
        assert len(told(observer, 20)) == 1
        base.add_usage_profile(course(task=2, cpu_milli=[1]))
        base.add(sample(resident=1))
        late = KnowledgeBase("n3", 1)
        late_of = [late.merge(report.batch) for report in told(observer, 20)]
    finally:
        observer.close()
    assert sum(merge.new for merge in late_of) == 2
    assert len(late_of) == 5, "one with both, and four in which the own one is told again"


def test_what_was_forgotten_is_not_taken_in_again() -> None:
    """A course older than those that are kept is no news when it comes again, nor is one of these."""
    base = KnowledgeBase("n1", 1)
    for run in range(limits.USAGE_PROFILE_RUNS_MAX + 1):
        base.add_usage_profile(course(run=run, task=run, began_s=run, cpu_milli=[1]))
    above, all_of = KnowledgeBase("n2", 1), base.batch().to_bytes()
    assert above.merge(all_of).new == limits.USAGE_PROFILE_RUNS_MAX + 1
    before = above.position
    assert above.merge(all_of).new == 0
    assert above.position == before


def test_a_course_is_taken_though_later_numbers_were_heard() -> None:
    """A gap in the numbers of a node that was closed meanwhile keeps no course out."""
    base, above = KnowledgeBase("n1", 1), KnowledgeBase("n2", 1)
    base.add_usage_profile(course(cpu_milli=[1]))
    first = base.batch()
    for number in range(limits.KNOWLEDGE_GAPS_MAX + 10):
        base.add(sample(at_s=number, resident=1))
    above.merge(base.batch(first.upto).to_bytes())
    assert above.merge(first.to_bytes()).new == 1
    assert above.usage_profiles.jobs("uid:1") == ["words"]
