"""A CoCo model that was told of a cluster as the network tells it, and short ways to fill the cluster.

For: tests of the model. Not for: the network or the scheduler.
"""

from __future__ import annotations

import numpy as np

from dios.firmament.cluster.state import ClusterState
from dios.firmament.descriptors import (
    Inner,
    Level,
    Resources,
    TaskDescriptor,
)
from dios.firmament.models.coco import CocoModel
from dios.firmament.models.protocol import ClassArcs
from dios.firmament.models.resource_tree import all_steps
from tests.support.firmament import clusters as small
from tests.support.firmament.clusters import GB

SOCKETS = tuple(
    Inner(Level.SOCKET, f"socket {at}", tuple(Inner(Level.CORE, f"core {2 * at + core}") for core in (0, 1)))
    for at in (0, 1)
)


def ready(state: ClusterState, **parameters: str | int) -> CocoModel:
    """A model that was told of the state as the network tells it."""
    model = CocoModel(**parameters)  # type: ignore[arg-type] # strings and numbers as the catalogue has them
    model.begin(state)
    model.prepare(state)
    for step in all_steps(state):
        model.gather(state, step.above, step.children)
    return model


def arcs(state: ClusterState, model: CocoModel) -> ClassArcs:
    """What all classes of waiting tasks are offered."""
    tasks = state.tasks.all()
    return model.class_to_resources(state, np.unique(model.task_classes(state, tasks).target))


def targets(state: ClusterState, model: CocoModel) -> set[int]:
    """The rows to which arcs lead."""
    return set(arcs(state, model).target.tolist())


def ask(number: int, cpus: float = 1, memory: float = 1, **more: object) -> TaskDescriptor:
    """A task's descriptor; memory in GB."""
    demand = Resources(cpus=cpus, memory=memory * GB, disk_io=float(more.pop("disk", 0)))  # type: ignore[arg-type]
    return TaskDescriptor(number, demand, **more)  # type: ignore[arg-type] # fields by name


def fill(state: ClusterState, number: int, machine: int, **more: object) -> int:
    """A running task; returns its row."""
    row = small.add_task(state, ask(number, **more))  # type: ignore[arg-type] # fields by name
    small.run(state, row, machine)
    return row
