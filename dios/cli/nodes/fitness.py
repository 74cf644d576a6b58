"""Waits until nodes that were started know if they are fit for pure tasks."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final, NamedTuple

from dios import limits
from dios.client.sync.node import connect
from dios.errors import DiosError
from dios.host.confinement.mechanisms import PURE_TASKS
from dios.wire.types import Fitness

_POLL_S: Final = 0.2


class KnownFitness(NamedTuple):
    """The fitness of a node, and its promise about pure tasks in words; False if it did not answer."""

    fitness: Fitness
    text: str
    answered: bool = True


def wait_known(
    sockets: Mapping[str, Path], *, report: Callable[[str], None] = lambda _: None
) -> dict[str, KnownFitness]:
    """Return the fitness of the nodes at these sockets by name, once each of them knows its own.

    Return after FITNESS_WAIT_MS_MAX anyway; ``report`` gets a text for each wait. Nothing is raised: the
    fitness of a node that does not answer is unknown.
    """
    deadline = time.monotonic() + limits.FITNESS_WAIT_MS_MAX / 1000
    states: dict[str, KnownFitness] = {}
    for name, socket in sockets.items():
        while True:
            state = states[name] = fitness_at(socket)
            if state.fitness is not Fitness.UNKNOWN or not state.answered or time.monotonic() > deadline:
                break
            report(f"{name} finds out if it can confine pure tasks" if name else "pure tasks are tried out")
            time.sleep(_POLL_S)
    return states


def fitness_at(socket: Path) -> KnownFitness:
    """Return the fitness of the node at this socket; unknown, with the reason, if it does not answer."""
    try:
        with connect(str(socket), groups=()) as connected:
            info = connected.info()
    except DiosError as error:
        return KnownFitness(Fitness.UNKNOWN, f"not known: {error.message}", answered=False)
    return KnownFitness(info.fitness, info.guarantees.get(PURE_TASKS, info.fitness.name.lower()))
