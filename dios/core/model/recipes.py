"""What a task was started with: enough to describe it, to account for it, and to start another like it.

Not for: starting one (``dios.core.calls.run_calls``). A recipe keeps nothing alive.
"""

from __future__ import annotations

from msgspec import Struct

from dios.core.model.objects import PhysicalObject
from dios.ids import Name, TaskId
from dios.wire import messages
from dios.wire.messages import Limits, Work
from dios.wire.types import Brand


class Reserved(Struct, frozen=True):
    """What is set aside for a task while it runs."""

    memory_bytes: int = 0
    cpu_ms: int = 0


class ChildIdentity(Struct, frozen=True):
    """The id and the name of a task that is not started yet."""

    task: TaskId
    name: Name


class Given(Struct, frozen=True):
    """One reference that a task was handed; ``v_w`` is the object's version then.

    ``expires_ns`` is when the reference that it came from goes by itself, 0 for never, and ``retirements``
    how often the object's references had been taken back.
    """

    object: PhysicalObject
    permissions: int
    label: str
    lifetime_ns: int
    v_w: int
    expires_ns: int
    retirements: int

    def lost(self, now: int) -> bool:
        """Whether nobody may be handed it again: it is no more, or was taken back since."""
        over = 0 < self.expires_ns <= now
        return over or self.object.zombie or self.object.retirements != self.retirements

    def row(self) -> messages.HandedRow:
        """For a person."""
        target = self.object
        return messages.HandedRow(
            fingerprint=target.fingerprint,
            label=self.label,
            type=target.type,
            permissions=self.permissions,
            size=target.size,
            gone=target.zombie,
            changed=target.v_w != self.v_w,
        )


class Recipe(Struct, frozen=True):
    """The run call of a task, with objects in the place of references."""

    program: Given
    groups: tuple[Name, ...]
    inputs: tuple[Given, ...]
    outputs: tuple[Given, ...]
    arguments: tuple[str, ...]
    brand: Brand
    limits: Limits
    work: Work = Work()

    @property
    def executable(self) -> PhysicalObject:
        """What the task runs."""
        return self.program.object
