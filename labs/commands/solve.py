"""``dios lab solve``: solve a minimum-cost flow problem from a file.

The solvers (``labs.solvers``) are imported when the command runs.
``dios sched export`` writes the network of a cluster.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypedDict

import typer

from dios.cli.common.application import CommandApplication
from dios.cli.common.options import argument, option
from dios.cli.common.output import FAILED, counted, progress, say, write_facts, write_json
from dios.cli.common.results import OutputOptions
from dios.cli.common.streams import INTERRUPTED
from dios.client.plain_text import plain
from dios.client.written_files import naming

if TYPE_CHECKING:
    from dios.firmament.solvers import FlowProblem, FlowSolution

app: Final = CommandApplication()

EXAMPLES: Final = (
    "\b\nExamples:\n"
    "  dios lab solve network.dimacs\n"
    "  dios lab solve network.dimacs --algorithm race --flow answer.flow\n"
    "  dios lab solve network.dimacs --json | jq .cost\n"
    "\b\nA network of two vertices, one unit, one arc:\n"
    "  p min 2 1\n"
    "  n 1 1\n"
    "  n 2 -1\n"
    "  a 1 2 0 1 5"
)


def _certified(problem: FlowProblem, solution: FlowSolution) -> str:
    """Return the objection of the independent check to the solution, or an empty text."""
    from dios.firmament.solvers import CertificateError, certificate  # noqa: PLC0415 - loads numpy

    try:
        certificate(problem, solution)
    except CertificateError as error:
        return error.message
    return ""


def _size_of(problem: FlowProblem) -> str:
    return f"{counted(problem.vertices, 'vertex', 'vertices')}, {counted(problem.arcs, 'arc')}"


def _write_flow(path: Path, problem: FlowProblem, solution: FlowSolution) -> None:
    """Write the arcs that carry flow as DIMACS does: ``s cost``, then ``f tail head flow``."""
    with naming(path), path.open("w", encoding="ascii") as file:
        file.write(f"c the cheapest flow, by {solution.algorithm}; arcs without flow are left out\n")
        file.write(f"s {solution.cost}\n")
        for arc in solution.flow.nonzero()[0].tolist():
            tail, head = problem.tail[arc] + 1, problem.head[arc] + 1
            file.write(f"f {tail} {head} {solution.flow[arc]}\n")


class SolvedRow(TypedDict):
    """The solution of a network: its cost if it is optimal, and the objection of the independent check.

    ``seconds`` is the time of each step.
    """

    status: str
    cost: int | None
    reason: str
    algorithm: str
    certificate: bool
    against: str
    vertices: int
    arcs: int
    seconds: dict[str, float]


def _as_json(
    problem: FlowProblem, solution: FlowSolution, against: str, seconds: dict[str, float]
) -> SolvedRow:
    return {
        "status": solution.status,
        "cost": solution.cost if solution.status == "optimal" else None,
        "reason": solution.reason,
        "algorithm": solution.algorithm,
        "certificate": not against,
        "against": against,
        "vertices": problem.vertices,
        "arcs": problem.arcs,
        "seconds": {name: round(taken, 6) for name, taken in seconds.items()},
    }


def _show(problem: FlowProblem, solution: FlowSolution, against: str, seconds: dict[str, float]) -> None:
    rows = [("network", _size_of(problem)), ("status", solution.status)]
    if solution.status == "optimal":
        rows.append(("cost", str(solution.cost)))
    if solution.reason:
        rows.append(("reason", solution.reason))
    rows += [
        ("algorithm", solution.algorithm),
        ("certificate", f"NO: {against}" if against else "yes, checked independently"),
        ("time", ", ".join(f"{name} {taken:.3f} s" for name, taken in seconds.items())),
    ]
    write_facts(dict(rows))


def _solve(
    path: Path, algorithm: str, telling: Callable[[str], None]
) -> tuple[FlowProblem, FlowSolution, str, dict[str, float]]:
    """Return the problem, its solution, the check's objection, and the duration of each step in seconds."""
    from dios.firmament.solvers import FlowProblem  # noqa: PLC0415 - loads numpy
    from dios.firmament.solvers.errors import UnknownAlgorithmError  # noqa: PLC0415 - the same
    from dios.kernels import measured_loading  # noqa: PLC0415 - the same
    from labs.solvers import algorithms, solve  # noqa: PLC0415 - the same
    from labs.solvers.race import race  # noqa: PLC0415 - the same

    # Check the name before reading a large file.
    if algorithm not in algorithms():
        raise UnknownAlgorithmError(f"no algorithm '{algorithm}'; choose from {', '.join(algorithms())}")
    marks = [time.perf_counter()]
    telling("reading")
    problem = FlowProblem.from_dimacs(path)
    marks.append(time.perf_counter())
    telling(f"{_size_of(problem)}; the first run also compiles the solver")
    # Ctrl-C cannot interrupt a kernel in the main thread, so the solver runs in another thread.
    loading: list[float] = []
    with measured_loading(loading.append):
        solution = race(problem, {algorithm: lambda network, _: solve(network, algorithm)})
    marks.append(time.perf_counter())
    telling("checking")
    against = _certified(problem, solution)
    marks.append(time.perf_counter())
    read, solved, checked = (after - before for before, after in pairwise(marks))
    # The solver's code is compiled once for a computer, and loaded once for a process.
    loaded = min(sum(loading), solved)
    seconds = {"read": read, "load": loaded, "solve": solved - loaded, "check": checked}
    return problem, solution, against, seconds


@contextlib.contextmanager
def _ending_at_once_on_ctrl_c() -> Iterator[None]:
    try:
        yield
    except KeyboardInterrupt:
        # An exit in order may wait for ever: the solver's thread may hold a lock of the compiler.
        os._exit(INTERRUPTED)


@app.command(epilog=EXAMPLES)
def solve(
    *,
    file: Path = argument("FILE", "A minimum-cost flow problem in DIMACS' format."),
    algorithm: str = option(
        "--algorithm NAME",
        "auto, auction, network_simplex, cost_scaling, relaxation, race, "
        "or ortools; auto chooses by the shape of the network.",
        default="auto",
    ),
    flow: Path | None = option("--flow OUT", "Write the arcs that carry flow to this file."),
    output: OutputOptions,
) -> None:
    """Find the cheapest flow of a network, and check it independently.

    Needs no node. Exits with 0 if there is an optimal flow and its certificate holds, and with 1 otherwise,
    including when the network is infeasible or its cost is unbounded; the output gives the reason.
    """
    with _ending_at_once_on_ctrl_c(), progress(f"solving {plain(file.name)}") as telling:
        problem, solution, against, seconds = _solve(file, algorithm, telling)
    if output.as_json:
        write_json(_as_json(problem, solution, against, seconds))
    else:
        _show(problem, solution, against, seconds)
    if flow is not None and solution.status == "optimal":
        _write_flow(flow, problem, solution)
    elif flow is not None:
        say(f"wrote no flow to {flow}: the network has no optimal one")
    sys.stdout.flush()
    if against or solution.status != "optimal":
        raise typer.Exit(FAILED)
