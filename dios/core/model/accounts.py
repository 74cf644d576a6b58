"""The use and the limits of resources, in accounts of tasks, groups, principals and the node.

Accounts form chains: the account of a task leads to that of its parent, then to that of its principal, and
ends at the account of the node. The use of a task is counted along the whole chain, so that a task cannot
evade its limit by starting children. An object is counted with its creator and with each of its groups.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from dios import limits
from dios.errors import LimitError
from dios.wire import messages
from dios.wire.messages import Bound, Limits
from dios.wire.types import Resource, Scope

UNLIMITED: Final = 2**63 - 1
SECOND_MS: Final = 1_000

# Plain integers: indexing a list with an int takes half the time of indexing it with an enumeration member.
_OBJECTS: Final = int(Resource.OBJECTS)
_REFERENCES: Final = int(Resource.REFERENCES)
_BYTES: Final = int(Resource.BYTES)
_VOLATILE_BYTES: Final = int(Resource.VOLATILE_BYTES)
_DESCRIPTORS: Final = int(Resource.DESCRIPTORS)

_UNITS: Final = {
    Resource.CPU_MS: "ms of CPU time",
    Resource.MEMORY_BYTES: "bytes of memory",
    Resource.DESCRIPTORS: "of the node's descriptors",
}


class Defaults(Struct, frozen=True):
    """The limits of every task, group and principal without limits of its own, the memory of a task whose
    run call does not ask for any, the limits of the whole node, and those of a sandbox's session.
    """

    task: tuple[Bound, ...] = ()
    group: tuple[Bound, ...] = ()
    principal: tuple[Bound, ...] = ()
    task_memory_bytes: int = limits.TASK_MEMORY_BYTES_DEFAULT
    node: tuple[Bound, ...] = (Bound(Resource.TASKS, limits.TASKS_MAX),)
    sandbox: tuple[Bound, ...] = ()


_FIELDS: Final = {
    Resource.OBJECTS: "objects",
    Resource.BYTES: "bytes",
    Resource.REFERENCES: "references",
    Resource.REQUESTS: "requests",
    Resource.TASKS: "tasks",
    Resource.CPU_MS: "total_cpu_ms",
    Resource.MEMORY_BYTES: "total_memory_bytes",
    Resource.VOLATILE_BYTES: "volatile_bytes",
    Resource.DESCRIPTORS: "descriptors",
}
"""The fields of Limits for a task with everything it starts."""


def whole_seconds(cpu_ms: int) -> int:
    """Round a limit of CPU time up to whole seconds, as the kernel enforces it."""
    return -(-cpu_ms // SECOND_MS) * SECOND_MS


def lower_bounds(bounds: Iterable[Bound], asked: Limits) -> dict[Resource, int]:
    """Return for each resource the lower of its bound and of the limit in a run call, if it has any."""
    lowest = {bound.resource: bound.value for bound in bounds if bound.value is not None}
    of_process = {Resource.CPU_MS: whole_seconds(asked.cpu_ms), Resource.MEMORY_BYTES: asked.memory_bytes}
    for resource, field in _FIELDS.items():
        value = getattr(asked, field) or of_process.get(resource, 0)
        if value:
            lowest[resource] = min(value, lowest.get(resource, value))
    return lowest


def lower_limits(bounds: Iterable[Bound], asked: Limits) -> Limits:
    """Return the limits of a run call, none of them above its bound. No bound is 0."""
    return replace(
        asked, **{_FIELDS[resource]: value for resource, value in lower_bounds(bounds, asked).items()}
    )


class Account:
    """The use and the limits of a task with its descendants, of a group, of a principal, or of the node."""

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
        """Set these limits; of several for one resource the last counts. Use above a new limit stays."""
        for bound in bounds:
            self.bounds[bound.resource] = UNLIMITED if bound.value is None else bound.value

    def rebind(self, bounds: Iterable[Bound]) -> None:
        """Replace all limits by these."""
        self.bounds[:] = [UNLIMITED] * len(Resource)
        self.bind(bounds)

    def require(self, resource: int, amount: int) -> None:
        """Raise LimitError if ``amount`` more does not fit here or anywhere up the chain."""
        index = int(resource)
        account: Account | None = self
        while account is not None:
            if account.used[index] + amount > account.bounds[index] and amount > 0:
                raise account.refusal(Resource(index), amount)
            account = account.parent

    def charge(self, resource: Resource, amount: int) -> None:
        """Add ``amount``, which may be negative, to the use here and up the chain."""
        account: Account | None = self
        while account is not None:
            account.used[resource] += amount
            account = account.parent

    def left(self, resource: Resource) -> int:
        """Return the amount that may still be used; UNLIMITED if no account of the chain limits it."""
        least = UNLIMITED
        account: Account | None = self
        while account is not None:
            if account.bounds[resource] != UNLIMITED:
                least = min(least, max(account.bounds[resource] - account.used[resource], 0))
            account = account.parent
        return least

    def refusal(self, resource: Resource, amount: int) -> LimitError:
        """Return the error for a request of ``amount`` more, which does not fit."""
        unit = _UNITS.get(resource, str(resource))
        owner = {
            Scope.TASK: f"task {self.subject} and all it starts",
            Scope.GROUP: f"group {self.subject}",
            Scope.PRINCIPAL: self.subject,
            Scope.NODE: "this node",
        }[self.scope]
        # The use is left out: tasks with secrecy labels contribute to it.
        return LimitError(
            f"the limit of {self.bounds[resource]:,} {unit} for {owner} is reached: {amount:,} more were"
            " requested. Free some, or ask for a higher limit (see `dios limits`).",
            fingerprint=self.subject if self.scope in {Scope.TASK, Scope.GROUP} else "",
        )

    @property
    def generation(self) -> int:
        """The number of accounts further up the chain."""
        count, account = 0, self.parent
        while account is not None:
            count, account = count + 1, account.parent
        return count

    def row(self, label: str, secrecy: tuple[str, ...] = ()) -> messages.LimitRow:
        """Return the use and the limits as a row for display."""
        bounds = tuple(None if bound == UNLIMITED else bound for bound in self.bounds)
        return messages.LimitRow(self.scope, self.subject, label, tuple(self.used), bounds, secrecy)


def require_all(accounts: Iterable[Account], resource: Resource, amount: int) -> None:
    """Raise LimitError if any of the accounts has no room for ``amount`` more."""
    for account in accounts:
        account.require(resource, amount)


def require_object(accounts: Iterable[Account], size: int, descriptors: int, *, volatile: bool) -> None:
    """Raise LimitError if an account has no room for a new object of ``size`` bytes and a reference to it.

    ``descriptors`` are those that the object needs whatever its size. Every create passes here, so all
    resources are compared in one way up each chain; only a refusal looks at each of them.
    """
    accounts = tuple(accounts)
    memory = size if volatile else 0
    files = descriptors + descriptors_of(size, volatile=volatile)
    for first in accounts:
        account: Account | None = first
        while account is not None:
            used, bounds = account.used, account.bounds
            if (
                used[_OBJECTS] >= bounds[_OBJECTS]
                or used[_REFERENCES] >= bounds[_REFERENCES]
                or used[_BYTES] + size > bounds[_BYTES]
                or used[_VOLATILE_BYTES] + memory > bounds[_VOLATILE_BYTES]
                or used[_DESCRIPTORS] + files > bounds[_DESCRIPTORS]
            ):
                break
            account = account.parent
        else:
            continue
        _refuse_object(accounts, size, descriptors, volatile=volatile)
        return


def _refuse_object(accounts: tuple[Account, ...], size: int, descriptors: int, *, volatile: bool) -> None:
    """Raise the error for the first resource that has no room. Use above a limit alone refuses nothing."""
    require_all(accounts, Resource.REFERENCES, 1)
    require_all(accounts, Resource.OBJECTS, 1)
    require_all(accounts, Resource.DESCRIPTORS, descriptors)
    require_bytes(accounts, size, volatile=volatile)


def descriptors_of(size: int, *, volatile: bool) -> int:
    """Return the number of the node's descriptors for bytes: large ones in memory are shared memory."""
    return limits.MEMORY_DESCRIPTORS if volatile and size > limits.INLINE_BYTES_MAX else 0


def require_bytes(accounts: Iterable[Account], amount: int, *, volatile: bool, before: int = 0) -> None:
    """Raise LimitError if any of the accounts has no room for ``amount`` more bytes after ``before``."""
    descriptors = descriptors_of(before + amount, volatile=volatile) - descriptors_of(
        before, volatile=volatile
    )
    for account in accounts:
        account.require(_BYTES, amount)
        if volatile:
            account.require(_VOLATILE_BYTES, amount)
            if descriptors:
                account.require(_DESCRIPTORS, descriptors)


def charge_all(accounts: Iterable[Account], resource: Resource, amount: int) -> None:
    """Add ``amount`` to the use of each account and up its chain."""
    index = int(resource)
    for first in accounts:
        account: Account | None = first
        while account is not None:
            account.used[index] += amount
            account = account.parent


def charge_bytes(accounts: Iterable[Account], amount: int, *, volatile: bool) -> None:
    """Add bytes to the use of each account and up its chain; every create and write calls this."""
    for first in accounts:
        account: Account | None = first
        while account is not None:
            used = account.used
            used[_BYTES] += amount
            if volatile:
                used[_VOLATILE_BYTES] += amount
            account = account.parent


def require_each(accounts: Iterable[Account], resource: Resource) -> None:
    """Raise LimitError if an account has no room for one more per occurrence in ``accounts``."""
    for account, times in Counter(accounts).items():
        account.require(resource, times)


class Version:
    """The bytes of one version of an object: counted until it is superseded and no buffer holds it.

    Without this, a task that rewrites an object while it reads old versions could use any amount of memory
    and be charged for one version. ``volatile`` versions are in memory, the others in the store. The
    descriptors of bytes ``in_rings`` are counted with the stream.
    """

    __slots__ = ("_current", "accounts", "bytes", "descriptors", "holders", "in_rings", "volatile")

    def __init__(
        self,
        accounts: tuple[Account, ...],
        size: int = 0,
        *,
        volatile: bool,
        current: bool = True,
        in_rings: bool = False,
    ) -> None:
        self.accounts: Final = accounts
        self.volatile: Final = volatile
        self.in_rings: Final = in_rings
        self._current = current
        self.bytes = 0
        self.descriptors = 0
        self.holders = 0
        self.resize(size)

    def resize(self, size: int) -> None:
        """Change the size of this version."""
        if size != self.bytes:
            charge_bytes(self.accounts, size - self.bytes, volatile=self.volatile)
            descriptors = descriptors_of(size, volatile=self.volatile and not self.in_rings)
            if descriptors != self.descriptors:
                charge_all(self.accounts, Resource.DESCRIPTORS, descriptors - self.descriptors)
                self.descriptors = descriptors
            self.bytes = size

    def hold(self) -> Version:
        """Count a buffer that holds these bytes."""
        self.holders += 1
        return self

    def release(self) -> None:
        """Stop counting a buffer; after the last buffer a superseded version uses nothing."""
        self.holders -= 1
        self._settle()

    def supersede(self, *, own_memory: bool = False) -> None:
        """Note that the object has other bytes now, or is gone.

        With ``own_memory`` these bytes are in shared memory whatever their size.
        """
        self._current = False
        if own_memory and self.holders and not self.descriptors:
            self.descriptors = limits.MEMORY_DESCRIPTORS
            charge_all(self.accounts, Resource.DESCRIPTORS, self.descriptors)
        self._settle()

    def _settle(self) -> None:
        if not self._current and not self.holders:
            self.resize(0)


def buffer_version(account: Account, size: int) -> Version:
    """Return a version for a buffer that a task is writing, whose bytes belong to no object yet."""
    return Version((account,), size, volatile=True, current=False)
