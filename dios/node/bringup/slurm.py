"""A cluster in an allocation of Slurm: submits the job, reports its state, and ends it.

The directory of the cluster is on a file system that all nodes of Slurm share, as a home directory is.
``in_allocation`` runs on each node, and writes its row there when its node of DIOS sees all others.
"""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from dios import limits
from dios.errors import DamagedError, DiosError, ExistsError, InvalidError, NotSupportedError
from dios.node import cluster
from dios.node.settings import KEYS, load
from dios.transport.identity import durable_files
from dios.trusted_files import require_trusted

FILE_NAME: Final = "slurm.json"
NODES_FOLDER: Final = "nodes"
LOG_NAME: Final = "job.log"
PORT_DEFAULT: Final = 7_400
NODES_MAX: Final = 512
_POLL_S: Final = 0.5
_GONE_S: Final = 60.0
_ASK_S: Final = 60.0
_OWN_KEYS: Final = frozenset({*cluster.REMEMBERED, "socket", "log_file", "record"})
_WAITS: Final = frozenset({"PENDING", "CONFIGURING", "REQUEUED", "RESIZING", "SUSPENDED"})
_RUNS: Final = frozenset({"RUNNING", "COMPLETING"})

Word = Annotated[str, Meta(max_length=255)]
Text = Annotated[str, Meta(max_length=4_096)]


class Job(msgspec.Struct, forbid_unknown_fields=True):
    """The record of a submitted cluster."""

    version: Annotated[int, Meta(ge=1, le=1)]
    job: Annotated[int, Meta(ge=1, le=2**62)]
    nodes: Annotated[int, Meta(ge=1, le=NODES_MAX)]


class Row(msgspec.Struct, forbid_unknown_fields=True):
    """A node of the cluster; ``host`` is its name in Slurm."""

    name: Word
    host: Word
    address: Text
    data: Text


class SlurmError(DiosError):
    """A command of Slurm failed, or the job ended before the cluster was ready."""


def read(directory: Path) -> Job | None:
    """Return the job of a directory, or None. Raise DamagedError if its file cannot be read."""
    path = directory / FILE_NAME
    try:
        require_trusted(path, "the record of the job")
        return msgspec.json.decode(path.read_bytes(), type=Job)
    except FileNotFoundError:
        return None
    except msgspec.MsgspecError as error:
        raise DamagedError(f"{path} is damaged ({error}). End the job with scancel, and delete it.") from None


def submit(directory: Path, *, nodes: int, sbatch: str, settings: Mapping[str, str], port: int) -> Job:
    """Submit a job that makes a cluster of ``nodes`` machines, and record it.

    ``sbatch`` has more options for that program. Raise InvalidError, SettingsError, ExistsError if the
    directory is not empty, NotSupportedError without Slurm, SlurmError if Slurm refuses the job.
    """
    if not 1 <= nodes <= NODES_MAX:
        raise InvalidError(f"an allocation has 1 to {NODES_MAX} nodes, not {nodes}")
    text = _settings_text(settings)
    try:
        options = shlex.split(sbatch)
    except ValueError as error:
        raise InvalidError(f"--sbatch must be options for sbatch: {error}") from None
    if directory.exists() and any(directory.iterdir()):
        raise ExistsError(f"{directory} is not empty. Choose another directory with --dir.")
    (directory / NODES_FOLDER).mkdir(mode=0o700, parents=True)
    directory.chmod(0o700)
    (directory / "node.toml").write_text(text, encoding="utf-8")
    script = directory / "job.sh"
    script.write_text(_script(directory, port), encoding="utf-8")
    try:
        own = ["--parsable", "--job-name=dios", "--no-requeue", f"--nodes={nodes}", "--ntasks-per-node=1"]
        said = _slurm(["sbatch", *own, f"--output={directory / LOG_NAME}", *options, str(script)])
    except BaseException:
        remove(directory)
        raise
    job = Job(version=1, job=int(said.strip().partition(";")[0]), nodes=nodes)
    durable_files.write(directory / FILE_NAME, msgspec.json.encode(job))
    return job


def _settings_text(settings: Mapping[str, str]) -> str:
    for key in settings:
        if key in _OWN_KEYS and key in KEYS:
            raise InvalidError(f"{key} is chosen separately for each node of an allocation. Leave it out.")
    load(Path("/nonexistent"), flags=settings, environ={})
    return "".join(f"{key} = {json.dumps(value)}\n" for key, value in settings.items())


def _script(directory: Path, port: int) -> str:
    module = [sys.executable, "-P", "-m", "dios.node.bringup.in_allocation", str(directory), str(port)]
    # The step gets all of the allocation on each node: the tasks of DIOS run in it. The other nodes go on if
    # one fails, as in every cluster.
    return f"""\
#!/bin/sh
exec srun --ntasks-per-node=1 --whole --mem=0 --no-kill --kill-on-bad-exit=0 {shlex.join(module)}
"""


def wait_ready(directory: Path, job: Job, *, report: Callable[[str], None] = lambda _: None) -> list[Row]:
    """Wait until every node of the job sees all others; return their rows.

    The job may wait in Slurm's queue for any time. Raise SlurmError if it ends, or if none of its nodes gets
    ready for NODE_START_MS_MAX; it runs then, and may be ready later.
    """
    ready, since = -1, 0.0
    while True:
        rows = _rows(directory)
        if len(rows) == job.nodes:
            return rows
        state, reason = _state(job)
        if state in _WAITS:
            report(f"job {job.job} waits ({reason or state.lower()})")
        elif state in _RUNS:
            if len(rows) != ready:
                ready, since = len(rows), time.monotonic()
            report(f"job {job.job} runs; {len(rows)} of {job.nodes} nodes are ready")
            if (time.monotonic() - since) * 1000 > limits.NODE_START_MS_MAX:
                raise SlurmError(
                    f"job {job.job} runs, but {job.nodes - len(rows)} of {job.nodes} nodes are not ready "
                    f"yet. `dios node ls` shows when they are. See {directory / LOG_NAME}; "
                    "`dios down --on slurm --delete` ends the job."
                )
        else:
            raise SlurmError(
                f"job {job.job} ended ({state.lower() or 'it is unknown to Slurm'}) before the cluster was "
                f"ready. See {directory / LOG_NAME}; `dios down --on slurm --delete` deletes it."
            )
        time.sleep(_POLL_S)


def _rows(directory: Path) -> list[Row]:
    rows = []
    for path in sorted((directory / NODES_FOLDER).glob("*.json")):
        with contextlib.suppress(msgspec.MsgspecError, FileNotFoundError):
            rows.append(msgspec.json.decode(path.read_bytes(), type=Row))
    return rows


def running(job: Job) -> bool:
    """Return True if the job waits or runs."""
    return _state(job)[0] in _WAITS | _RUNS


def _state(job: Job) -> tuple[str, str]:
    """Return the state of a job and the reason why it waits; empty texts if Slurm has forgotten it."""
    try:
        said = _slurm(["squeue", "--noheader", f"--jobs={job.job}", "--states=all", "--format=%T|%r"])
    except SlurmError as error:
        if "Invalid job id" in error.message:
            return "", ""
        raise
    state, _, reason = said.strip().partition("|")
    return state, "" if reason == "None" else reason


def cancel(job: Job) -> None:
    """End the job, and wait until its processes have ended. Raise SlurmError."""
    if not running(job):
        return
    _slurm(["scancel", str(job.job)])
    deadline = time.monotonic() + _GONE_S
    while running(job):
        if time.monotonic() > deadline:
            raise SlurmError(f"job {job.job} has not ended after {_GONE_S:.0f} s. Look at it with squeue.")
        time.sleep(_POLL_S)


def remove(directory: Path) -> None:
    """Delete the files of the cluster, and the directory if nothing else is in it."""
    shutil.rmtree(directory / NODES_FOLDER, ignore_errors=True)
    for name in (FILE_NAME, LOG_NAME, "job.sh", "node.toml", "join.json"):
        (directory / name).unlink(missing_ok=True)
    with contextlib.suppress(OSError):
        directory.rmdir()


def _slurm(command: Sequence[str]) -> str:
    """Run a command of Slurm; return its output. Raise NotSupportedError, SlurmError."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith("DIOS_")}
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_ASK_S, check=False, env=environment
        )
    except FileNotFoundError:
        raise NotSupportedError(
            f"Slurm is not installed here: the command {command[0]} was not found. Type this on a login node."
        ) from None
    except subprocess.TimeoutExpired:
        raise SlurmError(
            f"{command[0]} did not answer within {_ASK_S:.0f} s. Is slurmctld running?"
        ) from None
    if done.returncode:
        why = (done.stderr.strip() or done.stdout.strip() or "no reason was given").splitlines()[-1]
        raise SlurmError(f"{command[0]} failed: {why}")
    return done.stdout
