"""The cost of security: starts and work of tasks with each layer of the sandbox on and off, calls with the
audit log and with limits on and off.

The parts that are switched off here cannot be switched off by any setting. ``tests/security`` tests the
layers.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final

import trio

import dios
from dios.host.confinement.mechanisms import Availability, Mechanism, obstacle_to_pure, probe
from dios.host.process.zygote_pool import ZygotePool, open_zygote
from dios.wire.messages import Limits
from dios.wire.types import Brand
from labs.benchmarks.measure import CLIENT_CPU, SERVER_CPU, clock, interleaved, median, pin, unpin
from labs.benchmarks.nodes import running_node
from labs.benchmarks.report import Goal, Row, Section, judge, number, times
from labs.benchmarks.security_task import CALLS

STARTS: Final = 20
NAN: Final = float("nan")
NOTHING: Final = "no layer at all"
EVERYTHING: Final = "every layer"
LAYERS: Final[dict[str, tuple[str, ...]]] = {
    "system-call filter": ("seccomp",),
    "Landlock": ("landlock",),
    "network namespace": ("net",),
    "mount namespace and view": ("mount",),
    "ipc and uts namespaces": ("ipc", "uts"),
    "control groups": ("cgroup_memory", "cgroup_pids"),
}
LOOSE: Final = "objects=1000000000 bytes=1000GiB references=1000000000 requests=1000000000 tasks=100000"


def run(section: Section) -> None:
    """Measure, and compare with the goals."""
    mechanisms = probe()
    missing = obstacle_to_pure(mechanisms)
    if missing:
        section.trouble.append(f"this machine cannot confine a pure task ({missing})")
    else:
        trio.run(_layers, section, mechanisms)
    _calls(section)


# -- layers of the sandbox ----------------------------------------------------------------------------
async def _layers(section: Section, mechanisms: Mapping[str, Mechanism]) -> None:
    ways = {EVERYTHING: mechanisms, NOTHING: _off(mechanisms, tuple(mechanisms))}
    ways |= {f"without {name}": _off(mechanisms, names) for name, names in LAYERS.items()}
    starts: dict[str, list[float]] = {name: [] for name in ways}
    work: dict[str, dict[str, list[float]]] = {name: {"system calls": [], "compute": []} for name in ways}
    # One zygote after the other, in two rounds: two zygotes in one process would share their control groups.
    for turn in range(2 * len(ways)):
        name = list(ways)[turn % len(ways)]
        try:
            async with _zygote(ways[name]) as zygote:
                for number in range(STARTS + 1):
                    start, spans = await _one(zygote)
                    if number:
                        starts[name].append(start)
                        for kind, taken in spans.items():
                            work[name][kind].append(taken)
        except (dios.DiosError, OSError) as error:
            section.trouble.append(f"{name}: {error}")
    _tell_layers(section, {name: median(taken) for name, taken in starts.items()}, work)


def _off(mechanisms: Mapping[str, Mechanism], names: tuple[str, ...]) -> dict[str, Mechanism]:
    return {
        name: replace(mechanism, availability=Availability.MISSING, detail="switched off")
        if name in names
        else mechanism
        for name, mechanism in mechanisms.items()
    }


def _zygote(mechanisms: Mapping[str, Mechanism]) -> contextlib.AbstractAsyncContextManager[ZygotePool]:
    return open_zygote(
        entry="security_task:main",
        paths=(str(Path(__file__).resolve().parent),),
        pool_size=0,
        mechanisms=mechanisms,
        accept_weaker=True,
    )


async def _one(zygote: ZygotePool) -> tuple[float, dict[str, float]]:
    """Return the milliseconds of one start, and the nanoseconds of each kind of work."""
    began = clock()
    task = await zygote.spawn(Brand.PURE, Limits())
    try:
        with trio.fail_after(10):
            await task.socket.recv(64)
            start = (clock() - began) / 1e6
            spans: dict[str, float] = {}
            for kind in ("system calls", "compute"):
                await task.socket.send(kind.encode())
                spans[kind] = float(await task.socket.recv(64))
    finally:
        task.close()
    return start, spans


def _tell_layers(
    section: Section, starts: Mapping[str, float], work: Mapping[str, Mapping[str, list[float]]]
) -> None:
    whole = starts[EVERYTHING]
    for name, start in starts.items():
        section.figure(f"cold start, {name}", start, "ms")
    calls = {name: median(spans["system calls"]) / CALLS for name, spans in work.items()}
    compute = {name: median(spans["compute"]) / 1e6 for name, spans in work.items()}
    filtered, free = calls[EVERYTHING], calls["without system-call filter"]
    section.figure("a system call, filtered", filtered, "ns")
    section.figure("a system call, unfiltered", free, "ns")
    section.figure("computing, every layer", compute[EVERYTHING], "ms")
    section.figure("computing, no layer at all", compute[NOTHING], "ms")
    for name, start in starts.items():
        if name != EVERYTHING:
            section.rows.append(
                Row(
                    f"cold start of a pure task, {name}",
                    f"{number(whole)} ms with every layer",
                    f"{number(start)} ms",
                    f"{times(whole / start)} with it",
                )
            )
    section.rows.append(
        Row(
            "one system call of a task",
            f"{number(filtered)} ns filtered",
            f"{number(free)} ns unfiltered",
            f"{times(filtered / free)} with it",
        )
    )
    section.rows.append(
        Row(
            "computing in a task",
            f"{number(compute[EVERYTHING])} ms with every layer",
            f"{number(compute[NOTHING])} ms without any",
            f"{times(compute[EVERYTHING] / compute[NOTHING])} with them",
        )
    )


# -- audit log and limits -----------------------------------------------------------------------------
def _calls(section: Section) -> None:
    """Make the same calls to four nodes in turns; the first has the default configuration."""
    ways: dict[str, dict[str, str]] = {
        "as it is": {},
        "no audit log": {"without": "audit"},
        "no accounts": {"without": "accounts"},
        "limits set": dict.fromkeys(("task_limits", "group_limits", "principal_limits"), LOOSE),
    }
    with contextlib.ExitStack() as stack:
        contenders: dict[str, Callable[[], object]] = {}
        cleanings: dict[str, Callable[[], object]] = {}
        pin(CLIENT_CPU)
        for name, settings in ways.items():
            bench = stack.enter_context(running_node(SERVER_CPU, **settings))
            node = stack.enter_context(dios.connect(bench.data, groups=[]))
            calls, cleaning = _calls_of(node)
            for call_name, call in calls.items():
                contenders[f"{call_name}, {name}"] = call
                cleanings[f"{call_name}, {name}"] = cleaning
        medians = interleaved(contenders, rounds=25, between=lambda name: cleanings[name]())
        unpin()
    for name, value in medians.items():
        section.figure(name, value, "µs")
    for call_name in ("stat", "lookup", "create", "write"):
        plain = medians[f"{call_name}, as it is"]
        for way, goal in (("no audit log", 1.1), ("no accounts", None), ("limits set", None)):
            other = medians[f"{call_name}, {way}"]
            on, off = (other, plain) if way == "limits set" else (plain, other)
            section.rows.append(
                Row(
                    f"{call_name}: {way}",
                    f"{number(plain)} µs",
                    f"{number(other)} µs",
                    f"{times(on / off)} with it",
                    judge("under 1.10 x", on / off, goal) if goal else Goal(""),
                )
            )


def _calls_of(node: dios.Node) -> tuple[dict[str, Callable[[], object]], Callable[[], object]]:
    group = node.create_group()
    blob = node.create(dios.SHMEM_BLOB, groups=[group], data=b"x" * 100)
    references: list[dios.Reference] = []
    name = blob.name
    if name is None:
        raise RuntimeError("a blob in a group has a name")

    def clean() -> None:
        for reference in references:
            reference.close()
        references.clear()

    calls: dict[str, Callable[[], object]] = {
        "stat": blob.stat,
        "lookup": lambda: references.extend(node.lookup(name)),
        "create": lambda: references.append(
            node.create(dios.SHMEM_BLOB, data=b"y" * 100, naming=dios.ANONYMOUS)
        ),
        "write": lambda: blob.write_bytes(b"z" * 100),
    }
    return calls, clean
