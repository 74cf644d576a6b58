"""A process that writes to a store is killed at any moment: what it was told is safe is safe.

Not for: power cuts, which no test on one machine makes; the order of syncs is told in ``lmdb_store``.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from dios.ids import ObjectId
from dios.store.lmdb_store import LmdbStore
from dios.store.protocol import InlineContent

pytestmark = pytest.mark.long

SUPPORT = Path(__file__).parents[1] / "support" / "programs"
ROUNDS = 20
OBJECTS = 12
LINES_MAX = 60
SPIN_MAX = 200_000

WRITER = """
import os, sys
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from tests.support.store.records import put
from dios.ids import ObjectId
from dios.store.lmdb_store import LmdbStore
from dios.store.protocol import Drop

OBJECTS = int(sys.argv[3])

def value(number, version):
    # Small and large ones in turn, so that an object changes between row and extent.
    size = (200, 90_000, 9_000, 700_000, 40_000)[(number + version) % 5]
    return (b"%016d%016d" % (number, version)) * (size // 32)

store = LmdbStore(Path(sys.argv[1]))
version = max((record.v_w for record in store.recover()), default=0)
while True:
    version += 1
    # Two objects in one batch carry the same version: a torn batch would show.
    first = version % (OBJECTS // 2)
    changes = [put(number, value(number, version), v_w=version) for number in (first, first + OBJECTS // 2)]
    if version % 7 == 0:
        changes = [Drop(change.record.object) for change in changes]
    os.write(1, b"%d %d %d begin\\n" % (version, first, version % 7 == 0))
    store.apply(changes)
    os.write(1, b"%d %d %d done\\n" % (version, first, version % 7 == 0))
"""


class Model:
    """What the writer said: the last acknowledged version of each pair, and one that may be either."""

    def __init__(self) -> None:
        self.versions: dict[int, int] = {}
        self.unsure: tuple[int, int] | None = None

    def hear(self, line: bytes) -> None:
        """Take in one line of the writer; a version that drops its objects counts as 0."""
        version, first, dropped, word = line.split()
        stands = 0 if dropped == b"1" else int(version)
        if word == b"begin":
            self.unsure = (int(first), stands)
        else:
            self.versions[int(first)] = stands
            self.unsure = None

    def settle(self, stored: dict[int, int]) -> None:
        """Check what a store holds against what was said, and take over what was in between."""
        if self.unsure is not None:
            first, stands = self.unsure
            assert stored.get(first, 0) in {self.versions.get(first, 0), stands}
            self.versions[first] = stored.get(first, 0)
            self.unsure = None
        half = OBJECTS // 2
        expected = {first: version for first, version in self.versions.items() if version}
        assert stored == expected | {first + half: version for first, version in expected.items()}


def run_and_kill(data: Path, model: Model, patience: random.Random) -> None:
    """Let the writer acknowledge some batches, and kill it in the middle of whatever it does then."""
    command = [sys.executable, "-c", WRITER, str(data), str(SUPPORT), str(OBJECTS)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as writer:
        assert writer.stdout is not None
        for _ in range(patience.randrange(1, LINES_MAX)):
            line = writer.stdout.readline()
            assert line, "the writer ended by itself"
            model.hear(line)
        # A spin of random length, so that the kill falls anywhere in one of the next batches.
        for _ in range(patience.randrange(SPIN_MAX)):
            pass
        os.kill(writer.pid, signal.SIGKILL)
        for line in writer.stdout:
            model.hear(line)
        assert writer.wait(30) == -signal.SIGKILL


def whole_versions(data: Path) -> dict[int, int]:
    """The version of every object, each read to its end and compared with what was written."""
    store = LmdbStore(data)
    try:
        versions: dict[int, int] = {}
        for record in store.recover():
            content = store.open_content(record.object)
            if isinstance(content, InlineContent):
                stored = content.data
            else:
                stored = os.pread(content.fd, content.size, 0)
                os.close(content.fd)
            assert len(stored) == record.size > 0
            assert stored == (b"%016d%016d" % (record.object, record.v_w)) * (record.size // 32)
            versions[record.object] = record.v_w
        assert store.damaged == []
        files = [path for path in (data / "extents").glob("*/*") if path.is_file()]
        assert len(files) == store.usage()["extents"]
        assert sum(path.stat().st_size for path in files) <= store.usage()["bytes"]
        return versions
    finally:
        store.close()


def test_a_killed_writer_loses_nothing_that_was_acknowledged(tmp_path: Path) -> None:
    """After kill -9, twenty times over, every acknowledged batch is there whole and none is torn."""
    patience = random.Random(20)  # noqa: S311 - it chooses moments, it guards nothing
    model = Model()
    large: set[Path] = set()
    for _ in range(ROUNDS):
        run_and_kill(tmp_path / "data", model, patience)
        model.settle(whole_versions(tmp_path / "data"))
        large.update((tmp_path / "data" / "extents").glob("*/*"))
    assert len(large) > ROUNDS, "the writer was to write extents too"


def test_a_killed_writer_frees_the_directory(tmp_path: Path) -> None:
    """The lock of a killed process does not outlive it."""
    patience = random.Random(1)  # noqa: S311 - it chooses moments, it guards nothing
    run_and_kill(tmp_path / "data", Model(), patience)
    store = LmdbStore(tmp_path / "data")
    assert all(record.object < ObjectId(OBJECTS) for record in store.recover())
    store.close()
