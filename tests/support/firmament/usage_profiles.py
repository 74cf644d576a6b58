"""Courses of tasks for tests: with given values, and random ones.

Not for: following tasks.
"""

from __future__ import annotations

from random import Random

from dios.firmament.knowledge.usage_profile import UsageChannel, UsageProfile, UsageRecording

SECOND_NS = 1_000_000_000


def course(
    member: str = "map.0",
    *,
    run: int = 1,
    task: int = 1,
    began_s: float = 0,
    length_ms: int = 0,
    instant_s: int = 1,
    principal: str = "uid:1",
    job: str = "words",
    completed: bool = True,
    **values: list[int],
) -> UsageProfile:
    """A course with these values by the channels' names; as long as they are, if nothing is said."""
    instants = max((len(series) for series in values.values()), default=1)
    return UsageProfile(
        principal,
        job,
        member,
        "n1",
        run,
        task,
        round(began_s * SECOND_NS),
        length_ms or instants * instant_s * 1000,
        instant_s,
        {int(UsageChannel[name.upper()]): tuple(series) for name, series in values.items()},
        completed,
    )


def some_course(rng: Random, *, number: int) -> UsageProfile:
    """Any course: of a few principals, jobs and members; ``number`` is its run's and its task's."""
    recording = UsageRecording()
    length_ms = rng.choice([0, 1, 900, 1_000, 5_500, 90_000, 400_000, 3_000_000])
    at = 0
    while at < length_ms:
        end = min(length_ms, at + rng.randrange(1, max(2, length_ms // 20)))
        recording.span(
            at, end, {channel: rng.randrange(10**9) for channel in rng.sample(list(UsageChannel), 3)}
        )
        at = end
    instant_s, values = recording.values(length_ms)
    return UsageProfile(
        f"uid:{rng.randrange(2)}",
        rng.choice(["words", "ranks"]),
        f"map.{rng.randrange(3)}",
        rng.choice(["n1", "n2"]),
        number // 3,
        number,
        rng.randrange(10**18),
        length_ms,
        instant_s,
        values,
        rng.random() < 0.9,
    )
