"""The options of a run that only some cost models consider, and those models.

The commands use this to warn a user whose option changes nothing under the present model. It imports no
model, and nothing numeric.
"""

from __future__ import annotations

from collections.abc import Iterable
from types import MappingProxyType
from typing import Final

from dios.wire.scheduling import Work

CONSIDERED_BY: Final = MappingProxyType(
    {
        "--deadline": ("green", "jockey", "quasar", "tetrisched"),
        "--class": ("coco",),
        "--copy-of": ("late",),
        "--long-running": ("coco", "green", "hawk", "mercury"),
    }
)
"""The models that consider an option. A model of an operator's own may consider all of them."""


def options_for_models(work: Work) -> tuple[str, ...]:
    """Return the options of a run's needs that only some cost models consider."""
    plain = Work()
    given = (
        ("--deadline", work.deadline_ms),
        ("--class", work.interference != plain.interference),
        ("--copy-of", work.copy_of),
        ("--long-running", work.service),
    )
    return tuple(option for option, said in given if said)


def warnings(options: Iterable[str], model: str) -> list[str]:
    """Return a sentence for each option that changes nothing under a model of the catalogue."""
    return [
        f"{option} changes nothing under the cost model {model}; these consider it: "
        f"{', '.join(CONSIDERED_BY[option])} (`dios sched set-model`)"
        for option in options
        if model not in CONSIDERED_BY[option]
    ]
