"""The sizes of the measurements of chapter 2, and the parts that all its figures share."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from dios.host.machine.machine_tree import MachineTopology
from labs.papers.figures import Figure, FigureTable, ProgressCallback, PublishedClaim
from labs.papers.interference.measure import WorkloadData
from labs.papers.interference.places import Place, Sharing, lacks
from labs.plotting import Picture

FAMILY: Final = "interference"


class InterferenceScope(NamedTuple):
    """The extent of the measurements."""

    seconds: float
    """The time of one run of a workload or a pair."""
    rounds: int
    """The number of runs, of which the median counts."""
    applications: int
    """The number of applications, from the first of the list on."""
    crowds: tuple[int, ...]
    """Numbers of workloads at once, as multiples of the number of processors."""
    crowd_draws: int
    """The number of random crowds of each size."""
    quick: bool


FULL: Final = InterferenceScope(
    seconds=0.5, rounds=3, applications=6, crowds=(1, 2, 4), crowd_draws=5, quick=False
)
QUICK: Final = InterferenceScope(
    seconds=0.05, rounds=1, applications=2, crowds=(1,), crowd_draws=1, quick=True
)


@dataclass(frozen=True)
class InterferenceRuns:
    """The seed and the extent of one run of the command, and the machine."""

    seed: int
    progress: ProgressCallback
    scope: InterferenceScope
    topology: MachineTopology
    places: Mapping[Sharing, Place]
    bench: WorkloadData

    @property
    def lacks(self) -> tuple[str, ...]:
        """A sentence for each kind of sharing that this machine cannot show."""
        return tuple(lacks(self.places.keys()))

    @property
    def processors(self) -> tuple[int, ...]:
        """The processors that this process may use."""
        return tuple(sorted(os.sched_getaffinity(0)))

    def figure(
        self,
        number: str,
        title: str,
        sheets: Sequence[FigureTable],
        claims: Sequence[PublishedClaim],
        pictures: Sequence[Picture] = (),
        notes: Sequence[str] = (),
    ) -> Figure:
        """Return a figure with the settings of this run."""
        return Figure(
            number=number,
            title=title,
            seed=self.seed,
            quick=self.scope.quick,
            setting=(
                ("machine", f"{self.topology.model or 'unknown'}, {len(self.processors)} processors"),
                ("load", f"{os.getloadavg()[0]:.1f} when it was finished"),
                ("seed", str(self.seed)),
            ),
            sheets=tuple(sheets),
            claims=tuple(claims),
            pictures=tuple(pictures),
            notes=tuple(notes),
            measured=True,
            family=FAMILY,
        )


def setting_text(seconds: float, rounds: int) -> str:
    """Return a note on the length of runs."""
    return f"Each run takes {seconds:g} s, and the median of {rounds} counts."
