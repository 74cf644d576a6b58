"""A model of the rates of more cores than this machine has; its results are predictions, not measurements.

RSS gives each flow one core, so its rate is that of the cores that have a flow. Spraying uses all cores, but
a packet costs more on a core that does not store its flow: that is what two cores were measured to lose. Each
core is the workers' alone in the model, so it is fitted to the frames in a second of processor time.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from labs.papers.figures import Cell, FigureTable
from labs.plotting import Lines

CORES: Final = (4, 8, 16)
CARD_FRAMES_S: Final = 10e6
"""The limit of the thesis' card, about 10 million frames a second (section 3.4)."""


class ScalingModel(NamedTuple):
    """The time of a packet in seconds."""

    alone_s: float
    """On the core that stores its flow."""
    elsewhere_s: float
    """In addition on any other core."""

    def sprayed(self, cores: int) -> float:
        """Return the frames per second of any number of flows that are sprayed over ``cores``."""
        packet_s = self.alone_s + (1 - 1 / cores) * self.elsewhere_s
        return min(cores / packet_s, CARD_FRAMES_S)

    def by_flow(self, cores: int, flows: int) -> float:
        """Return the mean of the frames per second of ``flows`` flows over ``cores`` with RSS."""
        return min(busy_cores(cores, flows) / self.alone_s, CARD_FRAMES_S)


def busy_cores(cores: int, flows: int) -> float:
    """Return the mean number of cores that have a flow if each flow has any core."""
    return cores * (1 - (1 - 1 / cores) ** flows)


def fitted(one_core: float, sprayed: float, cores: int) -> ScalingModel:
    """Return the model for measured frames per second: of one core, and of one flow sprayed over ``cores``.

    Both are those of cores that do nothing else.

    A cost below 0, which is noise, counts as 0.
    """
    alone = 1 / one_core
    if cores < 2:
        return ScalingModel(alone, 0.0)
    return ScalingModel(alone, max((cores / sprayed - alone) / (1 - 1 / cores), 0.0))


def prediction_sheet(models: dict[str, ScalingModel], measured: int, flows: tuple[int, ...]) -> FigureTable:
    """Return predicted rates by place, for the ``measured`` number of cores and for more."""
    rows: list[tuple[Cell, ...]] = []
    for place, model in models.items():
        for cores in (measured, *(more_cores for more_cores in CORES if more_cores > measured)):
            for count in flows:
                by_flow, sprayed = model.by_flow(cores, count), model.sprayed(cores)
                rows.append((place, cores, count, by_flow / 1e3, sprayed / 1e3, sprayed / by_flow))
    columns = ("place", "cores", "flows", "rss", "spray", "x RSS")
    return FigureTable(
        "PREDICTION for more cores, not measured: thousand frames of 64 bytes per second",
        columns,
        rows,
    )


def prediction_picture(model: ScalingModel, place: str, flows: tuple[int, ...]) -> Lines:
    """Return the predicted rates of eight cores, which the thesis has, by the number of flows."""
    cores = 8
    series = {
        "rss, predicted": (flows, [model.by_flow(cores, count) / 1e3 for count in flows]),
        "spray, predicted": (flows, [model.sprayed(cores) / 1e3 for _ in flows]),
    }
    title = f"PREDICTION for {cores} cores, {place}"
    return Lines("3.7a-predicted", title, "flows", "thousand per second", series, log_x=True)
