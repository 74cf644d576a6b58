"""Buffers of requests on objects of other nodes, as the task's own node knows them (§4.7, §4.8).

Not for: validity, which the object's node decides, or the bytes, which the host holds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from dios.wire.types import Mode

if TYPE_CHECKING:
    from dios.core.model.accounts import Version
    from dios.core.model.references import Reference
    from dios.ids import BufferId


class AwayBuffer:
    """A buffer here, and the request over there that it belongs to.

    ``held`` are its bytes, counted with the task. It is no ``Buffer``: its request is
    counted over there.
    """

    __slots__ = ("held", "id", "length", "mode", "offset", "reference", "remote")

    def __init__(
        self, buffer_id: BufferId, remote: int, reference: Reference, mode: Mode, offset: int, held: Version
    ) -> None:
        self.id: Final = buffer_id
        self.remote: Final = remote
        self.reference = reference
        self.mode = mode
        self.offset = offset
        self.length = held.bytes
        self.held = held.hold()
