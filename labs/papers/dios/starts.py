"""Starts of tasks in waves, compared with processes and with pools of processes (Figure 5.2)."""

from __future__ import annotations

import importlib
import importlib.util
import multiprocessing
import statistics
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from typing import Final, Protocol, cast

import dios
from dios.errors import DiosError
from labs.papers.dios.clusters import running_nodes
from labs.papers.dios.peer_tasks import first_line, send_first_line
from labs.papers.dios.runs import TIME_COLUMNS, DiosRuns, clock, time_cells
from labs.papers.figures import Figure, FigureTable, PublishedClaim
from labs.papers.judgements import OURS, about, judged
from labs.plotting import Boxes

HERE, THERE = "DIOS, this node", "DIOS, another node"
INTERPRETER: Final = "new interpreter"
"""A process of Python by fork and exec, without its site packages."""
PROCESS: Final = "multiprocessing"
POOL: Final = "warm pool"
"""A pool of concurrent.futures whose processes have run a task before."""
RAY: Final = "Ray, warm workers"
DASK: Final = "Dask, warm workers"
_PROGRAM: Final = b"""
import time
began = time.perf_counter_ns()
import sys
until = began + int(sys.argv[1]) * 1_000_000
while time.perf_counter_ns() < until:
    pass
print(began)
"""

Wave = Callable[[int], list[float]]
"""Starts that number of tasks at once; returns the microseconds of each until its first line."""


class _Ray(Protocol):
    def init(self, **options: object) -> object: ...
    def remote(self, function: Callable[[int], int]) -> _Remote: ...
    def get(self, reference: object) -> int: ...
    def shutdown(self) -> None: ...


class _Remote(Protocol):
    def remote(self, spin_ms: int) -> object: ...


def figure_2(runs: DiosRuns) -> Figure:
    """Return Figure 5.2: the time from the call to the first line of a task."""
    taken: dict[str, list[float]] = {}
    scope = runs.scope
    with ExitStack() as stack:
        pool = str(2 * runs.processors)
        nodes = stack.enter_context(running_nodes(2, coordinator="off", pool_size=pool))
        node = stack.enter_context(nodes.connect(0))
        program = node.create_program(_PROGRAM)
        for name, member in zip((HERE, THERE), nodes.local.nodes, strict=True):
            wave = _dios_wave(node, program, member.name, scope.spin_ms)
            taken[name] = _in_waves(runs, name, wave, scope.starts)
    with ExitStack() as stack:
        others = {
            INTERPRETER: _interpreter_wave(scope.spin_ms),
            PROCESS: _process_wave(scope.spin_ms),
            POOL: _pool_wave(stack, runs.processors, scope.spin_ms),
        }
        for name, wave in others.items():
            taken[name] = _in_waves(runs, name, wave, scope.other_starts)
    missing = []
    for name, package, measure in ((RAY, "ray", _ray), (DASK, "distributed", _dask)):
        if scope.quick:
            missing.append(f"{name.split(',')[0]} is not measured by --quick.")
        elif importlib.util.find_spec(package) is None:
            missing.append(f"{name.split(',')[0]} is not measured: the package {package} is not installed.")
        else:
            taken[name] = measure(runs)
    rows = [(name, len(values), *time_cells(values)) for name, values in taken.items()]
    return runs.figure(
        "5.2",
        f"Figure 5.2: starts of tasks of {scope.spin_ms} ms in waves of {runs.processors}",
        (FigureTable("Microseconds from the call to the first line", ("way", "tasks", *TIME_COLUMNS), rows),),
        _claims(taken),
        (
            Boxes(
                "5.2",
                "Call to first line",
                "microseconds",
                {name: {"start": values} for name, values in taken.items()},
                log=True,
            ),
        ),
        (
            *nodes.notes,
            (
                f"Waves have one task for each processor here ({runs.processors}), as in the thesis "
                f"(twelve); tasks run for {scope.spin_ms} ms instead of 100. Both nodes are on one "
                "machine, so a remote start has the messages and not the cable."
            ),
            (
                "A node keeps some forked children ready. A wave that finds them used up forks at "
                "once. The higher percentiles contain this."
            ),
            "CIEL and Mesos are not measured; neither is maintained any more.",
            *missing,
        ),
    )


def _in_waves(runs: DiosRuns, name: str, wave: Wave, count: int) -> list[float]:
    """Return the microseconds of ``count`` starts after a first wave, which is not counted."""
    runs.progress(f"5.2: {name}, {count:,} tasks")
    wave(runs.processors)
    taken: list[float] = []
    while len(taken) < count:
        taken += wave(min(runs.processors, count - len(taken)))
    return taken


def _dios_wave(node: dios.Node, program: dios.Reference, host: str, spin_ms: int) -> Wave:
    def wave(count: int) -> list[float]:
        begun: list[tuple[int, dios.Task]] = []
        for _ in range(count):
            before = clock()
            begun.append((before, node.run(program, host=host, args=[str(spin_ms)], wait=False)))
        taken = []
        for before, task in begun:
            status = task.wait(60)
            if not status.ok:
                raise DiosError(f"a task of the measurement failed: {status.detail}")
            taken.append((int(task.console().read_bytes()) - before) / 1e3)
            task.close()
        return taken

    return wave


def _interpreter_wave(spin_ms: int) -> Wave:
    command = [sys.executable, "-I", "-S", "-c", _PROGRAM.decode(), str(spin_ms)]

    def wave(count: int) -> list[float]:
        begun = []
        for _ in range(count):
            before = clock()
            begun.append((before, subprocess.Popen(command, stdout=subprocess.PIPE)))
        return [(int(process.communicate()[0]) - before) / 1e3 for before, process in begun]

    return wave


def _process_wave(spin_ms: int) -> Wave:
    # Not "fork": this process may have threads, and a forked child would have their locks.
    context = multiprocessing.get_context("spawn")

    def wave(count: int) -> list[float]:
        begun = []
        for _ in range(count):
            near, far = context.Pipe(duplex=False)
            before = clock()
            process = context.Process(target=send_first_line, args=(far, spin_ms))
            process.start()
            far.close()
            begun.append((before, near, process))
        taken = []
        for before, near, process in begun:
            taken.append((int(near.recv()) - before) / 1e3)
            near.close()
            process.join()
        return taken

    return wave


def _pool_wave(stack: ExitStack, workers: int, spin_ms: int) -> Wave:
    pool = stack.enter_context(ProcessPoolExecutor(workers, multiprocessing.get_context("spawn")))

    def wave(count: int) -> list[float]:
        begun = []
        for _ in range(count):
            before = clock()
            begun.append((before, pool.submit(first_line, spin_ms)))
        return [(future.result() - before) / 1e3 for before, future in begun]

    return wave


def _ray(runs: DiosRuns) -> list[float]:
    """Return the microseconds of Ray's starts."""
    ray: _Ray = cast("_Ray", importlib.import_module("ray"))
    ray.init(num_cpus=runs.processors, include_dashboard=False, log_to_driver=False)
    try:
        remote = ray.remote(first_line)

        def wave(count: int) -> list[float]:
            begun = [(clock(), remote.remote(runs.scope.spin_ms)) for _ in range(count)]
            return [(ray.get(reference) - before) / 1e3 for before, reference in begun]

        return _in_waves(runs, RAY, wave, runs.scope.other_starts)
    finally:
        ray.shutdown()


def _dask(runs: DiosRuns) -> list[float]:
    """Return the microseconds of starts by Dask's distributed scheduler, in a process for each processor."""
    distributed = importlib.import_module("distributed")
    with (
        distributed.LocalCluster(
            n_workers=runs.processors, threads_per_worker=1, dashboard_address=None
        ) as cluster,
        distributed.Client(cluster) as client,
        client.get_executor(pure=False) as pool,
    ):

        def wave(count: int) -> list[float]:
            begun = [(clock(), pool.submit(first_line, runs.scope.spin_ms)) for _ in range(count)]
            return [(future.result() - before) / 1e3 for before, future in begun]

        return _in_waves(runs, DASK, wave, runs.scope.other_starts)


def _claims(taken: dict[str, list[float]]) -> list[PublishedClaim]:
    middle = {name: statistics.median(values) for name, values in taken.items()}
    near, far = middle[HERE], middle[THERE]
    ratio = near / middle[INTERPRETER]
    return [
        PublishedClaim(
            "section 5.2.2, Figure 5.2",
            "start at this node compared with a process of Linux, median",
            "similar",
            f"{ratio:.2f} x ({near:.0f} µs by {middle[INTERPRETER]:.0f} µs)",
            judged(ratio, *about(1.0), none=float("inf")),
        ),
        PublishedClaim(
            "section 5.2.2",
            "start at another node, median",
            "100 to 300 µs",
            f"{far:.0f} µs",
            judged(far, 100, 300, none=float("inf")),
        ),
        PublishedClaim(
            "section 5.2.2",
            "start at another node compared with CIEL and Mesos",
            "they take hundreds of ms",
            f"{far / 1e3:.2f} ms",
            judged(far / 1e3, 0, 100, none=float("inf")),
        ),
        PublishedClaim(
            "today",
            "start at this node compared with a call in a warm pool",
            "",
            f"{near / middle[POOL]:.1f} x ({middle[POOL]:.0f} µs); a pool isolates no call from the next",
            OURS,
        ),
    ]
