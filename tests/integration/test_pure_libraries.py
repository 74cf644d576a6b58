"""Python's library and the usual libraries for data work inside a pure task, threads included."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from textwrap import dedent

import pytest

import dios
from tests.support.node.confinement import mechanisms_or_skip
from tests.support.node.running_node import RunningNode, running_node
from tests.support.node.task_folder import TEMPORARY

BLOCK_BYTES = 256 << 20

LIBRARY = {
    "time zones of Python": """
        import datetime, zoneinfo
        print(datetime.datetime(2026, 7, 1, tzinfo=zoneinfo.ZoneInfo("Europe/Zurich")).utcoffset())
        """,
    "time zones of the C library": """
        import os, time
        os.environ["TZ"] = "Europe/Zurich"
        time.tzset()
        print(time.tzname)
        """,
    "the locale": """
        import locale
        print(locale.setlocale(locale.LC_ALL, ""), locale.getpreferredencoding())
        """,
    "an alarm": """
        import signal
        def ring(number, frame):
            raise TimeoutError("the alarm rang")
        signal.signal(signal.SIGALRM, ring)
        print(signal.alarm(100), signal.alarm(1))
        try:
            signal.pause()
        except TimeoutError as error:
            print(error)
        """,
    "logging": """
        import logging, sys
        logging.basicConfig(level=logging.INFO, stream=sys.stdout, format="%(levelname)s %(message)s")
        logging.getLogger("task").info("ready")
        """,
    "the platform": """
        import platform
        print(platform.system(), platform.node(), bool(platform.platform()))
        """,
    "threads": """
        from concurrent.futures import ThreadPoolExecutor
        with ThreadPoolExecutor(8) as pool:
            print(sum(pool.map(len, [b"ab"] * 1000)))
        """,
    "an event loop": """
        import asyncio
        async def main():
            print(await asyncio.gather(asyncio.sleep(0.001, 1), asyncio.to_thread(abs, -2)))
        asyncio.run(main())
        """,
}
SAID = {
    "time zones of Python": "2:00:00",
    "time zones of the C library": "('CET', 'CEST')",
    "the locale": "C.UTF-8 UTF-8",
    "an alarm": "0 100\nthe alarm rang",
    "logging": "INFO ready",
    "the platform": "Linux task True",
    "threads": "2000",
    "an event loop": "[1, 2]",
}

FILES = {
    "tempfile": """
        import shutil, tempfile
        from pathlib import Path
        with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryFile() as nameless:
            nameless.write(b"text")
            first, second = Path(folder, "first"), Path(folder, "below", "second")
            second.parent.mkdir()
            first.write_text("text")
            shutil.copy2(first, second)
            shutil.copytree(second.parent, Path(folder, "copy"))
            shutil.move(second, folder)
            print(sorted(path.name for path in Path(folder).rglob("*")), first.stat().st_mtime_ns == (
                Path(folder, "second").stat().st_mtime_ns))
        print(Path(folder).exists(), Path("relative").write_text("text"), Path("/tmp/relative").read_text())
        """,
    "home": """
        import os
        from pathlib import Path
        print(Path.home(), os.path.expanduser("~"), list(Path.home().iterdir()))
        """,
    "sqlite3": """
        import sqlite3
        for mode in ("delete", "wal"):
            with sqlite3.connect(f"/tmp/{mode}.db") as database:
                database.execute(f"PRAGMA journal_mode={mode}")
                database.execute("CREATE TABLE rows (value)")
                database.executemany("INSERT INTO rows VALUES (?)", [(1,), (2,)])
            print(sqlite3.connect(f"/tmp/{mode}.db").execute("SELECT sum(value) FROM rows").fetchone())
        """,
    "numpy": """
        import numpy
        mapped = numpy.lib.format.open_memmap("/tmp/a.npy", mode="w+", dtype="f8", shape=(1000,))
        mapped[:] = 2
        mapped.flush()
        print(numpy.load("/tmp/a.npy", mmap_mode="r").sum())
        """,
    "matplotlib": """
        import io, matplotlib
        matplotlib.use("Agg")
        import matplotlib.pyplot as plt
        plt.plot([1, 3, 2])
        memory = io.BytesIO()
        plt.savefig(memory, format="png")
        plt.savefig("/tmp/picture.png")
        print(memory.getvalue()[1:4], open("/tmp/picture.png", "rb").read(4)[1:])
        """,
    "pandas": """
        import pandas
        frame = pandas.DataFrame({"value": range(1000)})
        frame.to_parquet("/tmp/t.parquet")
        frame.to_csv("/tmp/t.csv", index=False)
        print(pandas.read_parquet("/tmp/t.parquet").equals(frame))
        print(pandas.read_csv("/tmp/t.csv").equals(frame))
        """,
    "pyarrow": """
        import pyarrow, pyarrow.dataset
        table = pyarrow.table({"value": range(1000)})
        pyarrow.dataset.write_dataset(table, "/tmp/rows", format="parquet")
        print(pyarrow.dataset.dataset("/tmp/rows").to_table().equals(table))
        """,
    "polars": """
        import polars
        frame = polars.DataFrame({"key": polars.arange(0, 1_000_000, eager=True) % 7})
        frame.lazy().sink_parquet("/tmp/t.parquet")
        rows = polars.scan_parquet("/tmp/t.parquet").filter(polars.col("key") > 2)
        print(rows.collect(engine="streaming").height)
        """,
    "duckdb": """
        import duckdb
        with duckdb.connect("/tmp/rows.db") as database:
            database.execute("CREATE TABLE rows AS SELECT * FROM range(1000) r(value)")
            database.execute("COPY rows TO '/tmp/rows.parquet'")
        with duckdb.connect("/tmp/rows.db") as database:
            question = "SELECT sum(value)::INT FROM rows JOIN '/tmp/rows.parquet' USING (value)"
            print(database.execute(question).fetchone())
        spilling = duckdb.connect()
        spilling.execute("SET memory_limit = '60MB'; SET threads = 1")
        sort = "SELECT count(*) FROM (SELECT * FROM range(10000000) r(i) ORDER BY -i)"
        print(spilling.execute(sort).fetchone())
        """,
    "joblib": """
        import joblib
        cached = joblib.Memory("/tmp/cache", verbose=0).cache(len)
        joblib.dump([1, 2], "/tmp/list.joblib")
        print(cached("abc"), cached("abc"), joblib.load("/tmp/list.joblib"))
        """,
}
FONT_CACHE = "Matplotlib is building the font cache; this may take a moment.\n"
FILES_SAID = {
    "tempfile": "['below', 'copy', 'first', 'second', 'second'] True\nFalse 4 text",
    "home": f"{TEMPORARY} {TEMPORARY} []",
    "sqlite3": "(3,)\n(3,)",
    "numpy": "2000.0",
    "matplotlib": "b'PNG' b'PNG'",
    "pandas": "True\nTrue",
    "pyarrow": "True",
    "polars": "571428",
    "duckdb": "(499500,)\n(10000000,)",
    "joblib": "3 3 [1, 2]",
}
QUICK = ("tempfile", "home", "sqlite3")

BLOCKS = {
    "numpy": """
        a = numpy.frombuffer(view, "f8")
        print(a.size, int(numpy.sort(a)[-1]), int((a.reshape(-1, 1024).T @ a.reshape(-1, 1024)).shape[0]))
        """,
    "pandas": """
        import pandas
        frame = pandas.DataFrame({"value": numpy.frombuffer(view, "f8")})
        frame["key"] = frame.value % 7
        totals = frame.groupby("key").value.count()
        print(len(frame), len(totals), int(totals.sum()))
        """,
    "polars": """
        import polars
        frame = polars.DataFrame({"value": numpy.frombuffer(view, "f8")})
        rows = frame.lazy().with_columns(key=polars.col("value") % 7)
        for engine in ("in-memory", "streaming"):
            totals = rows.group_by("key").agg(polars.len()).collect(engine=engine)
            order = rows.sort("value", descending=True).head(1).collect(engine=engine)
            print(len(frame), len(totals), int(totals["len"].sum()), int(order["value"][0]))
        """,
    "pyarrow": """
        import pyarrow, pyarrow.compute, pyarrow.parquet
        table = pyarrow.table({"value": numpy.frombuffer(view, "f8")})
        target = pyarrow.BufferOutputStream()
        pyarrow.parquet.write_table(table, target)
        read = pyarrow.parquet.read_table(pyarrow.BufferReader(target.getvalue()))
        print(len(read), int(pyarrow.compute.max(read["value"]).as_py()))
        """,
    "duckdb": """
        import duckdb
        frame = {"value": numpy.frombuffer(view, "f8")}
        question = "SELECT count(*), max(value)::INT, count(DISTINCT value % 7) FROM frame"
        print(duckdb.execute(question).fetchone())
        """,
    "sklearn": """
        from concurrent.futures import ThreadPoolExecutor
        from sklearn.cluster import KMeans
        from sklearn.linear_model import LinearRegression
        points = numpy.frombuffer(view, "f8").reshape(-1, 16)
        fit = KMeans(3, n_init=1, max_iter=3, random_state=1).fit(points)
        with ThreadPoolExecutor(2) as pool:
            fits = list(pool.map(lambda n: LinearRegression().fit(points[:, :n], points[:, n]), (4, 8)))
        print(len(fit.labels_), sorted(set(fit.labels_.tolist())), len(fits))
        """,
}
_ITEMS = BLOCK_BYTES // 8
BLOCKS_SAID = {
    "numpy": f"{_ITEMS} 999999 1024",
    "pandas": f"{_ITEMS} 7 {_ITEMS}",
    "polars": f"{_ITEMS} 7 {_ITEMS} 999999\n" * 2,
    "pyarrow": f"{_ITEMS} 999999",
    "duckdb": f"({_ITEMS}, 999999, 7)",
    "sklearn": f"{_ITEMS // 16} [0, 1, 2] 2",
}


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningNode]:
    """One node for all tests of this module."""
    mechanisms_or_skip()
    with running_node(tmp_path_factory.mktemp("libraries") / "data") as running:
        yield running


@pytest.fixture(scope="module")
def node(running: RunningNode) -> Iterator[dios.Node]:
    """A connection to it."""
    with dios.connect(running.place, groups=()) as node:
        yield node


def printed(node: dios.Node, program: str, **options: object) -> str:
    """Run a program as a pure task, expect success, and return everything that it printed."""
    with node.run(dedent(program).encode(), label="program.py", **options) as task:  # type: ignore[arg-type]
        status = task.wait()
        text = b"".join(task.console()).decode()
        assert status.ok, (text, status)
        return text.strip()


@pytest.mark.parametrize("case", list(LIBRARY))
def test_the_standard_library(node: dios.Node, case: str) -> None:
    """Each program prints what it prints outside of a task, and nothing else."""
    assert printed(node, LIBRARY[case]) == SAID[case]


@pytest.mark.parametrize("case", QUICK)
def test_files_of_the_standard_library(node: dios.Node, case: str) -> None:
    """Temporary files, the home directory and databases are in the private folder, which begins empty."""
    assert printed(node, FILES[case].replace("/tmp", TEMPORARY)) == FILES_SAID[case]


def test_psutil_cannot_be_imported(node: dios.Node) -> None:
    """A library that reads /proc, which a task does not have, is as if it were not installed."""
    if find_spec("psutil") is None:
        pytest.skip("psutil is not installed, so that nothing has to hide it: make setup")
    program = """
        from importlib.machinery import PathFinder
        print(PathFinder.find_spec("psutil") is not None)
        try:
            import psutil
        except ModuleNotFoundError as error:
            print(error.name)
        """
    assert printed(node, program) == "True\npsutil"


@pytest.mark.extended
@pytest.mark.parametrize("library", [name for name in FILES if name not in QUICK])
def test_files_of_libraries(node: dios.Node, library: str) -> None:
    """Each library writes files, caches and spilled data in the private folder, and prints no warning."""
    if find_spec(library) is None:
        pytest.skip(f"{library} is not installed: make setup")
    said = printed(node, FILES[library].replace("/tmp", TEMPORARY))
    # No warning: a busy machine takes some seconds for it.
    assert said.removeprefix(FONT_CACHE) == FILES_SAID[library]


def test_the_memory_limit_is_known_to_libraries(node: dios.Node) -> None:
    """The variable that Polars reads has the memory limit of the task, also of a child of the pool."""
    program = "import os\nprint(os.environ['POLARS_OVERRIDE_TOTAL_MEMORY_MB'])"
    limit = dios.Limits(memory_bytes=300 << 20)
    assert [printed(node, program), printed(node, program, limits=limit)] == ["4096", "300"]


@pytest.mark.extended
def test_polars_keeps_data_in_memory(node: dios.Node) -> None:
    """An aggregation that fits into memory leaves the folder of spilled data as it is: missing."""
    if find_spec("polars") is None:
        pytest.skip("polars is not installed: make setup")
    program = """
        import os, polars
        rows = polars.select(key=polars.int_range(0, 300_000) % 1000).lazy()
        totals = rows.group_by("key").agg(polars.len()).collect(engine="streaming")
        print(totals["len"].sum(), os.path.exists(os.environ["POLARS_OOC_SPILL_DIR"]))
        """
    assert printed(node, program) == "300000 False"


@pytest.mark.extended
@pytest.mark.parametrize("library", list(BLOCKS))
def test_large_blocks(node: dios.Node, library: str) -> None:
    """Each library works on 256 MB that it reads in place, with threads of its own, and prints no warning."""
    if find_spec(library) is None:
        pytest.skip(f"{library} is not installed: make setup")
    numpy = pytest.importorskip("numpy", reason="numpy is not installed: make setup")
    with node.create_array(numpy.arange(_ITEMS, dtype="f8") % 1_000_000) as block:
        head = "import dios, numpy\nnode = dios.connect()\nview = node.inputs[0].numpy()\n"
        said = printed(node, head + dedent(BLOCKS[library]), inputs=[block.restrict("read")])
        assert said == BLOCKS_SAID[library].strip()
