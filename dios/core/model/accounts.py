"""Who uses how much and may use how much: accounts of tasks, groups and principals.

Accounts form chains: a task's leads to that of its parent, then to its principal's, and at last to the
node's. The use of a task is counted along the whole chain, so that splitting work over tasks gains nothing.
An object is counted with its creator, and with each group that it is in.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Final

from msgspec import Struct

from dios import limits
from dios.errors import LimitError
from dios.wire import messages
from dios.wire.messages import Bound
from dios.wire.types import Resource, Scope

UNLIMITED: Final = 2**63 - 1

# Plain numbers: a list finds its place by one in half the time that a member of an enumeration takes.
_BYTES: Final = int(Resource.BYTES)
_VOLATILE_BYTES: Final = int(Resource.VOLATILE_BYTES)

_UNITS: Final = {Resource.CPU_MS: "ms of CPU time", Resource.MEMORY_BYTES: "bytes of memory"}


class Defaults(Struct, frozen=True):
    """Limits of every task, group and principal that was given none of its own, the memory of a task for
    which its run call asks for none, and the limits of all together.
    """

    task: tuple[Bound, ...] = ()
    group: tuple[Bound, ...] = ()
    principal: tuple[Bound, ...] = ()
    task_memory_bytes: int = limits.TASK_MEMORY_BYTES_DEFAULT
    node: tuple[Bound, ...] = (Bound(Resource.TASKS, limits.TASKS_MAX),)


class Account:
    """What one task with everything it starts, one group, or one principal uses and may use."""

    __slots__ = ("bounds", "parent", "scope", "subject", "used")

    def __init__(
        self, scope: Scope, subject: str, bounds: Iterable[Bound] = (), parent: Account | None = None
    ) -> None:
        self.scope: Final = scope
        self.subject = subject
        self.parent: Final = parent
        self.used: Final = [0] * len(Resource)
        self.bounds: Final = [UNLIMITED] * len(Resource)
        self.bind(bounds)

    def bind(self, bounds: Iterable[Bound]) -> None:
        """Set limits, the last for a resource counts; what is used above a new one stays."""
        for bound in bounds:
            self.bounds[bound.resource] = UNLIMITED if bound.value is None else bound.value

    def rebind(self, bounds: Iterable[Bound]) -> None:
        """Have just these limits."""
        self.bounds[:] = [UNLIMITED] * len(Resource)
        self.bind(bounds)

    def require(self, resource: int, amount: int) -> None:
        """Refuse, before anything changes, what this account or one it leads to has no room for."""
        index = int(resource)
        account: Account | None = self
        while account is not None:
            if account.used[index] + amount > account.bounds[index] and amount > 0:
                raise account.refusal(Resource(index), amount)
            account = account.parent

    def charge(self, resource: Resource, amount: int) -> None:
        """Count ``amount`` more, or less if negative, here and up the chain."""
        account: Account | None = self
        while account is not None:
            account.used[resource] += amount
            account = account.parent

    def left(self, resource: Resource) -> int:
        """How much more may be used; UNLIMITED where nothing limits it."""
        least = UNLIMITED
        account: Account | None = self
        while account is not None:
            if account.bounds[resource] != UNLIMITED:
                least = min(least, max(account.bounds[resource] - account.used[resource], 0))
            account = account.parent
        return least

    def refusal(self, resource: Resource, amount: int) -> LimitError:
        """The error for ``amount`` more than fits."""
        unit = _UNITS.get(resource, str(resource))
        whose = {
            Scope.TASK: f"task {self.subject} and all it starts",
            Scope.GROUP: f"group {self.subject}",
            Scope.PRINCIPAL: self.subject,
            Scope.NODE: "this node",
        }[self.scope]
        return LimitError(
            f"the limit of {self.bounds[resource]:,} {unit} for {whose} is reached: {self.used[resource]:,}"
            f" are in use and {amount:,} more were asked for; free some, or have it raised"
            " (see `dios limits`)",
            fingerprint=self.subject if self.scope in {Scope.TASK, Scope.GROUP} else "",
        )

    @property
    def generation(self) -> int:
        """How many accounts it leads to."""
        count, account = 0, self.parent
        while account is not None:
            count, account = count + 1, account.parent
        return count

    def row(self, label: str) -> messages.LimitRow:
        """Use and limits for a person."""
        found = tuple(None if bound == UNLIMITED else bound for bound in self.bounds)
        return messages.LimitRow(self.scope, self.subject, label, tuple(self.used), found)


def require_all(accounts: Iterable[Account], resource: Resource, amount: int) -> None:
    """Refuse what any of the accounts has no room for."""
    for account in accounts:
        account.require(resource, amount)


def require_bytes(accounts: Iterable[Account], amount: int, *, volatile: bool) -> None:
    """Refuse bytes that any of the accounts has no room for."""
    for account in accounts:
        account.require(_BYTES, amount)
        if volatile:
            account.require(_VOLATILE_BYTES, amount)


def charge_all(accounts: Iterable[Account], resource: Resource, amount: int) -> None:
    """Count with each of the accounts, and up their chains."""
    index = int(resource)
    for first in accounts:
        account: Account | None = first
        while account is not None:
            account.used[index] += amount
            account = account.parent


def charge_bytes(accounts: Iterable[Account], amount: int, *, volatile: bool) -> None:
    """Count bytes with each of the accounts, and up their chains: the hot path of every create and write."""
    for first in accounts:
        account: Account | None = first
        while account is not None:
            used = account.used
            used[_BYTES] += amount
            if volatile:
                used[_VOLATILE_BYTES] += amount
            account = account.parent


def require_each(accounts: Iterable[Account], resource: Resource) -> None:
    """Refuse when an account has no room for as many as it is named times."""
    for account, times in Counter(accounts).items():
        account.require(resource, times)


class Version:
    """The bytes of one version of an object: counted until the object has moved on and nobody holds them.

    Without this, whoever re-writes an object while reading its old versions would have any amount of
    memory for the price of one. ``volatile`` ones are in memory, the others in the store.
    """

    __slots__ = ("_current", "accounts", "bytes", "holders", "volatile")

    def __init__(
        self, accounts: tuple[Account, ...], size: int = 0, *, volatile: bool, current: bool = True
    ) -> None:
        self.accounts: Final = accounts
        self.volatile: Final = volatile
        self._current = current
        self.bytes = 0
        self.holders = 0
        self.resize(size)

    def resize(self, size: int) -> None:
        """The same version has another size now."""
        if size != self.bytes:
            charge_bytes(self.accounts, size - self.bytes, volatile=self.volatile)
            self.bytes = size

    def hold(self) -> Version:
        """A buffer stands for these bytes."""
        self.holders += 1
        return self

    def release(self) -> None:
        """A buffer does no longer."""
        self.holders -= 1
        self._settle()

    def supersede(self) -> None:
        """The object has other bytes now, or is gone."""
        self._current = False
        self._settle()

    def _settle(self) -> None:
        if not self._current and not self.holders:
            self.resize(0)


def buffer_version(account: Account, size: int) -> Version:
    """The bytes of a buffer that a task is writing, which are no object's yet."""
    return Version((account,), size, volatile=True, current=False)
