"""Where frames come from and go to: what every engine is, whether memory, a file or interfaces.

Not for: what is done with them in between.

An engine gives each worker three compiled functions of C, by address, which are called with the engine's
context for that core, an address and a count:

- ``receive(context, packets, room)``: fill in ``address``, ``length``, ``frame`` (the engine's own number,
  for ``release``), ``side`` and ``room`` (so long the frame may become where it lies) of at most ``room``
  descriptors of ``PACKET``; how many there are. It may wait for some milliseconds when there are none. The
  bytes stay where they are, and may be changed, until they are released.
- ``transmit(context, packets, count)``: send those whose ``verdict`` is ``FORWARD`` out of the side
  opposite to ``side``, with ``length`` as it is then; how many were taken. The bytes are copied, or gone,
  when it returns. A core also transmits packets that others received.
- ``release(context, frames, count)``: so many numbers (int64) of frames that this core received are not
  needed any more, in any order. Each is released once, by the core that received it.

Each is called by one core at a time, with that core's context, and never by Python.
"""

from __future__ import annotations

from typing import Final, Protocol

from dios.sprayer.compile.intrinsics import callable_at


class Engine(Protocol):
    """What workers run on."""

    @property
    def cores(self) -> int:
        """So many workers."""

    @property
    def receive(self) -> int:
        """The address of the function that receives; the others likewise."""

    @property
    def transmit(self) -> int:
        """See above."""

    @property
    def release(self) -> int:
        """See above."""

    def context(self, core: int) -> int:
        """What the functions get first: an address that stays good as long as the engine."""


entry: Final = callable_at
"""What gives an engine's function an address."""
