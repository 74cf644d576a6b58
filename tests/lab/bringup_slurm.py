"""``make slurm-test``: ``dios up --on slurm`` on a Slurm of three nodes on this machine, step by step.

munged, slurmctld and three slurmd of the system's packages run in a directory of their own, and are ended at
the end. Exit status 0 when all held, 1 when something did not, 3 without Slurm.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

PROGRAMS: Final = ("munged", "slurmctld", "slurmd", "sbatch", "srun")
PATH: Final = f"{os.environ['PATH']}:/usr/sbin:/sbin"
NODES: Final = ("s1", "s2", "s3")
CONTROLLER_PORT: Final = 16_817
NOT_HERE: Final = 3
WAIT_SECONDS: Final = 90.0
BEGAN: Final = time.monotonic()


class FailedError(Exception):
    """A step did not do what it should."""


def step(title: str) -> None:
    """Say what comes next."""
    sys.stdout.write(f"{time.monotonic() - BEGAN:6.1f} s  {title}\n")
    sys.stdout.flush()


def require(condition: object, description: str) -> None:
    """Raise FailedError if a condition does not hold."""
    if not condition:
        raise FailedError(description)


def wait(condition: Callable[[], bool], description: str) -> None:
    """Wait for a condition, or raise FailedError."""
    deadline = time.monotonic() + WAIT_SECONDS
    while not condition():
        require(time.monotonic() < deadline, f"not within {WAIT_SECONDS:g} s: {description}")
        time.sleep(0.2)


def configuration(folder: Path) -> str:
    """The configuration of a Slurm whose nodes are three daemons with ports of their own."""
    host = socket.gethostname().partition(".")[0]
    lines = [
        "ClusterName=try",
        f"SlurmctldHost={host}(127.0.0.1)",
        f"SlurmctldPort={CONTROLLER_PORT}",
        "SlurmUser=root",
        "SlurmdUser=root",
        f"AuthInfo=socket={folder}/munge.socket",
        f"StateSaveLocation={folder}/state",
        f"SlurmdSpoolDir={folder}/spool.%n",
        f"SlurmctldPidFile={folder}/slurmctld.pid",
        f"SlurmdPidFile={folder}/slurmd.%n.pid",
        f"SlurmctldLogFile={folder}/slurmctld.log",
        f"SlurmdLogFile={folder}/slurmd.%n.log",
        "ProctrackType=proctrack/linuxproc",
        "TaskPlugin=task/none",
        "SwitchType=switch/none",
        "SelectType=select/cons_tres",
        "SelectTypeParameters=CR_CPU",
        "MpiDefault=none",
        "ReturnToService=2",
        "KillWait=20",
        *(
            f"NodeName={name} NodeHostname={host} NodeAddr=127.0.0.1 Port={CONTROLLER_PORT + number} "
            f"CPUs={os.cpu_count()}"
            for number, name in enumerate(NODES, start=1)
        ),
        "PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP",
    ]
    return "\n".join(lines) + "\n"


@contextlib.contextmanager
def running_slurm(folder: Path) -> Iterator[dict[str, str]]:
    """Run the daemons; yield the environment of Slurm's commands."""
    key = folder / "munge.key"
    key.write_bytes(secrets.token_bytes(128))
    key.chmod(0o400)
    (folder / "state").mkdir()
    file = folder / "slurm.conf"
    file.write_text(configuration(folder))
    environment = {**os.environ, "PATH": PATH, "SLURM_CONF": str(file)}
    munged = ["munged", "--foreground", "--force", f"--key-file={key}", f"--socket={folder}/munge.socket"]
    munged += [
        f"--pid-file={folder}/munge.pid",
        f"--seed-file={folder}/munge.seed",
        f"--log-file={folder}/munge.log",
    ]
    commands = [
        munged,
        ["slurmctld", "-D", "-f", str(file)],
        *(["slurmd", "-D", "-N", name, "-f", str(file)] for name in NODES),
    ]
    running: list[subprocess.Popen[bytes]] = []
    try:
        for command in commands:
            with (folder / f"out.{len(running)}").open("wb") as log:
                running.append(
                    subprocess.Popen(
                        command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment
                    )
                )
            if command is munged:
                wait((folder / "munge.socket").exists, "munged")

        def idle() -> bool:
            asked = subprocess.run(
                ["sinfo", "--noheader", "--states=idle", "--format=%D"],
                capture_output=True,
                text=True,
                env=environment,
                check=False,
            )
            return asked.stdout.strip() == str(len(NODES))

        wait(idle, f"three idle nodes of Slurm; see {folder}")
        yield environment
    finally:
        # A step outlives the daemons, so jobs are ended first.
        subprocess.run(["scancel", "--user=root"], env=environment, capture_output=True, check=False)
        with contextlib.suppress(FailedError):
            wait(lambda: not left(), "the end of all jobs")
        for process in reversed(running):
            process.terminate()
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


class Dios:
    """The command ``dios`` of this checkout."""

    def __init__(self, folder: Path, environment: dict[str, str]) -> None:
        self.directory: Final = folder / "cluster"
        self.environment: Final = environment

    def command(self, *words: str) -> list[str]:
        """The command line of ``dios up`` or ``dios down``."""
        program = [sys.executable, "-m", "dios.cli.main", words[0], "--on", "slurm"]
        return [*program, "--dir", str(self.directory), "--json", *words[1:]]

    def __call__(self, *words: str, status: int = 0) -> str:
        """What the command prints, or its errors where it is to fail."""
        done = subprocess.run(
            self.command(*words), capture_output=True, text=True, env=self.environment, check=False
        )
        require(
            done.returncode == status, f"dios {words} ended with {done.returncode}: {done.stderr}{self.log()}"
        )
        return done.stdout if not status else done.stderr

    def log(self) -> str:
        """The job's log."""
        with contextlib.suppress(OSError):
            return (self.directory / "job.log").read_text()
        return ""

    def queue(self) -> str:
        """The jobs of Slurm."""
        asked = subprocess.run(
            ["squeue", "--noheader", "--format=%i %T"],
            capture_output=True,
            text=True,
            env=self.environment,
            check=True,
        )
        return asked.stdout.strip()


def left() -> list[str]:
    """The processes of nodes in an allocation, and their data."""
    remains = [str(path) for path in Path("/tmp").glob(f"dios-{os.geteuid()}-*")]
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if b"dios.node.bringup.in_allocation" in entry.read_bytes():
                remains.append(entry.parent.name)
    return remains


def tried(dios: Dios) -> None:
    """The whole story; raises FailedError."""
    step("a job of three nodes becomes a cluster")
    report = json.loads(dios("up", "--nodes", "3", "--sbatch", "--time=10", "--pool-size", "1"))
    require(sorted(row["host"] for row in report["nodes"]) == list(NODES), f"the nodes are {report}")
    require(not (dios.directory / "join.json").exists(), "the token was not deleted")
    step("a command in the allocation")
    first = report["nodes"][0]
    srun = ["srun", f"--jobid={report['job']}", "--overlap", "--nodes=1", "--ntasks=1"]
    asks = [sys.executable, "-m", "dios.cli.main", "node", "ls", "--json", "--node", first["data"]]
    listed = subprocess.run(
        [*srun, f"--nodelist={first['host']}", *asks],
        capture_output=True,
        text=True,
        env=dios.environment,
        check=False,
    )
    require(listed.returncode == 0, f"dios node ls ended with {listed.returncode}: {listed.stderr}")
    rows = json.loads(listed.stdout)
    require(
        {row["name"]: row["status"] for row in rows} == dict.fromkeys(NODES, "alive"), f"the nodes are {rows}"
    )
    step("a second run finds the job")
    again = json.loads(dios("up"))
    require(again == report, f"the second run said {again}")
    step("dios down ends the job and its data")
    dios("down", "--delete")
    require(not dios.queue(), f"Slurm still has {dios.queue()}")
    wait(lambda: not left(), f"left: {left()}")
    require(not dios.directory.exists(), "the directory is left")
    step("Ctrl-C while the job waits for machines")
    process = subprocess.Popen(
        dios.command("up", "--nodes", "3", "--sbatch", "--begin=now+1hour"),
        stderr=subprocess.PIPE,
        text=True,
        env=dios.environment,
        # Where this program is a background job of a shell, its children ignore SIGINT.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),  # noqa: PLW1509 - one thread
    )
    wait(lambda: "PENDING" in dios.queue(), "a waiting job")
    wait((dios.directory / "slurm.json").exists, "the record of the job")
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=WAIT_SECONDS)
    require(process.returncode == 130, f"after Ctrl-C the status was {process.returncode}: {errors}")
    require("was cancelled" in errors, f"after Ctrl-C it said {errors!r}")
    require(not dios.queue(), f"Slurm still has {dios.queue()}")
    step("a job that Slurm refuses")
    errors = dios("up", "--sbatch", "--partition=nowhere", status=1)
    require("sbatch failed" in errors, f"it said {errors!r}")
    require(not dios.directory.exists(), "the directory is left")


def main() -> int:
    """Try ``dios up --on slurm``."""
    missing = [name for name in PROGRAMS if shutil.which(name, path=PATH) is None]
    if missing or os.geteuid():
        step(f"needs root and {', '.join(missing or PROGRAMS)} (apt-get install slurmctld slurmd munge)")
        return NOT_HERE
    with tempfile.TemporaryDirectory(prefix="dios-slurm-") as name:
        folder = Path(name)
        try:
            with running_slurm(folder) as environment:
                tried(Dios(folder, environment))
        except FailedError as error:
            step(f"FAILED: {error}")
            return 1
    step("everything held")
    return 0


if __name__ == "__main__":
    sys.exit(main())
