"""The order of users whose priorities a float cannot tell apart, by exact arithmetic.

The kernels compare floats, and name the users who are too near to each other for that. Here their
commitments are sums of fractions times powers of delta (SDRF paper, equation 12, between two changes):

    c(t) = over(t) - sum of (change of over at t_k) * delta^((t - t_k) / interval)

The sign of the difference of two priorities follows from decimals of rising precision, or from whole numbers
if all powers are whole, as with times in seconds. ``delta``, the interval and times count as the decimal
numbers by which Python writes them: 0.9 is nine tenths.
"""

from __future__ import annotations

from decimal import MAX_EMAX, MIN_EMIN, Context, Decimal
from fractions import Fraction
from functools import cache
from typing import Final, NamedTuple

from dios.fairness.allocation import Floats
from dios.limits import SDRF_CHANGES_MAX, SDRF_EXACT_BITS_MAX

DIGITS: Final = (30, 120)
"""The precisions that are tried first."""
MORE_DIGITS: Final = (480, 1_920)
"""The precisions that are tried if whole numbers would be too large."""
FOLDED_DIGITS: Final = 120
"""The precision of a user's oldest changes once it has ``SDRF_CHANGES_MAX`` of them."""

Changes = dict[Fraction, Fraction]
"""The change of a share beyond 1/n by the time at which it happened."""


class _Event(NamedTuple):
    """The start (sign 1) or the end (-1) of a task, or a new number of users (without a demand)."""

    t: float
    demand: Floats | None
    sign: int


class _User:
    """A user's holdings and the changes of its shares beyond 1/n; events that were not needed yet."""

    def __init__(self, resources: int, scale: Fraction, population: int) -> None:
        self.scale = scale
        self.population = population
        self.held = [Fraction(0)] * resources
        self.over = [Fraction(0)] * resources
        self.changes: list[Changes] = [{} for _ in range(resources)]
        self.pending: list[_Event] = []


class _Line(NamedTuple):
    """The priority in one resource: ``end`` less the sum of changes that fade."""

    end: Fraction
    changes: Changes


class ExactOrder:
    """The exact order of users, computed from recorded events when it is requested."""

    def __init__(self, capacity: Floats, delta: float, interval_s: float, *, dominant: bool) -> None:
        self._capacity: Final = [Fraction(amount) for amount in capacity.tolist()]
        self._delta: Final = written(delta)
        self._interval: Final = written(interval_s)
        self._dominant: Final = dominant
        self._users: Final[list[_User]] = []

    def add_user(self, scale: Fraction, population: int) -> None:
        """Add the next user; ``population`` is the number of users who share the capacity from now on."""
        self._users.append(_User(len(self._capacity), scale, population))

    def change_population(self, population: int, t: float) -> None:
        """Record a new number of users for all of them."""
        for user in self._users:
            self._record(user, _Event(t, None, population))

    def start(self, user: int, demand: Floats, t: float) -> None:
        """Record the start of a task."""
        self._record(self._users[user], _Event(t, demand, 1))

    def finish(self, user: int, demand: Floats, t: float) -> None:
        """Record the end of a task."""
        self._record(self._users[user], _Event(t, demand, -1))

    def first(self, users: list[int], t: float) -> int:
        """Return the user who precedes all others at ``t``.

        The order is by priority; of equal ones the one that falls faster is first, and of those that stay
        equal the one of the lower number.
        """
        now = written(t)
        tops = {user: self._top(user, now) for user in users}
        best = min(users)
        for user in sorted(users):
            if self._compare(tops[user], tops[best], now) < 0:
                best = user
        return best

    def _record(self, user: _User, event: _Event) -> None:
        user.pending.append(event)
        if len(user.pending) >= SDRF_CHANGES_MAX:
            self._apply(user)

    def _apply(self, user: _User) -> None:
        """Turn a user's recorded events into changes."""
        for t, demand, sign in user.pending:
            if demand is None:
                user.population = sign
            else:
                for r, amount in enumerate(demand.tolist()):
                    user.held[r] += sign * Fraction(amount)
            now = written(t)
            for r, changes in enumerate(user.changes):
                share = user.held[r] * user.scale / self._capacity[r]
                over = max(share - Fraction(1, user.population), Fraction(0))
                if over != user.over[r]:
                    left = changes.get(now, Fraction(0)) + over - user.over[r]
                    user.over[r] = over
                    if left:
                        changes[now] = left
                    else:
                        del changes[now]
                    if len(changes) > SDRF_CHANGES_MAX:
                        self._fold(changes)
        user.pending.clear()

    def _fold(self, changes: Changes) -> None:
        """Replace the older half of the changes by a single change with the same effect, rounded."""
        oldest = sorted(changes)[: SDRF_CHANGES_MAX // 2]
        context = _context(FOLDED_DIGITS)
        total = Decimal(0)
        for t in oldest:
            power = self._power((oldest[-1] - t) / self._interval, context)
            total = context.add(total, context.multiply(_decimal(changes[t], context), power))
        for t in oldest:
            del changes[t]
        changes[oldest[-1]] = Fraction(total)

    def _top(self, user: int, now: Fraction) -> _Line:
        """Return the line of a user that is the highest from now on."""
        state = self._users[user]
        self._apply(state)
        shares = [
            held * state.scale / capacity for held, capacity in zip(state.held, self._capacity, strict=True)
        ]
        lead = max(shares) if self._dominant else Fraction(0)
        lines = [
            _Line(lead + over if self._dominant else share + over, changes)
            for share, over, changes in zip(shares, state.over, state.changes, strict=True)
        ]
        best = lines[0]
        for line in lines[1:]:
            if self._compare(line, best, now) > 0:
                best = line
        return best

    def _compare(self, a: _Line, b: _Line, now: Fraction) -> int:
        """Return -1, 0 or 1: a line is lower than another one at ``now``, equal for ever, or higher."""
        gap = a.end - b.end
        terms: dict[Fraction, Fraction] = {}
        for line, sign in ((a, -1), (b, 1)):
            for t, change in line.changes.items():
                terms[t] = terms.get(t, Fraction(0)) + sign * change
        powers = {(now - t) / self._interval: term for t, term in terms.items() if term}
        # Lines that meet now are compared as they will be: the end decides.
        return self._sign(gap, powers) or (gap > 0) - (gap < 0)

    def _sign(self, gap: Fraction, powers: Changes) -> int:
        """Return the sign of ``gap`` plus the sum of terms, each with its power of delta."""
        if not powers:
            return (gap > 0) - (gap < 0)
        for digits in DIGITS:
            if sign := self._sign_by_decimals(gap, powers, digits):
                return sign
        if not gap:
            # A common factor changes no sign.
            least = min(powers)
            powers = {power - least: term for power, term in powers.items()}
        whole = all(power.denominator == 1 for power in powers)
        if whole and max(powers) * self._delta.denominator.bit_length() <= SDRF_EXACT_BITS_MAX:
            return self._sign_by_integers(gap, powers)
        for digits in MORE_DIGITS:
            if sign := self._sign_by_decimals(gap, powers, digits):
                return sign
        return 0

    def _sign_by_integers(self, gap: Fraction, powers: Changes) -> int:
        num, den = self._delta.numerator, self._delta.denominator
        most = int(max(powers))
        total = gap * Fraction(den**most)
        for power, term in powers.items():
            older = int(power)
            total += term * Fraction(num**older * den ** (most - older))
        return (total > 0) - (total < 0)

    def _sign_by_decimals(self, gap: Fraction, powers: Changes, digits: int) -> int:
        """Return the sign, or 0 if it is lost in rounding."""
        context = _context(digits)
        total = _decimal(gap, context)
        size = abs(total)
        for power, term in powers.items():
            value = context.multiply(_decimal(term, context), self._power(power, context))
            total, size = context.add(total, value), context.add(size, abs(value))
        lost = context.multiply(size, Decimal((0, (1,), 16 - digits)))
        return 0 if abs(total) <= lost else 1 if total > 0 else -1

    def _power(self, power: Fraction, context: Context) -> Decimal:
        """Return delta to a power; its relative error is far below 10^(16 - digits)."""
        return context.exp(context.multiply(_decimal(power, context), _logarithm(self._delta, context.prec)))


def written(number: float) -> Fraction:
    """Return the decimal number by which Python writes a float."""
    return Fraction(repr(float(number)))


@cache
def _context(digits: int) -> Context:
    return Context(prec=digits, Emin=MIN_EMIN, Emax=MAX_EMAX)


@cache
def _logarithm(delta: Fraction, digits: int) -> Decimal:
    context = _context(digits)
    return context.ln(_decimal(delta, context))


def _decimal(number: Fraction, context: Context) -> Decimal:
    return context.divide(Decimal(number.numerator), Decimal(number.denominator))
