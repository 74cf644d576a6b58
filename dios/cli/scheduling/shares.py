"""``dios shares`` and ``dios quota``: each principal's share of the cluster, and its upper bound.

The cluster's coordinator gives the answers (``dios.firmament.coordinator.query_handler``). The limits of
single nodes are shown by ``dios limits``.
"""

from __future__ import annotations

import contextlib
import json
import sys
import time
from typing import Annotated, Final

import typer

from dios.cli.common.application import CommandApplication
from dios.cli.common.output import (
    JsonOption,
    NodeOption,
    reporting,
    say,
    size_text,
    span_text,
    table,
    write_json,
)
from dios.cli.common.principals import principal_of, principal_text
from dios.cli.scheduling.live import ask
from dios.errors import InvalidError
from dios.node.limit_text import NONE, parse_size

WATCH_S: Final = 1.0
_CLEAR: Final = "\x1b[H\x1b[2J"
_SHARES: Final = "\b\nFor example:\n  dios shares\n  dios shares --watch\n  dios shares --json"
_SET: Final = (
    "\b\nFor example:\n  dios quota set alice --weight 2\n  dios quota set uid:1000 cpus=16 memory=64GiB\n"
    "  dios quota set uid:1000 cpus=none"
)
_BYTES: Final = frozenset({"memory", "disk_io", "network"})
_HEAD: Final = (
    "PRINCIPAL",
    "WEIGHT",
    "RIGHT",
    "SHARE",
    "OF",
    "COMMITMENT",
    "CREDIT",
    "RUN",
    "WAIT",
    "TURN",
    "QUOTA",
)
_RIGHT: Final = ("WEIGHT", "RIGHT", "SHARE", "COMMITMENT", "CREDIT", "RUN", "WAIT")
_RULES: Final = {
    "sdrf": "the principal with the least share, and the least excess in the past, goes first",
    "drf": "the principal with the least share goes first",
    "fifo": "no principal goes first; the cost model alone decides",
}

app: Final = CommandApplication()
quota_app: Final = CommandApplication()


@app.command(epilog=_SHARES)
def shares(
    *,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Repeat every second until Ctrl-C.")] = False,
    node: NodeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show who shares the cluster, and who goes first while there is not room for all.

    RIGHT is a principal's part by weight. SHARE is the largest part of any resource that it holds, and OF
    names that resource. COMMITMENT is what it took beyond its right, averaged over the past. CREDIT is how
    far its commitment lies below the mean of all principals. TURN is its place in the order of principals
    with waiting tasks, and the time until it is the next one if no task starts or ends. The user who runs
    the nodes sees all principals; others see themselves. With --watch --json, each update is one line.
    """
    with reporting("dios shares", as_json=as_json):
        if not watch:
            answer = ask(node, {"ask": "shares"})
            write_json(answer) if as_json else _show(answer)
            return
        with contextlib.suppress(KeyboardInterrupt):
            while True:
                answer = ask(node, {"ask": "shares"})
                if as_json:
                    sys.stdout.write(json.dumps(answer) + "\n")
                else:
                    if sys.stdout.isatty():
                        sys.stdout.write(_CLEAR)
                    _show(answer)
                sys.stdout.flush()
                time.sleep(WATCH_S)


@quota_app.callback(invoke_without_command=True, epilog=_SET)
def quota(context: typer.Context, *, node: NodeOption = None, as_json: JsonOption = False) -> None:
    """Show each principal's weight, and how much of the cluster it may hold at once."""
    with reporting("dios quota", as_json=as_json):
        if context.invoked_subcommand is not None:
            if node is not None or as_json:
                raise InvalidError("put options after the command: dios quota set ... --json")
            return
        answer = ask(node, {"ask": "shares"})
        if as_json:
            write_json(answer["principals"])
        else:
            _show_terms(answer)


@quota_app.command("set", epilog=_SET)
def set_quota(
    principal: Annotated[str, typer.Argument(metavar="WHO", help="uid:1000, or a user name.")],
    bounds: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="WORD=VALUE...",
            help="tasks, cpus, devices, memory, disk_io or network: a number, a size (64GiB), or none.",
        ),
    ] = None,
    *,
    weight: Annotated[
        float | None,
        typer.Option(
            "--weight", metavar="W", help="A principal's right is its part of all weights. Initially 1."
        ),
    ] = None,
    node: NodeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Set how much of the cluster a principal may hold at once, or its weight.

    Only the user who runs the nodes may do this. Each node enforces the quota for every task that starts
    there, and it survives restarts of coordinators and nodes. Tasks that already run are not stopped, even
    above a new quota.
    """
    with reporting("dios quota set", as_json=as_json):
        wanted = dict(_bound(word) for word in bounds or [])
        if not wanted and weight is None:
            raise InvalidError("nothing to set: give --weight W, or bounds like cpus=16; --help shows them")
        who = principal_of(principal)
        if not who:
            raise InvalidError(f"{principal!r} is not a principal: give uid:1000, or a user name")
        answer = ask(node, {"ask": "quota", "principal": who, "weight": weight, "quota": wanted})
        if as_json:
            write_json(answer["principals"])
            return
        _show_terms(answer)
        say("`dios shares` shows the share of each principal")


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


def _accounts(answer: dict[str, object]) -> list[dict[str, object]]:
    rows = answer["principals"]
    return [row for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []


def _show(answer: dict[str, object]) -> None:
    rows = [
        (
            principal_text(str(row["principal"])),
            f"{row['weight']:g}",
            _part(row["entitlement"]),
            _part(row["share"]),
            str(row["resource"]),
            _part(row["commitment"]),
            _part(row["credit"], signed=True),
            str(row["running"]),
            str(row["waiting"]),
            _turn_text(row),
            _quota_text(row["quota"]),
        )
        for row in _accounts(answer)
    ]
    if rows:
        table(_HEAD, rows, right=_RIGHT)
    else:
        say("no principal has run anything that was scheduled yet; try `dios run --cpus 1 job.py`")
    rule = str(answer["fairness"])
    if rule == "sdrf":
        span = f"; the past counts for {span_text(round(float(str(answer['memory_s'])) * 1e9))}"
    else:
        span = ""
    say(f"{rule}: {_RULES.get(rule, '')}{span}; shared by {answer['sharing']}")
    rates = answer.get("rates")
    for row in rates if isinstance(rates, list) else []:
        who = principal_text(str(row["principal"]))
        say(f"rate: {who} at most {size_text(int(row['bytes_s']))}/s of {row['traffic']} at {row['node']}")
    by = answer.get("rates_by")
    if rates and isinstance(by, dict):
        say(rate_solution_text(by))


def rate_solution_text(by: dict[str, object]) -> str:
    """Return a sentence about the algorithm of the rates and its time."""
    took, exact = (f"{1000 * float(str(by[key])):.1f} ms" for key in ("seconds", "exact_s"))
    size = f"{by['principals']} principals at {by['resources']} links and disks"
    if by["algorithm"] == "edrf":
        return f"rates by EDRF, exact, in {took}: {size}"
    left = f"at most {_part(by['epsilon'])} of a link or disk is left over"
    end = left if by["completed"] else "its deadline came first, so more may be left over"
    return f"rates by DC-DRF in {took}, because exact ones took {exact}; {end}: {size}"


def _show_terms(answer: dict[str, object]) -> None:
    rows = [
        (
            principal_text(str(row["principal"])),
            f"{row['weight']:g}",
            _part(row["entitlement"]),
            _quota_text(row["quota"]),
        )
        for row in _accounts(answer)
    ]
    table(("PRINCIPAL", "WEIGHT", "RIGHT", "QUOTA"), rows, right=("WEIGHT", "RIGHT"))


def _part(value: object, *, signed: bool = False) -> str:
    """Format a part of the cluster in per cent; a tiny part does not become 0."""
    part = 100 * float(str(value))
    shown = f"{part:+.1f} %" if signed else f"{part:.1f} %"
    if part and abs(part) < 0.05:
        shown = f"{part:+.1e} %" if signed else f"{part:.1e} %"
    return shown


def _turn_text(row: dict[str, object]) -> str:
    """Format the place in the order, and the time until it is the next; a coordinator may not state them."""
    place, seconds = row.get("turn"), row.get("next_in_s")
    if not isinstance(place, int):
        return "-"
    when = f", in {span_text(round(seconds * 1e9))}" if place > 1 and isinstance(seconds, float) else ""
    return f"{place}{when}"


def _quota_text(value: object) -> str:
    bounds = value if isinstance(value, dict) else {}
    parts = [
        f"{name}={size_text(int(bound)) if name in _BYTES else format(bound, 'g')}"
        for name, bound in bounds.items()
    ]
    return " ".join(parts) or "-"
