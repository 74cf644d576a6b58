"""Schedulers for simulations, by the names that people give.

For: the command line and experiments. Not for: clusters that exist; a coordinator makes its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from dios.errors import InvalidError
from dios.firmament.knowledge.knowledge_base import KnowledgeBase
from dios.firmament.models import catalogue
from dios.firmament.models.catalogue import Value
from dios.firmament.scheduler import FlowScheduler
from dios.firmament.settings import SchedulerSettings
from dios.firmament.simulate.queues import QueueScheduler
from dios.firmament.simulate.scheduler_bridge import Scheduler
from dios.firmament.solvers.registry import algorithms

QUEUE: Final = "queue"
QUEUE_LOAD: Final = "queue-load"
"""In place of a cost model: the queues of §8.2.1 to compare with."""


def scheduler_for(
    model: str,
    *,
    parameters: Mapping[str, Value] | None = None,
    settings: SchedulerSettings | None = None,
    knowledge: KnowledgeBase | None = None,
    seed: int = 0,
) -> Scheduler:
    """A fresh scheduler.

    Args:
        model: a name of the catalogue, ``queue`` (random first fit) or ``queue-load``.
        parameters: the model's; ``seed`` is its seed too, where it has one and none is given.
        settings: the scheduler's.
        knowledge: what models that learn go by.
        seed: of what is random.

    Raises:
        BadModelError: there is no such model or parameter; the message lists those that there are.
        InvalidError: there is no such solver, or a queue was given parameters.
    """
    given = dict(parameters or {})
    if model in {QUEUE, QUEUE_LOAD}:
        if given:
            raise InvalidError(f"{model} has no parameters")
        return QueueScheduler(seed, load_aware=model == QUEUE_LOAD)
    chosen = settings or SchedulerSettings()
    if chosen.solver not in algorithms():
        raise InvalidError(f"there is no solver {chosen.solver!r}; there are {', '.join(algorithms())}")
    if "seed" in catalogue.parameters(model):
        given.setdefault("seed", seed)
    return FlowScheduler(catalogue.make(model, **given), chosen, knowledge=knowledge)
