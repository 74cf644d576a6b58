"""The default steering, over machines and traffic that answer as measured ones did."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from dios.sprayer import MemoryEngine, Workers
from dios.sprayer.runtime.auto_steering import AutoSteering, SteeringSample, idle_seconds
from dios.sprayer.runtime.progress import ProgressMeter
from dios.sprayer.runtime.worker_kernels import PERIOD
from tests.support.sprayer.frames import Made

Answer = Callable[[str], SteeringSample]
RUN = 2_000


def shared(steer: str) -> SteeringSample:
    """Senders and receivers share two processors with the workers: spraying resends much."""
    return SteeringSample({"rss": 1.0, "flowlet": 0.85, "spray": 0.3}[steer] * 1e8, (0.5, 0.3), 0.05)


def one_flow(steer: str) -> SteeringSample:
    """One flow of much work, and a sender that needs little."""
    if steer == "rss":
        return SteeringSample(1e8, (0.99, 0.0), 0.8)
    return SteeringSample({"flowlet": 1.2e8, "spray": 1.7e8}[steer], (0.9, 0.9), 0.1)


def in_slices(steer: str) -> SteeringSample:
    """The same with a TCP that cannot bear reordering, but is sent in bursts."""
    if steer == "rss":
        return SteeringSample(1e8, (0.99, 0.0), 0.8)
    return SteeringSample({"flowlet": 1.5e8, "spray": 0.6e8}[steer], (0.8, 0.8), 0.4, repeated=0.03)


def harmed(steer: str) -> SteeringSample:
    """A worker is full and processors are idle, but every other steering carries less."""
    return SteeringSample({"rss": 1.0, "flowlet": 0.9, "spray": 0.3}[steer] * 1e8, (0.95, 0.1), 0.7)


def lived(choice: AutoSteering, answer: Answer, samples: int = RUN) -> float:
    """What was carried in all, as a part of the best that was possible."""
    carried = 0.0
    for _ in range(samples):
        sample = answer(choice.steer)
        carried += sample.carried
        choice.observe(sample)
    return carried / samples / max(answer(steer).carried for steer in ("rss", "flowlet", "spray"))


@pytest.mark.parametrize(
    ("answer", "expected"), [(shared, "rss"), (one_flow, "spray"), (in_slices, "flowlet"), (harmed, "rss")]
)
def test_it_carries_nearly_as_much_as_the_best(answer: Answer, expected: str) -> None:
    """In the long run, trials included, it carries at least 0.95 of the best, and says why."""
    choice = AutoSteering(2, 2)
    assert lived(choice, answer) >= 0.95
    for _ in range(100):
        if choice.steer == expected:
            break
        choice.observe(answer(choice.steer))
    assert choice.steer == expected
    assert choice.why


class Remembering:
    """One TCP connection through two cores: once sprayed, it is slow for ten seconds with every steering."""

    def __init__(self, rss: float, flowlet: float, spray: float, slow: float) -> None:
        self.rates = {"rss": rss, "flowlet": flowlet, "spray": spray}
        self._slow, self._left = slow, 0

    def __call__(self, steer: str) -> SteeringSample:
        """Return what the next half second shows."""
        self._left = 20 if steer == "spray" else self._left - 1
        carried = self.rates[steer] * (self._slow if self._left > 0 and steer != "spray" else 1.0) * 1e8
        if steer == "rss":
            return SteeringSample(carried, (1.0, 0.02), 0.5)
        return SteeringSample(carried, (0.7, 0.7), 0.2, repeated={"flowlet": 0.03, "spray": 0.09}[steer])


@pytest.mark.parametrize(
    ("measured", "expected"),
    [((1.75, 2.1, 1.35, 0.68), "flowlet"), ((0.72, 1.0, 0.8, 0.8), "flowlet"), ((2.2, 1.2, 0.5, 0.6), "rss")],
)
def test_a_connection_that_remembers_spraying_is_not_sprayed(
    measured: tuple[float, float, float, float], expected: str
) -> None:
    """Senders repeat data with flowlets already: spraying is not even tried, and the best steering stays."""
    choice, answer = AutoSteering(2, 2), Remembering(*measured)
    carried, best = 0.0, max(answer.rates.values()) * 1e8
    steers = []
    for _ in range(RUN):
        sample = answer(choice.steer)
        carried += sample.carried
        steers.append(choice.observe(sample))
    assert "spray" not in steers
    assert carried >= 0.97 * RUN * best
    # Trials take less than 2 % of the time, after the first minutes.
    assert sum(steer != expected for steer in steers[RUN // 4 :]) < 0.02 * RUN


def test_a_trial_that_harms_ends_early() -> None:
    """A steering that carries much less is given up after a second."""
    choice, answer = AutoSteering(2, 2), Remembering(2.2, 1.2, 0.5, 1.0)
    steers = [choice.observe(answer(choice.steer)) for _ in range(12)]
    assert steers.count("flowlet") == 2
    assert choice.steer == "rss"


def test_rates_that_fluctuate_mislead_for_a_short_time_only() -> None:
    """With windows of half a second that differ by a third, at least 0.95 of the best is carried."""
    for seed in range(20):
        chance = random.Random(seed)  # noqa: S311 - test data
        answer = Remembering(1.0, 1.25, 0.8, 0.7)
        choice, carried = AutoSteering(2, 2), 0.0
        for _ in range(RUN):
            sample = answer(choice.steer)
            sample = sample._replace(carried=sample.carried * chance.uniform(0.84, 1.16))
            carried += sample.carried
            choice.observe(sample)
        assert carried >= 0.95 * RUN * 1.25e8, seed


def test_other_work_of_the_machine_makes_it_return() -> None:
    """Programs take the processors that were idle: less is carried, and rss is back within half a minute."""
    choice = AutoSteering(2, 2)
    lived(choice, in_slices, 50)
    assert choice.steer == "flowlet"
    for _ in range(60):
        choice.observe(shared(choice.steer)._replace(busy=(0.7, 0.7)))
    assert choice.steer == "rss"


def test_where_processors_are_shared_nothing_is_tried() -> None:
    """While no processor is idle, flows keep their cores from the first sample on."""
    choice = AutoSteering(2, 2)
    assert {choice.observe(shared("rss")) for _ in range(RUN)} == {"rss"}
    assert lived(choice, shared) == 1.0


@pytest.mark.parametrize(("cores", "processors"), [(1, 8), (4, 1)])
def test_without_a_second_processor_nothing_is_tried(cores: int, processors: int) -> None:
    """One worker, or one processor for all: spreading a flow cannot gain anything, and that is the reason."""
    choice = AutoSteering(cores, processors)
    assert lived(choice, lambda _: one_flow("rss")) == 1.0
    assert choice.steer == "rss"
    assert "cannot gain" in choice.why


def test_when_one_core_suffices_the_order_is_kept_again() -> None:
    """Traffic that becomes little goes back to one core for each flow."""
    choice = AutoSteering(2, 2)
    lived(choice, one_flow, 50)
    assert choice.steer == "spray"
    for _ in range(10):
        choice.observe(SteeringSample(1e6, (0.1, 0.1), 1.7))
    assert (choice.steer, "suffices" in choice.why or "busiest" in choice.why) == ("rss", True)


def test_idle_time_is_of_the_allowed_processors(tmp_path: Path) -> None:
    """The kernel's table is summed over the processors of this process; without it nothing is idle."""
    table = tmp_path / "stat"
    table.write_text("cpu  1 1 1 600 1\ncpu0 1 1 1 100 1\ncpu1 1 1 1 200 1\ncpu2 1 1 1 300 1\nintr 5\n")
    idle, two = idle_seconds({1}, table), idle_seconds({0, 2}, table)
    assert two == 2 * idle > 0
    assert idle_seconds({0}, tmp_path / "none") == 0


# Progress ---------------------------------------------------------------------------------------------------


def segments(steer: str, begin: int, count: int, every: int) -> tuple[list[bytes], list[int]]:
    """Return segments of one connection and their cores; each ``every``-th was sent before, 0 for none."""
    frames: list[bytes] = []
    cores: list[int] = []
    for number in range(count):
        sequence = (begin + 1000 * number) % 2**32
        packet = Made(payload=bytes(1000), sequence=sequence)
        again = replace(packet, sequence=(sequence - 5000) % 2**32)
        frames += [packet.frame(), *([again.frame()] if every and number % every == 0 else [])]
        cores += [number % 2 if steer == "spray" else 0] * (len(frames) - len(cores))
    return frames, cores


@pytest.mark.parametrize("begin", [10**6, 2**32 - 50_000])
@pytest.mark.parametrize("steer", ["rss", "spray"])
def test_payload_that_is_sent_again_is_no_progress(steer: str, begin: int) -> None:
    """New bytes of a flow are counted once, on one core or two, also where sequence numbers begin again."""
    workers, meter = Workers(None, MemoryEngine([], 2), seed=1, now=50), ProgressMeter()
    for period, every in enumerate((0, 4, 1), 1):
        workers.control[PERIOD] = period
        frames, cores = segments(steer, begin + (period - 1) * 200_000, 200, every)
        workers.change_engine(MemoryEngine(frames, 2, steer=cores))
        workers.drain()
        repeated = meter.repeated(workers.watched, period)
        assert abs(repeated - 1000 * (len(frames) - 200)) <= 1000, (period, repeated)


def test_a_flow_that_claims_more_progress_than_bytes_gets_its_bytes() -> None:
    """Sequence numbers that jump are believed as far as payload was carried, and never count below zero."""
    workers, meter = Workers(None, MemoryEngine([], 2), seed=1, now=50), ProgressMeter()
    workers.control[PERIOD] = 1
    chance = random.Random(5)  # noqa: S311 - test data
    frames = [Made(payload=bytes(100), sequence=chance.getrandbits(32)).frame() for _ in range(200)]
    workers.change_engine(MemoryEngine(frames, 2, steer=[number % 2 for number in range(200)]))
    workers.drain()
    assert 0 <= meter.repeated(workers.watched, 1) <= 200 * 100


def recorded(steer: str, *, new_only: bool) -> SteeringSample:
    """Counters of one flow: spraying carries more bytes than rss, and less that is new."""
    carried, new = {"rss": (1.0, 1.0), "flowlet": (1.1, 0.9), "spray": (1.6, 0.6)}[steer]
    busy = (0.99, 0.0) if steer == "rss" else (0.9, 0.9)
    return SteeringSample((new if new_only else carried) * 1e8, busy, 0.8 if steer == "rss" else 0.1)


def test_the_choice_follows_new_bytes() -> None:
    """By all bytes spraying would win; by new bytes rss stays, and carries at least 0.95 of the best."""
    choice, deceived = AutoSteering(2, 2), AutoSteering(2, 2)
    lived(deceived, lambda steer: recorded(steer, new_only=False), 100)
    assert deceived.steer == "spray"
    assert lived(choice, lambda steer: recorded(steer, new_only=True)) >= 0.95
    for _ in range(10):
        choice.observe(recorded(choice.steer, new_only=True))
    assert choice.steer == "rss"
