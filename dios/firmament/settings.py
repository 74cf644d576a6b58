"""The settings of the scheduler, apart from the choice of the cost model: one frozen value.

Cost models check their own parameters. Bounds that an operator cannot change are in ``dios.limits``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from enum import IntEnum

from dios.firmament.descriptors import BadDescriptorError
from dios.firmament.parameters import Value, converted, text_of
from dios.firmament.solvers import algorithms


class Fairness(IntEnum):
    """The rule that divides running tasks between principals (§6.3.2)."""

    NONE = 0
    """Only costs decide."""
    BOUNDED = 1
    """No principal runs more than its fair share A_j while others wait: F_j = A_j."""
    STRICT = 2
    """Every principal runs exactly its fair share: E_j = A_j = F_j."""


@dataclass(frozen=True, slots=True)
class SchedulerSettings:
    """The settings. Costs are in the unit of the cost model, times in seconds of the scheduler's clock."""

    solver: str = "auto"
    """A name of ``solvers.algorithms()``; with "auto" the network also stays solved between rounds."""
    certify_every: int = 50
    """The certificate is checked every this many rounds; 1: in each round; 0: never."""
    model_time_limit_s: float = 10.0
    """The time after which a cost model that has not answered is reported; the last schedule then stays."""
    preemption: bool = True
    """True if running tasks may be stopped for others."""
    migration: bool = True
    """True if running tasks may move to better machines."""
    preemption_hysteresis: int = 1
    """The addition to the cost of stopping a running task; with 1, ties stop no task."""
    migration_hysteresis: int = 1
    """The addition to the cost of every other place of a running task."""
    fit: bool = True
    """True if placements that exceed the known resources of a machine are held back."""
    soft_penalty: int = 1_000
    """The addition to the cost of a machine for each soft constraint that it does not meet."""
    gang_preempts: bool = True
    """True if an admitted gang takes its places at any cost (§6.3.3); else it waits for free slots."""
    retry_first_s: float = 1.0
    """The delay before a gang without room, or a machine that refused a task, is tried again; it doubles."""
    retry_last_s: float = 300.0
    """The longest such delay."""
    fairness: Fairness = Fairness.NONE
    """The bounds E_j and F_j of the running tasks of each job, from its fair share A_j."""

    def __post_init__(self) -> None:
        if self.solver not in algorithms():
            known = ", ".join(algorithms())
            raise BadDescriptorError(f"setting solver is {self.solver!r}; it must be one of {known}")
        for name in (
            "certify_every",
            "preemption_hysteresis",
            "migration_hysteresis",
            "soft_penalty",
            "retry_first_s",
        ):
            if not getattr(self, name) >= 0:
                raise BadDescriptorError(f"setting {name} is {getattr(self, name)}; it must be 0 or more")
        if not self.model_time_limit_s > 0:
            raise BadDescriptorError(
                f"setting model_time_limit_s is {self.model_time_limit_s}; it must be positive"
            )
        if not self.retry_last_s >= self.retry_first_s:
            raise BadDescriptorError(
                f"setting retry_last_s is {self.retry_last_s}; it must be at least retry_first_s"
            )

    def words(self) -> dict[str, str]:
        """Return all settings as an operator writes them, by name."""
        return {name: _word(value) for name, value in asdict(self).items()}


def changed(settings: SchedulerSettings, words: Mapping[str, str]) -> SchedulerSettings:
    """Return the settings with some of them replaced by what an operator wrote.

    Raises:
        BadDescriptorError: an unknown setting (the message lists the known ones), or a value that it cannot
            have.
    """
    known = asdict(settings)
    values: dict[str, Value] = {}
    for name, word in words.items():
        if name not in known:
            raise BadDescriptorError(f"there is no setting {name!r}; the settings are: {', '.join(known)}")
        try:
            values[name] = _fairness(word) if name == "fairness" else converted(word, known[name])
        except ValueError as error:
            raise BadDescriptorError(f"setting {name} is {word!r}; {error}") from None
    return replace(settings, **values)  # type: ignore[arg-type] # each value has the type of its setting


def _fairness(word: str) -> Fairness:
    try:
        return Fairness[word.upper()]
    except KeyError:
        raise ValueError(f"it must be one of {', '.join(_word(choice) for choice in Fairness)}") from None


def _word(value: Value) -> str:
    return value.name.lower() if isinstance(value, Fairness) else text_of(value)
