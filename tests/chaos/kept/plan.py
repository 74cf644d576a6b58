"""The faults of a kept round: what fails, where, when and for how long. A seed repeats them."""

from __future__ import annotations

import enum
import random
from collections.abc import Collection
from typing import Final, NamedTuple

LOAD_S: Final = 5.0
FAULTS: Final = (3, 5)
LASTING_S: Final = (0.2, 0.7, 1.5, 3.0)
CLOCK_STEPS_S: Final = (-6 * 3600, -600, -3, 3, 600, 6 * 3600)


class Kind(enum.StrEnum):
    """The kinds of faults."""

    KILL = "kill"
    """SIGKILL, and a start later."""
    STOP = "stop"
    """An orderly stop, and a start later."""
    POWER = "power cut"
    """SIGKILL, the loss of pages and changes of folders that were not synced, and a start later."""
    PAUSE = "pause"
    """SIGSTOP for a time."""
    LOSE = "loss for ever"
    """The node's disk is gone. The node is forgotten, and a new one joins on its machine."""
    CUT = "partition"
    CUT_ONE_WAY = "partition in one direction"
    CLOCK = "clock jump"
    """The clock of the day is wrong from now on."""
    STROBE = "clock strobe"
    """The clock of the day jumps forward and back for a time."""
    STALL = "disk stall"
    """Syncs wait for a time."""
    SLOW = "slow disk"
    """Each sync takes 50 ms more for a time."""
    OVERLOAD = "overloaded start"
    """SIGKILL, and a start next to busy loops."""
    PROGRAM = "program kill"
    """SIGKILL of a program, and the start of another one."""


_WEIGHTS: Final = {
    Kind.KILL: 3,
    Kind.STOP: 1,
    Kind.POWER: 3,
    Kind.PAUSE: 2,
    Kind.LOSE: 3,
    Kind.CUT: 3,
    Kind.CUT_ONE_WAY: 1,
    Kind.CLOCK: 2,
    Kind.STROBE: 1,
    Kind.STALL: 2,
    Kind.SLOW: 1,
    Kind.OVERLOAD: 1,
    Kind.PROGRAM: 1,
}
_OF_MACHINERY: Final = {Kind.POWER, Kind.CLOCK, Kind.STROBE, Kind.STALL, Kind.SLOW}
_OF_NETWORK: Final = {Kind.CUT, Kind.CUT_ONE_WAY}


class Fault(NamedTuple):
    """One fault; ``nodes`` are numbers (of a program for its kill), ``amount_s`` is that of a clock."""

    kind: Kind
    nodes: tuple[int, ...]
    at_s: float
    lasting_s: float
    amount_s: float = 0.0

    def __str__(self) -> str:
        target = "program" if self.kind is Kind.PROGRAM else "node"
        names = " and ".join(str(number + 1) for number in self.nodes)
        amount = f" by {self.amount_s:+g} s" if self.amount_s else ""
        return f"{self.at_s:.1f} s: {self.kind} of {target} {names}{amount} for {self.lasting_s:g} s"


class Plan(NamedTuple):
    """The parts of a round that its seed decides."""

    seed: int
    replicas: int
    tiers: bool
    faults: tuple[Fault, ...]

    def __str__(self) -> str:
        return f"{self.replicas} replicas" + (", with a store" if self.tiers else "")


def planned(
    seed: int,
    *,
    nodes: int,
    programs: int,
    can_cut: bool = True,
    has_machinery: bool = True,
    only: Collection[Kind] | None = None,
) -> Plan:
    """Return the plan of a seed. A round loses at most one node fewer than it promises replicas.

    ``only`` are the kinds of faults, all without it.
    """
    rng = random.Random(f"kept {seed} {nodes} {programs}")  # noqa: S311 - it chooses faults, it guards nothing
    replicas = rng.choice((2, 3)) if nodes > 3 else 2
    usable = {
        kind: weight
        for kind, weight in _WEIGHTS.items()
        if (can_cut or kind not in _OF_NETWORK)
        and (has_machinery or kind not in _OF_MACHINERY)
        and (only is None or kind in only)
    }
    losses = 0
    faults: list[Fault] = []
    for _ in range(rng.randint(*FAULTS) if usable else 0):
        kind = rng.choices(list(usable), list(usable.values()))[0]
        if kind is Kind.LOSE:
            losses += 1
            if losses >= replicas:
                continue
        chosen: tuple[int, ...] = (rng.randrange(nodes),)
        if kind in _OF_NETWORK:
            chosen = tuple(sorted(rng.sample(range(nodes), rng.randint(1, max(1, nodes // 2)))))
        if kind is Kind.PROGRAM:
            chosen = (rng.randrange(programs),)
        amount = 0.0
        if kind is Kind.CLOCK:
            amount = float(rng.choice(CLOCK_STEPS_S))
        if kind is Kind.STROBE:
            amount = rng.choice((0.2, 2.0, 30.0))
        lasting = rng.choice(LASTING_S)
        faults.append(Fault(kind, chosen, rng.uniform(0.3, LOAD_S - 0.5), lasting, amount))
    return Plan(seed, replicas, rng.random() < 0.6, tuple(sorted(faults, key=lambda fault: fault.at_s)))
