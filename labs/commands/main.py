"""``dios lab``: a table of its commands, each of which is imported when it is used."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar, Final

from dios.cli.common.application import CommandApplication, Output
from dios.cli.common.lazy import CommandRow, LazyGroup, Section, section_rows


class LabCommands(LazyGroup):
    """The commands of ``dios lab``, in the order in which its help lists them."""

    rows: ClassVar[Sequence[CommandRow]] = section_rows(
        Section.RESEARCH,
        "labs.commands",
        ("repro", "experiments:app*", "Repeat the experiments of the papers that DIOS implements."),
        ("simulate", "simulate:app", "Simulate hours of a cluster under the real scheduler."),
        ("compare", "compare:app", "Simulate one workload under each cost model, in one table."),
        ("fair", "fair:app", "Simulate fair shares of several resources on traces."),
        ("pack", "pack:app", "Compare policies on jobs over time in a data centre."),
        ("calibrate", "calibrate:app", "Measure how kinds of work disturb each other here."),
        ("solve", "solve:app", "Find the cheapest flow of a network, and check it."),
        ("flows", "flows:app", "Show the sizes and the number of flows in a capture."),
    )


app: Final = CommandApplication(cls=LabCommands, no_args_is_help=True)


@app.callback()
def lab() -> None:
    """Repeat the papers' experiments, simulate clusters, solve flows."""


def _output(place: str, *, many: bool = False) -> Output:
    return Output((f"labs.{place}",), many)


JSON: Final[Mapping[str, Output]] = {
    "lab simulate": _output("simulate.scheduling.report:OutcomeSummary"),
    "lab compare": _output("simulate.scheduling.compare:ComparedModelRow", many=True),
    "lab fair": _output("commands.fair:FairSummaryRow"),
    "lab pack": _output("commands.pack:PackingSummaryRow"),
    "lab calibrate": _output("commands.calibrate:CalibrationRow"),
    "lab solve": _output("commands.solve:SolvedRow"),
    "lab flows": _output("papers.sprayer.trace:TraceReport"),
    **{
        f"lab repro {family}": _output("papers.figures:WrittenFigureRow", many=True)
        for family in ("dios", "interference", "firmament", "sdrf", "dc-drf", "packer", "sprayer")
    },
}
"""The types of what these commands print with ``--json``, for ``dios schema``."""
