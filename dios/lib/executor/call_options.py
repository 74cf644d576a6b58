"""The options of single calls: time limits, repetitions and needs."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, NamedTuple, TypedDict

import msgspec

from dios.errors import InvalidError
from dios.lib.amounts import memory_of, seconds_of
from dios.lib.executor.lifecycle import WorkerOptions
from dios.wire.messages import Limits

_CPUS_MAX: Final = 10_000
_RETRIES_MAX: Final = 1_000_000_000


class Needs(NamedTuple):
    """The processors, in thousandths, and the memory of a call's worker; 0 for those of the executor."""

    cpus_milli: int = 0
    memory_bytes: int = 0

    def applied(self, options: WorkerOptions) -> WorkerOptions:
        """Return the options of workers with these needs."""
        work, limits = options.work, options.limits
        if work is not None:
            work = msgspec.structs.replace(
                work,
                cpus_milli=self.cpus_milli or work.cpus_milli,
                memory_bytes=self.memory_bytes or work.memory_bytes,
            )
        if self.memory_bytes:
            limits = msgspec.structs.replace(limits or Limits(), memory_bytes=self.memory_bytes)
        return dataclasses.replace(options, work=work, limits=limits)


NO_NEEDS: Final = Needs()


class OptionChanges(TypedDict, total=False):
    """The arguments of ``Executor.with_options``, which explains them. None changes nothing."""

    timeout: float | None
    retries: int | None
    retry_on: type[BaseException] | Iterable[type[BaseException]] | None
    name: str | None
    cpus: float | None
    memory: int | str | None


@dataclass(frozen=True, slots=True)
class CallOptions:
    """The options of a call; ``Executor.with_options`` explains them."""

    timeout_s: float | None = None
    retries: int = 0
    retry_on: tuple[type[BaseException], ...] = ()
    name: str = ""
    needs: Needs = NO_NEEDS

    @property
    def is_for_items(self) -> bool:
        """Return True if the options hold for each item of ``map``, and not for several items together."""
        return self.timeout_s is not None or bool(self.retry_on)

    def repeats(self, tries: int, bases: Iterable[tuple[str, str]]) -> bool:
        """Return True if a call is made again after its exception, whose class has these names and bases."""
        wanted = {(kind.__module__, kind.__qualname__) for kind in self.retry_on}
        return tries <= self.retries and not wanted.isdisjoint(map(tuple, bases))

    def changed(self, changes: OptionChanges) -> CallOptions:
        """Return these options with some changes. Raises InvalidError for one out of range."""
        timeout, retries, retry_on = changes.get("timeout"), changes.get("retries"), changes.get("retry_on")
        name, cpus, memory = changes.get("name"), changes.get("cpus"), changes.get("memory")
        for unknown in changes.keys() - OptionChanges.__annotations__.keys():
            raise TypeError(f"with_options() got an unexpected keyword argument {unknown!r}")
        if not (name is None or isinstance(name, str)):
            raise InvalidError(f"name must be a text, not {name!r}")
        if retries is not None and not _is_in_range(retries, 0, _RETRIES_MAX):
            raise InvalidError(f"retries must be from 0 to {_RETRIES_MAX:,}, and not {retries!r}")
        if cpus is not None and not (_is_in_range(cpus, 0, _CPUS_MAX) and cpus):
            raise InvalidError(f"cpus must be more than 0 and at most {_CPUS_MAX:,}, not {cpus!r}")
        return CallOptions(
            self.timeout_s if timeout is None else seconds_of(timeout, "timeout"),
            self.retries if retries is None else retries,
            self.retry_on if retry_on is None else _exceptions(retry_on),
            self.name if name is None else name,
            Needs(
                self.needs.cpus_milli if cpus is None else max(1, round(1000 * cpus)),
                self.needs.memory_bytes if memory is None else memory_of(memory),
            ),
        )


def _is_in_range(value: float, least: float, most: float) -> bool:
    try:
        return least <= value <= most
    except TypeError:  # it is no number
        return False


def _exceptions(given: object) -> tuple[type[BaseException], ...]:
    """Return the classes of ``retry_on``: one, or several."""
    kinds = tuple(given) if isinstance(given, Iterable) and not isinstance(given, type) else (given,)
    classes = tuple(kind for kind in kinds if isinstance(kind, type) and issubclass(kind, BaseException))
    if len(classes) < len(kinds):
        raise TypeError(f"retry_on must be a class of exceptions, or several, not {given!r}")
    return classes


NO_OPTIONS: Final = CallOptions()
