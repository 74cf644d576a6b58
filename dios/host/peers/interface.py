"""What the effector asks of the part of the host that speaks with other nodes.

Not for: how that is done (``dios.host.peers``); a lone node has no such part.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol, TypeAlias

from dios.core import effects as fx
from dios.host.content.buffers import Work
from dios.host.content.contents import Content
from dios.ids import PayloadId
from dios.wire.messages import Failure

Do: TypeAlias = Callable[..., Work | None]  # type: ignore[explicit-any] # each takes its own kind of effect


class Elsewhere(Protocol):
    """Effects that speak of other nodes, and answers to tasks of other nodes."""

    def handlers(self, payload_of: Callable[[PayloadId], Content | None]) -> Mapping[type, Do]:
        """What does each effect of other nodes; ``payload_of`` tells the payloads of the step being done."""
        ...

    def minding(self, handlers: Mapping[type, Do]) -> Mapping[type, Do]:
        """Those handlers of a lone node that must do otherwise for tasks or objects of other nodes."""
        ...

    def send_failed(self, effect: fx.Send, failure: Failure) -> None:
        """What this was to tell of did not take place."""
        ...
