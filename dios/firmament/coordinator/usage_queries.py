"""The answer to `dios pack learn`: the usage profiles of a job's tasks, from the knowledge base.

``dios.packer.job.learned`` makes a job of the answer.

An answer holds as many members as fit. ``next`` is the index for the following question, or None at the end.
Values are steps: an instant, and the value from there on.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Final

import msgspec

from dios import limits
from dios.errors import InvalidError, NotPermittedError
from dios.firmament.coordinator.task_tracer import known_as
from dios.firmament.knowledge.knowledge_base import KnowledgeBase
from dios.firmament.knowledge.usage_profile import UsageChannel
from dios.firmament.knowledge.usage_profiles import ProfiledTask
from dios.wire.fields import Count, Text
from dios.wire.messages import Asked
from dios.wire.schema_words import fault_in_words

_NAMED: Final = 20
"""The number of jobs that an error names."""
_ROOM: Final = limits.ADVICE_BYTES_MAX - limits.KIB
"""The most bytes of an answer that are members."""


class _Wanted(msgspec.Struct):
    """The fields of the question."""

    job: Text
    principal: Text = ""
    begin: Count = 0


def learned(knowledge: KnowledgeBase | None, asked: Asked, question: dict[str, object]) -> dict[str, object]:
    """Return the usage profiles of a job's tasks in its last runs, as JSON.

    Raises:
        InvalidError: no run of such a job was measured; the message names the jobs with a profile.
        NotPermittedError: the job belongs to another user.
    """
    try:
        wanted = msgspec.convert(question, type=_Wanted)
    except msgspec.ValidationError as error:
        raise InvalidError(f"invalid question about the profiles of a job: {fault_in_words(error)}") from None
    principal = wanted.principal or asked.principal
    if principal != asked.principal and not asked.ruler:
        raise NotPermittedError("only the nodes' own user and root may see the usage of other users' jobs")
    profiles = None if knowledge is None else knowledge.usage_profiles
    name = wanted.job
    names = [] if profiles is None else profiles.names(principal, name)
    if profiles is not None and not names:
        name = known_as(name)
        names = profiles.names(principal, name)
    if profiles is None or not names:
        raise InvalidError(_unknown(wanted.job, [] if profiles is None else profiles.jobs(principal)))
    shown: list[dict[str, object]] = []
    room = _ROOM
    for member in profiles.summaries(principal, name, names[max(0, wanted.begin) :]):
        summary = _summary(member)
        room -= len(json.dumps(summary))
        if room < 0 and shown:
            break
        shown.append(summary)
    end = max(0, wanted.begin) + len(shown)
    return {
        "ok": True,
        "job": wanted.job,
        "principal": principal,
        "runs": profiles.runs(principal, name),
        "members": shown,
        "next": end if end < len(names) else None,
    }


def _summary(member: ProfiledTask) -> dict[str, object]:
    channels = member.highest.values
    return {
        "member": member.name,
        "runs": member.runs,
        "completed": member.completed,
        "start_s": member.start_s,
        "length_s": member.length_s,
        "instant_s": member.highest.instant_s,
        "machines": list(member.machines),
        "values": {channel.name.lower(): steps_of(values) for channel, values in sorted(channels.items())},
        "unmeasured": [channel.name.lower() for channel in UsageChannel if channel not in channels],
    }


def steps_of(values: Sequence[int]) -> list[tuple[int, int]]:
    """Return the positions at which values change, and the new values."""
    return [(at, value) for at, value in enumerate(values) if at == 0 or value != values[at - 1]]


def _unknown(job: str, known: list[str]) -> str:
    if not known:
        return (
            f"cannot show the usage of {job!r}: no run of it or of any other job of yours was measured. Run "
            "the job with `dios run JOB.toml`; this measures its tasks."
        )
    others = f" and {len(known) - _NAMED} others" if len(known) > _NAMED else ""
    return (
        f"cannot show the usage of {job!r}: no run of it was measured. Jobs with measured runs: "
        f"{', '.join(known[:_NAMED])}{others}"
    )
