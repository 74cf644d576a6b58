"""The identity of a task: the data of its Welcome, without the references."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Final

from dios.client.ops.attributes import ClientLink, Handle
from dios.transport.rings.end import RingEnd
from dios.wire import messages
from dios.wire.nametext import fingerprint


class NodeBase(ABC):
    """The identity of this task, as given at its start (§4.5.2)."""

    def __init__(self, link: ClientLink, welcome: messages.Welcome, *, ambient: bool = False) -> None:
        self.link: Final = link
        self.ambient: Final = ambient
        """True for the task's own node, which is not closed before the task ends."""
        self.name: Final = welcome.name
        """This task's own name, which is a secret."""
        self.brand: Final = welcome.brand
        self.label: Final = welcome.label
        self.arguments: Final = welcome.arguments
        self.self_info: Final = welcome.self_ref
        self.ends: Final[set[RingEnd]] = set()
        """The ends of streams that are attached now."""

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.brand.name.lower()} task {fingerprint(self.name)}>"

    def close_ends(self) -> None:
        """Close every end of a stream, because their references end with the connection."""
        while self.ends:
            self.ends.pop().close()

    @abstractmethod
    def handle(self, info: messages.Reference, name: bytes | None = None) -> Handle:
        """Return the client's handle for a reference in a message."""
