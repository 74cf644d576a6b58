"""Commands and programs on files of three nodes, timed: a script for any installation of DIOS.

``PYTHON -P kept_files_work.py FOLDER SIZES`` starts a cluster below FOLDER by the installation of PYTHON, and
prints the figures as JSON. So it uses only what earlier releases have, too, and nothing of ``benchmarks``.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Final, NamedTuple

import fsspec

from dios.cli.common.context import opened
from dios.lib.files.staging import StagedFiles
from dios.lib.kept.promises import Promises
from dios.node import local_cluster

SETTINGS: Final = {"coordinator": "off", "pool_size": "1", "accept_weaker_sandbox": "yes"}
NODES: Final = 3
SMALL: Final = os.urandom(1_000)
PROGRAMS: Final = 4
_NUMBERS: Final = count()
_PATIENCE_S: Final = 180
_TRIES: Final = 100


class Sizes(NamedTuple):
    """The amounts of the work."""

    small: int
    large_mb: int
    single: int
    started: int
    tiered: int
    opened: int
    edits: int


class Work:
    """The groups of a cluster, and the figures: seconds, milliseconds or numbers in a second by name."""

    def __init__(self, folder: Path, sizes: Sizes) -> None:
        self.folder: Final = folder
        self.sizes: Final = sizes
        self.figures: Final[dict[str, float]] = {}
        self._program: Final = str(Path(sys.executable).with_name("dios"))

    def dios(self, *words: object) -> float:
        """Run a command to its end, and return the seconds."""
        line = [self._program, *map(str, words)]
        before = time.perf_counter()
        done = subprocess.run(line, cwd=self.folder, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"dios {words[0]} {words[1]}: {done.stdout[-300:]}{done.stderr[-900:]}")
        return time.perf_counter() - before

    def note(self, name: str, value: float, unit: str = "s") -> None:
        """Keep a figure."""
        self.figures[f"{name}, {unit}"] = value
        sys.stderr.write(f"    {name}: {value:.4g} {unit}\n")

    @contextmanager
    def group(self, *, promised: bool) -> Iterator[str]:
        """Make a group with one file, and remove it at the end; its promise of two replicas is kept then."""
        alias = f"g{next(_NUMBERS)}"
        self.dios("group", "create", alias)
        first = self.folder / "first"
        first.write_bytes(SMALL)
        self.dios("put", first, "--group", alias, "--as", "first")
        if promised:
            self.dios("group", "set", alias, "--replicas", 2)
            self.wait_kept(alias)
        yield alias
        self.dios("group", "rm", alias, "--all", "--yes")

    def wait_kept(self, alias: str) -> None:
        """Wait until the promise for a group is kept."""
        with opened(None, [alias]) as place:
            end = time.monotonic() + _PATIENCE_S
            promises, group = Promises(place.node), place.group(alias)
            entries = len([entry for entry in place.files(alias).tree().entries if entry.name])
            while time.monotonic() < end:
                status = promises.promise(group)
                if status is not None and status.checked and not status.short and status.objects > entries:
                    return
                time.sleep(0.2)
        sys.stderr.write(f"    the promise for {alias} was not kept after {_PATIENCE_S} s\n")

    # -- the measurements ---------------------------------------------------------------------------
    def puts(self, promised: str, alias: str, acknowledge: int | None) -> None:
        """Put many files at once, and a large one."""
        way = "by default" if acknowledge is None else f"acknowledge {acknowledge}"
        words = () if acknowledge is None else ("--acknowledge", acknowledge)
        mark = f"{promised}, {way}"
        many, large = self.folder / "many", self.folder / "large"
        self.note(
            f"put {self.sizes.small:,} files of 1 KB ({mark})",
            self.dios("put", many, "--recursive", "--group", alias, "--as", f"many {acknowledge}", *words),
        )
        self.note(
            f"put a file of {self.sizes.large_mb:,} MB ({mark})",
            self.dios("put", large, "--group", alias, "--as", f"large {acknowledge}", *words),
        )

    def single_puts(self, promised: str, alias: str, acknowledge: int | None) -> None:
        """Put small files one after the other: by one program, and by a new process each."""
        way = "by default" if acknowledge is None else f"acknowledge {acknowledge}"
        words = () if acknowledge is None else ("--acknowledge", acknowledge)
        mark = f"{promised}, {way}"
        self.note(f"put a file of 1 KB by a program ({mark})", self.put_ms(alias, acknowledge), "ms")
        first = self.folder / "first"
        seconds = [
            self.dios("put", first, "--group", alias, "--as", f"started/{next(_NUMBERS)}", *words)
            for _ in range(self.sizes.started)
        ]
        self.note(f"put a file of 1 KB by a command ({mark})", statistics.median(seconds) * 1e3, "ms")

    def put_ms(self, alias: str, acknowledge: int | None = None) -> float:
        """Return the milliseconds of one put of a program that puts one small file after the other."""
        with opened(None, [alias]) as place:
            files = place.files(alias)

            def put() -> None:
                staged = StagedFiles(files)
                staged.add_bytes(f"single/{next(_NUMBERS)}", SMALL)
                if acknowledge is not None:
                    staged.hold(acknowledge)
                staged.publish()

            return timed(put, self.sizes.single) * 1e3

    def sync_and_backup(self, promised: str, alias: str) -> None:
        """Make a directory of the group equal to a local one, twice, then a backup, and put further files."""
        target = f"{alias}/synced"
        files = f"{self.sizes.small:,} files of 1 KB ({promised})"
        self.note(f"sync {files}", self.dios("sync", self.folder / "many", target))
        self.note(f"sync {files} again", self.dios("sync", self.folder / "many", target))
        words = (self.folder / f"backup {alias}", "--group", alias, "--recipient", self.folder / "key.pub")
        self.note(f"backup of {files}", self.dios("backup", "create", *words))

        self.note(f"put a file of 1 KB by a program, next to {files}", self.put_ms(alias), "ms")

    def tier(self, promised: str, alias: str) -> None:
        """Move files into a store, and back."""
        self.dios("put", self.folder / "cold", "--recursive", "--group", alias, "--as", "cold")
        paths = [f"cold/{number}" for number in range(self.sizes.tiered)]
        files = f"{self.sizes.tiered:,} files of 1 MB ({promised})"
        words = ("--to", self.folder / f"store {alias}", "--recipient", self.folder / "key.pub")
        self.note(f"tier out {files}", self.dios("tier", "out", *paths, "--group", alias, *words))
        self.note(f"tier in {files}", self.dios("tier", "in", *paths, "--group", alias))

    def file_system(self, promised: str, alias: str) -> None:
        """Write, open, read and list files by the file system interface."""
        files = fsspec.filesystem("dios", skip_instance_cache=True)
        written = [f"{alias}/fs/{number}" for number in range(self.sizes.opened)]
        paths = iter(written)

        def write() -> None:
            with files.open(next(paths), "wb") as file:
                file.write(SMALL)

        self.note(f"fsspec: write 1 KB ({promised})", timed(write, len(written)) * 1e3, "ms")
        paths = iter(written)

        def read() -> None:
            with files.open(next(paths)) as file:
                file.read()

        self.note(f"fsspec: open and read 1 KB ({promised})", timed(read, len(written)) * 1e6, "µs")
        self.note(
            f"fsspec: list a directory of {len(written):,} ({promised})",
            timed(lambda: files.ls(f"{alias}/fs", detail=False), _TRIES) * 1e6,
            "µs",
        )

    def edits(self, promised: str, alias: str) -> None:
        """Let several programs put small files at once."""
        line = [sys.executable, "-P", __file__, "--put", alias, str(self.sizes.edits)]
        programs = [
            subprocess.Popen(line, stdin=subprocess.PIPE, stdout=subprocess.PIPE) for _ in range(PROGRAMS)
        ]
        for program in programs:
            assert program.stdout is not None
            program.stdout.readline()
        before = time.perf_counter()
        for program in programs:
            assert program.stdin is not None
            program.stdin.close()
        failed = sum(bool(process.wait()) for process in programs)
        taken = time.perf_counter() - before
        if failed:
            raise RuntimeError(f"{failed} of {PROGRAMS} programs failed")
        rate = PROGRAMS * self.sizes.edits / taken
        self.note(f"puts of {PROGRAMS} programs at once ({promised})", rate, "/s")


def timed(call: Callable[[], object], times: int) -> float:
    """Return the median seconds of a call."""
    taken = []
    for _ in range(times):
        before = time.perf_counter()
        call()
        taken.append(time.perf_counter() - before)
    return statistics.median(taken)


def put_in_turn(alias: str, times: int) -> None:
    """Put small files one after the other, as one of several programs; it begins at the end of its input."""
    with opened(None, [alias]) as place:
        files = place.files(alias)
        files.tree()
        print("ready", flush=True)
        sys.stdin.read()
        for number in range(times):
            staged = StagedFiles(files)
            staged.add_bytes(f"at once/{os.getpid()}/{number}", SMALL)
            staged.publish()


def main() -> None:
    """Start the cluster, measure, and stop it."""
    folder, sizes = Path(sys.argv[1]), Sizes(**json.loads(sys.argv[2]))
    os.environ.update(
        HOME=str(folder),
        XDG_RUNTIME_DIR=str(folder / "run"),
        XDG_CONFIG_HOME=str(folder / "config"),
        XDG_STATE_HOME=str(folder / "state"),
        COLUMNS="120",
    )
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    (folder / "run").mkdir(mode=0o700)
    cluster = local_cluster.make(folder / "cluster", nodes=NODES, settings=SETTINGS)
    os.environ["DIOS_NODE"] = str(cluster.nodes[0].socket)
    work = Work(folder, sizes)
    try:
        local_cluster.start(cluster)
        measure(work)
    finally:
        local_cluster.stop(cluster)
    print(json.dumps(work.figures))


def measure(work: Work) -> None:
    """Make the local files, and measure in groups without and with a promise."""
    sizes = work.sizes
    for name, number, size in (("many", sizes.small, 1_000), ("cold", sizes.tiered, 1_000_000)):
        (work.folder / name).mkdir()
        for index in range(number):
            (work.folder / name / str(index)).write_bytes(os.urandom(size))
    with (work.folder / "large").open("wb") as file:
        for _ in range(sizes.large_mb):
            file.write(os.urandom(1_000_000))
    work.dios("backup", "keygen", work.folder / "key")
    for promised, ways in (("no promise", (None,)), ("promise of 2", (1, 2, None))):
        for acknowledge in ways:
            with work.group(promised=len(ways) > 1) as alias:
                work.single_puts(promised, alias, acknowledge)
                work.puts(promised, alias, acknowledge)
        with work.group(promised=len(ways) > 1) as alias:
            for part in (work.file_system, work.edits, work.tier, work.sync_and_backup):
                part(promised, alias)


if __name__ == "__main__":
    if sys.argv[1] == "--put":
        put_in_turn(sys.argv[2], int(sys.argv[3]))
    else:
        main()
