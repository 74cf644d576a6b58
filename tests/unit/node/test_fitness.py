"""A node finds out if it is fit for pure tasks until it knows, however late that is."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import cast

import pytest
import trio
from trio.testing import MockClock

from dios.errors import DiosError, InvalidError, NotSupportedError, WouldBlockError
from dios.host.confinement.mechanisms import Availability, Mechanism, Probe
from dios.host.process.zygote_pool import ZygotePool
from dios.node import fitness as module
from dios.node.fitness import NodeFitness
from dios.wire.types import Fitness

KNOWN = {Availability.AVAILABLE: Fitness.FIT, Availability.MISSING: Fitness.UNFIT}


def landlock(availability: Availability) -> dict[str, Mechanism]:
    """A machine of one mechanism."""
    return {"landlock": Mechanism(availability, "the detail", needed_for_pure=True)}


class ScriptedProbe:
    """A probe whose answers the test wrote down."""

    answers: Iterator[Availability]

    def __init__(self, known: Mapping[str, Mechanism] | None = None) -> None:
        self.results = dict(known or landlock(Availability.UNKNOWN))

    def start(self) -> None:
        """Give the next answer."""
        self.results = landlock(next(self.answers))

    def wait(self, timeout_s: float | None = None) -> bool:
        """Have ended."""
        del timeout_s
        return True

    def cancel(self) -> None:
        """Have ended."""


class ScriptedPool:
    """A starter of tasks whose zygote fails as the test says."""

    def __init__(self, *failures: DiosError) -> None:
        self.failures = list(failures)
        self.learned: list[Availability] = []

    async def learn(self, mechanisms: Mapping[str, Mechanism]) -> None:
        """Note what it learns."""
        availability = mechanisms["landlock"].availability
        if availability is Availability.AVAILABLE and self.failures:
            raise self.failures.pop(0)
        self.learned.append(availability)


async def _run_here(function: Callable[[], bool], *, abandon_on_cancel: bool) -> bool:
    del abandon_on_cancel
    await trio.lowlevel.checkpoint()
    return function()


async def states(
    monkeypatch: pytest.MonkeyPatch, pool: ScriptedPool, *answers: Availability, accept_weaker: bool = False
) -> list[tuple[Fitness, str]]:
    """The states that a node reports, until it is fit or the answers are over."""
    monkeypatch.setattr(module, "Probe", ScriptedProbe)
    monkeypatch.setattr(trio.to_thread, "run_sync", _run_here)
    ScriptedProbe.answers = iter(answers)
    probe = ScriptedProbe()
    probe.start()
    node = NodeFitness(cast("Probe", probe), accept_weaker=accept_weaker)
    reported: list[tuple[Fitness, str]] = []
    async with trio.open_nursery() as nursery:

        def report() -> None:
            reported.append((node.fitness, node.guarantees()["pure tasks"]))
            if len(reported) == len(answers):
                nursery.cancel_scope.cancel()

        nursery.start_soon(node.keep, cast("ZygotePool", pool), report)
    return reported


async def test_unknown_is_tried_until_it_is_known(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: MockClock
) -> None:
    """Each failure is reported as unknown, with its reason and the number of the attempt."""
    pool = ScriptedPool()
    reports = await states(monkeypatch, pool, *[Availability.UNKNOWN] * 8, Availability.AVAILABLE)
    assert [fitness for fitness, _ in reports] == [Fitness.UNKNOWN] * 8 + [Fitness.FIT]
    assert "the detail" in reports[2][1]
    assert "attempt 3" in reports[2][1]
    assert reports[-1][1] == "confined"
    # Pauses of 1, 2, 4, 8, 16, 32, 60 and 60 s.
    assert autojump_clock.current_time() == pytest.approx(183)


async def test_a_mechanism_that_an_administrator_provides_is_used(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: MockClock
) -> None:
    """A machine that lacks one refuses pure tasks, and is tried again after a long pause."""
    del autojump_clock
    pool = ScriptedPool()
    reports = await states(monkeypatch, pool, Availability.MISSING, Availability.AVAILABLE)
    assert [fitness for fitness, _ in reports] == [Fitness.UNFIT, Fitness.FIT]
    assert reports[0][1].startswith("refused: ")
    assert pool.learned == [Availability.MISSING, Availability.AVAILABLE]


async def test_a_weaker_sandbox_is_never_used_for_what_is_unknown(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: MockClock
) -> None:
    """The setting concerns what is known to be missing."""
    del autojump_clock
    answers = (Availability.UNKNOWN, Availability.MISSING)
    reports = await states(monkeypatch, ScriptedPool(), *answers, accept_weaker=True)
    assert [fitness for fitness, _ in reports] == [Fitness.UNKNOWN, Fitness.FIT]
    assert reports[1][1].startswith("weaker than it should be: landlock missing")


async def test_a_zygote_that_does_not_start_is_started_again(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: MockClock
) -> None:
    """A fit machine whose zygote hung is unknown for a while, and one whose zygote refuses is unfit."""
    del autojump_clock
    pool = ScriptedPool(WouldBlockError("it hung"), NotSupportedError("no such module"))
    reports = await states(monkeypatch, pool, *[Availability.AVAILABLE] * 3)
    assert [fitness for fitness, _ in reports] == [Fitness.UNKNOWN, Fitness.UNFIT, Fitness.FIT]
    assert "it hung" in reports[0][1]
    assert "no such module" in reports[1][1]


@pytest.mark.parametrize("error", [NotSupportedError("no such module"), InvalidError("no such module")])
async def test_a_start_waits_for_the_first_answer_only_for_a_while(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch, error: DiosError
) -> None:
    """A node whose probe takes its time serves without an answer; a refusal of the zygote ends the start."""
    node = NodeFitness(cast("Probe", ScriptedProbe()), accept_weaker=False)
    before = autojump_clock.current_time()
    await node.wait_first()
    assert autojump_clock.current_time() - before < 60
    assert node.fitness is Fitness.UNKNOWN
    # The clock of the test would jump while a thread waits.
    monkeypatch.setattr(trio.to_thread, "run_sync", _run_here)
    ready = NodeFitness(cast("Probe", ScriptedProbe(landlock(Availability.AVAILABLE))), accept_weaker=False)
    async with trio.open_nursery() as nursery:
        pool = cast("ZygotePool", ScriptedPool(error))
        nursery.start_soon(ready.keep, pool, lambda: None)
        with pytest.raises(type(error), match="no such module"):
            await ready.wait_first()
        nursery.cancel_scope.cancel()


async def test_a_fit_node_goes_on_until_it_knows_the_optional_mechanisms(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: MockClock
) -> None:
    """An attempt that was killed does not take the forks of sessions away for the life of the node."""
    del autojump_clock
    monkeypatch.setattr(trio.to_thread, "run_sync", _run_here)

    class ForksLater(ScriptedProbe):
        """A probe whose optional mechanism is known at the second attempt."""

        def start(self) -> None:
            """Give the answer."""
            later = self.results["listeners"].availability is Availability.UNKNOWN
            kind = Availability.AVAILABLE if later else Availability.UNKNOWN
            self.results["listeners"] = Mechanism(kind, "", needed_for_pure=False)

    monkeypatch.setattr(module, "Probe", ForksLater)
    known = landlock(Availability.AVAILABLE)
    known["listeners"] = Mechanism(Availability.UNKNOWN, "killed", needed_for_pure=False)
    node = NodeFitness(cast("Probe", ForksLater(known)), accept_weaker=False)
    reported: list[tuple[Fitness, bool]] = []
    await node.keep(
        cast("ZygotePool", ScriptedPool()),
        lambda: reported.append((node.fitness, node.mechanisms["listeners"].available)),
    )
    assert reported == [(Fitness.FIT, False), (Fitness.FIT, True)]
