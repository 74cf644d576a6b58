"""Joins the small frames that one turn of the event loop sends to the same peer: one write, one wake-up.

A reader that handles several frames in one turn opens the batch, and closes it before it waits. Meanwhile,
connections hold small frames back, and the end of the batch sends them. A process has one event loop, and
thus one batch.
"""

from __future__ import annotations

from typing import Final, Protocol


class HoldsFrames(Protocol):
    """A connection that holds frames back."""

    def send_held(self) -> None:
        """Send the frames that are held back. Never raise."""


class Batch:
    """The connections that hold frames back in this turn."""

    __slots__ = ("_holding", "is_open")

    def __init__(self) -> None:
        self.is_open = False
        self._holding: list[HoldsFrames] = []

    def begin(self, frames: int) -> None:
        """Let connections hold small frames back while this number of frames is handled; one needs none."""
        self.is_open = frames > 1

    @property
    def is_empty(self) -> bool:
        """Return True if no connection holds a frame back."""
        return not self._holding

    def note(self, connection: HoldsFrames) -> None:
        """Remember a connection that begins to hold frames back."""
        self._holding.append(connection)

    def end(self) -> None:
        """Send everything that was held back; further frames are sent at once."""
        self.is_open = False
        if self._holding:
            holding, self._holding = self._holding, []
            for connection in holding:
                connection.send_held()


BATCH: Final = Batch()
"""The batch of this process."""
