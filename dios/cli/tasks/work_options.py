"""The options of `dios run` for the scheduler, and the ``Work`` that is made of them (thesis ch. 6)."""

from __future__ import annotations

import re
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from dios import limits
from dios.cli.common.options import COMMON, Options, option
from dios.cli.nodes.setting_options import seconds_of, size_of
from dios.client.ops.scheduling import AFFINITIES, CLASSES, work
from dios.errors import InvalidError
from dios.wire.messages import Near, Work

if TYPE_CHECKING:
    from dios.client.sync.node import Reference

MAY_WAIT_OPTION: Final[str] = option(
    "--may-wait SPAN",
    "A job (JOB.toml) without room now gets the earliest start within: 90s, 5min, 2h.",
    section="Its turn",
)


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


class ReservationOptions(Options, section="Reserved on its node"):
    """The resources that are reserved for a task, or for each replica of a service."""

    cpus: float = option("--cpus N", "Processors reserved for it.", default=0.0, section=COMMON, min=0)
    reserve_memory: str = option(
        "--reserve-memory SIZE",
        "Memory reserved for it, 2GiB; its limit, too, unless --memory gives another one.",
    )
    disk_io: str = option("--disk-io RATE", "Disk bandwidth per second reserved for it: 50MiB.")
    net: str = option("--net RATE", "Network bandwidth per second reserved for it: 10MiB.")
    device: list[str] | None = option(
        "--device KIND=N", "Give it N devices of a kind, like gpu=1, for itself."
    )


class _SharingOptions(Options, section="Reserved on its node"):
    pin: bool = option("--pin", "Give it --cpus whole processors, which no other pinned task has.")
    best_effort: bool = option(
        "--best-effort", "Reserve nothing: it uses what others leave idle, and yields to all of them."
    )


class _TurnOptions(Options, section="Its turn"):
    priority: int = option("--priority N", "Higher priorities go first.", default=0, min=0)
    deadline: str = option("--deadline SPAN", "Finish within: 90s, 5min, 2h.")
    long_running: bool = option("--long-running/--batch", "For ever, or to its end.")
    restartable: bool = option("--restartable", "It may be stopped for other tasks, and is then run again.")
    grace: str = option(
        "--grace SPAN",
        "Restartable, with this time to save its state (dios.checkpointed) before it must leave.",
    )


class _TogetherOptions(Options, section="Runs that belong together"):
    gang: str = option("--gang K/N", "Run N tasks; at least K start together.")
    series: str = option("--series NAME", "A name that runs of one series share.")
    series_minimum: int = option(
        "--series-minimum N",
        "While fewer than N runs of the series run, they come before other work.",
        default=0,
        min=0,
        max=limits.JOB_BOUND_MAX,
    )
    series_maximum: int = option(
        "--series-maximum N",
        "At most N runs of the series at once; 0: all.",
        default=0,
        min=0,
        max=limits.JOB_BOUND_MAX,
    )
    affinity: str = option("--affinity HOW", f"Placement of a gang's tasks: {', '.join(AFFINITIES)}.")


class _PlaceOptions(Options, section="Its place"):
    interference: str = option(
        "--class CLASS",
        f"How much the task disturbs its neighbours: {CLASSES[0]} (little), {', '.join(CLASSES[1:-1])}, "
        f"{CLASSES[-1]} (much).",
        default="sheep",
    )
    near: list[str] | None = option("--near NAME", "Prefer the node of this object.")
    constraint: list[str] | None = option(
        "--constraint KEY=VALUE",
        "Only nodes with this label; also KEY!=VALUE, KEY, !KEY; ?KEY=VALUE only prefers them.",
    )
    copy_of: str = option(
        "--copy-of TASK", "A copy of this slow task of yours, on another node (model late)."
    )


class NeedsOptions(ReservationOptions, _SharingOptions, _TurnOptions, _TogetherOptions, _PlaceOptions):
    """The needs of a task. ``near`` and ``copy_of`` name objects and a task, which ``work_of`` gets."""

    time: str = option(
        "--time SPAN",
        "End it after this time: 90s, 10min, 2h. A short one may start in room that is kept for others.",
    )

    def gang_size(self) -> GangSize | None:
        """Return the size of the gang, None for a single task. Raise InvalidError."""
        return gang_of(self.gang)

    def work(self) -> Work:
        """Return the work without what other objects decide. Raise InvalidError with an option's name."""
        together = self.gang_size()
        if together is not None and self.series:
            raise InvalidError("a gang is a series of its own: leave out --series")
        if together is None and not self.series and (self.series_minimum or self.series_maximum):
            raise InvalidError(
                "--series-minimum and --series-maximum need a series: name it with --series, or give a --gang"
            )
        if together is not None and self.copy_of:
            raise InvalidError("a copy is one task: leave out --gang or --copy-of")
        return work(
            cpus=self.cpus,
            memory=size_of(self.reserve_memory, "--reserve-memory"),
            disk_io=size_of(self.disk_io, "--disk-io"),
            network=size_of(self.net, "--net"),
            priority=self.priority,
            deadline=_seconds(self.deadline, "--deadline"),
            time=_seconds(self.time, "--time"),
            interference=self.interference,
            service=self.long_running,
            restartable=self.restartable or bool(self.grace),
            grace=_seconds(self.grace, "--grace"),
            # The number of a gang's job is chosen for each command.
            job=self.series or ("gang" if together is not None else ""),
            job_minimum=self.series_minimum,
            job_maximum=self.series_maximum,
            gang=None if together is None else (together.least, together.tasks),
            affinity=self.affinity,
            constraints=self.constraint or (),
            pin=self.pin,
            best_effort=self.best_effort,
            devices=devices_of(self.device or ()),
        )

    def work_of(self, label: str, objects: Sequence[Reference], original: str = "") -> Work:
        """Return the work of a task with this label.

        ``objects`` are those of `--near`, and ``original`` is the fingerprint of `--copy-of`.
        """
        needed = self.work()
        return replace(
            needed,
            equivalence=label.encode()[: limits.NODE_NAME_BYTES_MAX].decode(errors="ignore"),
            near=tuple(Near(reference.node, reference.size) for reference in objects if reference.node),
            job=1 + secrets.randbelow(2**62) if self.gang else needed.job,
            copy_of=original,
        )


def _seconds(text: str, option: str) -> int:
    return seconds_of(text, option) if text else 0
