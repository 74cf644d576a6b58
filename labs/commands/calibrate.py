"""``dios lab calibrate``: measures the interference of this machine, and gives it to the cost model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final, TypedDict

from dios.cli.common.application import CommandApplication
from dios.cli.common.options import option
from dios.cli.common.output import progress, say, table, write_file, write_json
from dios.cli.common.results import CommonOptions
from dios.cli.scheduling.live import ask, rows_of
from dios.errors import InvalidError

app: Final = CommandApplication()
EXAMPLES: Final = (
    "\b\nFor example:\n"
    "  dios lab calibrate                      # measure, and show; half a minute on a quiet machine\n"
    "  dios lab calibrate --out here.json      # keep the numbers\n"
    "  dios lab calibrate --from here.json --set   # the cluster's model uses them from now on"
)
MODELS: Final = ("coco", "whare-c", "whare-cs", "whare-mcs")
"""The models that use slow-downs; ``whare-m`` looks at no neighbours."""
PARAMETER: Final = "slow_downs"


class CalibrationRow(TypedDict):
    """Slow-downs by class of interference, the text of the models' parameter, and the model that uses it."""

    sharing: str
    processors: list[int]
    classes: list[str]
    slow_downs: list[list[float]]
    parameter: str
    set: str | None


class Calibration(TypedDict):
    """The measurement, as it is kept in a file."""

    sharing: str
    processors: list[int]
    slow_downs: list[list[float]]


@app.command(epilog=EXAMPLES)
def calibrate(
    out: Path | None = option("--out FILE", "File for the numbers, as JSON."),
    source: Path | None = option("--from FILE", "Use the numbers of such a file, and measure nothing."),
    seed: int = option("--seed N", "Seed of the data.", default=1, min=0),
    *,
    apply: bool = option("--set", "Give the numbers to the cluster's present model."),
    quick: bool = option("--quick", "Very short runs: tests that it works, without useful numbers."),
    common: CommonOptions,
) -> None:
    """Measure how much kinds of work disturb each other on this machine, for CoCo and Whare-Map.

    Four programs, one for each class of interference (turtle, sheep, rabbit, devil), run alone and in pairs
    on the two processors that share the most. Run it on a quiet machine of the kind that the cluster has.
    With --set the cluster's model uses the result and keeps its other parameters: CoCo in place of the
    thesis' penalties, Whare-Map for pairs that it has not measured yet.
    """
    from dios.firmament.models.slow_downs import slow_downs_text  # noqa: PLC0415 - loads numpy

    if source is not None and quick:
        raise InvalidError("--from and --quick: give one of them")
    calibration = _measured(seed, quick=quick) if source is None else _read(source)
    parameter = slow_downs_text(calibration["slow_downs"])
    if out is not None:
        write_file(out, json.dumps(calibration, indent=1) + "\n")
    model = _set(common.node, parameter) if apply else None
    _show(calibration, parameter, model, as_json=common.as_json)


def _measured(seed: int, *, quick: bool) -> Calibration:
    from labs.papers.interference import evaluation  # noqa: PLC0415 - loads numpy

    with progress("calibrating") as told:
        matrix = evaluation.class_slow_downs(seed, told, quick=quick)
    return {
        "sharing": str(matrix.sharing),
        "processors": list(matrix.place),
        "slow_downs": matrix.slow_downs,
    }


def _read(source: Path) -> Calibration:
    """Return the numbers of a file; raise InvalidError if it is not of `dios lab calibrate --out`."""
    import msgspec  # noqa: PLC0415 - only here

    try:
        return msgspec.json.decode(source.read_bytes(), type=Calibration)
    except msgspec.MsgspecError as error:
        raise InvalidError(
            f"{source} is not a calibration: {error}. Make one with `dios lab calibrate --out {source}`."
        ) from None


def _set(node: str | None, parameter: str) -> str:
    """Give the slow-downs to the cluster's model, which keeps its other parameters; return its name."""
    rows = rows_of(ask(node, {"ask": "settings"}), "settings")
    model = next(str(row["value"]) for row in rows if row["setting"] == "model")
    if model not in MODELS:
        raise InvalidError(
            f"the cluster is scheduled by {model}, which looks at no interference classes. Choose one of "
            f"{', '.join(MODELS)} first: dios sched set-model {MODELS[0]}"
        )
    chosen = {
        str(row["setting"]).partition(".")[2]: str(row["value"])
        for row in rows
        if str(row["setting"]).startswith(f"{model}.") and row["value"] != row["default"]
    }
    ask(node, {"ask": "set-model", "model": model, "parameters": {**chosen, PARAMETER: parameter}})
    return model


def _show(calibration: Calibration, parameter: str, model: str | None, *, as_json: bool) -> None:
    from dios.firmament.descriptors import Interference  # noqa: PLC0415 - loads numpy

    classes = [interference.name.lower() for interference in Interference]
    if as_json:
        row: CalibrationRow = {
            **calibration,
            "classes": classes,
            "parameter": f"{PARAMETER}={parameter}",
            "set": model,
        }
        write_json(row)
        return
    rows = [
        (name, *(f"{value:.2f}" for value in values))
        for name, values in zip(classes, calibration["slow_downs"], strict=True)
    ]
    say(f"run time next to another program, by class; the two share {calibration['sharing']}")
    table(("", *(label.upper() for label in classes)), rows)
    if model is None:
        say(f"for the cluster: dios sched set-model coco {PARAMETER}={parameter}")
    else:
        say(f"the cluster's model {model} uses these numbers from now on")
