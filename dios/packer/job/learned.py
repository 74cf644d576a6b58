"""Jobs made from the measured use of their tasks in earlier runs (Packer paper, III-A: demand profiling).

This module implements `dios pack learn`. A cluster's coordinators measure and keep the values. They come here
as plain numbers, and the result is the text of a job (``ti_mra``).

Demands are the measured values: at each instant the most of all values that overlap it, plus a margin, with
almost equal neighbours made equal, and rounded up. A reservation is therefore never less than the measured
use. A job is stopped when its time is over, so tasks may be given spare time; during that they demand the use
of their last instants, however late they are.
"""

from __future__ import annotations

import math
import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

import numpy as np

from dios.limits import PACKER_NODES_MAX
from dios.packer.job.ti_mra import RESOURCES, Floats, JobError, TiMra, quoted
from dios.packer.job.timeline import TaskUsage, Timeline

MIB: Final = 2**20
MB: Final = 1e6
MBIT: Final = 1e6 / 8
"""One Mbit/s in bytes per second."""

CHANNELS: Final = {
    "cpu": ("cpu_milli", 1000.0, 100),
    "memory": ("memory", float(MIB), 1),
    "disk_write": ("disk_write", MB, 100),
    "disk_read": ("disk_read", MB, 100),
}
"""By resource: its channel, the channel's amount per unit of the resource, and the parts to round to."""
_DISKS: Final = frozenset({"disk_write", "disk_read"})
RATE_MIN_S: Final = 1e5
"""Fewer bytes a second of a disk or a link are not demanded. Every task writes a line now and then, and a job
with any disk demand does not fit on a server whose disk rates are unknown."""
_BANDWIDTH_PARTS: Final = 100
MERGE_RATIO: Final = 1.1
"""Neighbouring instants are merged if the largest is at most this factor above the least."""
MERGE_FRACTION: Final = 0.02
"""Neighbouring instants are also merged if they differ by less than this fraction of the overall maximum."""
_COPY: Final = re.compile(r"(.+)\.(\d+)")
_BARE: Final = re.compile(r"[A-Za-z0-9_-]+")


def fresh_job(
    name: str,
    members: Sequence[TaskUsage],
    *,
    instant_s: float = 1.0,
    margin: float = 1.1,
    spare_s: float = 0.0,
) -> str:
    """Return the text of a job of these tasks. It has no edges, because dependencies are not measured.

    Copies (``map.0``, ``map.1``, ...) become one task with a count, which demands the most of all of them.

    Raises:
        JobError: there are too many instants or tasks; the message says what to do.
    """
    time = Timeline(members, instant_s, spare_s)
    if len(members) > PACKER_NODES_MAX:
        raise JobError("tasks", f"are {len(members)}; at most {PACKER_NODES_MAX} are possible")
    lines = [
        f"name = {quoted(name)}",
        f"instants = {time.instants}",
        f"instant_s = {float(instant_s)!r}",
    ]
    for group, names in _groups(time.members):
        lines += ["", f"[tasks.{_key(group)}]"]
        if names != [group]:
            lines.append(f"count = {len(names)}")
        lines += _task(time, names, {}, margin)
    return "\n".join(lines) + "\n"


def job_from(
    source: str | Path,
    members: Sequence[TaskUsage],
    *,
    instant_s: float = 1.0,
    margin: float = 1.1,
    spare_s: float = 0.0,
) -> str:
    """Return the text of an existing job, given as a file (a ``Path``) or a text, with measured demands.

    The graph, the weight and all other keys stay; comments are dropped. A task without measurements demands
    its previous maximum all the time. An edge gets its part of the traffic that its target received and its
    source sent; an edge without measured traffic between nodes keeps its previous maximum.

    Raises:
        JobError: the job is invalid, or would have too many instants; the message says what to do.
        OSError: the file cannot be read.
    """
    table, before = _read(source)
    time = Timeline(members, instant_s, spare_s)
    names = {kind: _names(table.get(kind)) for kind in ("tasks", "services")}
    lines = [f"name = {quoted(before.name)}", f"instants = {time.instants}"]
    lines.append(f"instant_s = {float(instant_s)!r}")
    for key, value in table.items():
        if key not in {"name", "instants", "instant_s", "tasks", "services", "edges"}:
            lines.append(f"{_key(key)} = {_value(value)}")
    peaks = dict(zip((node.name for node in before.nodes), before.demand.max(axis=1), strict=True))
    for kind in ("tasks", "services"):
        for name, given in _tables(table.get(kind)):
            lines += ["", f"[{kind}.{_key(name)}]"]
            kept = {key: value for key, value in given.items() if key not in {*RESOURCES, "start", "end"}}
            lines += [f"{_key(key)} = {_value(value)}" for key, value in kept.items()]
            copies = names[kind][name]
            previous = dict(zip(RESOURCES, np.max([peaks[copy] for copy in copies], axis=0), strict=True))
            lines += _task(time, copies if kind == "tasks" else [], previous, margin)
    unknown = sorted(time.members.keys() - {copy for copies in names["tasks"].values() for copy in copies})
    if unknown:
        lines += ["", f"# also measured, but no longer a task of this job: {', '.join(unknown)}"]
    lines += _edges(time, table, before, {**names["tasks"], **names["services"]}, margin)
    return "\n".join(lines) + "\n"


# Tasks
def _task(time: Timeline, names: Sequence[str], previous: Mapping[str, float], margin: float) -> list[str]:
    """Return start, end and demands of a task's copies; ``previous`` demands replace missing measurements."""
    first, end = time.life(names)
    lines: list[str] = []
    if first:
        lines.append(f"start = {first}")
    if end < time.instants:
        lines.append(f"end = {end}")
    known = [time.members[name] for name in names if name in time.members]
    if names:
        lines += _remarks(known, names)
    for resource, (channel, unit, parts) in CHANNELS.items():
        use = time.largest_usage(names, channel)
        if use is not None and resource in _DISKS and use.max() < RATE_MIN_S:
            if use.any():
                lines.append(f"# {resource}: less than {RATE_MIN_S / MB:g} MB/s, which is not demanded")
        elif use is not None:
            lines += _demand(resource, _rounded(use[first:end] * (margin / unit), parts), first)
        elif previous.get(resource):
            lines.append(
                f"{resource} = {_number(previous[resource])}" + ("  # not measured" if names else "")
            )
        elif names:
            lines.append(f"# {resource} was not measured")
    return lines


def _remarks(known: Sequence[TaskUsage], names: Sequence[str]) -> list[str]:
    if not known:
        return ["# not measured: it demands its previous maximum all the time"]
    runs = max(usage.runs for usage in known)
    every = sum(max(usage.runs, usage.completed) for usage in known)
    failed = every - sum(usage.completed for usage in known)
    some = "" if len(known) == len(names) else f"; {len(known)} of {len(names)} copies were measured"
    lost = f"; failed or stopped: {failed} of {every}" if failed else ""
    moved = [
        f"{word} up to {_number(float(_rounded(np.array([most / MBIT]), _BANDWIDTH_PARTS)[0]))} Mbit/s"
        for word in ("sent", "received")
        if (most := max((value for usage in known for _, value in usage.values.get(word, ())), default=0))
    ]
    beyond = f"; each {' and '.join(moved)}" if moved else ""
    return [f"# measured in {_count(runs, 'run')}{some}{lost}{beyond}"]


def _groups(members: Iterable[str]) -> list[tuple[str, list[str]]]:
    """Return tasks with their copies; names that end with all numbers from 0 on are copies of one task."""
    names = set(members)
    numbered: dict[str, list[int]] = {}
    for name in names:
        if (match := _COPY.fullmatch(name)) and match[2] == str(int(match[2])):
            numbered.setdefault(match[1], []).append(int(match[2]))
    groups: dict[str, list[str]] = {}
    for group, numbers in numbered.items():
        if group not in names and len(numbers) > 1 and sorted(numbers) == list(range(len(numbers))):
            groups[group] = [f"{group}.{number}" for number in range(len(numbers))]
    single = names - {name for copies in groups.values() for name in copies}
    return sorted({**groups, **{name: [name] for name in single}}.items())


# Edges
def _edges(
    time: Timeline,
    table: Mapping[str, object],
    before: TiMra,
    names: Mapping[str, Sequence[str]],
    margin: float,
) -> list[str]:
    flows = _flows(time, before)
    lines: list[str] = []
    at = 0
    listed = table.get("edges")
    for given in listed if isinstance(listed, list) else []:
        pairs = _pairs(given, names)
        chosen = slice(at, at + pairs)
        at += pairs
        lines += ["", "[[edges]]"]
        lines += [f"{_key(key)} = {_value(value)}" for key, value in given.items() if key != "bandwidth"]
        most = flows[chosen].max(axis=0, initial=0.0)
        previous = float(before.bandwidth[chosen].max(initial=0.0))
        if most.max() >= RATE_MIN_S:
            lines += _demand("bandwidth", _rounded(most * (margin / MBIT), _BANDWIDTH_PARTS), 0)
        elif previous:
            target = names.get(str(given.get("to")), [])
            source = names.get(str(given.get("from")), [])
            measured = [name for name in target if name in time.members] or source
            first, end = time.life(measured)
            kept = np.zeros(time.instants)
            kept[first:end] = previous
            lines.append("# no traffic between nodes was measured: the previous bandwidth")
            lines += _demand("bandwidth", kept, 0)
    return lines


def _flows(time: Timeline, before: TiMra) -> Floats:
    """Return (edges, instants): each edge's part of what its target received and of what its source sent.

    Traffic is divided in proportion to the previous bandwidths, or equally if there were none.
    """
    ends, peaks = before.ends, before.bandwidth.max(axis=1, initial=0.0)
    flows = np.zeros((len(ends), time.instants))
    for side, channel in ((0, "sent"), (1, "received")):
        total = np.bincount(ends[:, side], weights=peaks, minlength=len(before.nodes))
        count = np.bincount(ends[:, side], minlength=len(before.nodes))
        for number, node in enumerate(before.nodes):
            moved = time.usage(node.name, channel)
            if moved is None or not moved.any():
                continue
            for edge in np.flatnonzero(ends[:, side] == number).tolist():
                part = peaks[edge] / total[number] if total[number] else 1 / count[number]
                flows[edge] += part * moved
    return flows


def _pairs(given: Mapping[str, object], names: Mapping[str, Sequence[str]]) -> int:
    """Return the number of edges that an entry stands for."""
    source, target = str(given.get("from")), str(given.get("to"))
    sources, targets = names.get(source, [source]), names.get(target, [target])
    if given.get("pattern") == "each":
        return len(sources)
    return len(sources) * len(targets) - (len(sources) if source == target else 0)


# Text
def _read(source: str | Path) -> tuple[dict[str, object], TiMra]:
    """Return a job's TOML tables and the job."""
    before = TiMra.from_toml(source)
    text = source.read_text(encoding="utf-8") if isinstance(source, Path) else source
    return tomllib.loads(text), before


def _tables(given: object) -> list[tuple[str, dict[str, object]]]:
    entries = given.items() if isinstance(given, dict) else ()
    return [(str(name), table if isinstance(table, dict) else {}) for name, table in entries]


def _names(given: object) -> dict[str, list[str]]:
    """Return the names of the copies of each task or service."""
    names: dict[str, list[str]] = {}
    for name, table in _tables(given):
        count = table.get("count", 1)
        copies = count if isinstance(count, int) else 1
        names[name] = [name] if copies == 1 else [f"{name}.{number}" for number in range(copies)]
    return names


def _demand(key: str, values: Floats, first: int) -> list[str]:
    """Return a demand of instants from ``first`` on as text; nothing if it is 0."""
    if not values.any():
        return []
    merged = _merged(values.tolist())
    if len(set(merged)) == 1:
        return [f"{key} = {_number(merged[0])}"]
    # A demand is 0 before its first step.
    steps = [(at, value) for at, value in enumerate(merged) if value != (merged[at - 1] if at else 0)]
    text = ", ".join(f"{first + at} = {_number(value)}" for at, value in steps)
    return [f"{key} = {{ {text} }}"]


def _merged(values: Sequence[float]) -> list[float]:
    """Merge almost equal neighbours; each of them gets the highest value."""
    tiny = MERGE_FRACTION * max(values)
    merged: list[float] = []
    begin, least, most = 0, values[0], values[0]
    for at, value in enumerate([*values, math.inf]):
        lower, upper = min(least, value), max(most, value)
        if upper > MERGE_RATIO * lower and upper - lower > tiny:
            merged += [most] * (at - begin)
            begin, least, most = at, value, value
        else:
            least, most = lower, upper
    return merged


def _rounded(values: Floats, parts: int) -> Floats:
    """Round up to whole parts of a unit, ignoring errors of binary fractions."""
    return np.asarray(np.ceil((values * parts).round(6)) / parts)


def _number(value: float) -> str:
    return str(int(value)) if float(value).is_integer() else repr(float(value))


def _count(count: int, word: str) -> str:
    return f"{count} {word}" if count == 1 else f"{count} {word}s"


def _key(name: str) -> str:
    return name if _BARE.fullmatch(name) else quoted(name)


def _value(value: object) -> str:
    """Return any value of TOML's reader as text in one line."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return quoted(value)
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{_key(str(key))} = {_value(entry)}" for key, entry in value.items()) + " }"
    if isinstance(value, list):
        return "[" + ", ".join(map(_value, value)) + "]"
    return repr(value) if isinstance(value, int | float) else str(value)
