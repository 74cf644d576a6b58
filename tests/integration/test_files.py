"""The file system ``dios://`` on a real node: what is visible when, and the libraries that use it."""

from __future__ import annotations

import io
import pickle
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

import dios
from dios.errors import Conflict, DamagedError, InvalidError, UnreachableError
from dios.lib.files.groups import files_for_task
from dios.lib.kept.promises import Promises
from dios.lib.kept.records import KeptPromise
from tests.support.node.running_node import RunningNode, running_node

fsspec = pytest.importorskip("fsspec", reason="fsspec is not installed: make setup")

from dios.lib.files.filesystem import DiosFileSystem  # noqa: E402 - needs fsspec

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningNode]:
    """A node with the group "analytics" in the keyring, for all tests of this module."""
    home = tmp_path_factory.mktemp("home")
    with pytest.MonkeyPatch.context() as patch, running_node(home / "data") as node:
        patch.setenv("DIOS_KEYRING", str(home / "keyring.toml"))
        patch.setenv("DIOS_NODE", node.place)
        with dios.connect(node.place, groups=()) as connection:
            for alias in ("analytics", "other"):
                group_name = connection.create_group().name or b""
                dios.Keyring.load().add(alias, dios.parse_name(dios.format_name(group_name)))
        DiosFileSystem.clear_instance_cache()
        yield node


@pytest.fixture
def files(running: RunningNode) -> DiosFileSystem:
    """The file system."""
    return DiosFileSystem()


@pytest.fixture
def reader(running: RunningNode) -> DiosFileSystem:
    """A second instance with its own connections, as another process would have."""
    return DiosFileSystem(skip_instance_cache=True)


def text_or_bytes(file: object, text: str) -> None:
    """Write a text to a file of either kind."""
    if isinstance(file, io.TextIOBase):
        file.write(text)
    else:
        assert isinstance(file, io.BufferedIOBase), "a binary file is buffered"
        file.write(text.encode())


def names(files: DiosFileSystem, path: str) -> list[str]:
    """The names in a directory."""
    return [str(name).rpartition("/")[2] for name in files.ls(path, detail=False)]


def test_a_file_is_visible_when_it_is_closed_and_not_before(
    files: DiosFileSystem, reader: DiosFileSystem
) -> None:
    """A reader sees the old content until the writer closes, then the new; open files stay the same."""
    path = "analytics/visible/a"
    file = files.open(path, "wb")
    file.write(b"1" * 100_000)
    assert not reader.exists(path)
    file.close()
    assert reader.cat(path) == b"1" * 100_000
    with files.open(path, "wb") as again, reader.open(path) as old:
        again.write(b"2")
        assert reader.cat(path) == b"1" * 100_000
        again.close()
        assert reader.cat(path) == b"2"
        assert old.read() == b"1" * 100_000


@pytest.mark.parametrize("mode", ["wb", "w", "xb", "ab", "r+b", "w+b"])
def test_a_writer_that_fails_changes_nothing(files: DiosFileSystem, mode: str) -> None:
    """A body that raises, in bytes and text, and a file that is dropped leave everything as it was."""
    path = f"analytics/fails/{mode}"
    if mode in {"ab", "r+b"}:
        files.pipe(path, b"before")

    def write() -> None:
        with files.open(path, mode) as file:
            text_or_bytes(file, "part")
            raise KeyError

    with pytest.raises(KeyError):
        write()
    dropped = [files.open(path, "wb" if mode == "w" else mode)]
    text_or_bytes(dropped[0], "part")
    with pytest.warns(ResourceWarning, match="not closed"):
        dropped.clear()
    assert (files.cat(path) == b"before") if mode in {"ab", "r+b"} else not files.exists(path)


def test_every_mode_means_what_it_means_for_local_files(files: DiosFileSystem, tmp_path: Path) -> None:
    """The same writes leave the same bytes here and on the disk."""
    for mode in ("wb", "xb", "ab", "r+b", "w+b", "a+b", "w", "a", "r+"):
        local, path = tmp_path / mode, f"analytics/modes/{mode}"
        if not mode.startswith("x"):
            local.write_bytes(b"0123456789\n")
            files.pipe(path, b"0123456789\n")
        results = []
        for file in (local.open(mode), files.open(path, mode)):
            with file:
                file.seek(3)
                text_or_bytes(file, "abc")
                readable = "+" in mode
                if readable:
                    file.seek(0)
                results.append(file.read() if readable else None)
        assert results[0] == results[1], mode
        assert files.cat(path) == local.read_bytes(), mode
    for mode in ("wb", "ab"):
        with files.open("analytics/modes/r+b", mode) as file, pytest.raises(io.UnsupportedOperation):
            file.read()


def test_two_writers_cannot_lose_an_append(files: DiosFileSystem, reader: DiosFileSystem) -> None:
    """The second of two files that began from one content is refused; "x" is exclusive at the end, too."""
    path = "analytics/appends/log"
    files.pipe(path, b"a")
    writer, two = files.open(path, "ab"), reader.open(path, "ab")
    writer.write(b"b")
    two.write(b"c")
    writer.close()
    with pytest.raises(Conflict):
        two.close()
    assert files.cat(path) == b"ab"
    new = reader.open("analytics/appends/new", "xb")
    files.pipe("analytics/appends/new", b"first")
    with pytest.raises(FileExistsError):
        new.close()
    assert files.cat("analytics/appends/new") == b"first"


def test_many_writers_at_once_lose_nothing(files: DiosFileSystem) -> None:
    """Threads with connections of their own add files to one catalogue."""

    def write(number: int) -> None:
        own = DiosFileSystem(skip_instance_cache=True)
        for turn in range(5):
            own.pipe(f"analytics/many/{number}-{turn}", bytes([number]))

    threads = [threading.Thread(target=write, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(files.find("analytics/many")) == 20


def test_a_transaction_is_visible_whole_or_not_at_all(files: DiosFileSystem, reader: DiosFileSystem) -> None:
    """Files, pipes and copies of a transaction appear at its end together; an error drops all of them."""
    files.pipe("analytics/source", b"s" * 50_000)
    with files.transaction:
        with files.open("analytics/together/a", "wb") as file:
            file.write(b"a" * 100_000)
        files.pipe({"analytics/together/b": b"b", "analytics/together/c": b"c"})
        files.cp("analytics/source", "analytics/together/d")
        assert not reader.exists("analytics/together")
    assert names(reader, "analytics/together") == ["a", "b", "c", "d"]

    def fails() -> None:
        with files.transaction:
            files.pipe("analytics/dropped/a", b"a")
            with files.open("analytics/dropped/b", "w") as text:
                text.write("b")
            raise KeyError

    with pytest.raises(KeyError):
        fails()
    assert not files.exists("analytics/dropped")
    files.pipe("analytics/after", b"visible at once")
    assert reader.exists("analytics/after")


def test_a_put_of_many_files_is_one_change(
    files: DiosFileSystem, reader: DiosFileSystem, tmp_path: Path
) -> None:
    """If one of the files cannot be stored, none is visible; otherwise all are, by one write."""
    for number in range(20):
        (tmp_path / f"{number:02}").write_bytes(bytes([number]) * number * 3000)
    files.pipe("analytics/taken/19/below", b"")
    with pytest.raises(IsADirectoryError):
        files.put(f"{tmp_path}/", "analytics/taken/", recursive=True)
    assert names(reader, "analytics/taken") == ["19"]
    catalogue = _catalogue(files)
    before = catalogue.v_w
    files.put(f"{tmp_path}/", "analytics/whole/", recursive=True)
    assert catalogue.v_w == before + 1
    assert files.cat("analytics/whole/07") == b"\x07" * 21_000
    before = catalogue.v_w
    files.mv("analytics/whole", "analytics/moved")
    files.rm("analytics/moved", recursive=True)
    assert catalogue.v_w == before + 2
    assert not reader.exists("analytics/whole")


def _catalogue(files: DiosFileSystem) -> dios.Reference:
    replicas = files._groups.files("analytics")._place.replicas()
    assert len(replicas) == 1
    return replicas[0]


def test_a_replaced_or_removed_file_leaves_no_object(files: DiosFileSystem, running: RunningNode) -> None:
    """Overwriting, moving over, removing and failing return the node to the same number of objects."""
    with dios.connect(running.place, groups=["analytics"]) as node:
        files.pipe("analytics/count/keep", b"k")
        before = len(files.find("analytics")), _objects(node)
        files.pipe("analytics/count/a", b"1" * 50_000)
        files.pipe("analytics/count/a", b"2")
        files.pipe("analytics/count/b", b"3")
        files.mv("analytics/count/b", "analytics/count/a")
        assert files.cat("analytics/count/a") == b"3"
        with pytest.raises(NotADirectoryError):
            files.pipe({"analytics/count/x": b"x" * 40_000, "analytics/count/keep/y": b"y"})
        files.rm("analytics/count/a")
        assert (len(files.find("analytics")), _objects(node)) == before


def test_no_directory_is_moved_over_a_file_or_into_itself(files: DiosFileSystem) -> None:
    """The file stays, also if the directory has no entry of its own."""
    files.pipe({"analytics/over/file": b"f", "analytics/over/directory/inner": b"i"})
    files.mkdir("analytics/over/made")
    for directory in ("directory", "made"):
        with pytest.raises((FileExistsError, NotADirectoryError)):
            files.mv(f"analytics/over/{directory}", "analytics/over/file", recursive=True)
        with pytest.raises(OSError, match="moved into itself"):
            files.mv(f"analytics/over/{directory}", f"analytics/over/{directory}/deeper", recursive=True)
    assert files.cat("analytics/over/file") == b"f"
    assert files.cat("analytics/over/directory/inner") == b"i"


def _objects(node: dios.Node) -> int:
    row = next(row for row in node.limits() if row.scope is dios.Scope.PRINCIPAL)
    return row.used[dios.Resource.OBJECTS]


def test_views_and_ranges_are_not_copied(files: DiosFileSystem) -> None:
    """A view shares its memory with the object and outlives it; ranges follow the rules of slices."""
    data = bytes(range(256)) * 1000
    files.pipe("analytics/view", data)
    view = files.view("analytics/view", 1000, -1000)
    assert view.readonly
    files.rm("analytics/view")
    assert view == data[1000:-1000]
    files.pipe("analytics/view", data)
    pieces = files.cat_ranges(["analytics/view"] * 3 + ["analytics/none"], [0, 5, -7, 0], [3, 5, None, 1])
    assert pieces[:3] == [data[:3], b"", data[-7:]]
    assert isinstance(pieces[3], FileNotFoundError)


def test_groups_are_the_first_level(files: DiosFileSystem) -> None:
    """The root lists the groups; unknown groups, groups as files and new groups are refused."""
    assert names(files, "") == ["analytics", "other"]
    assert files.info("other")["type"] == "directory"
    files.cp("analytics/source", "other/copy") if files.exists("analytics/source") else files.touch(
        "other/copy"
    )
    files.mv("other/copy", "analytics/from-other")
    assert not files.exists("other/copy")
    assert files.exists("analytics/from-other")
    for call in (files.ls, files.mkdir, files.touch, files.cat):
        with pytest.raises(FileNotFoundError, match="group"):
            call("nonsense/x")
    with pytest.raises(InvalidError):
        files.touch("analytics/../x")


def test_a_log_is_no_file(files: DiosFileSystem, running: RunningNode) -> None:
    """A log in the catalogue can be neither read as a file nor replaced by one."""
    from dios.lib.files.staging import StagedFiles

    group = files._groups.files("analytics")
    staged = StagedFiles(group)
    staged.add_object("logs/events", group.node.create_log(groups=[group.group]).name or b"")
    staged.publish()
    with pytest.raises(InvalidError, match="DURABLE_STREAM"):
        files.cat("analytics/logs/events")
    with pytest.raises(InvalidError, match="is a log"):
        files.pipe("analytics/logs/events", b"")
    files.rm("analytics/logs/events")


def test_the_file_system_is_pickled_with_its_node(files: DiosFileSystem) -> None:
    """Dask sends it to its workers."""
    files.pipe("analytics/pickled", b"p")
    assert pickle.loads(pickle.dumps(files)).cat("analytics/pickled") == b"p"  # noqa: S301 - our own


def test_the_recipes_of_the_page_run(files: DiosFileSystem, tmp_path: Path) -> None:
    """Each Python program of docs/files.md runs as it is written."""
    for library in ("pandas", "polars", "pyarrow", "duckdb", "dask.dataframe"):
        if find_spec(library) is None:
            pytest.skip(f"{library} is not installed: make setup")
    page = (ROOT / "docs" / "files.md").read_text()
    lines = page.partition("```\n")[2].splitlines()
    created = "\n".join(line for line in lines[: lines.index("```")] if ">" in line.partition("#")[0])
    subprocess.run(["bash", "-eu", "-c", created], cwd=tmp_path, check=True, timeout=200)
    programs = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    assert len(programs) >= 7
    script = "import dios\n" + "\n".join(programs)
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, timeout=200, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "13.5" in done.stdout


def test_the_example_runs(files: DiosFileSystem) -> None:
    """examples/files.py uses every library that is installed, and leaves nothing."""
    done = subprocess.run(
        [sys.executable, ROOT / "examples" / "files.py", "other"],
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "pandas: 3000 rows" in done.stdout
    assert names(files, "other") == []


JOB = """
import fsspec
files = fsspec.filesystem("dios")
assert files.cat("analytics/task/in") == b"given"
with files.open("dios://analytics/task/out", "w") as file:
    file.write("made in a task")
print(sorted(files.ls("analytics/task", detail=False)))
"""


def test_a_pure_task_has_the_files_of_its_group(files: DiosFileSystem, running: RunningNode) -> None:
    """A task that was given the group and its catalogue reads and writes the same paths; another has none."""
    files.pipe("analytics/task/in", b"given")
    with dios.connect(running.place, groups=["analytics"]) as node:
        groups, inputs = files_for_task(node, "analytics")
        task = node.run(JOB.encode(), groups=groups, inputs=inputs)
        status = task.wait(60)
        assert status.exit_status == 0, b"".join(task.console()).decode()
        assert files.cat("analytics/task/out") == b"made in a task"
        groups, inputs = files_for_task(node, "analytics", write=False)
        refused = node.run(JOB.encode(), groups=groups, inputs=inputs)
        assert refused.wait(60).exit_status != 0
        assert b"lacks the right to write" in b"".join(refused.console())
        none = node.run(JOB.encode())
        assert none.wait(60).exit_status != 0


LIBRARY_JOBS = {
    "pandas": """
import pandas as pd
pd.DataFrame({"x": range(1000)}).to_parquet("dios://other/a.parquet")
pd.read_parquet("dios://other/a.parquet").to_csv("dios://other/a.csv")
print(pd.read_csv("dios://other/a.csv").x.sum())
""",
    "polars": """
import fsspec, polars as pl
files = fsspec.filesystem("dios")
with files.open("other/b.parquet", "wb") as file:
    pl.DataFrame({"x": range(1000)}).write_parquet(file)
with files.open("other/b.parquet") as file:
    print(pl.read_parquet(file)["x"].sum())
""",
    "pyarrow": """
import fsspec, pyarrow as pa, pyarrow.compute as pc, pyarrow.dataset as ds
files = fsspec.filesystem("dios")
ds.write_dataset(pa.table({"x": range(1000)}), "other/c", filesystem=files, format="parquet")
print(pc.sum(ds.dataset("other/c", filesystem=files).to_table()["x"]))
""",
    "duckdb": """
import duckdb, fsspec
database = duckdb.connect()
database.register_filesystem(fsspec.filesystem("dios"))
database.sql("COPY (SELECT range AS x FROM range(1000)) TO 'dios://other/d.csv'")
print(database.sql("SELECT sum(x)::BIGINT FROM 'dios://other/d.csv'").fetchall()[0][0])
""",
    "dask": """
import dask.dataframe as dd, pandas as pd
pd.DataFrame({"x": range(1000)}).to_parquet("dios://other/e.parquet")
print(dd.read_parquet("dios://other/e.parquet").x.sum().compute(scheduler="threads"))
""",
}


@pytest.mark.parametrize("library", LIBRARY_JOBS)
def test_libraries_use_the_files_inside_pure_tasks(running: RunningNode, library: str) -> None:
    """A sandboxed task writes and reads Parquet and CSV through the library."""
    if find_spec(library) is None:
        pytest.skip(f"{library} is not installed: make setup")
    with dios.connect(running.place, groups=["other"]) as node:
        groups, inputs = files_for_task(node, "other")
        task = node.run(LIBRARY_JOBS[library].encode(), groups=groups, inputs=inputs)
        status = task.wait(100)
        told = b"".join(task.console()).decode()
        assert status.exit_status == 0, told
        assert told.strip().endswith("499500")
    DiosFileSystem().rm("other/", recursive=True)


def test_a_file_leaves_its_group_when_the_copy_is_kept(
    files: DiosFileSystem, running: RunningNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A move to another group keeps the file while its copy has other bytes, or is on too few nodes."""
    files.pipe("analytics/leaving", b"1" * 50_000)
    group = files._groups.files("other").group
    with monkeypatch.context() as patch:
        promise = KeptPromise(0, bytes(group.read_name()), bytes(32), "other", 2)
        patch.setattr(Promises, "known", lambda _: [promise])
        with pytest.raises(UnreachableError, match="1 of 2 disks"):
            files.mv("analytics/leaving", "other/moved")
    assert files.cat("analytics/leaving") == b"1" * 50_000
    with dios.connect(running.place, groups=["analytics"]) as node:
        name = files._groups.files("analytics").entry("leaving").name
        with node.lookup(name)[0] as reference:
            reference.write_bytes(b"2" * 50_000)
    with pytest.raises(DamagedError):
        files.mv("analytics/leaving", "other/moved")
    assert files.exists("analytics/leaving")
    with files.transaction, pytest.raises(InvalidError, match="transaction"):
        files.mv("analytics/leaving", "other/moved")
    assert files.exists("analytics/leaving")
    files.rm("analytics/leaving")


def test_a_local_file_stays_until_its_replacement_is_complete(
    files: DiosFileSystem, running: RunningNode, tmp_path: Path
) -> None:
    """A file that cannot be read leaves what the local path had."""
    (tmp_path / "local").write_bytes(b"before")
    files.pipe("analytics/damaged", b"1" * 50_000)
    files.get_file("analytics/damaged", str(tmp_path / "local"))
    assert (tmp_path / "local").read_bytes() == b"1" * 50_000
    with dios.connect(running.place, groups=["analytics"]) as node:
        name = files._groups.files("analytics").entry("damaged").name
        with node.lookup(name)[0] as reference:
            reference.write_bytes(b"2" * 50_000)
    with pytest.raises(DamagedError):
        files.get_file("analytics/damaged", str(tmp_path / "local"))
    assert (tmp_path / "local").read_bytes() == b"1" * 50_000
    files.rm("analytics/damaged")
