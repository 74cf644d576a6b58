"""Who a task is: what it is told at its start, beside the references that it is handed.

Not for: what a node is asked (``dios.client.ops.nodes``).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Final

from dios.client.ops.attributes import ClientLink, Handle
from dios.transport.rings.end import RingEnd
from dios.wire import messages
from dios.wire.nametext import fingerprint


class NodeBase(ABC):
    """Who this task is and what it was handed at its start (§4.5.2)."""

    def __init__(self, link: ClientLink, welcome: messages.Welcome, *, ambient: bool = False) -> None:
        self.link: Final = link
        self.ambient: Final = ambient
        """Whether this is the task's own node, which is not closed before the task ends."""
        self.name: Final = welcome.name
        """This task's own name. A secret."""
        self.brand: Final = welcome.brand
        self.label: Final = welcome.label
        self.arguments: Final = welcome.arguments
        self.self_info: Final = welcome.self_ref
        self.ends: Final[set[RingEnd]] = set()
        """The ends of streams that are attached now."""

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.brand.name.lower()} task {fingerprint(self.name)}>"

    def close_ends(self) -> None:
        """Close every end of a stream: without the connection their references are gone."""
        while self.ends:
            self.ends.pop().close()

    @abstractmethod
    def handle(self, info: messages.Reference, name: bytes | None = None) -> Handle:
        """The face's handle for a reference that came in a message."""
