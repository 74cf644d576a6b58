"""One long random walk over the rules of the core's machine, repeatable by its seed.

Not for: shrinking; hypothesis does that on shorter histories.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import TypeAlias

from dios.wire.types import AcquireIov, Mode, ObjectType, Semantics
from tests.support.core.account_model import COUNTED
from tests.support.core.lifetime_rules import PEOPLE_MAX, SCOPES
from tests.support.core.machine_rules import CREATABLE, CoreMachine
from tests.support.core.model import ALL

Move: TypeAlias = tuple[int, Callable[[], None]]
CONTINUED_EVERY = 20
KINDS = [*[ObjectType.SHMEM_BLOB] * 3, *[ObjectType.DURABLE_BLOB] * 3, *CREATABLE]
RIGHTS = [ALL, ALL, ALL, 1, 2, 3, 9, 11, 15, 16, 0]
ACQUIRES = [*[AcquireIov.CREATE] * 3, AcquireIov.TAKE, AcquireIov.BORROW, *[AcquireIov.REUSE] * 3]


class Walk:
    """A machine and the dice; ``moves`` are weighted."""

    def __init__(self, seed: int) -> None:
        self.rng = Random(seed)  # noqa: S311 - a repeatable walk, nothing secret
        self.machine = CoreMachine()
        self.steps = 0
        self.moves: list[Move] = [*self._people(), *self._objects(), *self._requests(), *self._rest()]

    def select(self) -> int:
        """Any place in any list."""
        return self.rng.randrange(10_000)

    def flip(self) -> bool:
        """One of two."""
        return self.rng.random() < 0.5

    def rare(self) -> bool:
        """One of ten."""
        return self.rng.random() < 0.1

    def name(self) -> int:
        """Mostly a group's name: what follows from having resolved one is the interesting part."""
        groups = {
            thing.name for thing in self.machine.model.things.values() if thing.type is ObjectType.GROUP
        }
        places = [place for place, known in enumerate(self.machine.names) if known in groups]
        return self.rng.choice(places) if places and self.flip() else self.select()

    def step(self) -> None:
        """One move, then both must say the same."""
        self.rng.choices(self.moves, [weight for weight, _ in self.moves])[0][1]()
        self.steps += 1
        if self.steps % CONTINUED_EVERY == 0:
            self.machine.continue_from_a_snapshot()
        self.machine.both_say_the_same()

    def _people(self) -> list[Move]:
        machine, pick, flip = self.machine, self.select, self.flip

        def come() -> None:
            if len(machine.clients) < PEOPLE_MAX:
                machine.open_session(foreign=flip(), pick=pick())

        def run() -> None:
            if len(machine.clients) < PEOPLE_MAX:
                rights = self.rng.choice(RIGHTS)
                machine.run(pick(), pick(), pick(), pick(), rights, with_group=flip())

        def go() -> None:
            if len(machine.clients) > 3 and flip():
                machine.end(pick(), crash=flip())

        return [(1, come), (4, run), (2, go)]

    def _objects(self) -> list[Move]:
        machine, pick, flip, rare = self.machine, self.select, self.flip, self.rare
        choice = self.rng.choice
        return [
            (4, lambda: machine.create(pick(), choice(KINDS), pick(), pick(), raw=rare(), counted=rare())),
            (5, lambda: machine.lookup(pick(), self.name(), pick(), with_group=flip())),
            (4, lambda: machine.delegate(pick(), pick(), pick(), choice(RIGHTS), durable=rare())),
            (3, lambda: machine.delete(pick(), pick(), choice([0, 0, 16, 256]))),
            (1, lambda: machine.use_a_foreign_reference(pick(), pick())),
        ]

    def _requests(self) -> list[Move]:
        machine, pick, flip = self.machine, self.select, self.flip

        def how() -> tuple[Mode, Semantics]:
            return self.rng.choice(list(Mode)), self.rng.choice(list(Semantics))

        return [
            (9, lambda: machine.acquire(pick(), pick(), *how(), pick(), self.rng.choice(ACQUIRES))),
            (8, lambda: machine.commit(pick())),
            (2, lambda: machine.commit_elsewhere(pick(), pick(), move=flip())),
            (4, lambda: machine.release(pick(), committing=flip())),
            (4, lambda: machine.once(pick(), *how(), pick() % 12, vector=flip())),
        ]

    def _rest(self) -> list[Move]:
        machine, pick, choice = self.machine, self.select, self.rng.choice
        return [
            (1, lambda: machine.pause_or_resume(pick(), pick(), resume=self.flip())),
            (1, lambda: machine.attach(pick(), pick(), choice(list(Mode)))),
            (1, lambda: machine.select(pick(), pick(), choice([0, 5, 50, None]))),
            (1, lambda: machine.time_passes(pick() % 60 + 1)),
            (2, lambda: machine.set_limits(pick(), pick(), choice(SCOPES), choice(COUNTED), pick())),
            (1, lambda: machine.describe(pick(), pick())),
            (1, lambda: machine.retire(pick(), everyone=self.flip())),
            (2, machine.store_catches_up),
            (1, machine.store_fails),
        ]


def walk(seed: int, steps: int) -> CoreMachine:
    """A long random walk over the same rules: deeper than an example that can be shrunk gets."""
    walker = Walk(seed)
    for _ in range(steps):
        walker.step()
    return walker.machine
