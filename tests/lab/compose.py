"""``make docker``: the compose file, run for real, step by step, with one node killed on the way.

Not for: what is in the file (docs/deploy-docker.md). All that it starts is taken down at the end, also
after a failure and Ctrl-C. Exit status 0 when all held, 1 when something did not, 3 when no engine is here.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
CLUSTER: Final = ROOT / "cluster"
WHEELS: Final = ROOT / "build" / "wheels"
NODES: Final = ("n1", "n2", "n3")
NO_ENGINE: Final = 3
WAIT_SECONDS: Final = 120.0
PROJECT: Final = "dios-try"
PRIMES: Final = "2262 primes below 20000"
SCHEDULED: Final = ("--cpus", "1", "--constraint", "node=n2")
"""What only a scheduler can give: without a coordinator such a run waits."""
OF_THE_IMAGE: Final = "/opt/dios/kernels"
OF_THE_NODE: Final = "/var/lib/dios/home/.cache/numba"


class FailedError(Exception):
    """A step did not do what it should."""


class Compose:
    """Docker Compose of either generation, on a project of its own."""

    def __init__(self, command: list[str], base: str) -> None:
        self._command: Final = [*command, "--project-name", PROJECT]
        self._environment: Final = {**os.environ, **({"DIOS_BASE": base} if base else {})}

    def __call__(self, *words: str, quiet: bool = False) -> str:
        """What a command prints; FailedError when it fails."""
        done = subprocess.run(
            [*self._command, *words],
            cwd=CLUSTER,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL if quiet else None,
            text=True,
            check=False,
        )
        if done.returncode:
            raise FailedError(f"{' '.join(words)} ended with status {done.returncode}")
        return done.stdout

    def asks(self, node: str, *words: str) -> str:
        """What a command prints inside a node's container."""
        return self("exec", "-T", node, *words, quiet=True)

    def kernels(self, node: str, folder: str) -> set[str]:
        """The compiled kernels below a folder of a node's container."""
        return set(self.asks(node, "find", folder, "-name", "*.nbc", "-printf", "%P\\n").split())

    def sees(self, node: str) -> dict[str, str]:
        """The nodes and how they are, as one of them sees them."""
        rows = json.loads(self.asks(node, "dios", "node", "ls", "--json"))
        return {row["name"]: row["status"] for row in rows}


def found_engine() -> list[str] | None:
    """The command of Docker Compose with an engine that answers; None where there is none."""
    docker, older = shutil.which("docker"), shutil.which("docker-compose")
    if docker is None or subprocess.run([docker, "info"], capture_output=True, check=False).returncode:
        return None
    if not subprocess.run([docker, "compose", "version"], capture_output=True, check=False).returncode:
        return [docker, "compose"]
    return [older] if older else None


def step(what: str) -> None:
    """Say what comes next."""
    sys.stdout.write(f"{what}\n")
    sys.stdout.flush()


def wait(condition: Callable[[], bool], what: str) -> None:
    """Wait for a condition; a command that fails meanwhile is "not yet"."""
    deadline = time.monotonic() + WAIT_SECONDS
    while time.monotonic() < deadline:
        try:
            if condition():
                return
        except FailedError:
            pass
        time.sleep(0.5)
    raise FailedError(f"not within {WAIT_SECONDS:g} s: {what}")


def agree(compose: Compose, nodes: tuple[str, ...], dead: tuple[str, ...] = ()) -> Callable[[], bool]:
    """Whether these nodes see each other alive, and the others dead."""
    expected = {node: "dead" if node in dead else "alive" for node in NODES}
    return lambda: all(compose.sees(node) == expected for node in nodes)


def coordinated(compose: Compose) -> dict[str, object]:
    """What the coordinator says of itself, when it schedules on all nodes."""
    found: dict[str, object] = {}

    def answers() -> bool:
        found.update(json.loads(compose.asks("n3", "dios", "sched", "status", "--json")))
        return found["attends"] == list(NODES)

    wait(answers, "a coordinator schedules for all nodes")
    return found


def scheduled(compose: Compose) -> None:
    """A run that needs Firmament is placed, by kernels that the image brought; raises FailedError."""
    coordinated(compose)
    words = ("run", "--rm", "-T", "--entrypoint", "dios", "job", "run", *SCHEDULED, "--group", "jobs")
    if PRIMES not in (said := compose(*words, "/opt/dios/cluster/job.py", quiet=True)):
        raise FailedError(f"the scheduled job said {said!r}")
    found = coordinated(compose)
    if not found["rounds"] or found["problems"]:
        raise FailedError(f"the coordinator says {found}")
    node = str(found["coordinator"])
    brought, kept = compose.kernels(node, OF_THE_IMAGE), compose.kernels(node, OF_THE_NODE)
    if not brought or brought != kept:
        raise FailedError(f"{node} compiled kernels that the image did not bring: {sorted(kept ^ brought)}")


def tried(compose: Compose) -> None:
    """The whole story; raises FailedError."""
    step("building the image and starting three nodes")
    compose("up", "--detach", "--build")
    wait(agree(compose, NODES), "three nodes see each other")
    step("tokens are in no environment")
    if "DIOS_TOKEN" in compose.asks("n2", "env"):
        raise FailedError("a token stands in the environment of n2")
    step("tasks are confined there")
    doctor = json.loads(compose.asks("n1", "dios", "doctor", "--data", "/var/lib/dios", "--json"))
    if doctor["confined"] is not True:
        raise FailedError(f"tasks are not confined in the container: {doctor['why_not']}")
    step("a job runs as a sandboxed task")
    for _ in range(2):
        if PRIMES not in (said := compose("run", "--rm", "-T", "job", quiet=True)):
            raise FailedError(f"the job said {said!r}")
    step("Firmament places a job")
    scheduled(compose)
    step("n3 is killed; the others go on")
    compose("kill", "n3", quiet=True)
    wait(agree(compose, NODES[:2], dead=("n3",)), "n1 and n2 see n3 dead")
    compose("run", "--rm", "-T", "job", quiet=True)
    step("n3 is started again, and remembers")
    compose("start", "n3", quiet=True)
    wait(agree(compose, NODES), "three nodes see each other again")
    step("all are stopped and started again")
    compose("stop", quiet=True)
    compose("up", "--detach", quiet=True)
    wait(agree(compose, NODES), "three nodes see each other after a restart")
    step("Firmament places a job after the restart")
    scheduled(compose)


def make_wheels() -> None:
    """Wheels for the image, made by this interpreter; older ones would be installed in their place."""
    step("making wheels")
    shutil.rmtree(WHEELS, ignore_errors=True)
    command = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "--quiet",
        "--wheel-dir",
        str(WHEELS),
        f"{ROOT}[cluster]",
        "cyclonedx-bom>=7",
    ]
    subprocess.run(command, check=True, stderr=subprocess.DEVNULL)


def main() -> int:
    """Try the compose file as the command line says."""
    parser = argparse.ArgumentParser(prog="make docker", description=__doc__)
    parser.add_argument("--base", default="", help="the image to build on")
    parser.add_argument(
        "--wheels", action="store_true", help="make the wheels here: the build has no network"
    )
    parser.add_argument("--keep", action="store_true", help="leave it running at the end")
    chosen = parser.parse_args()
    command = found_engine()
    if command is None:
        step("no container engine answers here, or Docker Compose is not installed: nothing was tried")
        step("next: start dockerd, or set DOCKER_HOST; docs/deploy-docker.md")
        return NO_ENGINE
    compose = Compose(command, chosen.base)
    if chosen.wheels:
        make_wheels()
    try:
        tried(compose)
    except FailedError as error:
        step(f"FAILED: {error}")
        for service in (*NODES, "tokens"):
            step(compose("logs", "--tail", "15", service))
        return 1
    finally:
        if not chosen.keep:
            step("taking everything down")
            compose("down", "--volumes", quiet=True)
    step("everything held")
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
