"""The fitness of this node for pure tasks: found out at the start, and again until it is known.

The start of a node waits for the first answer for a short time only, because a busy machine may need minutes.
A node without an answer serves all the same: it lets pure tasks wait, and announces its state to its cluster.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Final

import trio

from dios import limits
from dios.errors import DiosError, InvalidError, NotSupportedError
from dios.host.confinement.mechanisms import (
    LOST_WITHOUT,
    PURE_TASKS,
    Availability,
    Mechanism,
    Probe,
    fitness_of,
    not_confined,
    obstacle_to_pure,
)
from dios.host.process.zygote_pool import ZygotePool
from dios.wire.types import Fitness

_log: Final = logging.getLogger(__name__)


class NodeFitness:
    """The known mechanisms of this machine, and the repeated attempts to find out the others."""

    def __init__(self, probe: Probe, *, accept_weaker: bool) -> None:
        """Continue with a probe that was started."""
        self._probe = probe
        self._accept_weaker: Final = accept_weaker
        self._attempts = 1
        self._failure = ""
        """The reason why the zygote for pure tasks did not start, although the machine is fit."""
        self._refusal: DiosError | None = None
        """The same, if the zygote reported it itself, or a setting is wrong."""
        self._first_ended = trio.Event()
        self._logged = (Fitness.FIT, "not logged yet")

    @property
    def mechanisms(self) -> Mapping[str, Mechanism]:
        """The mechanisms by name."""
        return self._probe.results

    @property
    def fitness(self) -> Fitness:
        """The fitness for pure tasks."""
        if self._refusal is not None:
            return Fitness.UNFIT
        if self._failure:
            return Fitness.UNKNOWN
        return fitness_of(self.mechanisms, accept_weaker=self._accept_weaker)

    @property
    def reason(self) -> str:
        """The reason for the fitness, empty if the node is fit."""
        if self._refusal is not None:
            return self._refusal.message
        if self._failure:
            return self._failure
        if self.fitness is Fitness.FIT:
            return ""
        if self.fitness is Fitness.UNFIT:
            return not_confined(self.mechanisms)
        obstacle = obstacle_to_pure(self.mechanisms)
        return f"{obstacle} (attempt {self._attempts}; the node tries until it knows)"

    def guarantees(self) -> dict[str, str]:
        """Return a text for each mechanism, with the time of its last attempt, and one for pure tasks."""
        texts = {name: _with_time(mechanism) for name, mechanism in self.mechanisms.items()}
        obstacle = obstacle_to_pure(self.mechanisms)
        if self.fitness is Fitness.UNFIT:
            texts[PURE_TASKS] = f"refused: {self.reason}"
        elif self.fitness is Fitness.UNKNOWN:
            texts[PURE_TASKS] = f"not known yet: {self.reason}"
        else:
            texts[PURE_TASKS] = f"weaker than it should be: {obstacle}" if obstacle else "confined"
        return texts

    async def wait_first(self) -> None:
        """Wait for the end of the first attempt, at most FITNESS_AT_START_MS_MAX.

        Raise ``NotSupportedError`` if the zygote for pure tasks reported that it cannot be set up, and
        ``InvalidError`` for a setting that is wrong.
        """
        with trio.move_on_after(limits.FITNESS_AT_START_MS_MAX / 1000):
            await self._first_ended.wait()
        if self._refusal is not None:
            raise self._refusal

    async def keep(self, zygote: ZygotePool, report: Callable[[], None]) -> None:
        """Try until this node is fit and all is known, with growing pauses; ``report`` after each attempt.

        A mechanism that is missing is tried again, too, after a long pause: an administrator may provide it.
        """
        pause_ms = limits.FITNESS_PAUSE_MS_MIN
        try:
            while True:
                await trio.to_thread.run_sync(self._probe.wait, abandon_on_cancel=True)
                await self._apply(zygote)
                self._first_ended.set()
                report()
                # Forks of sessions, for example, need a mechanism that other pure tasks do not need.
                unknown = any(m.availability is Availability.UNKNOWN for m in self.mechanisms.values())
                if self.fitness is Fitness.FIT and not unknown:
                    return
                unfit = self.fitness is Fitness.UNFIT
                await trio.sleep((limits.UNFIT_PAUSE_MS if unfit else pause_ms) / 1000)
                pause_ms = min(2 * pause_ms, limits.FITNESS_PAUSE_MS_MAX)
                self._probe = Probe(self.mechanisms)
                self._probe.start()
                self._attempts += 1
        finally:
            self._probe.cancel()

    async def _apply(self, zygote: ZygotePool) -> None:
        """Give the starter of tasks the known mechanisms, and log a change."""
        self._failure, self._refusal = "", None
        try:
            await zygote.learn(dict(self.mechanisms))
        except (NotSupportedError, InvalidError) as error:
            self._refusal = error
        except DiosError as error:
            self._failure = error.message
        if (self.fitness, self.reason) != self._logged:
            self._logged = self.fitness, self.reason
            self._log_result()

    def _log_result(self) -> None:
        fitness, obstacle = self.fitness, obstacle_to_pure(self.mechanisms)
        if fitness is Fitness.UNKNOWN:
            _log.warning("it is not known yet if this node can run pure tasks", extra={"why": self.reason})
        elif fitness is Fitness.UNFIT:
            _log.warning("pure tasks are refused on this machine", extra={"missing": self.reason})
        elif obstacle:
            _log.warning(
                "pure tasks run in a weaker sandbox, as the settings accept", extra={"missing": obstacle}
            )
        for name, mechanism in self.mechanisms.items():
            if not mechanism.available and not mechanism.needed_for_pure and fitness is not Fitness.UNKNOWN:
                _log.warning(
                    "the machine lacks a mechanism",
                    extra={"what": name, "why": mechanism.detail, "lost": LOST_WITHOUT[name]},
                )


def _with_time(mechanism: Mechanism) -> str:
    if mechanism.available or not mechanism.tried_ns:
        return mechanism.described()
    tried = datetime.fromtimestamp(mechanism.tried_ns / 1e9, UTC)
    return f"{mechanism.described()} (tried at {tried:%Y-%m-%d %H:%M:%S} UTC)"
