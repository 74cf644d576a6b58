from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from dios import limits
from dios.cli.main import app
from dios.errors import DamagedError, ExistsError, InvalidError, NotSupportedError
from dios.node.bringup import slurm
from dios.node.bringup.slurm import SlurmError

ROW = '{"name": "s1", "host": "s1", "address": "10.0.0.1:7400", "data": "/tmp/x"}'


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder first on the path for programs of Slurm; `make slurm-test` uses the real ones."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder), prepend=":")
    return folder


class Clock:
    """A clock that moves by the time of a whole start whenever somebody sleeps."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def monotonic(self) -> float:
        """The seconds."""
        return self.seconds

    def sleep(self, _: float) -> None:
        """Sleep in no time."""
        self.seconds += limits.NODE_START_MS_MAX / 1000 + 1


def tool(folder: Path, name: str, script: str) -> None:
    """Write a program of Slurm."""
    (folder / name).write_text(f"#!/bin/sh\n{script}\n")
    (folder / name).chmod(0o755)


def submitted(place: Path, sbatch: str = "") -> slurm.Job:
    """Submit a job of one node."""
    return slurm.submit(place, nodes=1, sbatch=sbatch, settings={"pool_size": "1"}, port=7400)


def test_a_job_is_submitted_once_and_found_again(tmp_path: Path, tools: Path) -> None:
    """The job gets the options; other commands read its record; its files can be deleted."""
    place = tmp_path / "cluster"
    tool(tools, "sbatch", f'echo "$*" >{tmp_path}/told; echo "42;cluster"')
    job = submitted(place, "--time=5 --exclusive")
    assert slurm.read(place) == job == slurm.Job(1, 42, 1)
    assert "--no-requeue --nodes=1" in (tmp_path / "told").read_text()
    assert f"--time=5 --exclusive {place}/job.sh" in (tmp_path / "told").read_text()
    with pytest.raises(ExistsError):
        submitted(place)
    tool(tools, "squeue", f"echo '{ROW}' >{place}/nodes/s1.json; echo 'RUNNING|None'")
    assert [row.host for row in slurm.wait_ready(place, job)] == ["s1"]
    slurm.remove(place)
    assert not place.exists()


def test_a_job_whose_nodes_get_ready_slowly_is_waited_for(
    tmp_path: Path, tools: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The patience begins anew with each node that is ready; after it the job is said to run."""
    place = tmp_path / "cluster"
    tool(tools, "sbatch", "echo 42")
    slurm.submit(place, nodes=3, sbatch="", settings={}, port=7400)
    job = slurm.Job(1, 42, 3)
    # At each question the time of a whole start has passed, and one more node is ready.
    tool(tools, "squeue", f"echo '{ROW}' >{place}/nodes/s$(ls {place}/nodes | wc -l).json; echo 'RUNNING|'")
    clock = Clock()
    monkeypatch.setattr(slurm, "time", clock)
    assert len(slurm.wait_ready(place, job)) == 3
    tool(tools, "squeue", "echo 'RUNNING|'")
    with pytest.raises(SlurmError, match="job 42 runs, but 2 of 5 nodes are not ready yet"):
        slurm.wait_ready(place, slurm.Job(1, 42, 5))


def test_a_job_that_ends_too_early_is_an_error_with_its_log(tmp_path: Path, tools: Path) -> None:
    """The message names the job's log; a job that Slurm has forgotten has ended."""
    tool(tools, "sbatch", "echo 42")
    job = submitted(tmp_path / "cluster")
    tool(tools, "squeue", "echo 'FAILED|NonZeroExitCode'")
    with pytest.raises(SlurmError, match=r"job 42 ended \(failed\).*job\.log"):
        slurm.wait_ready(tmp_path / "cluster", job)
    tool(tools, "squeue", "echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1")
    assert not slurm.running(job)
    slurm.cancel(job)


def test_nothing_is_left_of_a_job_that_is_refused(tmp_path: Path, tools: Path) -> None:
    """Wrong numbers, options and settings, a refusal of Slurm and a missing Slurm leave no directory."""
    place = tmp_path / "cluster"
    tool(tools, "sbatch", "echo 'invalid partition' >&2; exit 1")
    with pytest.raises(SlurmError, match="sbatch failed: invalid partition"):
        submitted(place)
    with pytest.raises(InvalidError):
        submitted(place, "'")
    with pytest.raises(InvalidError):
        slurm.submit(place, nodes=1, sbatch="", settings={"listen": "10.0.0.1:1"}, port=7400)
    assert not place.exists()


def test_without_slurm_the_error_says_where_to_type(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine without sbatch is no login node."""
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(NotSupportedError, match="login node"):
        submitted(tmp_path / "cluster")
    (tmp_path / "slurm.json").write_text('{"version": 1, "job": -1, "nodes": 1}')
    with pytest.raises(DamagedError):
        slurm.read(tmp_path)


def test_a_job_with_data_is_ended_only_with_delete(tools: Path, tmp_path: Path) -> None:
    """The data of a job that runs are lost with it, so `dios down` asks for the word."""
    tool(tools, "sbatch", "echo 42")
    tool(tools, "squeue", f"cat {tools}/state")
    tool(tools, "scancel", f"echo 'COMPLETED|None' >{tools}/state")
    (tools / "state").write_text("RUNNING|None\n")
    place = tmp_path / "cluster"
    submitted(place)
    down = ["down", "--on", "slurm", "--dir", str(place)]
    refused = CliRunner().invoke(app, down)
    assert refused.exit_code == 1
    assert "--delete" in refused.output
    assert slurm.read(place) is not None
    assert CliRunner().invoke(app, [*down, "--delete"]).exit_code == 0
    assert slurm.read(place) is None
    submitted(place)
    assert CliRunner().invoke(app, down).exit_code == 0, "the job has ended, and nothing is lost"
