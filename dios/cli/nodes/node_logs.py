"""``dios node logs``: the newest records of the logs of nodes, merged by time."""

from __future__ import annotations

import json
import re
import sys
import time
from dataclasses import dataclass, field
from typing import Final

import typer

from dios.cli.common.options import argument, option
from dios.cli.common.output import FAILED, counted, say, write_json_line
from dios.cli.common.results import CommonOptions
from dios.cli.common.rows import Row
from dios.client.plain_text import plain
from dios.client.sync.node import Node, connect
from dios.client.tracing.contexts import read_traceparent
from dios.errors import DiosError, InvalidError, NotPermittedError
from dios.host.loop.log_text import one_word
from dios.node.settings import LogLevel

_POLL_S: Final = 0.5
_RANKS: Final = {"debug": 0, "info": 1, "warning": 2, "error": 3, "critical": 4}


class NodeLogRow(Row):
    """A record of a node's log. ``time`` is in nanoseconds since 1970, ``number`` counts from the start."""

    node: str
    time: int
    number: int
    level: str
    source: str
    message: str
    fields: dict[str, str | int | float | bool | None]


@dataclass(slots=True)
class _Place:
    """A node whose log is read, and what was read of it."""

    name: str
    table: str
    position: int = 0
    number: int = 0
    trouble: str = ""


@dataclass(slots=True)
class _Reader:
    """Reads the logs of the nodes of a cluster, or of some of them."""

    connected: Node
    only: frozenset[str]
    places: dict[str, _Place] = field(default_factory=dict)

    def read(self) -> list[NodeLogRow]:
        """Return the records that came since the last time, in the order of their times."""
        self._look_for_nodes()
        rows = [row for place in self.places.values() for row in self._read_one(place)]
        return sorted(rows, key=lambda row: row.time)

    def _look_for_nodes(self) -> None:
        members = self.connected.nodes()
        if not members and not self.only:
            self.places.setdefault("", _Place("", "log"))
        known = {member.name for member in members}
        for name in self.only - known:
            raise InvalidError(
                f"there is no node {name!r}. `dios node ls` lists them: {', '.join(sorted(known)) or 'none'}"
            )
        for member in members:
            if not self.only or member.name in self.only:
                table = "log" if member.here else f"log@{member.name}"
                self.places.setdefault(member.name, _Place(member.name, table))

    def _read_one(self, place: _Place) -> list[NodeLogRow]:
        try:
            records = self.connected.read_table(place.table, start=place.position)
        except NotPermittedError:
            raise
        except DiosError as error:
            if place.trouble != error.message:
                say(f"cannot read the log of {place.name or 'the node'}: {error.message}")
            place.trouble = error.message
            return []
        place.trouble = ""
        rows: list[NodeLogRow] = []
        for record in records:
            number = int(record["number"])
            if place.number and number > place.number + 1:
                dropped = counted(number - place.number - 1, "unread record")
                say(f"{place.name or 'the node'} dropped {dropped}")
            place.position, place.number = int(record["position"]) + 1, number
            rows.append(
                NodeLogRow(
                    place.name,
                    int(record["position"]),
                    number,
                    str(record["level"]),
                    str(record["from"]),
                    str(record["message"]),
                    json.loads(str(record["fields"])),
                )
            )
        return rows


def node_logs(
    names: list[str] | None = argument("[NODE]...", "Only these nodes; default: every node of the cluster."),
    *,
    follow: bool = option("-f --follow", "Go on with new records until Ctrl-C."),
    level: LogLevel = option("-l --level", "The least severe record to show.", default=LogLevel.DEBUG),
    lines: int | None = option("-n --lines N", "Begin with the newest N records.", min=0),
    trace: str | None = option("-t --trace ID", "Only records of this trace: its id, or a `traceparent`."),
    common: CommonOptions,
) -> None:
    """Show the newest records of the nodes' own logs, merged by time.

    A node keeps its newest records in memory (docs/observe.md), also if its log is a file or systemd's
    journal; the setting log_level decides which there are. Only the user who runs the nodes, and root, may
    read them.
    `dios logs` shows the output of tasks.

    With --trace only the records of one trace are shown, whose id `dios trace record` prints. A node logs the
    arrival of each traced call at the level debug.

    With --json each record is one line. The exit status is 1 if a node could not be read.
    """
    with connect(common.node, groups=(), start=False) as connected:
        reader = _Reader(connected, frozenset(names or ()))
        wanted = None if trace is None else _trace_id(trace)
        rows = _chosen(reader.read(), level, wanted)
        _show(rows if lines is None else rows[len(rows) - min(lines, len(rows)) :], as_json=common.as_json)
        while follow:
            time.sleep(_POLL_S)
            _show(_chosen(reader.read(), level, wanted), as_json=common.as_json)
        if any(place.trouble for place in reader.places.values()):
            raise typer.Exit(FAILED)


def _chosen(rows: list[NodeLogRow], level: LogLevel, trace: str | None) -> list[NodeLogRow]:
    least = _RANKS[level.value]
    return [
        row
        for row in rows
        if _RANKS.get(row.level, 0) >= least and (trace is None or row.fields.get("trace_id") == trace)
    ]


def _trace_id(text: str) -> str:
    """Return the id of a trace, from its digits or from a ``traceparent``. Raise ``InvalidError``."""
    context = read_traceparent(text)
    if context is not None:
        return context.trace.hex()
    if re.fullmatch("[0-9a-fA-F]{32}", text) is None:
        raise InvalidError(
            f"--trace is {plain(text[:80])!r}. Give the 32 hexadecimal digits of a trace, or a traceparent"
        )
    return text.lower()


def _show(rows: list[NodeLogRow], *, as_json: bool) -> None:
    for row in rows:
        if as_json:
            write_json_line(row)
        else:
            sys.stdout.write(_text(row) + "\n")
    sys.stdout.flush()


def _text(row: NodeLogRow) -> str:
    whole, rest = divmod(row.time, 1_000_000_000)
    when = time.strftime("%m-%d %H:%M:%S", time.localtime(whole))
    fields = "".join(f" {key}={one_word(value)}" for key, value in row.fields.items() if key != "node")
    said = f"{row.source.removeprefix('dios.')}: {row.message}{fields}"
    return plain(f"{when}.{rest // 1_000_000:03} {row.node or '-'} {row.level:<7} {said}")
