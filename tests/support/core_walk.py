"""One long random walk over the rules of the core's machine, repeatable by its seed.

Not for: shrinking; hypothesis does that on shorter histories.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from core_model import ALL
from core_rules import CREATABLE, PEOPLE_MAX, CoreMachine

from dios.wire.types import AcquireIov, Mode, ObjectType, Semantics


def walk(seed: int, steps: int) -> CoreMachine:
    """A long random walk over the same rules: deeper than an example that can be shrunk gets."""
    rng = Random(seed)  # noqa: S311 - a repeatable walk, nothing secret
    machine = CoreMachine()

    def pick() -> int:
        return rng.randrange(10_000)

    def flip() -> bool:
        return rng.random() < 0.5

    def rare() -> bool:
        return rng.random() < 0.1

    def name() -> int:
        """Mostly a group's name: what follows from having resolved one is the interesting part."""
        groups = {one.name for one in machine.model.things.values() if one.type is ObjectType.GROUP}
        places = [place for place, known in enumerate(machine.names) if known in groups]
        return rng.choice(places) if places and flip() else pick()

    kinds = [*[ObjectType.SHMEM_BLOB] * 3, *[ObjectType.DURABLE_BLOB] * 3, *CREATABLE]
    rights = [ALL, ALL, ALL, 1, 2, 3, 9, 11, 15, 16, 0]
    acquires = [*[AcquireIov.CREATE] * 3, AcquireIov.TAKE, AcquireIov.BORROW, *[AcquireIov.REUSE] * 3]
    moves: list[tuple[int, Callable[[], None]]] = [
        (
            1,
            lambda: (
                machine.open_session(foreign=flip(), pick=pick())
                if len(machine.clients) < PEOPLE_MAX
                else None
            ),
        ),
        (
            2,
            lambda: (
                machine.run(pick(), pick(), pick(), pick(), rng.choice(rights), with_group=flip())
                if len(machine.clients) < PEOPLE_MAX
                else None
            ),
        ),
        (4, lambda: machine.create(pick(), rng.choice(kinds), pick(), pick(), raw=rare(), counted=rare())),
        (5, lambda: machine.lookup(pick(), name(), pick(), with_group=flip())),
        (4, lambda: machine.delegate(pick(), pick(), pick(), rng.choice(rights), durable=rare())),
        (3, lambda: machine.delete(pick(), pick(), rng.choice([0, 0, 16, 256]))),
        (
            9,
            lambda: machine.acquire(
                pick(),
                pick(),
                rng.choice(list(Mode)),
                rng.choice(list(Semantics)),
                pick(),
                rng.choice(acquires),
            ),
        ),
        (8, lambda: machine.commit(pick())),
        (2, lambda: machine.commit_elsewhere(pick(), pick(), move=flip())),
        (4, lambda: machine.release(pick(), committing=flip())),
        (
            4,
            lambda: machine.once(
                pick(), rng.choice(list(Mode)), rng.choice(list(Semantics)), pick() % 12, vector=flip()
            ),
        ),
        (1, lambda: machine.use_a_foreign_reference(pick(), pick())),
        (1, lambda: machine.pause_or_resume(pick(), pick(), resume=flip())),
        (1, lambda: machine.attach(pick(), pick(), rng.choice(list(Mode)))),
        (1, lambda: machine.select(pick(), pick(), rng.choice([0, 5, 50, None]))),
        (1, lambda: machine.time_passes(pick() % 60 + 1)),
        (2, lambda: machine.end(pick(), crash=flip()) if len(machine.clients) > 3 and flip() else None),
        (2, machine.store_catches_up),
        (1, machine.store_fails),
    ]
    weights = [weight for weight, _ in moves]
    for _ in range(steps):
        rng.choices(moves, weights)[0][1]()
        machine.both_say_the_same()
    return machine
