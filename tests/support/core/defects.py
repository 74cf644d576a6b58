"""Defects on purpose: functions with which the core changes its state raise an exception now and then."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from random import Random
from typing import Final
from unittest import mock

from dios.core import lifetimes
from dios.core.effects import ApplyWrite, Effect
from dios.core.events import Event
from dios.core.machine import Core
from dios.core.model.accounts import Account
from dios.core.model.pending import PendingTable
from dios.core.model.records import PhysicalObject, ReferenceTable
from dios.core.model.state import State
from dios.core.remote import cluster_events, requests
from dios.core.step import Step
from dios.host.loop.effect_kinds import ESSENTIAL
from labs.sim.node.host import SimHost

PLACES: Final = (
    (Step, "emit"),
    (Step, "reply"),
    (Step, "changed"),
    (Step, "audit"),
    (Step, "put"),
    (Step, "wait"),
    (State, "add_object"),
    (State, "add_reference"),
    (State, "remove_reference"),
    (State, "forget_object"),
    (Account, "require"),
    (PendingTable, "remove"),
    (PhysicalObject, "rewritten"),
    (ReferenceTable, "find"),
    (lifetimes, "close_buffer"),
    (requests, "ask"),
)


class InjectedError(Exception):
    """An exception that no code expects."""


class Injector:
    """Raises in one of ``every`` events while it is ``wanted``, at a random call of one of ``PLACES``."""

    def __init__(
        self, rng: Random, every: int, kinds: tuple[type, ...], wanted: Callable[[], bool] = lambda: True
    ) -> None:
        self._rng = rng
        self._every = every
        self._kinds = kinds
        self._wanted = wanted
        self._left = 0
        self.raised = 0
        self.escaped = 0

    def _arm(self, event: Event) -> None:
        hit = isinstance(event, self._kinds) and self._wanted() and self._rng.randrange(self._every) == 0
        self._left = self._rng.randint(1, 12) if hit else 0

    def _pass(self) -> None:
        if self._left:
            self._left -= 1
            if not self._left:
                self.raised += 1
                raise InjectedError("on purpose")

    @contextmanager
    def active(self) -> Iterator[None]:
        """Inject defects into every core."""
        with mock.patch.object(Core, "step", self._watched(Core.step)):
            patches = [
                mock.patch.object(owner, name, self._raising(getattr(owner, name))) for owner, name in PLACES
            ]
            # The timers of the node itself run for no task and no other node, so a defect in them ends it.
            timers = self._spared(cluster_events.time_passed)
            patches.append(mock.patch.object(cluster_events, "time_passed", timers))
            for patch in patches:
                patch.start()
            try:
                yield
            finally:
                for patch in patches:
                    patch.stop()

    @contextmanager
    def in_effects(self) -> Iterator[None]:
        """Inject defects into the hosts of simulated nodes, in effects on which no promise depends."""
        original = SimHost._one

        def raising(host: SimHost, effect: Effect) -> None:
            promised = isinstance(effect, ESSENTIAL) or (isinstance(effect, ApplyWrite) and effect.durable)
            if not promised and self._wanted() and self._rng.randrange(self._every) == 0:
                self.raised += 1
                raise InjectedError("on purpose")
            original(host, effect)

        with mock.patch.object(SimHost, "_one", raising):
            yield

    def _watched(self, step: Callable[[Core, Event], object]) -> Callable[[Core, Event], object]:
        def watched(core: Core, event: Event) -> object:
            self._arm(event)
            try:
                return step(core, event)
            except InjectedError:
                self.escaped += 1
                raise
            finally:
                self._left = 0

        return watched

    def _spared(self, function: Callable[..., object]) -> Callable[..., object]:  # type: ignore[explicit-any] # of any kind
        def spared(*args: object, **named: object) -> object:
            left, self._left = self._left, 0
            try:
                return function(*args, **named)
            finally:
                self._left = left

        return spared

    def _raising(self, function: Callable[..., object]) -> Callable[..., object]:  # type: ignore[explicit-any] # of any kind
        def raising(*args: object, **named: object) -> object:
            self._pass()
            return function(*args, **named)

        return raising
