"""The program of a model's task: a pure task that answers a coordinator and has nothing else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np

from dios.client.sync.node import Stream, connect
from dios.errors import ClosedError, EndOfStreamError, InvalidError
from dios.firmament.cluster.columns import Ints
from dios.firmament.custom_model import answers, contract, orders
from dios.firmament.custom_model.answers import TEXT_CHARS_MAX, Answer, Explained, Failed, Opened, Vectors
from dios.firmament.custom_model.loading import ModelFile, described
from dios.firmament.custom_model.orders import Ask, Explain, Open, Order, StateChange
from dios.firmament.custom_model.state_changes import StateCopy
from dios.firmament.models.base import BaseModel
from dios.firmament.models.protocol import CostModel
from dios.firmament.parameters import text_of

PROGRAM: Final = "from dios.firmament.custom_model.program import main\n\nmain()\n"


def main() -> None:
    """Answer until the coordinator closes its stream."""
    node = connect()
    incoming, outgoing = node.input(orders.LABEL), node.input(answers.LABEL)
    assert isinstance(incoming, Stream)  # noqa: S101 - the coordinator handed them over
    assert isinstance(outgoing, Stream)  # noqa: S101 - see above
    model = HostedModel()
    try:
        while True:
            order = orders.decode_order(incoming.receive())
            outgoing.send(answers.encode(model.answer(order)))
    except (EndOfStreamError, ClosedError):
        return


class HostedModel:
    """A model and its copy of the cluster."""

    def __init__(self) -> None:
        self._copy: Final = StateCopy()
        self._model: CostModel = BaseModel()

    def answer(self, order: Order) -> Answer:
        """Carry out one order; whatever the model raises is an answer, too."""
        try:
            match order:
                case Open():
                    return self._open(order)
                case Ask():
                    self._update(order.change)
                    return self._ask(order)
                case Explain():
                    self._update(order.change)
                    text = str(self._model.explain(self._copy.state, order.task, order.resource))
                    return Explained(text[:TEXT_CHARS_MAX])
        except (KeyboardInterrupt, EndOfStreamError, ClosedError):
            raise
        except InvalidError as error:
            return Failed(error.message[:TEXT_CHARS_MAX])
        except BaseException as error:  # noqa: BLE001 - a model is responsible for all that it raises
            return Failed(f"raised {described(error)}"[:TEXT_CHARS_MAX])

    def _open(self, order: Open) -> Answer:
        model_file = ModelFile(order.source)
        contract.check(lambda: model_file.make(order.parameters))
        self._model = model_file.make(order.parameters)
        usual = {name: text_of(value) for name, value in model_file.parameters.items()}
        return Opened(model_file.name, model_file.summary, usual)

    def _update(self, change: StateChange | None) -> None:
        """Bring the copy up to date, and report to the model what came and went."""
        if change is None:
            return
        copy, model = self._copy, self._model
        machines, tasks = copy.removed(change)
        for row in tasks:
            model.remove_task(copy.state, row)
        for row in machines:
            model.remove_machine(copy.state, row)
        machines, tasks = copy.apply(change)
        for row in sorted(machines):
            model.add_machine(copy.state, row)
        if tasks:
            model.add_tasks(copy.state, np.array(tasks, np.int64))

    def _ask(self, order: Ask) -> Answer:
        method: Callable[..., object] = getattr(self._model, order.method)  # type: ignore[explicit-any]  # each has its own
        given = [np.frombuffer(array, np.int64) for array in order.arrays]
        reply = method(self._copy.state, *given)
        if reply is None and order.method in {"begin", "prepare", "gather"}:
            return Vectors([])
        parts = reply if isinstance(reply, tuple) else (reply,)
        return Vectors([_bytes(order.method, part) for part in parts])


def _bytes(method: str, column: object) -> bytes:
    """Return a vector of int64 as bytes. Raise InvalidError for anything else."""
    if not isinstance(column, np.ndarray):
        raise InvalidError(f"{method}: answered {type(column).__name__}, not an array")
    if column.dtype != np.int64:
        raise InvalidError(f"{method}: answered {column.dtype}, not int64")
    if column.ndim != 1:
        raise InvalidError(f"{method}: the shape is {column.shape}, not (n,)")
    vector: Ints = column
    if vector.nbytes > answers.ANSWER_BYTES_MAX // 8:
        raise InvalidError(f"{method}: answered {len(vector):,} values, which are too many")
    return vector.tobytes()
