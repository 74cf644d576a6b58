"""A cost model in another process, as the scheduler sees it."""

from __future__ import annotations

from typing import Final, Protocol, Self

import numpy as np

from dios.errors import InvalidError
from dios.firmament.cluster.columns import Ints
from dios.firmament.cluster.state import ClusterState
from dios.firmament.custom_model import answers, orders
from dios.firmament.custom_model.answers import Answer, Explained, Failed, Opened, Vectors
from dios.firmament.custom_model.orders import Ask, Explain, Order, StateChange
from dios.firmament.custom_model.state_changes import StateSender
from dios.firmament.models.base import BaseModel
from dios.firmament.models.protocol import ClassArcs, Options
from dios.firmament.rounds.model_guard import ModelError


class ModelLink(Protocol):
    """The connection to the task of a model; one thread at a time asks."""

    def ask(self, order: bytes) -> bytes:
        """Send an order and return the answer. Raise ModelError if the task ended, or is late."""

    def close(self) -> None:
        """End the task; any thread may call it, also while another one asks."""


class RemoteModel(BaseModel):
    """A model that another process computes. Its state follows the scheduler's when a round begins.

    Args:
        link: the connection to the task, whose model is open.
        opened: what the task said of its model.
    """

    def __init__(self, link: ModelLink, opened: Opened) -> None:
        self.name = opened.name
        self.summary = opened.summary
        self.parameters: Final = dict(opened.parameters)
        """The parameters of the model and their defaults, as words."""
        self._link: Final = link
        self._sender: Final = StateSender()

    def close(self) -> None:
        """End the model's task."""
        self._link.close()

    def __deepcopy__(self, memo: dict[int, object]) -> Self:
        """Raise ModelError: the task of the model knows only one state."""
        raise ModelError("the cost model runs in another process, where it has no second state")

    def begin(self, state: ClusterState) -> None:
        """Send what has changed, and begin a round."""
        self._void(Ask("begin", [], self._sender.change(state)))

    def prepare(self, state: ClusterState) -> None:
        self._void(Ask("prepare", []))

    def gather(self, state: ClusterState, parents: Ints, children: Ints) -> None:
        self._void(Ask("gather", [parents.tobytes(), children.tobytes()]))

    def stale_tasks(self, state: ClusterState) -> Ints:
        return self._one("stale_tasks")

    def task_options(self, state: ClusterState, tasks: Ints) -> Options:
        return Options(*self._many(3, "task_options", tasks))

    def task_classes(self, state: ClusterState, tasks: Ints) -> Options:
        return Options(*self._many(3, "task_classes", tasks))

    def task_to_unscheduled(self, state: ClusterState, tasks: Ints) -> Ints:
        return self._one("task_to_unscheduled", tasks)

    def task_continuation(self, state: ClusterState, tasks: Ints) -> Ints:
        return self._one("task_continuation", tasks)

    def task_preemption(self, state: ClusterState, tasks: Ints) -> Ints:
        return self._one("task_preemption", tasks)

    def unscheduled_to_sink(self, state: ClusterState, jobs: Ints) -> Ints:
        return self._one("unscheduled_to_sink", jobs)

    def class_to_resources(self, state: ClusterState, classes: Ints) -> ClassArcs:
        return ClassArcs(*self._many(4, "class_to_resources", classes))

    def class_to_classes(self, state: ClusterState, classes: Ints) -> ClassArcs:
        return ClassArcs(*self._many(4, "class_to_classes", classes))

    def resource_to_resource(self, state: ClusterState, parents: Ints, children: Ints) -> Ints:
        return self._one("resource_to_resource", parents, children)

    def leaf_to_sink(self, state: ClusterState, leaves: Ints) -> Ints:
        return self._one("leaf_to_sink", leaves)

    def resource_capacity(self, state: ClusterState, parents: Ints, children: Ints) -> Ints:
        return self._one("resource_capacity", parents, children)

    def explain(self, state: ClusterState, task: int, resource: int) -> str:
        """Ask the model's task, after sending what has changed since the round began."""
        change: StateChange = self._sender.change(state)
        answer = self._answer(Explain(int(task), int(resource), change))
        if not isinstance(answer, Explained):
            raise ModelError("explain: the task of the model answered another question")
        return answer.text

    def _void(self, order: Ask) -> None:
        self._arrays(0, order)

    def _one(self, method: str, *vectors: Ints) -> Ints:
        return self._many(1, method, *vectors)[0]

    def _many(self, count: int, method: str, *vectors: Ints) -> list[Ints]:
        return self._arrays(count, Ask(method, [vector.tobytes() for vector in vectors]))

    def _arrays(self, count: int, order: Ask) -> list[Ints]:
        answer = self._answer(order)
        if not isinstance(answer, Vectors):
            raise ModelError(f"{order.method}: the task of the model answered another question")
        if len(answer.arrays) != count:
            raise ModelError(f"{order.method}: answered {len(answer.arrays)} vectors, not {count}")
        if any(len(array) % 8 for array in answer.arrays):
            raise ModelError(f"{order.method}: the answer is no vector of int64")
        return [np.frombuffer(array, np.int64) for array in answer.arrays]

    def _answer(self, order: Order) -> Answer:
        return answer_to(self._link.ask(orders.encode(order)))


def answer_to(data: bytes) -> Answer:
    """Return the answer of a model's task. Raise ModelError if it is none, or the reason of a failure."""
    try:
        answer = answers.decode_answer(data)
    except InvalidError as error:
        raise ModelError(f"the task of the model answered nonsense: {error.message}") from None
    if isinstance(answer, Failed):
        raise ModelError(answer.reason)
    return answer


def opened_by(data: bytes) -> Opened:
    """Return the answer to the first order. Raise ModelError with the reason if the model cannot be used."""
    answer = answer_to(data)
    if not isinstance(answer, Opened):
        raise ModelError("the task of the model answered another question")
    return answer
