"""The interface of engines, the sources and sinks of frames: memory, a file, or network interfaces.

An engine gives each worker the addresses of three compiled C functions. They are called with the engine's
context for that core, an address and a count:

- ``receive(context, packets, room)``: fill in ``address``, ``length``, ``frame`` (the engine's own number,
  for ``release``), ``side`` and ``room`` (the maximum length of the frame in its place) of at most ``room``
  descriptors of ``PACKET``; return their number. If there are none, it may wait for some milliseconds. The
  bytes stay in place, and may be changed, until they are released.
- ``transmit(context, packets, count)``: send the packets whose ``verdict`` is ``FORWARD`` out of the side
  opposite to ``side``, and those with ``BACK`` out of that side, with their current ``length``; return the
  number of accepted packets. The bytes are copied or sent when it returns. A core also transmits packets that
  other cores received.
- ``release(context, frames, count)``: ``count`` numbers (int64) of frames that this core received and that
  are not needed any more, in any order. Each frame is released once, by the core that received it.

Each function is called by one core at a time, with the context of that core, and never by Python.
"""

from __future__ import annotations

from typing import Final, Protocol

from dios.sprayer.compile.intrinsics import callable_at


class Engine(Protocol):
    """The interface of an engine."""

    @property
    def cores(self) -> int:
        """The number of workers."""

    @property
    def frees_in_order(self) -> bool:
        """True if a frame that is not released stops later ones: then packets that wait are copied."""

    @property
    def receive(self) -> int:
        """The address of the function that receives frames."""

    @property
    def transmit(self) -> int:
        """The address of the function that transmits frames."""

    @property
    def release(self) -> int:
        """The address of the function that releases frames."""

    def context(self, core: int) -> int:
        """Return the first argument of the three functions: an address, valid while the engine exists."""


function_address: Final = callable_at
"""Return the address of an engine's function."""
