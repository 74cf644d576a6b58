"""The interface between the effector and the part of the host that handles other nodes.

``dios.host.peers.effects`` implements it. A node without a cluster has no such part.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol, TypeAlias

from dios.core import effects as fx
from dios.host.content.buffers import BackgroundWork
from dios.host.content.contents import Content
from dios.ids import PayloadId
from dios.wire.messages import Failure

EffectHandler: TypeAlias = Callable[..., BackgroundWork | None]  # type: ignore[explicit-any] # each takes its own kind of effect


class RemoteEffects(Protocol):
    """The effects about other nodes, and answers to remote tasks."""

    def handlers(self, payload_of: Callable[[PayloadId], Content | None]) -> Mapping[type, EffectHandler]:
        """Return a handler for each effect about other nodes; ``payload_of`` returns the step's payloads."""

    def overrides(self, handlers: Mapping[type, EffectHandler]) -> Mapping[type, EffectHandler]:
        """Return replacements for local handlers that must treat remote tasks or objects differently."""

    def send_failed(self, effect: fx.Send, failure: Failure) -> None:
        """Send the failure of an effect whose step failed."""
