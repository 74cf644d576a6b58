"""``make docker`` and ``make docker-test``: the compose file, run for real, with one node killed on the way.

The first uses the engine that answers here, the second makes one (``container_engine``). All that this
program starts is taken down at the end, also after a failure and Ctrl-C. docs/deploy.md describes the
file. Exit status 0 when all held, 1 when something did not, 3 when no engine is here.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from labs.benchmarks import report
from tests.lab import container_engine

ROOT: Final = Path(__file__).resolve().parents[2]
CLUSTER: Final = ROOT / "cluster"
WHEELS: Final = ROOT / "build" / "wheels"
NODES: Final = ("n1", "n2", "n3")
NO_ENGINE: Final = 3
WAIT_SECONDS: Final = 120.0
COMPILE_SECONDS: Final = 1_200.0
PROJECT: Final = "dios-try"
IMAGE: Final = "dios:local"
PRIMES: Final = "2262 primes below 20000"
JOB: Final = "/opt/dios/cluster/job.py"
AS_A_USER: Final = ("run", "--rm", "-T", "--entrypoint", "dios", "job")
"""A command of a user of the cluster, whose groups are on a volume."""
DATA: Final = {f"{PROJECT}_{node}-data" for node in NODES}
ATTEMPTS: Final = """
import os, socket
def read(): open("/etc/passwd").read()
def look(): os.listdir("/var/lib/dios")
def connect(): socket.create_connection(("n1", 7400), 5)
def start(): os.posix_spawn("/bin/true", ["true"], {})
def succeeds(attempt):
    try:
        attempt()
    except Exception:
        return False
    return True
print("did:", *[attempt.__name__ for attempt in (read, look, connect, start) if succeeds(attempt)])
"""
"""A program that prints which of four things it could do."""
FREE: Final = "did: read look connect start"
CONFINED: Final = "did:"


class FailedError(Exception):
    """A step did not do what it should."""


class Progress:
    """The steps that were begun, with the seconds that each took, on a machine as it was before them."""

    def __init__(self) -> None:
        self.machine: Final = report.begin().machine
        self._began: Final = time.monotonic()
        self._starts: Final[list[tuple[str, float]]] = []

    def __call__(self, text: str) -> None:
        """Print the step that begins now."""
        now = time.monotonic() - self._began
        self._starts.append((text, now))
        print(f"{now:6.1f} s  {text}", flush=True)  # noqa: T201 - the output of this program

    def rows(self) -> list[tuple[str, float]]:
        """Return each step but the last with its seconds."""
        return [
            (text, end - start)
            for (text, start), (_, end) in zip(self._starts, self._starts[1:], strict=False)
        ]


class Compose:
    """Docker Compose of either generation, on a project of its own."""

    def __init__(self, command: list[str], base: str) -> None:
        self._command: Final = command
        self._environment: Final = {
            **os.environ,
            "COMPOSE_PROJECT_NAME": PROJECT,
            "DIOS_IMAGE": IMAGE,
            **({"DIOS_BASE": base} if base else {}),
        }

    def __call__(self, *words: str, quiet: bool = False) -> str:
        """Return the output of a command of Compose; raise FailedError if it fails."""
        return self.outcome(*self._command, *words, quiet=quiet)

    def outcome(self, *words: str, quiet: bool = False, stdin: str = "") -> str:
        """Return the output of a program; raise FailedError if it fails."""
        ended = subprocess.run(
            words,
            cwd=CLUSTER,
            env=self._environment,
            input=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE if quiet else None,
            text=True,
            check=False,
        )
        if ended.returncode:
            said = f":\n{ended.stdout[-2000:]}{ended.stderr[-2000:]}" if quiet else ""
            raise FailedError(f"{' '.join(words)} ended with status {ended.returncode}{said}")
        return ended.stdout

    def dios(self, verb: str, *words: str) -> str:
        """Return the output of ``dios up --compose`` or its like, with the program of this tree."""
        return self.outcome(
            sys.executable, "-m", "dios.cli.main", verb, "--compose", "--json", *words, quiet=True
        )

    def asks(self, node: str, *words: str, stdin: str = "") -> str:
        """Return the output of a command inside a node's container."""
        return self.outcome(*self._command, "exec", "-T", node, *words, quiet=True, stdin=stdin)

    def health(self, node: str) -> str:
        """Return the health of a node's container, as the engine reports it."""
        container = self("ps", "--quiet", node, quiet=True).strip()
        form = "{{.State.Health.Status}}"
        return self.outcome("docker", "inspect", "--format", form, container, quiet=True).strip()

    def nodes(self, node: str) -> dict[str, str]:
        """Return the nodes and their states, as one of them sees them."""
        rows = json.loads(self.asks(node, "dios", "node", "ls", "--json"))
        return {row["name"]: row["status"] for row in rows}

    def data_volumes(self) -> set[str]:
        """Return the volumes of the nodes' data that exist."""
        return DATA & set(self.outcome("docker", "volume", "ls", "--quiet", quiet=True).split())


def compose_command() -> list[str] | None:
    """Return the command of Docker Compose with an engine that answers, or None."""
    docker, older = shutil.which("docker"), shutil.which("docker-compose")
    if docker is None or subprocess.run([docker, "info"], capture_output=True, check=False).returncode:
        return None
    if not subprocess.run([docker, "compose", "version"], capture_output=True, check=False).returncode:
        return [docker, "compose"]
    return [older] if older else None


def require(condition: object, problem: str) -> None:
    """Raise FailedError unless a condition holds."""
    if not condition:
        raise FailedError(problem)


def wait(condition: Callable[[], bool], text: str, seconds: float = WAIT_SECONDS) -> None:
    """Wait for a condition; a command that fails meanwhile is "not yet"."""
    deadline = time.monotonic() + seconds
    problem = ""
    while time.monotonic() < deadline:
        try:
            if condition():
                return
        except FailedError as error:
            problem = f" ({error})"
        time.sleep(0.5)
    raise FailedError(f"not within {seconds:g} s: {text}{problem}")


def wait_for_nodes(compose: Compose, nodes: tuple[str, ...] = NODES) -> None:
    """Wait until these nodes are healthy, and see each other alive and the others dead."""
    expected = {node: "alive" if node in nodes else "dead" for node in NODES}
    wait(
        lambda: all(compose.health(node) == "healthy" and compose.nodes(node) == expected for node in nodes),
        f"{', '.join(nodes)} are healthy and see {expected}",
    )


def run_job(compose: Compose) -> None:
    """Run the service ``job``; raise FailedError unless it counts right."""
    said = compose("run", "--rm", "-T", "job", quiet=True)
    require(PRIMES in said, f"the job said {said!r}")


def run_attempts(compose: Compose, node: str) -> None:
    """Show on a node that a pure task is confined; raise FailedError if not.

    The same program outside a task shows that the container itself does not stop it.
    """
    compose.asks(node, "sh", "-c", "cat >/tmp/attempts.py", stdin=ATTEMPTS)
    said = compose.asks(node, "python", "/tmp/attempts.py").strip()
    require(said == FREE, f"outside a task on {node} the program {said!r}")
    said = compose.asks(node, "dios", "run", "--local", "/tmp/attempts.py").strip()
    require(said == CONFINED, f"in a pure task on {node} the program {said!r}")
    verdict = json.loads(compose.asks(node, "dios", "doctor", "--data", "/var/lib/dios", "--json"))
    require(verdict["confined"] is True, f"{node} does not confine tasks: {verdict['why_not']}")


def scheduler_status(compose: Compose) -> dict[str, object]:
    """Return the answer of the coordinator that schedules; raise FailedError if it has a problem."""
    status: dict[str, object] = json.loads(compose.asks("n3", "dios", "sched", "status", "--json"))
    require(not status["problems"], f"the coordinator says {status}")
    return status


def run_scheduled(compose: Compose) -> None:
    """Have a run placed that waits without a coordinator; raise FailedError if it is not placed."""
    wait(lambda: scheduler_status(compose)["attends"] == list(NODES), "a coordinator schedules for all nodes")
    said = compose.asks("n3", "dios", "run", "--cpus", "1", "--constraint", "node=n2", JOB)
    require(PRIMES in said, f"the scheduled job said {said!r}")


def wait_for_kernels(compose: Compose, *, complete: bool) -> None:
    """Wait until the coordinator's node compiles kernels in the background, and keeps them on its volume.

    With ``complete``, wait until all are compiled, and the flow scheduler places runs.
    """
    node = str(scheduler_status(compose)["coordinator"])

    def compiles() -> bool:
        return ".nbc" in compose.asks(node, "find", "/var/lib/dios/home/.cache/numba", "-name", "*.nbc")

    wait(compiles, "the coordinator keeps a kernel that it compiled", COMPILE_SECONDS)
    if complete:
        wait(
            lambda: scheduler_status(compose).get("placed_by") != "first-fit",
            "the coordinator has compiled all kernels",
            COMPILE_SECONDS,
        )


def run_story(compose: Compose, step: Progress, *, kernels: bool) -> None:
    """Run the whole story, with the compilation of all ``kernels`` or its beginning; raise FailedError."""
    step("docker compose build")
    compose("build", quiet=True)
    step("docker compose up: three nodes are healthy and see each other")
    compose("up", "--detach", quiet=True)
    wait_for_nodes(compose)
    require("DIOS_TOKEN" not in compose.asks("n2", "env"), "a token stands in the environment of n2")
    step("a job runs, as a pure task")
    run_job(compose)
    step("pure tasks are confined on each node")
    for node in NODES:
        run_attempts(compose, node)
    step("the coordinator places a job")
    run_scheduled(compose)
    step("n3 is killed; the others go on")
    compose("kill", "n3", quiet=True)
    wait_for_nodes(compose, NODES[:2])
    run_job(compose)
    step("n3 is started again, and is a member as before")
    compose("start", "n3", quiet=True)
    wait_for_nodes(compose)
    step("dios down --compose keeps the data")
    compose(*AS_A_USER, "put", JOB, "--as", "job.py", "--group", "jobs", quiet=True)
    compose.dios("down")
    require(compose.data_volumes() == DATA, f"left of the volumes: {sorted(compose.data_volumes())}")
    step("dios up --compose: the same nodes with their data, healthy")
    compose.dios("up")
    require([compose.health(node) for node in NODES] == ["healthy"] * 3, "a node is not healthy after up")
    wait_for_nodes(compose)
    said = compose(*AS_A_USER, "get", "jobs/job.py", quiet=True)
    require(said == (CLUSTER / "job.py").read_text(), f"the file has {said!r}")
    run_job(compose)
    step(f"{'all' if kernels else 'the first'} kernels are compiled, in the background, on a volume")
    wait_for_kernels(compose, complete=kernels)
    step("the coordinator places a job")
    run_scheduled(compose)
    step("dios down --compose --delete deletes the data")
    compose.dios("down", "--delete")
    require(not compose.data_volumes(), f"left of the volumes: {sorted(compose.data_volumes())}")


def gather_wheels() -> None:
    """Gather the wheels of the image, for this interpreter's version, in place of older ones."""
    command = ["sh", str(CLUSTER / "wheels.sh"), sys.executable, str(WHEELS)]
    ended = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    require(ended.returncode == 0, f"no wheels: {ended.stdout[-2000:]}")


def try_story(command: list[str], chosen: argparse.Namespace, step: Progress) -> bool:
    """Run the story and take everything down; return True if it held."""
    compose = Compose(command, chosen.base)
    try:
        if chosen.wheels:
            step("gathering the wheels of the image")
            gather_wheels()
        run_story(compose, step, kernels=chosen.kernels)
        if chosen.report:
            write_report(Path(chosen.report), compose, step)
    except FailedError as error:
        step(f"FAILED: {error}")
        with contextlib.suppress(FailedError):
            print(compose("logs", "--tail", "15", quiet=True), flush=True)  # noqa: T201 - the reason, perhaps
        return False
    finally:
        if chosen.wheels:
            # A later build would install them in place of newer ones.
            shutil.rmtree(WHEELS, ignore_errors=True)
        if not chosen.keep:
            step("taking everything down")
            with contextlib.suppress(FailedError):
                compose("down", "--volumes", "--remove-orphans", quiet=True)
    step("everything held")
    return True


def write_report(path: Path, compose: Compose, step: Progress) -> None:
    """Write the times of the steps, with the commit and the machine."""
    step("writing the report")
    head = compose.outcome("git", "rev-parse", "--short=12", "HEAD", quiet=True).strip()
    if compose.outcome("git", "status", "--porcelain", "--untracked-files=no", quiet=True):
        head += " with changes"
    size = int(compose.outcome("docker", "image", "inspect", "--format", "{{.Size}}", IMAGE, quiet=True))
    form = "{{.ServerVersion}} with {{.Driver}}"
    engine = compose.outcome("docker", "info", "--format", form, quiet=True).strip()
    version = compose("version", "--short", quiet=True).strip()
    text = (
        f"`make docker-test REPORT={path}`, {report.now()}, commit {head}. "
        f"Machine: {', '.join(f'{key} {value}' for key, value in step.machine.items())}. Docker {engine}, "
        f"Compose {version}. The image has {size / 1e6:.0f} MB. It was built from wheels, on a Debian by "
        "debootstrap, without a network."
    )
    lines = [
        "# The compose file, run for real",
        "",
        *textwrap.wrap(text, 100, break_long_words=False, break_on_hyphens=False),
        "",
        "| step | seconds |",
        "|---|---:|",
        *(f"| {text} | {seconds:.1f} |" for text, seconds in step.rows()),
        "",
        "Every step did what it says; [A cluster in containers](../../docs/deploy.md) has the file.",
    ]
    path.write_text("\n".join(lines) + "\n")


def try_here(chosen: argparse.Namespace, step: Progress) -> int:
    """Run the story on the engine that DOCKER_HOST names; return the exit status."""
    command = compose_command()
    if command is None:
        step("no container engine answers here, or Docker Compose is not installed: nothing was tried")
        step("next: start dockerd, set DOCKER_HOST, or as root: make docker-test")
        return NO_ENGINE
    return 0 if try_story(command, chosen, step) else 1


def try_with_own_engine(chosen: argparse.Namespace, step: Progress) -> int:
    """Run the story on an engine that this program starts; return the exit status."""
    reason = container_engine.missing()
    if reason is not None:
        step(f"nothing was tried: {reason}")
        return NO_ENGINE
    try:
        step("starting an engine")
        with container_engine.private_engine() as address:
            os.environ["DOCKER_HOST"] = address
            step("making the base image")
            container_engine.import_base(address)
            chosen.base, chosen.wheels = container_engine.BASE, True
            return try_here(chosen, step)
    except container_engine.EngineError as error:
        step(f"FAILED: {error}")
        return 1


def main() -> int:
    """Try the compose file as the command line says."""
    parser = argparse.ArgumentParser(prog="make docker", description=__doc__)
    parser.add_argument("--engine", action="store_true", help="start an engine for this, as root")
    parser.add_argument("--base", default="", help="the image to build on")
    parser.add_argument(
        "--wheels", action="store_true", help="make the wheels here: the build has no network"
    )
    parser.add_argument("--kernels", action="store_true", help="wait until all kernels are compiled")
    parser.add_argument("--keep", action="store_true", help="leave it running at the end")
    parser.add_argument("--report", default="", help="a file for the times, if all held")
    chosen = parser.parse_args()
    # What SIGTERM ends is taken down as after Ctrl-C.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    step = Progress()
    return try_with_own_engine(chosen, step) if chosen.engine else try_here(chosen, step)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
