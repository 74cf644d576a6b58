"""Attempts of a task and of an ordinary process to reach more, on real nodes (Table 5.1)."""

from __future__ import annotations

import os
import platform
import socket
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final, NamedTuple

import dios
from dios.errors import DiosError
from labs.papers.dios.clusters import known, running_nodes
from labs.papers.dios.runs import DiosRuns, clock
from labs.papers.figures import Figure, FigureTable, PublishedClaim
from labs.papers.judgements import OURS, judged

_PUBLISHED: Final = (
    ("virtual machines", "high", "yes", "no", "yes", "no", "no, or by the hypervisor"),
    ("unikernels", "medium", "yes", "no", "yes", "no", "no, or by the hypervisor"),
    ("containers", "low", "no", "no", "yes", "partly", "yes"),
    ("capability systems (Capsicum)", "low", "no", "no", "partly", "yes", "yes"),
    ("DIOS", "low", "no", "yes", "yes", "yes", "yes"),
)
"""Table 5.1 without its first row, whose marks are fewer than its columns."""
_COLUMNS: Final = (
    "overhead",
    "kernel of its own",
    "isolated distributed namespaces",
    "separate file system",
    "fine-grained capabilities",
    "sharing of resources",
)
_ATTEMPTS: Final = """
import os, socket, sys

def reached(work):
    try:
        work()
    except OSError:
        return 0
    return 1

found = [
    reached(lambda: open(sys.argv[1]).read()),
    reached(lambda: open("/proc/%s/status" % sys.argv[2]).read()),
    reached(lambda: socket.create_connection(("127.0.0.1", int(sys.argv[3])), 5).close()),
]
"""
_TASK: Final = (
    _ATTEMPTS
    + """
import dios

node = dios.connect()
given, shared = node.inputs
found.append(int(node.find(bytes.fromhex(given.read_bytes().decode())) is not None))
try:
    given.write_bytes(b"changed")
    found.append(1)
except dios.DiosError:
    found.append(0)
shared.write_bytes(b"seen")
print(*found, os.uname().release)
"""
)
_PROCESS: Final = _ATTEMPTS + "print(*found, 0, 0, os.uname().release)\n"
_ENDS: Final = 5


class Reach(NamedTuple):
    """The attempts of a program: True if it reached its goal, False if it was stopped."""

    file: bool
    process: bool
    network: bool
    name: bool
    """An object of another node, by its name."""
    write: bool
    """A change through a reference that may only read."""
    kernel: str
    """The version of the kernel that it sees."""
    shared: bool
    """True if what it wrote to a shared object was seen outside of it."""


def table_1(runs: DiosRuns) -> Figure:
    """Return Table 5.1: the published rows, and what a task and a process reach on this machine."""
    runs.progress("table-5.1")
    with ExitStack() as stack:
        nodes = stack.enter_context(running_nodes(2, coordinator="off"))
        node = stack.enter_context(nodes.connect(0))
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="dios-repro-"))
        secret = Path(folder) / "secret"
        secret.write_text("secret")
        listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        words = [str(secret), str(os.getpid()), str(listener.getsockname()[1])]
        group = node.create_group()
        there = node.create(dios.SHMEM_BLOB, data=b"x", groups=[group], host=nodes.local.nodes[1].name)
        outside = _task(node, words, known(there.name), ())
        inside = _task(node, words, known(there.name), (group,))
        process = _process(words)
        task_ms, process_ms = _task_ms(node), _process_ms()
    attempts = [
        ("open a file of the user by its path", process.file, outside.file),
        ("read the status of another process", process.process, outside.process),
        ("connect to a port of this machine", process.network, outside.network),
        ("find an object of another node by its name, outside of its group", False, outside.name),
        ("the same as a member of its group", False, inside.name),
        ("write through a reference that may only read", False, outside.write),
        ("write to a shared object, and be seen", False, outside.shared),
    ]
    return runs.figure(
        "table-5.1",
        "Table 5.1: isolation of tasks compared with other ways",
        (
            FigureTable("As published", ("way", *_COLUMNS), [tuple(row) for row in _PUBLISHED]),
            FigureTable(
                "Attempts of a program on this machine",
                ("attempt", "an ordinary process", "a pure task"),
                [
                    (attempt, "not applicable" if at > 2 else _word(process), _word(task))
                    for at, (attempt, process, task) in enumerate(attempts)
                ],
            ),
            FigureTable(
                "Start of a program that does nothing, until its end, milliseconds",
                ("way", "median"),
                [("an ordinary process of Python", process_ms), ("a pure task", task_ms)],
            ),
        ),
        _claims(outside, inside, process, task_ms / process_ms),
        (),
        (
            *nodes.notes,
            (
                "The rows of virtual machines, unikernels, containers and Capsicum are the published ones; "
                "only processes and DIOS are tried here."
            ),
            "`docs/threat-model.md` has all claims about tasks, each with its test.",
        ),
    )


def _word(reached: bool) -> str:  # noqa: FBT001 - a cell of a table
    return "reached" if reached else "stopped"


def _task(node: dios.Node, words: Sequence[str], name: bytes, groups: Sequence[dios.Reference]) -> Reach:
    """Return what a pure task reaches; it gets the name as the content of an object, not as an argument."""
    given = node.create(dios.SHMEM_BLOB, data=name.hex().encode(), naming=dios.ANONYMOUS)
    shared = node.create(dios.SHMEM_BLOB, data=b"not seen", naming=dios.ANONYMOUS)
    inputs = (given.restrict("read"), shared.restrict("read", "write"))
    task = node.run(_TASK.encode(), groups=groups, inputs=inputs, args=words)
    status = task.wait(60)
    if not status.ok:
        raise DiosError(f"the task of the measurement failed: {status.detail}")
    return _reach(task.console().read_bytes(), shared=shared.read_bytes() == b"seen")


def _process(words: Sequence[str]) -> Reach:
    """Return what an ordinary process of the same user reaches."""
    return _reach(subprocess.check_output([sys.executable, "-I", "-c", _PROCESS, *words]), shared=False)


def _reach(line: bytes, *, shared: bool) -> Reach:
    *flags, kernel = line.decode().split()
    file, process, network, name, write = (flag == "1" for flag in flags)
    return Reach(file, process, network, name, write, kernel, shared)


def _task_ms(node: dios.Node) -> float:
    program = node.create_program(b"")
    taken = []
    for _ in range(_ENDS):
        before = clock()
        node.run(program).wait(60)
        taken.append((clock() - before) / 1e6)
    return statistics.median(taken)


def _process_ms() -> float:
    taken = []
    for _ in range(_ENDS):
        before = clock()
        subprocess.check_call([sys.executable, "-I", "-c", ""])
        taken.append((clock() - before) / 1e6)
    return statistics.median(taken)


def _claims(outside: Reach, inside: Reach, process: Reach, cost: float) -> list[PublishedClaim]:
    own_files = not outside.file and process.file
    names = inside.name and not outside.name
    return [
        _claim(
            "isolated distributed namespaces: an object is found in its group, and not outside", ours=names
        ),
        _claim("separate file system: a file that a process reads is out of reach", ours=own_files),
        _claim(
            "fine-grained capabilities: a right that a reference lacks is refused", ours=not outside.write
        ),
        _claim("sharing of resources: another holder sees what was written", ours=outside.shared),
        _claim("no kernel of its own: it sees this machine's", ours=outside.kernel == platform.release()),
        PublishedClaim(
            "Table 5.1",
            "overhead: start and end of a task compared with a process of Python",
            "low",
            f"{cost:.2f} x",
            judged(cost, 0, 1.5, none=float("inf")),
        ),
        PublishedClaim(
            "section 5.4.2",
            "connections of its own: a process opens one, and a task none",
            "not possible",
            "stopped" if process.network and not outside.network else "not stopped",
            judged(float(process.network and not outside.network), 1, 1, none=0.0, exact=True),
        ),
        PublishedClaim(
            "today",
            "other processes are out of sight",
            "",
            "out of sight" if process.process and not outside.process else "in sight",
            OURS,
        ),
    ]


def _claim(subject: str, *, ours: bool) -> PublishedClaim:
    return PublishedClaim(
        "Table 5.1", subject, "yes", "yes" if ours else "no", judged(float(ours), 1, 1, none=0.0, exact=True)
    )
