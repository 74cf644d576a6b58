"""A core that is encoded, decoded and continued at random steps, and must not notice.

At such a step the core and its copy take the same event with the same entropy. Both must give the same
outcome and come to the same state; the copy goes on.
"""

from __future__ import annotations

from random import Random
from typing import Final

from blake3 import blake3
from msgspec import msgpack

from dios.core import snapshot
from dios.core.effects import LogDefect, Outcome
from dios.core.events import Event
from dios.core.machine import Core
from dios.core.model.rows import RowSource
from dios.core.model.state import State
from dios.core.remote.peers import Here
from dios.errors import InvariantError
from dios.ids import NodeId, Principal
from labs.sim.step_work import bounded

ONE_STEP_IN: Final = 100


class ContinuedCore:
    """A core in a simulation; ``rng`` is its entropy, and also chooses, by its state, the steps to check.

    Unless it is ``checked``, it only takes its steps.
    """

    def __init__(
        self, rng: Random, owner: Principal, here: Here, rows: RowSource, *, checked: bool = True
    ) -> None:
        self._rng: Final = rng
        self._rows: Final = rows
        self._drawn = bytearray()
        # Its own dice: the core draws the same entropy whether it is continued or not.
        self._dice: Final = Random(blake3(repr(rng.getstate()).encode()).digest())  # noqa: S311 - a simulation repeats itself
        self._core = Core(self._draw, owner, here=here, rows=rows)
        self.continued = 0
        self._checked: Final = checked

    @property
    def state(self) -> State:
        """The tables of the core that goes on."""
        return self._core.state

    def has_request(self, node: NodeId, number: int) -> bool:
        """Return True if a request of another node was handled before."""
        return self._core.has_request(node, number)

    def step(self, event: Event) -> Outcome:
        """Take one event; at a random step with the core and its copy."""
        self._drawn.clear()
        if not self._checked:
            return _without_defects(self._core.step(event))
        if self._dice.randrange(ONE_STEP_IN):
            return _without_defects(bounded(self._core, event))
        before = snapshot.encode(self._core.state)
        copy = Core.continued(snapshot.decode(before, self._replay, source=self._rows))
        if snapshot.encode(copy.state) != before:
            raise InvariantError("a state that was encoded and decoded is another one")
        outcome = _without_defects(bounded(self._core, event))
        again = copy.step(event)
        if self._drawn or msgpack.encode(again) != msgpack.encode(outcome):
            raise InvariantError(f"a core that continues from its snapshot does something else: {event}")
        after = snapshot.encode(self._core.state)
        if snapshot.encode(copy.state) != after:
            raise InvariantError(f"a core that continues from its snapshot comes to another state: {event}")
        self._core = Core.continued(snapshot.decode(after, self._draw, source=self._rows))
        self.continued += 1
        return outcome

    def _draw(self, size: int) -> bytes:
        drawn = self._rng.randbytes(size)
        self._drawn += drawn
        return drawn

    def _replay(self, size: int) -> bytes:
        """The entropy that the core has just drawn, for its copy."""
        drawn = bytes(self._drawn[:size])
        if len(drawn) < size:
            raise InvariantError("a core that continues from its snapshot draws more entropy")
        del self._drawn[:size]
        return drawn


def _without_defects(outcome: Outcome) -> Outcome:
    """Return the outcome; raise InvariantError if the core contained an exception of its own."""
    for effect in outcome.after:
        if isinstance(effect, LogDefect):
            raise InvariantError(f"a step met a defect: {effect.trace}")
    return outcome
