"""Jobs as TOML: reading and writing the format that docs/packer.md describes.

``ti_mra.py`` validates jobs; this module adds the file and the line to its errors.
"""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final, cast

from dios.limits import PACKER_EDGES_MAX, PACKER_NODES_MAX, PACKER_TEXT_BYTES_MAX
from dios.packer.job.ti_mra import NODE_FIELDS, RESOURCES, Demand, Edge, Floats, JobError, Node, TiMra

JOB_KEYS: Final = ("name", "instants", "instant_s", "weight", "tasks", "services", "edges")
EDGE_KEYS: Final = ("from", "to", "bandwidth", "depends", "pattern")
NODE_KEYS: Final = (*NODE_FIELDS, "count")
RUN_KEYS: Final = ("program", "args", "inputs")
"""Keys of a task that are for `dios run JOB.toml` and are ignored here."""
PATTERNS: Final = ("all", "each")

_HEADER: Final = re.compile(r"\s*(\[\[?)\s*([^\]]+?)\s*\]")
_KEY: Final = re.compile(r"\s*([\w\"'.-]+)\s*=")


def read(source: str | Path) -> TiMra:
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
            made = _nodes(kind, name, _table(f"{kind}.{name}", given), len(nodes))
            members[name] = [node.name for node in made]
            nodes += made
    # The name of a task stands for all of its copies.
    nodes = [_expand_after(node, members) for node in nodes]
    listed = table.get("edges", [])
    if not isinstance(listed, list):
        raise JobError("edges", "is not a list; write [[edges]]")
    edges: list[Edge] = []
    written_at: list[int] = []
    for at, each in enumerate(listed):
        edges += _edges(f"edges[{at}]", _table(f"edges[{at}]", each), members, len(edges))
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
            after=tuple(_text(f"{place}.after", each) for each in after),
            service=service,
        )
        for copy in range(count)
    ]


def _expand_after(node: Node, members: Mapping[str, Sequence[str]]) -> Node:
    if not node.after:
        return node
    after = tuple(each for name in node.after for each in members.get(name, [name]))
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
        pairs = [(one, other) for one in sources for other in targets if one != other or source != target]
    return [Edge(one, other, bandwidth, depends) for one, other in pairs]


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
            close = difflib.get_close_matches(key, keys, n=1, cutoff=0.5)
            hint = f"did you mean {close[0]}?" if close else f"known keys are {', '.join(keys)}"
            raise JobError(f"{place}.{key}".lstrip("."), f"is not a known key; {hint}")


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
    found: dict[str, int] = {}
    lists: dict[str, int] = {}
    table = ""
    for number, line in enumerate(text.splitlines(), 1):
        if header := _HEADER.match(line):
            table = header[2].replace('"', "").replace(" ", "")
            if header[1] == "[[":
                lists[table] = lists.get(table, -1) + 1
                table = f"{table}[{lists[table]}]"
            found.setdefault(table, number)
        elif key := _KEY.match(line):
            found.setdefault(f"{table}.{key[1].replace(chr(34), '')}".lstrip("."), number)
    while field and field not in found:
        field = re.sub(r"(\[\d+\]|\.[^.\[]+|^[^.\[]+)$", "", field)
    return found.get(field, 0)


def to_toml(job: TiMra) -> str:
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
    return '"' + re.sub(r"[\x00-\x1f\x7f]", lambda found: f"\\u{ord(found[0]):04x}", text) + '"'
