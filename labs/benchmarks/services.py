"""The answers of a supervised service on three nodes while other programs compute next to it.

The service has a replica on each node, with a reserved share of a processor. A client sends it one request
after another, in turns on the quiet machine, next to best-effort runs, and next to as many plain programs,
which are what the same work would be without a scheduler. After each request it makes an echo between two
processes, which has nothing to do with a node: it shows how late the machine itself is.
"""

from __future__ import annotations

import contextlib
import json
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import dios
from dios.lib.services import Service, create_service
from dios.lib.supervised.services import ServiceProgram, Services
from labs.benchmarks.cluster import BenchCluster, running_cluster
from labs.benchmarks.load.watch import NODES, wait_until_scheduled
from labs.benchmarks.report import Row, Section, judge, number, times

PICTURE: Final = Path(__file__).resolve().parent / "results" / "services.png"
TURNS: Final = 3
TURN_S: Final = 6.0
SETTLE_S: Final = 3.0
"""Within this time a coordinator has measured the load, and best-effort runs have their places."""
NOISY: Final = 6
"""Programs that compute: two for each node."""
CPUS: Final = 0.5
LEAST_MS, WANTED_MS = 50.0, 20.0
_PATIENCE_S: Final = 60.0
_COMPUTE: Final = b"while True:\n    sum(range(100000))\n"
_REPLICA: Final = b"""
import sys
import dios
from dios.lib.services import open_service

node = dios.connect()
service = open_service(node, node.groups[0], bytes.fromhex(sys.argv[1]))
with service.listen("127.0.0.1:0") as acceptor:
    for connection in acceptor:
        with connection:
            connection.receive()
            connection.send(b"%d" % sum(range(20000)))
"""

Answers = list[tuple[float, float, float]]
"""The time of each request since the first one, and the seconds that it and the echo took."""


def run(section: Section) -> None:
    """Measure, draw the picture, and compare with the goals."""
    with running_cluster(NODES, coordinator="on") as cluster:
        wait_until_scheduled(cluster)
        with cluster.at(0) as node, _served(node) as service:
            answers = _in_turns(cluster, _client(service))
    trouble = _draw(answers)
    section.trouble += [trouble] if trouble else []
    for kind, samples in answers.items():
        took = sorted(1e3 * span for _, span, _ in samples)
        echo = sorted(1e3 * span for _, _, span in samples)
        for name, share in (("median", 0.5), ("99th percentile", 0.99), ("longest", 1.0)):
            section.figure(f"answers of a service, {kind}: {name}", _at(took, share), "ms")
            section.figure(f"echo between two processes, {kind}: {name}", _at(echo, share), "ms")
    alone, beside, plain = (_at(sorted(1e3 * span for _, span, _ in rows), 0.99) for rows in answers.values())
    section.rows.append(
        Row(
            f"99th percentile of a service's answers next to {NOISY} best-effort runs that compute",
            f"{number(beside)} ms",
            f"alone {number(alone)} ms; next to {NOISY} plain programs {number(plain)} ms",
            times(beside / plain),
            judge(f"{LEAST_MS:g} ms", beside, LEAST_MS, below=True),
            judge(f"{WANTED_MS:g} ms", beside, WANTED_MS, below=True),
            "the ratio is the one to the plain programs",
        )
    )


def _at(values: list[float], share: float) -> float:
    return values[min(len(values) - 1, int(share * len(values)))] if values else float("nan")


@contextlib.contextmanager
def _served(node: dios.Node) -> Iterator[Service]:
    """Create the service, and wait for a replica on each node."""
    group = node.create_group()
    service = create_service(node, group)
    services = Services(node)
    program = ServiceProgram(
        _REPLICA, args=(service.name.hex(),), groups=(group,), work=dios.work(cpus=CPUS), network=True
    )
    services.create("answers", program, replicas=NODES)
    try:
        deadline = time.monotonic() + _PATIENCE_S
        while len(service.members()) < NODES:
            if time.monotonic() > deadline:
                raise TimeoutError(f"the service has no {NODES} replicas: {services.describe('answers')}")
            time.sleep(0.2)
        yield service
    finally:
        services.remove("answers")


def _client(service: Service) -> Callable[[], None]:
    """Return a request to the replicas in turns."""
    places = service.places()
    turn = 0

    def request() -> None:
        nonlocal turn
        turn += 1
        with socket.create_connection(places[turn % len(places)], timeout=_PATIENCE_S) as connection:
            connection.sendall(b"?")
            assert connection.recv(64)

    return request


def _in_turns(cluster: BenchCluster, request: Callable[[], None]) -> dict[str, Answers]:
    kinds: dict[str, Callable[[], contextlib.AbstractContextManager[None]]] = {
        "alone": contextlib.nullcontext,
        "next to best-effort runs": lambda: _best_effort(cluster),
        "next to plain programs": _plain,
    }
    answers: dict[str, Answers] = {kind: [] for kind in kinds}
    began = time.monotonic()
    with _echo() as echo:
        for _ in range(TURNS):
            for kind, noise in kinds.items():
                with noise():
                    time.sleep(SETTLE_S)
                    end = time.monotonic() + TURN_S
                    while time.monotonic() < end:
                        answers[kind].append((time.monotonic() - began, _took(request), _took(echo)))
                        time.sleep(0.01)
    return answers


def _took(call: Callable[[], None]) -> float:
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


@contextlib.contextmanager
def _best_effort(cluster: BenchCluster) -> Iterator[None]:
    """Run programs that compute, as best effort."""
    with contextlib.ExitStack() as stack:
        for number_ in range(NOISY):
            node = stack.enter_context(cluster.at(number_ % NODES))
            stack.enter_context(node.run(_COMPUTE, work=dios.work(best_effort=True), label="noise"))
        yield


@contextlib.contextmanager
def _plain() -> Iterator[None]:
    """Run the same programs without a node, each in a session of its own."""
    line = [sys.executable, "-c", _COMPUTE.decode()]
    noisy = [subprocess.Popen(line, start_new_session=True) for _ in range(NOISY)]
    try:
        yield
    finally:
        for process in noisy:
            process.kill()
            process.wait()


@contextlib.contextmanager
def _echo() -> Iterator[Callable[[], None]]:
    """Return a round trip of a byte to another process, which is in a session of its own."""
    ours, theirs = socket.socketpair()
    code = "import socket, sys\ns = socket.socket(fileno=0)\nwhile b := s.recv(1):\n    s.sendall(b)\n"
    with ours:
        with theirs:
            process = subprocess.Popen(
                [sys.executable, "-c", code], stdin=theirs.fileno(), start_new_session=True
            )
        try:

            def once() -> None:
                ours.sendall(b"?")
                assert ours.recv(1)

            once()
            yield once
        finally:
            process.kill()
            process.wait()


def _draw(answers: dict[str, Answers]) -> str:
    """Draw each answer's time; return "" or the reason why nothing was drawn."""
    try:
        import matplotlib as mpl

        mpl.use("Agg")
        from matplotlib import pyplot as plt
    except ImportError:
        return "no picture: matplotlib is not installed here (`make bench` installs it)"
    figure, axis = plt.subplots(figsize=(9, 4))
    for (kind, samples), color in zip(answers.items(), ("tab:gray", "tab:blue", "tab:red"), strict=True):
        axis.plot(
            [at for at, _, _ in samples],
            [1e3 * took for _, took, _ in samples],
            ".",
            color=color,
            markersize=3,
            label=kind,
        )
    axis.set_yscale("log")
    axis.set_xlabel("seconds")
    axis.set_ylabel("milliseconds of an answer")
    axis.set_title(f"A service with {NODES} replicas, each with {CPUS} reserved processors")
    axis.grid(visible=True, linewidth=0.3)
    axis.legend()
    figure.tight_layout()
    figure.savefig(PICTURE, dpi=100)
    plt.close(figure)
    return ""


def main() -> None:
    """Print the figures as JSON."""
    section = Section("services")
    run(section)
    print(json.dumps([(figure.name, round(figure.value, 2)) for figure in section.figures], indent=1))


if __name__ == "__main__":
    main()
