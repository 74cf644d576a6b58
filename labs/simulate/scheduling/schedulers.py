"""The schedulers that a simulation can run, by the names of the command line."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from dios.errors import InvalidError
from dios.firmament.custom_model.loading import ModelFile
from dios.firmament.custom_model.source import SUFFIX, read_source
from dios.firmament.knowledge.knowledge_base import KnowledgeBase
from dios.firmament.models import catalogue
from dios.firmament.parameters import Value
from dios.firmament.scheduler import FlowScheduler
from dios.firmament.settings import SchedulerSettings
from labs.simulate.scheduling.queues import QueueScheduler
from labs.simulate.scheduling.scheduler_bridge import Scheduler

QUEUE: Final = "queue"
QUEUE_LOAD: Final = "queue-load"
"""Names that select the baseline queues of §8.2.1 instead of a cost model."""


def scheduler_for(
    model: str,
    *,
    parameters: Mapping[str, Value] | None = None,
    settings: SchedulerSettings | None = None,
    knowledge: KnowledgeBase | None = None,
    seed: int = 0,
) -> Scheduler:
    """Return a new scheduler for a simulation.

    Args:
        model: a cost model of the catalogue, the file of one (it is executed here), ``queue`` (random first
            fit) or ``queue-load``.
        parameters: the cost model's parameters. ``seed`` is the default of a parameter with this name.
        settings: the scheduler's settings.
        knowledge: the knowledge base of models that learn.
        seed: the seed of random choices.

    Raises:
        BadModelError: the model or a parameter does not exist; the message lists the existing ones.
        InvalidError: a file cannot be read, or a queue was given parameters.
    """
    given = dict(parameters or {})
    if model in {QUEUE, QUEUE_LOAD}:
        if given:
            raise InvalidError(f"{model} has no parameters; leave out --param")
        return QueueScheduler(seed, load_aware=model == QUEUE_LOAD)
    own = ModelFile(read_source(model)) if model.endswith(SUFFIX) else None
    if "seed" in (catalogue.parameters(model) if own is None else own.parameters):
        given.setdefault("seed", seed)
    cost_model = catalogue.make(model, **given) if own is None else own.make(given)
    return FlowScheduler(cost_model, settings or SchedulerSettings(), knowledge=knowledge)
