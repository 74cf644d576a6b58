"""What principals move through this node, and the rates that whoever schedules told it.

Not for: deciding rates (``dios.firmament``).
"""

from __future__ import annotations

from typing import Final

from msgspec.structs import replace

from dios.core.effects import SetRates
from dios.wire.messages import Metered


class Rates:
    """The rates that hold now, and the meters. ``capacity`` is in bytes per second, 0 for unknown."""

    def __init__(self, capacity: tuple[int, int, int] = (0, 0, 0)) -> None:
        self._capacity: Final = capacity

    def set(self, effect: SetRates) -> None:
        """Keep to these from now on."""

    def completed(self, answer: Metered) -> Metered:
        """The answer with what was moved here."""
        return replace(answer, capacity=self._capacity)
