"""The options of ``dios lab simulate``, and their conversion into a simulation.

The command line imports this module late. Programs construct a ``SimulationConfig`` instead.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from dios.errors import InvalidError
from dios.firmament.knowledge.knowledge_base import KnowledgeBase
from dios.firmament.parameters import Value
from dios.firmament.settings import SchedulerSettings
from labs import limits
from labs.simulate.scheduling.outcome import SimulationOutcome
from labs.simulate.scheduling.run import SimulationConfig, SimulationProgress, simulate
from labs.simulate.scheduling.schedulers import scheduler_for
from labs.simulate.workloads.events import SimulatedWorkload
from labs.simulate.workloads.google_like import GoogleLike, GoogleWorkload
from labs.simulate.workloads.machines import MODEL_CLUSTER, SRG_CLUSTER, thesis_machines
from labs.simulate.workloads.mix import MixWorkload
from labs.simulate.workloads.trace import TraceChoice, TraceWorkload

GOOGLE: Final = "google"
MIXES: Final = {"mix-srg": (SRG_CLUSTER, False), "mix-dc": (MODEL_CLUSTER, True)}
"""Table 8.2 on the two clusters of Table 8.1."""
MACHINES: Final = 100
"""The default number of machines of the Google-like workload."""
SAMPLED_S: Final = 5.0
"""The interval in seconds between measurements of the mixes' running tasks."""
MEASURED: Final = "measured"


@dataclass(frozen=True, slots=True)
class SimulationOptions:
    """The options of the command line; None stands for an option that was not given."""

    trace: Path | None = None
    synthetic: str | None = None
    machines: int | None = None
    hours: float = 1.0
    model: str = "quincy"
    parameters: Mapping[str, Value] = field(default_factory=dict)
    solver: str = "auto"
    seed: int = 0
    load: float | None = None
    scale: float | None = None
    round_interval: str = "1"
    blocks: bool = False
    topology: bool = False
    stay: bool = False
    checked: bool = False


def config_of(options: SimulationOptions) -> SimulationConfig:
    """Validate the options and return the configuration for them.

    Raises:
        InvalidError: an option is invalid, or cannot be combined with another one; the message names it.
        TraceError: the trace does not exist, or a line is invalid.
        BadModelError: the model or a parameter does not exist.
    """
    if not 0 < options.hours <= limits.SIMULATED_HOURS_MAX:
        raise InvalidError(
            f"--hours is {options.hours}; it must be over 0 and at most {limits.SIMULATED_HOURS_MAX}"
        )
    interval, measured = _interval(options.round_interval)
    mix = options.synthetic in MIXES
    knowledge = KnowledgeBase("simulation", 1) if mix else None
    return SimulationConfig(
        workload=_workload(options),
        scheduler=scheduler_for(
            options.model,
            parameters=options.parameters,
            settings=SchedulerSettings(
                solver=options.solver, preemption=not options.stay, migration=not options.stay
            ),
            knowledge=knowledge,
            seed=options.seed,
        ),
        seconds=options.hours * 3600,
        round_interval=interval,
        measured=measured,
        sample_interval=SAMPLED_S if mix else None,
        knowledge=knowledge,
        checked=options.checked,
    )


def run_config(
    config: SimulationConfig, progress: Callable[[SimulationProgress], None] | None
) -> SimulationOutcome:
    """Run a simulation; for a trace, add the counts of its ignored rows to the outcome."""
    outcome = simulate(config, progress)
    if isinstance(config.workload, TraceWorkload):
        outcome.passed_over = dict(config.workload.passed_over)
    return outcome


def _interval(text: str) -> tuple[float, bool]:
    if text == MEASURED:
        return 0.0, True
    try:
        interval = float(text)
    except ValueError:
        interval = -1.0
    if not 0 < interval < float("inf"):
        raise InvalidError(
            f"--round-interval is {text!r}; it must be a number of simulated seconds over 0, or {MEASURED!r}"
        )
    return interval, False


def _workload(options: SimulationOptions) -> SimulatedWorkload:
    if (options.trace is None) == (options.synthetic is None):
        raise InvalidError("give either --trace DIR or --synthetic google")
    if options.trace is not None:
        _refuse("a trace", load=options.load)
        if options.machines is not None and options.scale is not None:
            raise InvalidError("--machines and --scale both select a part of the trace; give one")
        return TraceWorkload(
            TraceChoice(
                options.trace,
                options.hours * 3600,
                scale=1.0 if options.scale is None else options.scale,
                machines=options.machines,
                blocks=options.blocks,
                topology=options.topology,
                seed=options.seed,
            )
        )
    if options.synthetic in MIXES:
        name = f"--synthetic {options.synthetic}"
        _refuse(name, machines=options.machines, load=options.load, scale=options.scale)
        _refuse(name, blocks=options.blocks)
        types, large = MIXES[options.synthetic]
        machines = thesis_machines(types, topology=options.topology)
        return MixWorkload(machines, options.seed, large=large)
    if options.synthetic != GOOGLE:
        raise InvalidError(f"--synthetic is {options.synthetic!r}; choose from {', '.join((GOOGLE, *MIXES))}")
    _refuse("--synthetic google", scale=options.scale)
    return GoogleWorkload(
        GoogleLike(
            machines=MACHINES if options.machines is None else options.machines,
            seed=options.seed,
            load=0.5 if options.load is None else options.load,
            seconds=options.hours * 3600,
            blocks=options.blocks,
            topology=options.topology,
        )
    )


def _refuse(option: str, **given: float | bool | None) -> None:
    """Raise an error for each given option that has no effect with ``option``."""
    for name, value in given.items():
        if value is not None and value is not False:
            raise InvalidError(f"--{name} has no effect with {option}; leave it out")
