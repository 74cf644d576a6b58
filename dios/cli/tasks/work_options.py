"""The options of `dios run` for the scheduler, and the ``Work`` that is made of them (thesis ch. 6).

``dios.firmament`` uses the result.
"""

from __future__ import annotations

import inspect
import re
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Final, ParamSpec, cast

import typer
from msgspec.structs import replace

from dios import limits
from dios.cli.nodes.setting_options import seconds_of
from dios.client.ops.scheduling import AFFINITIES, CLASSES, work
from dios.errors import InvalidError
from dios.node.limit_text import parse_size
from dios.wire.messages import Near, Work

if TYPE_CHECKING:
    from dios.client.sync.node import Reference

P = ParamSpec("P")

# The sections of `--help-all`.
_RESERVED: Final = "Reserved on its node"
PLACE: Final = "Its place"
_TURN: Final = "Its turn"
_TOGETHER: Final = "Runs that belong together"

CpusOption = Annotated[
    float,
    typer.Option("--cpus", metavar="N", min=0, help="Processors reserved for it."),
]
ReserveMemoryOption = Annotated[
    str,
    typer.Option(
        "--reserve-memory",
        metavar="SIZE",
        help="Memory reserved for it, 2GiB; its limit, too, unless --memory gives another one.",
        rich_help_panel=_RESERVED,
    ),
]
DiskOption = Annotated[
    str,
    typer.Option(
        "--disk-io",
        metavar="RATE",
        help="Disk bandwidth per second reserved for it: 50MiB.",
        rich_help_panel=_RESERVED,
    ),
]
NetOption = Annotated[
    str,
    typer.Option(
        "--net",
        metavar="RATE",
        help="Network bandwidth per second reserved for it: 10MiB.",
        rich_help_panel=_RESERVED,
    ),
]
PriorityOption = Annotated[
    int,
    typer.Option("--priority", metavar="N", min=0, help="Higher priorities go first.", rich_help_panel=_TURN),
]
DeadlineOption = Annotated[
    str,
    typer.Option("--deadline", metavar="SPAN", help="Finish within: 90s, 5min, 2h.", rich_help_panel=_TURN),
]
TimeOption = Annotated[
    str,
    typer.Option(
        "--time",
        metavar="SPAN",
        help="End it after this time: 90s, 10min, 2h. A short one may start in room that is kept for others.",
    ),
]
ClassOption = Annotated[
    str,
    typer.Option(
        "--class",
        metavar="CLASS",
        help=f"How much the task disturbs its neighbours: {CLASSES[0]} (little), {', '.join(CLASSES[1:-1])}, "
        f"{CLASSES[-1]} (much).",
        rich_help_panel=PLACE,
    ),
]
GangOption = Annotated[
    str,
    typer.Option(
        "--gang", metavar="K/N", help="Run N tasks; at least K start together.", rich_help_panel=_TOGETHER
    ),
]
SeriesOption = Annotated[
    str,
    typer.Option(
        "--series",
        metavar="NAME",
        help="A name that runs of one series share.",
        rich_help_panel=_TOGETHER,
    ),
]
SeriesMinimumOption = Annotated[
    int,
    typer.Option(
        "--series-minimum",
        metavar="N",
        min=0,
        max=limits.JOB_BOUND_MAX,
        help="While fewer than N runs of the series run, they come before other work.",
        rich_help_panel=_TOGETHER,
    ),
]
SeriesMaximumOption = Annotated[
    int,
    typer.Option(
        "--series-maximum",
        metavar="N",
        min=0,
        max=limits.JOB_BOUND_MAX,
        help="At most N runs of the series at once; 0: all.",
        rich_help_panel=_TOGETHER,
    ),
]
NearOption = Annotated[
    list[str] | None,
    typer.Option("--near", metavar="NAME", help="Prefer the node of this object.", rich_help_panel=PLACE),
]
ConstraintOption = Annotated[
    list[str] | None,
    typer.Option(
        "--constraint",
        metavar="KEY=VALUE",
        help="Only nodes with this label; also KEY!=VALUE, KEY, !KEY; ?KEY=VALUE only prefers them.",
        rich_help_panel=PLACE,
    ),
]
AffinityOption = Annotated[
    str,
    typer.Option(
        "--affinity",
        metavar="HOW",
        help=f"Placement of a gang's tasks: {', '.join(AFFINITIES)}.",
        rich_help_panel=_TOGETHER,
    ),
]
LongRunningOption = Annotated[
    bool,
    typer.Option("--long-running/--batch", help="For ever, or to its end.", rich_help_panel=_TURN),
]
RestartableOption = Annotated[
    bool,
    typer.Option(
        "--restartable",
        help="It may be stopped for other tasks, and is then run again.",
        rich_help_panel=_TURN,
    ),
]
GraceOption = Annotated[
    str,
    typer.Option(
        "--grace",
        metavar="SPAN",
        help="Restartable, with this time to save its state (dios.checkpointed) before it must leave.",
        rich_help_panel=_TURN,
    ),
]
PinOption = Annotated[
    bool,
    typer.Option(
        "--pin",
        help="Give it --cpus whole processors, which no other pinned task has.",
        rich_help_panel=_RESERVED,
    ),
]
BestEffortOption = Annotated[
    bool,
    typer.Option(
        "--best-effort",
        help="Reserve nothing: it uses what others leave idle, and yields to all of them.",
        rich_help_panel=_RESERVED,
    ),
]
DeviceOption = Annotated[
    list[str] | None,
    typer.Option(
        "--device",
        metavar="KIND=N",
        help="Give it N devices of a kind, like gpu=1, for itself.",
        rich_help_panel=_RESERVED,
    ),
]
CopyOfOption = Annotated[
    str,
    typer.Option(
        "--copy-of",
        metavar="TASK",
        help="A copy of this slow task of yours, on another node (model late).",
        rich_help_panel=PLACE,
    ),
]


MayWaitOption = Annotated[
    str,
    typer.Option(
        "--may-wait",
        metavar="SPAN",
        help="A job (JOB.toml) without room now gets the earliest start within: 90s, 5min, 2h.",
        rich_help_panel=_TURN,
    ),
]


@dataclass(frozen=True, slots=True)
class GangSize:
    """The number of tasks to run, and the least number that must start together."""

    least: int
    tasks: int


def gang_of(text: str) -> GangSize | None:
    """Parse a gang like 3/4; return None for an empty text. Raise InvalidError."""
    if not text:
        return None
    match = re.fullmatch(r"\s*(\d{1,6})\s*/\s*(\d{1,6})\s*", text)
    if match is None or not 1 <= int(match[1]) <= int(match[2]) <= limits.GANG_TASKS_MAX:
        raise InvalidError(
            f"--gang must be K/N with 1 <= K <= N <= {limits.GANG_TASKS_MAX}, like 3/4, not {text!r}"
        )
    return GangSize(int(match[1]), int(match[2]))


def devices_of(texts: Sequence[str]) -> dict[str, int]:
    """Parse devices like gpu=1; a kind alone means one. Raise InvalidError."""
    counts: dict[str, int] = {}
    for text in texts:
        kind, equals, count = text.strip().partition("=")
        if not re.fullmatch(r"\d{1,4}", count if equals else "1") or kind in counts:
            raise InvalidError(f"--device must be KIND=N, like gpu=1, once for each kind, not {text!r}")
        counts[kind] = int(count) if equals else 1
    return counts


@dataclass(frozen=True, slots=True)
class TaskNeeds:
    """The needs given by the options; ``near`` and ``copy_of`` are not resolved yet."""

    gang: GangSize | None
    near: tuple[str, ...]
    copy_of: str
    restartable: bool
    work: Work

    def of(self, label: str, objects: Sequence[Reference], original: str = "") -> Work:
        """Return the work of a task with this label.

        ``objects`` are those of `--near`, and ``original`` is the fingerprint of `--copy-of`.
        """
        return replace(
            self.work,
            equivalence=label.encode()[: limits.NODE_NAME_BYTES_MAX].decode(errors="ignore"),
            near=tuple(Near(reference.node, reference.size) for reference in objects if reference.node),
            job=1 + secrets.randbelow(2**62) if self.gang is not None else self.work.job,
            copy_of=original,
        )


def needs_of(
    *,
    cpus: CpusOption = 0.0,
    reserve_memory: ReserveMemoryOption = "",
    disk_io: DiskOption = "",
    net: NetOption = "",
    priority: PriorityOption = 0,
    deadline: DeadlineOption = "",
    time: TimeOption = "",
    interference: ClassOption = "sheep",
    gang: GangOption = "",
    series: SeriesOption = "",
    series_minimum: SeriesMinimumOption = 0,
    series_maximum: SeriesMaximumOption = 0,
    near: NearOption = None,
    constraint: ConstraintOption = None,
    affinity: AffinityOption = "",
    long_running: LongRunningOption = False,
    restartable: RestartableOption = False,
    grace: GraceOption = "",
    pin: PinOption = False,
    best_effort: BestEffortOption = False,
    device: DeviceOption = None,
    copy_of: CopyOfOption = "",
) -> TaskNeeds:
    """Parse the options of a task's needs. Raise InvalidError with the option's name."""
    together = gang_of(gang)
    if together is not None and series:
        raise InvalidError("a gang is a series of its own: leave out --series")
    if together is None and not series and (series_minimum or series_maximum):
        raise InvalidError(
            "--series-minimum and --series-maximum need a series: name it with --series, or give a --gang"
        )
    requested = work(
        cpus=cpus,
        memory=_size(reserve_memory, "--reserve-memory"),
        disk_io=_size(disk_io, "--disk-io"),
        network=_size(net, "--net"),
        priority=priority,
        deadline=seconds_of(deadline, "--deadline") if deadline else 0,
        time=seconds_of(time, "--time") if time else 0,
        interference=interference,
        service=long_running,
        restartable=restartable or bool(grace),
        grace=seconds_of(grace, "--grace") if grace else 0,
        # The number of a gang's job is chosen for each command.
        job=series or ("gang" if together is not None else ""),
        job_minimum=series_minimum,
        job_maximum=series_maximum,
        gang=None if together is None else (together.least, together.tasks),
        affinity=affinity,
        constraints=constraint or (),
        pin=pin,
        best_effort=best_effort,
        devices=devices_of(device or ()),
    )
    if together is not None and copy_of:
        raise InvalidError("a copy is one task: leave out --gang or --copy-of")
    return TaskNeeds(together, tuple(near or ()), copy_of, requested.restartable, requested)


def with_needs(command: Callable[P, None]) -> Callable[P, None]:
    """Replace the parameter ``needs`` of a command by the options of ``needs_of``, which parses them."""
    own = inspect.signature(command, eval_str=True)
    options = inspect.signature(needs_of, eval_str=True)

    def taking(**given: object) -> None:
        said = {name: given.pop(name) for name in options.parameters}
        command(**given, needs=lambda: needs_of(**said))  # type: ignore[call-arg,arg-type] # typer checks them

    # Not functools.wraps: typer would inspect the wrapped command.
    taking.__name__, taking.__doc__ = command.__name__, command.__doc__

    parameters = []
    for name, parameter in own.parameters.items():
        parameters += list(options.parameters.values()) if name == "needs" else [parameter]
    # Typer inspects both.
    taking.__signature__ = own.replace(parameters=parameters)  # type: ignore[attr-defined] # it may be set
    taking.__annotations__ = {option.name: option.annotation for option in parameters}
    return cast("Callable[P, None]", taking)


def _size(text: str, option: str) -> int:
    if not text:
        return 0
    try:
        return parse_size(text)
    except ValueError as error:
        raise InvalidError(f"{option} must be {error}, not {text!r}") from None
