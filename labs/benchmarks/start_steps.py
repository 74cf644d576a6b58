"""The steps of the start of a pure task, from the call to its first line, from the pool and cold.

The node and its zygote are traced for that (``traced_node``, ``start_marks``), which costs some microseconds
in each step.
"""

from __future__ import annotations

import json
import time
from typing import Final, NamedTuple, TypeAlias

import dios
from labs.benchmarks.measure import clock, median
from labs.benchmarks.nodes import running_node
from labs.benchmarks.report import Section

STARTS: Final = 25
_WARM_UP: Final = 3
_PAUSE_S: Final = 0.08
_NODE: Final = "labs.benchmarks.traced_node"
_MARKS: Final = "labs.benchmarks.start_marks"
_PROGRAM: Final = f"""import time; now = time.perf_counter_ns()
import sys; marks = sys.modules["{_MARKS}"]; faults = marks.page_faults()
import json; print(json.dumps([now, faults, marks.MARKS]))
""".encode()

Times: TypeAlias = dict[str, float]
"""The milliseconds of each step, in order."""


class Steps(NamedTuple):
    """The steps of a start, each the median of all starts, and the page faults of the task's process."""

    times: Times
    faults: float


class _Start(NamedTuple):
    began: int
    node: dict[str, int]
    first_line: int
    task: list[tuple[str, int, int]]
    faults: int


def pool(section: Section) -> Steps:
    """Measure starts from the pool, and record the steps."""
    steps = [_from_pool(start) for start in _starts("4")]
    return _recorded(section, "from the pool", steps)


def cold(section: Section) -> Steps:
    """Measure starts without a pool, and record the steps."""
    steps = [_cold(start) for start in _starts("0")]
    return _recorded(section, "cold", steps)


def in_words(steps: Steps) -> str:
    """Return the steps as a text for a note."""
    parts = ", ".join(f"{name} {1000 * value:,.0f}" for name, value in steps.times.items())
    return f"steps in µs, traced: {parts}; {steps.faults:,.0f} page faults"


def _recorded(section: Section, origin: str, starts: list[Steps]) -> Steps:
    names = list(starts[0].times)
    steps = Steps(
        {name: median([start.times[name] for start in starts]) for name in names},
        median([start.faults for start in starts]),
    )
    for name, value in steps.times.items():
        section.figure(f"start {origin}, step: {name}", 1000 * value, "µs")
    section.figure(f"start {origin}: page faults of the task until its first line", steps.faults, "")
    return steps


def _starts(pool_size: str) -> list[_Start]:
    measured: list[_Start] = []
    with (
        running_node(module=_NODE, pool_size=pool_size, preload=_MARKS) as bench,
        dios.connect(bench.data, groups=[]) as node,
    ):
        program = node.create_program(_PROGRAM)
        for _ in range(STARTS + _WARM_UP):
            until = time.monotonic() + _PAUSE_S
            while time.monotonic() < until:
                program.stat()
            began = clock()
            task = node.run(program, wait=False)
            status = task.wait(10)
            if not status.ok:
                raise RuntimeError(f"a task failed: {status.detail}")
            line, faults, marks = json.loads(task.console().read_bytes())
            task.close()
            measured.append(_Start(began, {}, line, [(name, at, count) for name, at, count in marks], faults))
        starts = bench.data.with_name("starts").read_text().splitlines()
    # A line is written at the end of its task, which the client may learn before.
    traced = [dict(json.loads(row)) for row in starts]
    by_begin = {
        start.began: marks
        for start in measured
        for marks in traced
        if start.began < marks["client and socket"] < start.first_line
    }
    return [start._replace(node=by_begin[start.began]) for start in measured if start.began in by_begin][
        _WARM_UP:
    ]


def _from_pool(start: _Start) -> Steps:
    node = start.node
    (welcome, faults), *_ = [(at, count) for name, at, count in start.task if name == "welcome"]
    moments = {
        "client and socket": node["client and socket"],
        "step of the core": node["step of the core"],
        "process of the pool": node["process"],
        "Welcome": node["Welcome"],
        # The task may run on another processor before the node's step is over.
        "task wakes and reads the Welcome": welcome,
        "task compiles its program": start.first_line,
    }
    return Steps(_differences(start.began, moments), start.faults - faults)


def _cold(start: _Start) -> Steps:
    node = start.node
    order, *others = start.task
    moments = {name: node[name] for name in ("client and socket", "step of the core", "scheduler tick")}
    moments["order to the zygote"] = order[1]
    fork = 0
    for name, at, faults in others:
        if name == "fork":
            fork = faults
            moments["fork into its namespaces"] = at
        else:
            moments[_COLD.get(name, name)] = at
    moments["task compiles its program"] = start.first_line
    return Steps(_differences(start.began, moments), start.faults - fork)


_COLD: Final = {"welcome": "wait for the Welcome (meanwhile: report, control group, Welcome)"}


def _differences(began: int, moments: dict[str, int]) -> Times:
    differences, before = {}, began
    for name, at in moments.items():
        differences[name] = (at - before) / 1e6
        before = at
    return differences
