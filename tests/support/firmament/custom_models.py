"""Cost models of operators without a node: the task's side and the scheduler's side in one process.

For: what the two sides say to each other. Not for: what the task may reach; that needs a node.
"""

from __future__ import annotations

from dios.firmament.custom_model import answers, orders
from dios.firmament.custom_model.program import HostedModel
from dios.firmament.custom_model.remote_model import RemoteModel, opened_by


class DirectLink:
    """A link to a task that is an object of this process; all that passes is bytes."""

    def __init__(self) -> None:
        self.hosted = HostedModel()
        self.closed = False
        self.asked = 0
        self.replies: list[bytes] = []
        """Answers that are given instead of the model's."""

    def ask(self, order: bytes) -> bytes:
        """Pass an order on."""
        self.asked += 1
        if self.replies:
            return self.replies.pop(0)
        return answers.encode(self.hosted.answer(orders.decode_order(order)))

    def close(self) -> None:
        """Note it."""
        self.closed = True


def opened(source: str, **parameters: str) -> tuple[RemoteModel, DirectLink]:
    """Open a model; ModelError with the reason if it cannot be used."""
    link = DirectLink()
    reply = link.ask(orders.encode(orders.Open(source, parameters)))
    return RemoteModel(link, opened_by(reply)), link


def derived(module: str, model: str) -> str:
    """The text of a model that is one of the catalogue under another name."""
    return (
        f"from dios.firmament.models.{module} import {model}\n\n\n"
        f"class Mine({model}):\n    name = 'mine'\n    summary = 'the same'\n"
    )
