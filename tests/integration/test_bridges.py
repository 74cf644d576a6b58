"""joblib, scikit-learn and Dask on the executor: their calls run in sandboxed tasks."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import dask
import dask.array as da
import dask.bag as db
import dask.dataframe as dd
import joblib
import numpy as np
import pandas as pd
import pytest
from dask import threaded
from dask.utils_test import GetFunctionTestMixin

import dios
import dios.bridges.joblib
from tests.support.node.running_node import RunningNode, running_node

pytestmark = pytest.mark.long

EXAMPLES = Path(__file__).resolve().parents[2] / "examples" / "bridges"


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningNode]:
    """A node for all tests of this file."""
    with running_node(tmp_path_factory.mktemp("bridges") / "node") as node:
        yield node


def _square(number: int) -> int:
    return number * number


def _host_and_pid() -> tuple[str, int]:
    return os.uname().nodename, os.getpid()


def _fails(number: int) -> int:
    if number == 3:
        raise ValueError("three is refused")
    return number


def test_joblib_runs_in_tasks(started: RunningNode) -> None:
    """The calls of a Parallel run in the sandbox, in their order, and its body keeps the workers."""
    with joblib.parallel_config(backend="dios", n_jobs=2, node=started.place):
        calls = (joblib.delayed(_square)(number) for number in range(50))
        assert joblib.Parallel()(calls) == [number * number for number in range(50)]
        with joblib.Parallel() as parallel:
            for _ in range(2):
                answers = parallel(joblib.delayed(_host_and_pid)() for _ in range(4))
                assert set(answers) == {("task", 1)}


def test_joblib_raises_the_exception_of_a_call(started: RunningNode) -> None:
    """An exception ends the Parallel call and reaches the caller; the next call works."""
    with joblib.parallel_config(backend="dios", n_jobs=2, node=started.place):
        with pytest.raises(ValueError, match="three is refused"):
            joblib.Parallel()(joblib.delayed(_fails)(number) for number in range(6))
        assert joblib.Parallel()([joblib.delayed(_square)(4)]) == [16]


def test_joblib_takes_large_arrays_and_generators(started: RunningNode) -> None:
    """An array over the size at which joblib would use files arrives whole; results come as a generator."""
    block = np.arange(500_000, dtype=np.float64)
    with joblib.parallel_config(backend="dios", n_jobs=2, node=started.place):
        totals = joblib.Parallel(return_as="generator")(joblib.delayed(np.sum)(block) for _ in range(3))
        assert [float(value) for value in totals] == [float(block.sum())] * 3


def _remember(word: str) -> None:
    os.environ["REMEMBERED"] = word


def _remembered() -> tuple[str | None, str | None]:
    return os.environ.get("REMEMBERED"), os.environ.get("OMP_NUM_THREADS")


def test_joblib_initializes_workers(started: RunningNode) -> None:
    """An initializer runs in each worker, also after a failure; inner_max_num_threads has effect."""
    with joblib.parallel_config(
        backend="dios",
        n_jobs=2,
        node=started.place,
        inner_max_num_threads=3,
        initializer=_remember,
        initargs=("word",),
    ):
        assert joblib.Parallel()(joblib.delayed(_remembered)() for _ in range(6)) == [("word", "3")] * 6
        with joblib.Parallel() as parallel:
            with pytest.raises(ValueError, match="three is refused"):
                parallel(joblib.delayed(_fails)(number) for number in range(6))
            assert parallel(joblib.delayed(_remembered)() for _ in range(6)) == [("word", "3")] * 6


def _nested() -> list[int]:
    calls = (joblib.delayed(_square)(number) for number in range(3))
    answers: list[int] = joblib.Parallel(n_jobs=2, backend="dios")(calls)
    return answers


def test_joblib_runs_a_parallel_within_a_call(started: RunningNode) -> None:
    """A worker knows the backend by its name, and makes the calls of a Parallel itself."""
    with joblib.parallel_config(backend="dios", n_jobs=2, node=started.place):
        assert joblib.Parallel()(joblib.delayed(_nested)() for _ in range(2)) == [[0, 1, 4]] * 2


def test_joblib_counts_workers() -> None:
    """n_jobs has joblib's meaning, and one worker is no executor."""
    backend = dios.bridges.joblib.DiosBackend()
    processors = len(os.sched_getaffinity(0))
    assert backend.effective_n_jobs(-1) == processors
    assert backend.effective_n_jobs(-10_000) == 1
    assert (backend.effective_n_jobs(3), backend.effective_n_jobs(None)) == (3, 1)
    with pytest.raises(ValueError, match="no meaning"):
        backend.effective_n_jobs(0)
    with joblib.parallel_config(backend="dios", n_jobs=1):
        assert joblib.Parallel()([joblib.delayed(os.getpid)()]) == [os.getpid()]


def test_dask_runs_in_tasks(started: RunningNode) -> None:
    """An executor as Dask's scheduler computes arrays and bags in the sandbox."""
    numbers = da.arange(100_000, chunks=25_000)
    bag = db.from_sequence(range(20), npartitions=4)  # type: ignore[no-untyped-call]
    with dios.Executor(2, node=started.place) as executor, dask.config.set(scheduler=executor):
        assert numbers.mean().compute() == 49_999.5
        assert (numbers.reshape(1000, 100).T @ numbers.reshape(1000, 100)).compute().shape == (100, 100)
        assert bag.map(_square).sum().compute() == sum(map(_square, range(20)))
        assert set(bag.map(lambda _: os.uname().nodename).compute()) == {"task"}


@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")  # of Dask's use of pandas
def test_dask_frames_read_and_write_files_in_tasks(started: RunningNode) -> None:
    """dask.dataframe computes in the sandbox, and reads and writes the Parquet files of a group there."""
    with dios.connect(started.place, groups=()) as node:
        name = dios.parse_name(dios.format_name(node.create_group().name or b""))
    dios.Keyring.load().add("frames", name)
    frame = pd.DataFrame({"city": ["Berlin", "Oslo"] * 500, "degrees": range(1000)})
    table = dd.from_pandas(frame, npartitions=3)  # type: ignore[no-untyped-call]
    options = {"node": started.place}
    with (
        dios.Executor(2, node=started.place, files=["frames"]) as executor,
        dask.config.set(scheduler=executor),
    ):
        assert set(table.map_partitions(lambda _: os.uname().nodename).compute()) == {"task"}
        assert dict(table.groupby("city").degrees.sum().compute()) == {"Berlin": 249_500, "Oslo": 250_000}
        assert table.set_index("degrees").loc[10:12].compute().city.to_list() == ["Berlin", "Oslo", "Berlin"]
        table.to_parquet("dios://frames/table", storage_options=options)
        read = dd.read_parquet("dios://frames/table", storage_options=options)
        assert read.degrees.max().compute() == 999
    with pytest.raises(FileNotFoundError, match="no such group"):
        dios.Executor(1, node=started.place, files=["nothing"])


def test_the_parquet_aggregation_agrees_with_polars(started: RunningNode) -> None:
    """Two stages in tasks over files of a node have the result of Polars alone."""
    command = [sys.executable, str(EXAMPLES.parent / "parquet_aggregation.py"), "--node", started.place]
    command += ["--megabytes", "1", "--workers", "2", "--compare", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert set(json.loads(done.stdout)) == {"tasks", "polars"}


class TestDaskScheduler(GetFunctionTestMixin):
    """Dask's own tests of a scheduler, with an executor as its workers."""

    @pytest.fixture(autouse=True)
    def _executor(self, started: RunningNode) -> Iterator[None]:
        with dios.Executor(2, node=started.place) as executor:
            self._pool = executor
            yield

    def get(self, graph: object, keys: object, **options: object) -> object:
        """Compute keys of a graph."""
        return threaded.get(graph, keys, pool=self._pool, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("grid_search", "'kernel'"),
        ("dask_means", "499999.5 328350"),
        ("dask_frame", "'Berlin': 1498.5, 'Oslo': 1499.5, 'Rome': 1500.5"),
    ],
)
def test_the_examples_run(started: RunningNode, name: str, told: str) -> None:
    """Each example prints its result, and nothing warns."""
    environment = {**os.environ, "DIOS_NODE": started.place}
    command = [sys.executable, str(EXAMPLES / f"{name}.py")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert told in done.stdout
    assert "Warning" not in done.stderr
