"""The accounts of principals: weights, quotas, holdings and SDRF's commitments (SDRF paper, §VI-A).

``policies.fair_queue`` decides by them, `dios shares` and `dios quota` show and set them, and the next
coordinator continues with their stored form (``policies.stored_shares``).

A principal of twice the weight has a right to twice as much, so its holdings count half. Shares and
commitments are in units of the mean principal, in which the right of each is 1/n of the cluster.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

import numpy as np

from dios.errors import InvalidError
from dios.fairness.stateful.kernels import (
    DOMINANT,
    PLAIN,
    UserTable,
    add_to_slope,
    advance_clock,
    empty_user_table,
    grown_user_table,
    new_clock,
    set_faded_slope,
)
from dios.fairness.stateful.priority import Commitment
from dios.firmament.cluster.columns import Floats
from dios.firmament.cluster.state import ClusterState
from dios.firmament.descriptors import Level
from dios.firmament.policies.fair_queue_kernels import settle_all
from dios.firmament.policies.fit import room_of
from dios.firmament.policies.predicted_turns import PredictedTurn, predicted_turns
from dios.firmament.policies.stored_shares import RESOURCES, StoredAccount, StoredShares
from dios.limits import (
    FAIRNESS_MEMORY_MS_DEFAULT,
    SHARES_FORGOTTEN_S,
    SHARES_PRINCIPALS_MAX,
    SHARES_WEIGHT_MAX,
)

_FIRST: Final = 16
_NOISE: Final = 1e-9
"""Sums of fractions that equal a right exactly may exceed it by rounding."""


class FairnessRule(StrEnum):
    """The order of principals while there is not room for all tasks."""

    SDRF = "sdrf"
    """The principal with the least holdings and past excess goes first."""
    DRF = "drf"
    """The principal with the least holdings goes first."""
    FIFO = "fifo"
    """No principal goes first: the cost model alone decides."""


@dataclass(frozen=True, slots=True)
class PrincipalAccount:
    """One principal as `dios shares` shows it; fractions are of the whole cluster."""

    principal: str
    weight: float
    entitlement: float
    """Its right: its weight divided by the sum of all weights."""
    share: float
    """The largest fraction that it holds of any resource (the dominant share)."""
    resource: str
    """The resource of which it holds that fraction."""
    commitment: float
    """Its use beyond its right, averaged over the past (the dominant commitment)."""
    credit: float
    """The mean commitment of all minus its own; if it is negative, others come first."""
    running: int
    quota: dict[str, float]
    """The most that it may hold at once, by resource."""


@dataclass
class _PrincipalTerms:
    """The settings of a principal."""

    weight: float = 1.0
    quota: Floats = field(default_factory=lambda: np.full(len(RESOURCES), np.inf))
    set_at: float = 0.0
    seen_at: float = 0.0


class PrincipalAccounts:
    """Accounts of the principals of one cluster.

    Args:
        rule: the order of principals.
        memory_s: the memory of commitments in seconds: after this time 1/e of a commitment is left.
        wall: seconds since 1970 at time 0 of the scheduler's clock; more than 0.
    """

    def __init__(
        self,
        rule: FairnessRule = FairnessRule.SDRF,
        memory_s: float = FAIRNESS_MEMORY_MS_DEFAULT / 1000,
        *,
        wall: float,
    ) -> None:
        if not (math.isfinite(memory_s) and memory_s > 0):
            raise InvalidError(f"the memory of fairness is {memory_s} seconds; it must be more than 0")
        self.rule: Final = rule
        self.mode: Final = DOMINANT if rule is FairnessRule.SDRF else PLAIN
        self.changed = False
        """True if a weight or a quota was set that is not stored yet."""
        self.memory_s: Final = memory_s
        self._wall = wall
        self._terms: list[_PrincipalTerms] = []
        self._clock: Floats = new_clock(-math.inf)
        self.books: UserTable = empty_user_table(np.full(len(RESOURCES), np.inf), _FIRST)
        self.scale: Floats = np.zeros(0)
        """(P,): the factor by which holdings count: the mean weight divided by the principal's."""
        self.fair = 1.0

    @property
    def g(self) -> float:
        """The commitments' clock (``dios.fairness.stateful.kernels``)."""
        return float(self._clock[1])

    # The present ------------------------------------------------------------------------------------

    def sync(self, state: ClusterState) -> None:
        """Bring commitments to the present, and record the holdings of all principals (equation 12)."""
        wait = [state.principal(name) for name in state.waiting_principals]
        known = len(state.principals)
        self._grow(known)
        if self._clock[0] == -math.inf:
            self._clock[0] = state.now
        advance_clock(self.books, known, self._clock, state.now, self.memory_s)
        held = state.held[:known]
        now = self._wall + state.now
        for number in np.flatnonzero(held[:, 0] > 0).tolist():
            self._terms[number].seen_at = now
        for number in (*wait, *np.unique(state.jobs.principal[state.jobs.all()]).tolist()):
            self._terms[number].seen_at = now
        self.books.capacity[:] = self._capacity(state)
        weights = np.array([terms.weight for terms in self._terms])
        counted = np.array([self._counts(terms, now) for terms in self._terms], np.bool_)
        mean = float(weights[counted].mean()) if counted.any() else 1.0
        self.scale = mean / weights
        self.fair = 1.0 / max(1, int(counted.sum()))
        settle_all(self.books, held, self.scale, self.fair, self.g, self.mode)

    def trial(self) -> UserTable:
        """Return a copy of the present accounts for a trial of turns, without waiting tasks.

        It keeps the principals in a tree, because a trial may have thousands of turns.
        """
        books = self.books
        tried = empty_user_table(books.capacity, len(books.lead), scan_max=0)
        for column in ("held", "lead", "level", "over", "slope", "parts", "powers"):
            getattr(tried, column)[:] = getattr(books, column)
        return tried

    def quota(self) -> Floats:
        """(P, R): the most that each may hold at once; infinity for no limit."""
        return np.array([terms.quota for terms in self._terms]).reshape(-1, len(RESOURCES))

    def quotas_of(self, state: ClusterState) -> dict[str, tuple[float, ...]]:
        """Return the quotas by principal, of those that have any."""
        return {
            state.principals.names[number]: tuple(terms.quota.tolist())
            for number, terms in enumerate(self._terms)
            if np.isfinite(terms.quota).any()
        }

    def shares(self) -> Floats:
        """(P,): dominant shares, weighted: the right of each is 1/n."""
        known = len(self._terms)
        shares: Floats = (self.books.held[:known] / self.books.capacity).max(axis=1, initial=0.0)
        return shares

    def commitments(self) -> Floats:
        """(P, R): commitments, weighted in the same way."""
        known = len(self._terms)
        owed: Floats = np.maximum(self.books.over[:known] + self.g * self.books.slope[:known], 0.0)
        return owed

    def accounts(self, state: ClusterState) -> list[PrincipalAccount]:
        """Return the accounts of all principals that share, the largest share first."""
        self.sync(state)
        owed = self.commitments().max(axis=1, initial=0.0)
        now = self._wall + state.now
        accounts = []
        counted = [number for number, terms in enumerate(self._terms) if self._counts(terms, now)]
        mean = float(owed[counted].mean()) if counted else 0.0
        for number in counted:
            terms = self._terms[number]
            fractions = state.held[number] / self.books.capacity
            at = int(np.argmax(fractions))
            limits = zip(RESOURCES, terms.quota.tolist(), strict=True)
            accounts.append(
                PrincipalAccount(
                    state.principals.names[number],
                    terms.weight,
                    self.fair / float(self.scale[number]),
                    float(fractions[at]),
                    RESOURCES[at],
                    float(owed[number] / self.scale[number]),
                    float((mean - owed[number]) / self.scale[number]),
                    int(state.held[number, 0]),
                    {name: value for name, value in limits if value != math.inf},
                )
            )
        return sorted(accounts, key=lambda account: (-account.share, account.principal))

    def turns(self, state: ClusterState, waiting: Iterable[str]) -> dict[str, PredictedTurn]:
        """Return the predicted turns of principals with waiting tasks; none if there is no order of them."""
        if self.rule is FairnessRule.FIFO:
            return {}
        names = {name: state.principal(name) for name in waiting}
        self.sync(state)
        books, owed = self.books, self.commitments()
        return predicted_turns(
            {
                name: Commitment(
                    0.0,
                    self.memory_s,
                    (float(books.lead[number]),) * len(RESOURCES),
                    tuple(books.level[number].tolist()),
                    tuple(owed[number].tolist()),
                )
                for name, number in names.items()
            }
        )

    def weights(self, state: ClusterState) -> dict[str, float]:
        """Return the weights by principal."""
        return {state.principals.names[number]: terms.weight for number, terms in enumerate(self._terms)}

    # What is set -------------------------------------------------------------------------------------

    def set_terms(
        self, state: ClusterState, principal: str, weight: float | None, quota: dict[str, float | None]
    ) -> None:
        """Set a weight, or what a principal may hold at once; None in ``quota`` removes a limit.

        Raises:
            InvalidError: a value is out of range, or a resource is unknown.
        """
        if weight is not None and not 1 / SHARES_WEIGHT_MAX <= weight <= SHARES_WEIGHT_MAX:
            raise InvalidError(
                f"weight is {weight}; it must be from 1/{SHARES_WEIGHT_MAX} to {SHARES_WEIGHT_MAX}"
            )
        for name, value in quota.items():
            if name not in RESOURCES:
                raise InvalidError(f"unknown resource {name!r}; quotas limit {', '.join(RESOURCES)}")
            if value is not None and not 0 <= value < math.inf:
                raise InvalidError(f"the quota of {name} is {value}; it must be 0 or more, or none")
        if not principal:
            raise InvalidError("no principal is named")
        number = state.principal(principal)
        self._grow(len(state.principals))
        terms = self._terms[number]
        terms.weight = terms.weight if weight is None else weight
        for name, value in quota.items():
            terms.quota[RESOURCES.index(name)] = math.inf if value is None else value
        terms.set_at = self._wall + state.now
        self.changed = True

    def over(self, state: ClusterState, principal: str, wanted: Sequence[float], *, rightful: bool) -> str:
        """Return why a principal may not have this much more (R,) at once; empty if it may.

        Its quota limits it and, with ``rightful``, its part by weight.
        """
        number = state.principal(principal)
        self._grow(len(state.principals))
        # A principal that asks is one of those that share.
        self._terms[number].seen_at = self._wall + state.now
        self.sync(state)
        held = state.held[number] + np.array(wanted)
        for name, has, most in zip(RESOURCES, held.tolist(), self._terms[number].quota.tolist(), strict=True):
            if has > most:
                return (
                    f"it would hold {has:g} of {name}, and its quota is {most:g}. `dios quota` shows quotas"
                )
        if rightful:
            parts = held * self.scale[number] / self.books.capacity
            at = int(np.argmax(parts))
            if parts[at] > self.fair * (1 + _NOISE):
                right = self.fair / float(self.scale[number])
                return (
                    f"others wait, and it would hold {held[at] / self.books.capacity[at]:.0%} of "
                    f"{RESOURCES[at]}, more than its right to {right:.0%}. `dios shares` shows all holdings"
                )
        return ""

    # Storing ------------------------------------------------------------------------------------------

    def to_stored(self, state: ClusterState) -> StoredShares:
        """Return the stored form; principals with settings and large commitments come first."""
        self.sync(state)
        owed = self.commitments() / self.scale[:, None]
        now = self._wall + state.now
        rows = [
            StoredAccount(
                state.principals.names[number],
                terms.weight,
                tuple(terms.quota.tolist()),
                terms.set_at,
                terms.seen_at,
                tuple(owed[number].tolist()),
            )
            for number, terms in enumerate(self._terms)
            if self._counts(terms, now)
        ]
        rows.sort(key=lambda row: (row.set_at == 0.0, -max(row.commitments), row.principal))
        return StoredShares(now, tuple(rows[:SHARES_PRINCIPALS_MAX]))

    def take_over(self, state: ClusterState, kept: StoredShares, *, commitments: bool) -> None:
        """Use the stored form of other accounts: later settings, and with ``commitments`` these as well.

        Commitments fade by the time that has passed.
        """
        self.sync(state)
        for row in kept.accounts:
            number = state.principal(row.principal)
            self._grow(len(state.principals))
            terms = self._terms[number]
            if row.set_at > terms.set_at:
                terms.weight, terms.set_at = row.weight, row.set_at
                terms.quota = np.array(row.quota)
            terms.seen_at = max(terms.seen_at, row.seen_at)
        self.sync(state)
        if not commitments or self.mode == PLAIN:
            return
        past = max(0.0, self._wall + state.now - kept.at)
        for row in kept.accounts:
            number = state.principal(row.principal)
            for r, owed in enumerate(row.commitments):
                scaled = owed * float(self.scale[number])
                set_faded_slope(self.books, number, r, scaled, past, self.memory_s, self.g)
                add_to_slope(self.books, number, r, -float(self.books.over[number, r]) / self.g)

    def _grow(self, known: int) -> None:
        while len(self._terms) < known:
            self._terms.append(_PrincipalTerms())
        if known > self.books.lead.size:
            self.books = grown_user_table(self.books, 2 * known, self.g)

    def _counts(self, terms: _PrincipalTerms, now: float) -> bool:
        """Return True if a principal shares: it had tasks recently, or it has settings."""
        return terms.set_at > 0 or now - terms.seen_at < SHARES_FORGOTTEN_S

    def _capacity(self, state: ClusterState) -> Floats:
        """Return the cluster's resources (R,); infinity for resources that are not counted."""
        capacity = room_of(state, state.resources.at(Level.MACHINE))
        return np.where(capacity > 0, capacity, np.inf)
