"""TI-MRA: a job's needs over time (Packer paper, section II-A).

Ready-made jobs are in ``dios.packer.templates``.

A job is a graph. Nodes are tasks, and services that the job uses. Directed edges carry bandwidth; unless
``depends`` is False, their target depends on their source. Time is counted in instants of equal length.
"""

from __future__ import annotations

import heapq
import math
import re
import tomllib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Final, TypeAlias, cast

import numpy as np
import numpy.typing as npt

from dios.limits import (
    PACKER_AMOUNT_MAX,
    PACKER_CELLS_MAX,
    PACKER_EDGES_MAX,
    PACKER_INSTANTS_MAX,
    PACKER_NODES_MAX,
    PACKER_TEXT_BYTES_MAX,
)
from dios.wire.suggestions import suggestion

Floats: TypeAlias = npt.NDArray[np.float64]
Ints: TypeAlias = npt.NDArray[np.int64]

Number: TypeAlias = float | np.float32 | np.int64
Demand: TypeAlias = Number | Sequence[float] | Mapping[int, Number] | Floats
"""A constant, one number for each instant, or steps: the new number by the instant of the change."""

RESOURCES: Final = ("cpu", "memory", "disk_write", "disk_read")
UNITS: Final = ("cores", "MiB", "MB/s", "MB/s")
"""The units in messages and examples; any unit works if the data centre uses the same."""


class JobError(ValueError):
    """An invalid job; ``field`` is the field at fault, as in ``tasks.map.cpu``."""

    def __init__(self, field_at_fault: str, trouble: str) -> None:
        super().__init__(f"{field_at_fault} {trouble}")
        self.field = field_at_fault
        self.trouble = trouble


@dataclass(frozen=True, slots=True)
class Node:
    """A task, or a service that the job uses if ``service`` names one (v in K or C of the paper).

    ``cpu``, ``memory``, ``disk_write`` and ``disk_read`` are demands over time (delta(v, r, t)). The node
    runs from the instant ``start`` to before ``end`` (None: the job's end); outside of that time, constants
    and steps count as 0. ``after`` names nodes that must precede it although they send it nothing.
    """

    name: str
    cpu: Demand = 0.0
    memory: Demand = 0.0
    disk_write: Demand = 0.0
    disk_read: Demand = 0.0
    start: int = 0
    end: int | None = None
    after: tuple[str, ...] = ()
    service: str | None = None

    @property
    def field(self) -> str:
        """The node's name in messages."""
        return f"{'tasks' if self.service is None else 'services'}.{self.name}"


@dataclass(frozen=True, slots=True)
class Edge:
    """The traffic from ``source`` to ``target``: ``bandwidth`` over time (sigma(e, t)).

    With ``depends=False`` it is traffic only, such as the answers to requests, and may close a cycle.
    """

    source: str
    target: str
    bandwidth: Demand = 0.0
    depends: bool = True


@dataclass(frozen=True, eq=False)
class TiMra:
    """A job: nodes, edges, and ``instants`` of ``instant_s`` seconds (Packer paper, section II-A).

    ``weight`` in [0, 1] counts when bandwidth beyond the guarantees is shared (section II-C).

    Raises ``JobError``, a ``ValueError``, with the field at fault: an unknown or duplicate node, a cycle of
    dependencies, a demand that is negative, not finite or of the wrong length, or instants out of range.
    """

    name: str
    nodes: Sequence[Node]
    edges: Sequence[Edge] = ()
    instants: int = 1
    instant_s: float = 1.0
    weight: float = 0.5
    demand: Floats = field(init=False, repr=False)
    """(nodes, instants, 4), in the order of ``RESOURCES``."""
    bandwidth: Floats = field(init=False, repr=False)
    """(edges, instants)."""
    ends: Ints = field(init=False, repr=False)
    """(edges, 2): the indices of source and target in ``nodes``."""
    order: Ints = field(init=False, repr=False)
    """(nodes,): by start, and after its dependencies (SortNodes, Algorithm 1, line 5)."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "nodes", tuple(self.nodes))
        object.__setattr__(self, "edges", tuple(self.edges))
        self._check_sizes()
        index = self._index_names()
        demand = np.zeros((len(self.nodes), self.instants, len(RESOURCES)))
        for at, node in enumerate(self.nodes):
            life = self._life(node)
            for which, resource in enumerate(RESOURCES):
                given: Demand = getattr(node, resource)
                demand[at, :, which] = _over_time(f"{node.field}.{resource}", given, self.instants, life)
        ends = np.zeros((len(self.edges), 2), np.int64)
        bandwidth = np.zeros((len(self.edges), self.instants))
        for at, edge in enumerate(self.edges):
            place = f"edges[{at}]"
            for side, (key, name) in enumerate((("from", edge.source), ("to", edge.target))):
                if name not in index:
                    raise JobError(f"{place}.{key}", f"is {name!r}, but there is no such task or service")
                ends[at, side] = index[name]
            if edge.source == edge.target:
                raise JobError(f"{place}.to", f"is {edge.target!r}, the same as from; name another node")
            bandwidth[at] = _over_time(f"{place}.bandwidth", edge.bandwidth, self.instants, None)
        for name, array in (("demand", demand), ("bandwidth", bandwidth), ("ends", ends)):
            array.setflags(write=False)
            object.__setattr__(self, name, array)
        object.__setattr__(self, "order", self._sort_nodes(index))

    @classmethod
    def from_toml(cls, source: str | Path) -> TiMra:
        """Read a job from a file (a ``Path``, or a string of one line) or from a text; see docs/packer.md.

        Raises ``JobError`` with the file and the line at fault, and ``OSError``.
        """
        return read_toml(source)

    def to_toml(self) -> str:
        """Return the job as a text; ``from_toml`` reads it back to an equal job."""
        return write_toml(self)

    def same_as(self, other: TiMra) -> bool:
        """Return True if both jobs have the same needs, even if they were written differently."""
        return (
            (self.name, self.instants, self.instant_s, self.weight)
            == (other.name, other.instants, other.instant_s, other.weight)
            and [(node.name, node.service, set(node.after)) for node in self.nodes]
            == [(node.name, node.service, set(node.after)) for node in other.nodes]
            and [edge.depends for edge in self.edges] == [edge.depends for edge in other.edges]
            and np.array_equal(self.ends, other.ends)
            and np.array_equal(self.demand, other.demand)
            and np.array_equal(self.bandwidth, other.bandwidth)
        )

    def start_of(self) -> Ints:
        """Return (nodes,): the first instant at which each node needs, sends or receives anything."""
        busy: npt.NDArray[np.bool_] = np.asarray((self.demand > 0.0).any(axis=2))
        for (source, target), flow in zip(self.ends, self.bandwidth, strict=True):
            busy[[source, target]] |= flow > 0.0
        return np.where(busy.any(axis=1), busy.argmax(axis=1), [node.start for node in self.nodes])

    def resampled(self, instant_s: float) -> TiMra:
        """Return the same job in instants of another length, with the most of all instants that overlap."""
        if not (math.isfinite(instant_s) and instant_s > 0.0):
            raise JobError("instant_s", f"is {instant_s}; it must be finite and above 0")
        if instant_s == self.instant_s:
            return self
        ratio = instant_s / self.instant_s
        # Rounding must not turn 3 * 0.1 s into four instants.
        wanted = self.instants * (self.instant_s / instant_s)
        if not wanted <= PACKER_INSTANTS_MAX:
            trouble = f"is {self.instants}, which is {wanted:g} in instants of {instant_s:g} s;"
            raise JobError("instants", f"{trouble} at most {PACKER_INSTANTS_MAX} are possible")
        count = max(1, math.ceil(wanted - 1e-9))
        first = [min(self.instants - 1, int(at * ratio + 1e-9)) for at in range(count)]
        last = [min(self.instants, max(1, math.ceil((at + 1) * ratio - 1e-9))) for at in range(count)]
        spans = [slice(a, max(b, a + 1)) for a, b in zip(first, last, strict=True)]
        demand = np.stack([self.demand[:, span].max(axis=1) for span in spans], axis=1)
        bandwidth = np.stack([self.bandwidth[:, span].max(axis=1, initial=0.0) for span in spans], axis=1)
        return self.with_arrays(demand, bandwidth, instant_s=instant_s)

    def with_arrays(self, demand: Floats, bandwidth: Floats, *, instant_s: float | None = None) -> TiMra:
        """Return the same graph with other demands (nodes, T, 4) and bandwidth (edges, T)."""
        nodes = []
        for node, (cpu, memory, write, read) in zip(self.nodes, np.moveaxis(demand, 2, 1), strict=True):
            nodes.append(Node(node.name, cpu, memory, write, read, after=node.after, service=node.service))
        edges = [
            Edge(edge.source, edge.target, bandwidth[at], depends=edge.depends)
            for at, edge in enumerate(self.edges)
        ]
        length = self.instant_s if instant_s is None else instant_s
        return TiMra(self.name, nodes, edges, demand.shape[1], length, self.weight)

    def _check_sizes(self) -> None:
        if not 1 <= self.instants <= PACKER_INSTANTS_MAX:
            raise JobError("instants", f"is {self.instants}; it must be from 1 to {PACKER_INSTANTS_MAX}")
        if not (math.isfinite(self.instant_s) and self.instant_s > 0.0):
            raise JobError("instant_s", f"is {self.instant_s}; it must be finite and above 0")
        if not 0.0 <= self.weight <= 1.0:
            raise JobError("weight", f"is {self.weight}; it must be in [0, 1]")
        if not 1 <= len(self.nodes) <= PACKER_NODES_MAX:
            raise JobError("tasks", f"are {len(self.nodes)}; a job has from 1 to {PACKER_NODES_MAX}")
        if len(self.edges) > PACKER_EDGES_MAX:
            raise JobError("edges", f"are {len(self.edges)}; at most {PACKER_EDGES_MAX} are possible")
        if (len(self.nodes) * len(RESOURCES) + len(self.edges)) * self.instants > PACKER_CELLS_MAX:
            raise JobError(
                "instants",
                f"is {self.instants}, too many for {len(self.nodes)} nodes and {len(self.edges)} edges",
            )

    def _index_names(self) -> dict[str, int]:
        index: dict[str, int] = {}
        for at, node in enumerate(self.nodes):
            if not node.name:
                raise JobError("tasks", "has an entry without a name; give it one")
            if node.name in index:
                raise JobError(node.field, "is defined twice; names must differ")
            index[node.name] = at
        return index

    def _life(self, node: Node) -> tuple[int, int]:
        end = self.instants if node.end is None else node.end
        if not 0 <= node.start < self.instants:
            raise JobError(
                f"{node.field}.start", f"is {node.start}; it must be from 0 to {self.instants - 1}"
            )
        if not node.start < end <= self.instants:
            raise JobError(
                f"{node.field}.end", f"is {end}; it must be from {node.start + 1} to {self.instants}"
            )
        return node.start, end

    def _sort_nodes(self, index: Mapping[str, int]) -> Ints:
        """Return every node after its dependencies, among the possible ones the earliest start first."""
        needed = [
            (int(source), int(target))
            for (source, target), edge in zip(self.ends, self.edges, strict=True)
            if edge.depends
        ]
        for at, node in enumerate(self.nodes):
            for name in node.after:
                if name not in index:
                    raise JobError(
                        f"{node.field}.after", f"names {name!r}, but there is no such task or service"
                    )
                needed.append((index[name], at))
        waits, follow = [0] * len(self.nodes), [[] for _ in self.nodes]  # type: list[int], list[list[int]]
        for source, target in needed:
            waits[target] += 1
            follow[source].append(target)
        start = self.start_of()
        ready = [(int(start[at]), at) for at, count in enumerate(waits) if count == 0]
        heapq.heapify(ready)
        done: list[int] = []
        while ready:
            _, at = heapq.heappop(ready)
            done.append(at)
            for target in follow[at]:
                waits[target] -= 1
                if waits[target] == 0:
                    heapq.heappush(ready, (int(start[target]), target))
        if len(done) < len(self.nodes):
            raise JobError("edges", f"form a cycle of dependencies: {self._cycle(needed, set(done))}")
        return np.array(done, np.int64)

    def _cycle(self, needed: Sequence[tuple[int, int]], done: set[int]) -> str:
        """Return the names of one cycle; each of the nodes that are left waits for another one of them."""
        before = {target: source for source, target in needed if source not in done}
        at = next(iter(before))
        seen: list[int] = []
        while at not in seen:
            seen.append(at)
            at = before[at]
        circle = [*seen[seen.index(at) :], at][::-1]
        return " -> ".join(self.nodes[number].name for number in circle)


def _over_time(place: str, given: Demand, instants: int, life: tuple[int, int] | None) -> Floats:
    """Return a demand at each instant; constants and steps are 0 outside of ``life``."""
    start, end = life or (0, instants)
    amounts = np.zeros(instants)
    if isinstance(given, Mapping):
        steps = sorted(given.items())
        for at, (instant, value) in enumerate(steps):
            if not 0 <= instant < instants:
                raise JobError(place, f"has a step at {instant}; it must be from 0 to {instants - 1}")
            amounts[instant : steps[at + 1][0] if at + 1 < len(steps) else instants] = _checked_number(
                place, value
            )
        amounts[:start] = amounts[end:] = 0.0
    elif isinstance(given, int | float | np.number):
        amounts[start:end] = _checked_number(place, given)
    else:
        if len(given) != instants:
            raise JobError(
                place, f"has {len(given)} numbers; it must have one for each of the {instants} instants"
            )
        try:
            amounts[:] = given
        except (TypeError, ValueError, OverflowError):
            raise JobError(place, "holds a value that is not a number or is too large") from None
        good = (amounts >= 0.0) & (amounts <= PACKER_AMOUNT_MAX)
        if not good.all():
            _checked_number(f"{place}[{int(np.argmin(good))}]", float(amounts[int(np.argmin(good))]))
        outside = np.flatnonzero(amounts[end:])
        if amounts[:start].any() or outside.size:
            raise JobError(place, f"is not 0 outside of the node's time, {start} to {end}")
    return amounts


def _checked_number(place: str, value: object) -> float:
    if isinstance(value, int | float | np.number) and not isinstance(value, bool):
        if 0.0 <= value <= PACKER_AMOUNT_MAX:
            return float(value)
        value = (
            f"{float(value):g}" if isinstance(value, float | np.number) or abs(value) < 2**53 else "too large"
        )
        raise JobError(place, f"is {value}; it must be a number from 0 to {PACKER_AMOUNT_MAX:g}")
    raise JobError(place, f"is {value!r}; it must be a number from 0 to {PACKER_AMOUNT_MAX:g}")


NODE_FIELDS: Final = tuple(node_field.name for node_field in fields(Node) if node_field.name != "name")


# Jobs as TOML: the format that docs/packer.md describes ------------------------------------------------

JOB_KEYS: Final = ("name", "instants", "instant_s", "weight", "tasks", "services", "edges")
EDGE_KEYS: Final = ("from", "to", "bandwidth", "depends", "pattern")
NODE_KEYS: Final = (*NODE_FIELDS, "count")
RUN_KEYS: Final = ("program", "args", "inputs")
"""Keys of a task that are for `dios run JOB.toml` and are ignored here."""
PATTERNS: Final = ("all", "each")

_HEADER: Final = re.compile(r"\s*(\[\[?)\s*([^\]]+?)\s*\]")
_KEY: Final = re.compile(r"\s*([\w\"'.-]+)\s*=")


def read_toml(source: str | Path) -> TiMra:
    """Return the job in a file or a text; a ``JobError`` begins with the file and the line."""
    if isinstance(source, Path) or "\n" not in source:
        path = Path(source)
        origin = str(path)
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError as error:
            raise JobError(origin, f"is not UTF-8 text: {error}") from None
    else:
        origin, text = "the job", source
    if len(text) > PACKER_TEXT_BYTES_MAX:
        raise JobError(origin, f"is longer than {PACKER_TEXT_BYTES_MAX} characters; shorten it")
    try:
        table: dict[str, object] = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        # The reader also raises for numbers of thousands of digits and for deeply nested lists.
        raise JobError(origin, f"is not valid TOML: {error}") from None
    try:
        return _job(table)
    except JobError as error:
        line = _line_of(text, error.field)
        place = f"{origin}:{line}: {error.field}" if line else f"{origin}: {error.field}"
        raise JobError(place, error.trouble) from None


def _job(table: Mapping[str, object]) -> TiMra:
    _check_keys("", table, JOB_KEYS)
    members: dict[str, list[str]] = {}
    nodes: list[Node] = []
    for kind in ("tasks", "services"):
        for name, given in _table(kind, table.get(kind, {})).items():
            if name in members:
                raise JobError(f"{kind}.{name}", "is defined twice; names must differ")
            copies = _nodes(kind, name, _table(f"{kind}.{name}", given), len(nodes))
            members[name] = [node.name for node in copies]
            nodes += copies
    # The name of a task stands for all of its copies.
    nodes = [_expand_after(node, members) for node in nodes]
    listed = table.get("edges", [])
    if not isinstance(listed, list):
        raise JobError("edges", "is not a list; write [[edges]]")
    edges: list[Edge] = []
    written_at: list[int] = []
    for at, entry in enumerate(listed):
        edges += _edges(f"edges[{at}]", _table(f"edges[{at}]", entry), members, len(edges))
        written_at += [at] * (len(edges) - len(written_at))
    head = (
        _whole_number("instants", table.get("instants", 1)),
        _real_number("instant_s", table.get("instant_s", 1.0)),
        _real_number("weight", table.get("weight", 0.5)),
    )
    name = _text("name", table.get("name", "job"))
    try:
        return TiMra(name, nodes, edges, *head)
    except JobError as error:
        raise JobError(_as_written(error.field, members, written_at), error.trouble) from None


def _as_written(field: str, members: Mapping[str, Sequence[str]], written_at: Sequence[int]) -> str:
    """Return the field of the text that made the field of a copy, as in ``tasks.map.2.cpu``."""
    if edge := re.match(r"edges\[(\d+)\]", field):
        return f"edges[{written_at[int(edge[1])]}]{field[edge.end() :]}"
    kind, _, rest = field.partition(".")
    for name, copies in members.items():
        for copy in copies:
            if len(copies) > 1 and (rest == copy or rest.startswith(f"{copy}.")):
                return f"{kind}.{name}{rest.removeprefix(copy)}"
    return field


def _nodes(kind: str, name: str, given: Mapping[str, object], there: int) -> list[Node]:
    place = f"{kind}.{name}"
    own = NODE_KEYS if kind == "services" else [key for key in (*NODE_KEYS, *RUN_KEYS) if key != "service"]
    _check_keys(place, given, own)
    count = _whole_number(f"{place}.count", given.get("count", 1))
    if not 1 <= count <= PACKER_NODES_MAX - there:
        raise JobError(
            f"{place}.count", f"is {count}; a job has at most {PACKER_NODES_MAX} tasks and services"
        )
    demands = {key: _demand(f"{place}.{key}", given.get(key, 0.0)) for key in RESOURCES}
    after = given.get("after", [])
    if not isinstance(after, list):
        raise JobError(f"{place}.after", 'is not a list of names; write for example ["map"]')
    end = None if "end" not in given else _whole_number(f"{place}.end", given["end"])
    service = None if kind == "tasks" else _text(f"{place}.service", given.get("service", name))
    return [
        Node(
            name if count == 1 else f"{name}.{copy}",
            **demands,
            start=_whole_number(f"{place}.start", given.get("start", 0)),
            end=end,
            after=tuple(_text(f"{place}.after", predecessor) for predecessor in after),
            service=service,
        )
        for copy in range(count)
    ]


def _expand_after(node: Node, members: Mapping[str, Sequence[str]]) -> Node:
    if not node.after:
        return node
    after = tuple(predecessor for name in node.after for predecessor in members.get(name, [name]))
    return replace(node, after=after)


def _edges(
    place: str, given: Mapping[str, object], members: Mapping[str, Sequence[str]], there: int
) -> list[Edge]:
    _check_keys(place, given, EDGE_KEYS)
    for key in ("from", "to"):
        if key not in given:
            raise JobError(f"{place}.{key}", "is missing; name a task or a service")
    source, target = _text(f"{place}.from", given["from"]), _text(f"{place}.to", given["to"])
    pattern = given.get("pattern", "all")
    if pattern not in PATTERNS:
        raise JobError(
            f"{place}.pattern", f"is {pattern!r}; it must be all (each with each) or each (first with first)"
        )
    depends = given.get("depends", True)
    if not isinstance(depends, bool):
        raise JobError(f"{place}.depends", f"is {depends!r}; it must be true or false")
    sources, targets = members.get(source, [source]), members.get(target, [target])
    if pattern == "each" and len(sources) != len(targets):
        raise JobError(
            f"{place}.pattern", f"is each, but there are {len(sources)} sources and {len(targets)} targets"
        )
    if there + len(sources) * len(targets) > PACKER_EDGES_MAX:
        raise JobError(place, f"makes too many edges; at most {PACKER_EDGES_MAX} are possible")
    bandwidth = _demand(f"{place}.bandwidth", given.get("bandwidth", 0.0))
    if pattern == "each":
        pairs = list(zip(sources, targets, strict=True))
    else:
        pairs = [
            (sender, other) for sender in sources for other in targets if sender != other or source != target
        ]
    return [Edge(sender, other, bandwidth, depends) for sender, other in pairs]


def _demand(place: str, given: object) -> Demand:
    if isinstance(given, bool) or not isinstance(given, int | float | list | dict):
        raise JobError(
            place, f"is {given!r}; it must be a number, a list with one for each instant, or steps"
        )
    if isinstance(given, dict):
        steps: dict[int, float] = {}
        for key, value in given.items():
            if not re.fullmatch(r"\d{1,9}", key):
                raise JobError(place, f"has a step at {key!r}; it must be the number of an instant")
            steps[int(key)] = value
        return steps
    if isinstance(given, list):
        for at, value in enumerate(given):
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise JobError(f"{place}[{at}]", f"is {value!r}; it must be a number")
    return cast("Demand", given)


def _check_keys(place: str, given: Mapping[str, object], keys: Collection[str]) -> None:
    for key in given:
        if key not in keys:
            raise JobError(f"{place}.{key}".lstrip("."), f"is not a known key; {suggestion(key, keys)}")


def _table(place: str, given: object) -> Mapping[str, object]:
    if not isinstance(given, dict):
        raise JobError(place, f"is {given!r}; it must be a table, as [{place}]")
    return given


def _text(place: str, given: object) -> str:
    if not isinstance(given, str) or not given:
        raise JobError(place, f"is {given!r}; it must be a name")
    return given


def _whole_number(place: str, given: object) -> int:
    if isinstance(given, bool) or not isinstance(given, int):
        raise JobError(place, f"is {given!r}; it must be a whole number")
    return given


def _real_number(place: str, given: object) -> float:
    if isinstance(given, bool) or not isinstance(given, int | float):
        raise JobError(place, f"is {given!r}; it must be a number")
    return float(given)


def _line_of(text: str, field: str) -> int:
    """Return the line of a field such as ``tasks.map.cpu[3]``, or of what contains it; 0 if unknown.

    TOML's reader does not report lines. This function recognises headers and keys only, which is right for
    all that ``to_toml`` makes, and may miss keys in inline tables.
    """
    lines_by_field: dict[str, int] = {}
    lists: dict[str, int] = {}
    table = ""
    for number, line in enumerate(text.splitlines(), 1):
        if header := _HEADER.match(line):
            table = header[2].replace('"', "").replace(" ", "")
            if header[1] == "[[":
                lists[table] = lists.get(table, -1) + 1
                table = f"{table}[{lists[table]}]"
            lines_by_field.setdefault(table, number)
        elif key := _KEY.match(line):
            lines_by_field.setdefault(f"{table}.{key[1].replace(chr(34), '')}".lstrip("."), number)
    while field and field not in lines_by_field:
        field = re.sub(r"(\[\d+\]|\.[^.\[]+|^[^.\[]+)$", "", field)
    return lines_by_field.get(field, 0)


def write_toml(job: TiMra) -> str:
    """Return the job as TOML, with every copy by itself and every demand as steps."""
    lines = [f"name = {quoted(job.name)}", f"instants = {job.instants}", f"instant_s = {job.instant_s!r}"]
    lines.append(f"weight = {float(job.weight)!r}")
    for at, node in enumerate(job.nodes):
        kind = "tasks" if node.service is None else "services"
        lines += ["", f"[{kind}.{quoted(node.name)}]"]
        if node.service is not None:
            lines.append(f"service = {quoted(node.service)}")
        if node.start:
            lines.append(f"start = {node.start}")
        if node.end is not None:
            lines.append(f"end = {node.end}")
        if node.after:
            lines.append(f"after = [{', '.join(quoted(name) for name in node.after)}]")
        for which, resource in enumerate(RESOURCES):
            if job.demand[at, :, which].any():
                lines.append(f"{resource} = {_steps(job.demand[at, :, which])}")
    for at, edge in enumerate(job.edges):
        lines += ["", "[[edges]]", f"from = {quoted(edge.source)}", f"to = {quoted(edge.target)}"]
        if job.bandwidth[at].any():
            lines.append(f"bandwidth = {_steps(job.bandwidth[at])}")
        if not edge.depends:
            lines.append("depends = false")
    return "\n".join(lines) + "\n"


def _steps(values: Floats) -> str:
    numbers = [float(value) for value in values]
    if len(set(numbers)) == 1:
        return repr(numbers[0])
    steps = [(at, value) for at, value in enumerate(numbers) if at == 0 or value != numbers[at - 1]]
    return "{ " + ", ".join(f"{at} = {value!r}" for at, value in steps) + " }"


def quoted(name: str) -> str:
    """Return a text quoted for TOML."""
    # TOML's basic strings need the same escapes as JSON's, and also for the character 127.
    text = name.replace("\\", "\\\\").replace('"', '\\"')
    return '"' + re.sub(r"[\x00-\x1f\x7f]", lambda match: f"\\u{ord(match[0]):04x}", text) + '"'
