"""``dios shares`` and ``dios quota``: each principal's share of the cluster, and its upper bound.

The cluster's coordinator gives the answers (``dios.firmament.coordinator.query_handler``). The limits of
single nodes are shown by ``dios limits``.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final, cast

import typer

from dios.cli.common.application import CommandApplication, calls_group
from dios.cli.common.options import argument, option
from dios.cli.common.output import (
    Cells,
    Number,
    say,
    size_text,
    span_text,
    table_of,
    write_json,
    write_json_line,
)
from dios.cli.common.principals import principal_of, principal_text
from dios.cli.common.results import CommonOptions
from dios.cli.scheduling.live import ask
from dios.errors import InvalidError
from dios.node.limit_text import NONE, parse_size

if TYPE_CHECKING:
    from dios.firmament.coordinator.answers import RateSolutionAnswer, SharesAnswer, SharingAnswer

WATCH_S: Final = 1.0
_CLEAR: Final = "\x1b[H\x1b[2J"
_SET: Final = (
    "dios quota set alice --weight 2\ndios quota set uid:1000 cpus=16 memory=64GiB\n"
    "dios quota set uid:1000 cpus=none"
)
_BYTES: Final = frozenset({"memory", "disk_io", "network"})
_RULES: Final = {
    "sdrf": "the principal with the least share, and the least excess in the past, goes first",
    "drf": "the principal with the least share goes first",
    "fifo": "no principal goes first; the cost model alone decides",
}

app: Final = CommandApplication()
quota_app: Final = CommandApplication()


@app.command(
    examples="dios shares\ndios shares --watch\ndios shares --json",
    json="dios.firmament.coordinator.answers:SharesAnswer",
    note="With --watch each line is such a document.",
)
def shares(
    *, watch: bool = option("-w --watch", "Repeat every second until Ctrl-C."), common: CommonOptions
) -> None:
    """Show who shares the cluster, and who goes first while there is not room for all.

    RIGHT is a principal's part by weight. SHARE is the largest part of any resource that it holds, and OF
    names that resource. COMMITMENT is what it took beyond its right, averaged over the past. CREDIT is how
    far its commitment lies below the mean of all principals. TURN is its place in the order of principals
    with waiting tasks, and the time until it is the next one if no task starts or ends. The user who runs
    the nodes sees all principals; others see themselves. With --watch --json, each update is one line.
    """
    if not watch:
        answer = _ask(common)
        write_json(answer) if common.as_json else _show(answer)
        return
    with contextlib.suppress(KeyboardInterrupt):
        while True:
            answer = _ask(common)
            if common.as_json:
                write_json_line(answer)
            else:
                if sys.stdout.isatty():
                    sys.stdout.write(_CLEAR)
                _show(answer)
                sys.stdout.flush()
            time.sleep(WATCH_S)


def _ask(common: CommonOptions) -> SharesAnswer:
    return cast("SharesAnswer", ask(common.node, {"ask": "shares"}))


@quota_app.callback(
    invoke_without_command=True, examples=_SET, json=["dios.firmament.coordinator.answers:SharingAnswer"]
)
def quota(context: typer.Context, *, common: CommonOptions) -> None:
    """Show each principal's weight, and how much of the cluster it may hold at once."""
    if calls_group(context):
        _print_terms(_ask(common), common)


@quota_app.command("set", examples=_SET, json=["dios.firmament.coordinator.answers:AccountAnswer"])
def set_quota(
    principal: str = argument("WHO", "uid:1000, or a user name."),
    bounds: list[str] | None = argument(
        "WORD=VALUE...",
        "tasks, cpus, devices, memory, disk_io or network: a number, a size (64GiB), or none.",
        default=None,
    ),
    *,
    weight: float | None = option(
        "--weight W", "A principal's right is its part of all weights. Initially 1."
    ),
    common: CommonOptions,
) -> None:
    """Set how much of the cluster a principal may hold at once, or its weight.

    Only the user who runs the nodes may do this. Each node enforces the quota for every task that starts
    there, and it survives restarts of coordinators and nodes. Tasks that already run are not stopped, even
    above a new quota.
    """
    wanted = dict(_bound(word) for word in bounds or [])
    if not wanted and weight is None:
        raise InvalidError("nothing to set: give --weight W, or bounds like cpus=16; --help shows them")
    who = principal_of(principal)
    if not who:
        raise InvalidError(f"{principal!r} is not a principal: give uid:1000, or a user name")
    question: dict[str, object] = {"ask": "quota", "principal": who, "weight": weight, "quota": wanted}
    answer = cast("SharesAnswer", ask(common.node, question))
    _print_terms(answer, common, "`dios shares` shows the share of each principal")


def _bound(word: str) -> tuple[str, float | None]:
    name, equals, value = word.partition("=")
    if not equals or name not in {"tasks", "cpus", "devices", *_BYTES}:
        raise InvalidError(
            f"{word!r} is not a bound: give tasks, cpus, devices, memory, disk_io or network, like cpus=16"
        )
    if value.strip().lower() == NONE:
        return name, None
    try:
        return name, float(parse_size(value)) if name in _BYTES else float(value)
    except ValueError as error:
        hint = str(error) if name in _BYTES else "a number, or none"
        raise InvalidError(f"{name} is {value!r}; it must be {hint}") from None


def _cells(row: SharingAnswer) -> Cells:
    return {
        "PRINCIPAL": principal_text(row["principal"]),
        "WEIGHT": Number(f"{row['weight']:g}"),
        "RIGHT": _part(row["entitlement"]),
        "SHARE": _part(row["share"]),
        "OF": row["resource"],
        "COMMITMENT": _part(row["commitment"]),
        "CREDIT": _part(row["credit"], signed=True),
        "RUN": row["running"],
        "WAIT": row["waiting"],
        "TURN": _turn_text(row),
        "QUOTA": _quota_text(row["quota"]),
    }


def _show(answer: SharesAnswer) -> None:
    if not table_of(map(_cells, answer["principals"])):
        say("no principal has run anything that was scheduled yet; try `dios run --cpus 1 job.py`")
    rule, span = answer["fairness"], ""
    if rule == "sdrf":
        span = f"; the past counts for {span_text(round(answer['memory_s'] * 1e9))}"
    say(f"{rule}: {_RULES.get(rule, '')}{span}; shared by {answer['sharing']}")
    rates, by = answer.get("rates", []), answer.get("rates_by")
    for rate in rates:
        who = principal_text(rate["principal"])
        say(f"rate: {who} at most {size_text(rate['bytes_s'])}/s of {rate['traffic']} at {rate['node']}")
    if rates and by is not None:
        say(rate_solution_text(by))


def rate_solution_text(by: RateSolutionAnswer) -> str:
    """Return a sentence about the algorithm of the rates and its time."""
    took, exact = (f"{1000 * seconds:.1f} ms" for seconds in (by["seconds"], by["exact_s"]))
    size = f"{by['principals']} principals at {by['resources']} links and disks"
    if by["algorithm"] == "edrf":
        return f"rates by EDRF, exact, in {took}: {size}"
    left = f"at most {_part(by['epsilon'])} of a link or disk is left over"
    end = left if by["completed"] else "its deadline came first, so more may be left over"
    return f"rates by DC-DRF in {took}, because exact ones took {exact}; {end}: {size}"


def _print_terms(answer: SharesAnswer, common: CommonOptions, *notices: str) -> None:
    common.print_rows(
        answer["principals"],
        lambda row: {
            "PRINCIPAL": principal_text(row["principal"]),
            "WEIGHT": Number(f"{row['weight']:g}"),
            "RIGHT": _part(row["entitlement"]),
            "QUOTA": _quota_text(row["quota"]),
        },
        notices,
    )


def _part(part: float, *, signed: bool = False) -> Number:
    """Format a part of the cluster in per cent; a tiny part does not become 0."""
    tiny = part and abs(part) < 0.0005
    return Number(f"{100 * part:{'+' if signed else ''}.1{'e' if tiny else 'f'}} %")


def _turn_text(row: SharingAnswer) -> str:
    """Format the place in the order, and the time until it is the next; a coordinator may not state them."""
    place, seconds = row.get("turn"), row.get("next_in_s")
    if place is None:
        return "-"
    return str(place) if place < 2 or seconds is None else f"{place}, in {span_text(round(seconds * 1e9))}"


def _quota_text(bounds: Mapping[str, float]) -> str:
    parts = [
        f"{name}={size_text(int(bound)) if name in _BYTES else format(bound, 'g')}"
        for name, bound in bounds.items()
    ]
    return " ".join(parts) or "-"
