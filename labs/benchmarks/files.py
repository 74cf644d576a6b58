"""Files through ``dios://``: opening, reading, writing and listing, compared with the local file system.

A file of DIOS is on disk when its writer is closed, so the local file is synced, too.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import dios
from dios.lib.files.filesystem import DiosFileSystem
from labs.benchmarks.measure import clock, median
from labs.benchmarks.nodes import running_node, workspace
from labs.benchmarks.report import Row, Section, number

SMALL = bytes(1000)
LARGE = bytes(bytearray(b"0123456789abcdef" * (100_000_000 // 16)))
NAMES = 10_000
TURNS = 30
LARGE_TURNS = 3


def run(section: Section) -> None:
    """Measure. The rows have no goals."""
    with workspace() as folder, running_node(None) as bench:
        os.environ["DIOS_KEYRING"] = str(folder / "keyring.toml")
        with dios.connect(bench.data, groups=[]) as node:
            for alias in ("few", "many"):
                name = node.create_group().name or b""
                dios.Keyring.load().add(alias, dios.parse_name(dios.format_name(name)))
        files = DiosFileSystem(node=str(bench.data))
        local = folder / "local"
        local.mkdir()
        _one_size(section, files, local, "1 KB", SMALL, TURNS)
        _one_size(section, files, local, "100 MB", LARGE, LARGE_TURNS)
        _many(section, files, local)


def _one_size(
    section: Section, files: DiosFileSystem, local: Path, size: str, data: bytes, turns: int
) -> None:
    number_of_file = iter(range(1_000_000))

    def write_here() -> None:
        with files.open(f"few/{size}/{next(number_of_file)}", "wb") as file:
            file.write(data)

    def write_there() -> None:
        with (local / f"{size} {next(number_of_file)}").open("wb") as file:
            file.write(data)
            os.fsync(file.fileno())

    files.pipe(f"few/{size}/read", data)
    (local / size).write_bytes(data)

    def view() -> None:
        assert files.view(f"few/{size}/read")[-1] == data[-1]

    def read_here() -> None:
        with files.open(f"few/{size}/read") as file:
            assert len(file.read()) == len(data)

    def read_there() -> None:
        with (local / size).open("rb") as file:
            assert len(file.read()) == len(data)

    written, there = _milliseconds(write_here, turns), _milliseconds(write_there, turns)
    _row(section, f"write {size}, on disk", written, there, "written and synced")
    _row(section, f"open and read {size}", _milliseconds(read_here, turns), _milliseconds(read_there, turns))
    viewed = _milliseconds(view, turns)
    section.figure(f"open {size} and view its last byte, no copy", viewed * 1000, "µs")


def _many(section: Section, files: DiosFileSystem, local: Path) -> None:
    folder = local / "many"
    folder.mkdir()
    began = clock()
    files.pipe({f"many/{number}": SMALL for number in range(NAMES)})
    section.figure(f"store {NAMES:,} files of 1 KB in one change", NAMES / (clock() - began) * 1e9, "files/s")
    for number_of_file in range(NAMES):
        (folder / str(number_of_file)).write_bytes(SMALL)
    own = DiosFileSystem(**files.storage_options, skip_instance_cache=True)
    began = clock()
    assert len(own.ls("many")) == NAMES
    section.figure(f"ls of {NAMES:,} names, first, with the connection", (clock() - began) / 1e6, "ms")
    listed = _milliseconds(lambda: files.ls("many"), TURNS)
    there = _milliseconds(lambda: [entry.stat() for entry in os.scandir(folder)], TURNS)
    _row(section, f"ls of {NAMES:,} names with details, repeated", listed, there, "scandir and stat")
    written = _milliseconds(lambda: files.pipe("many/new", SMALL), TURNS)
    section.figure(f"write 1 KB where {NAMES:,} files are", written, "ms")
    began = clock()
    files.rm("many/", recursive=True)
    section.figure(f"remove {NAMES:,} files in one change", NAMES / (clock() - began) * 1e9, "files/s")


def _milliseconds(call: Callable[[], object], turns: int) -> float:
    taken = []
    for _ in range(turns):
        began = clock()
        call()
        taken.append((clock() - began) / 1e6)
    return median(taken)


def _row(section: Section, subject: str, ours: float, theirs: float, how: str = "") -> None:
    peer = f"local file {number(theirs)} ms{f' ({how})' if how else ''}"
    section.rows.append(Row(subject, f"{number(ours)} ms", peer, f"{number(ours / theirs)} x the time"))
