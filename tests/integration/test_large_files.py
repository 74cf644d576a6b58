"""Files in parts on a real node: one file for every reader, continued after interruptions."""

from __future__ import annotations

import hashlib
import io
import itertools
import json
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import pytest
from blake3 import blake3
from typer.testing import CliRunner

import dios
from dios import limits
from dios.cli.main import app
from dios.client.keyring import Keyring
from dios.client.sync.node import Group, Node
from dios.errors import Conflict, DamagedError
from dios.ids import Name
from dios.lib.backup.create import Source as BackupSource
from dios.lib.backup.create import Writer
from dios.lib.backup.restore import restore_group
from dios.lib.files import downloads
from dios.lib.files.catalogue_places import KeyringCatalogue
from dios.lib.files.group_files import GroupFiles
from dios.lib.files.parts import StoredParts
from dios.lib.files.sound_replicas import SoundReplicas
from dios.lib.files.sources import MemorySource
from dios.lib.files.staging import StagedFiles
from dios.lib.packs.keys import generate
from dios.lib.packs.targets import LocalTarget
from tests.support.node.running_node import RunningNode, running_node

T = TypeVar("T")

PART = 64 * limits.KIB
DATA = hashlib.shake_256(b"seed").digest(5 * PART + 1_000)


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningNode]:
    """A node for all tests of this module, which have small parts."""
    home = tmp_path_factory.mktemp("home")
    with pytest.MonkeyPatch.context() as patch, running_node(home / "data") as node:
        patch.setenv("DIOS_KEYRING", str(home / "keyring.toml"))
        patch.setenv("DIOS_NODE", node.place)
        patch.setenv("XDG_STATE_HOME", str(home / "state"))
        patch.setattr(limits, "FILE_WHOLE_BYTES_MAX", 2 * PART)
        patch.setattr(limits, "FILE_PART_BYTES", PART)
        patch.setattr(limits, "FILE_PARTS_ANNOUNCED", 2)
        yield node


class Place:
    """A group of its own, with its files."""

    def __init__(self, node: Node, alias: str) -> None:
        self.node = node
        self.alias = alias
        self.group: Group = node.create_group()
        Keyring.load().add(alias, Name(self.group.name or b""))
        self.files = self.again()

    def again(self) -> GroupFiles:
        """The files as another program sees them."""
        keyring = Keyring.load()
        return GroupFiles(self.node, self.group, KeyringCatalogue(self.node, keyring, self.alias, self.group))

    def put(self, path: str, data: bytes = DATA) -> None:
        """Store a file."""
        staged = StagedFiles(self.again())
        staged.add_bytes(path, data)
        staged.publish()

    def objects(self) -> int:
        """The number of durable objects of the node."""
        return sum(row["type"] == "DURABLE_BLOB" for row in self.node.read_table("objects"))


aliases = (f"large{number}" for number in itertools.count())


@pytest.fixture
def place(running: RunningNode) -> Iterator[Place]:
    """A new group."""
    with dios.connect(running.place, groups=()) as node:
        yield Place(node, next(aliases))


class Broken(MemorySource):
    """A source that fails in the part with this number."""

    def __init__(self, data: bytes, part: int) -> None:
        super().__init__(memoryview(data))
        self.part = part

    def chunks(self, offset: int, size: int) -> Iterator[memoryview]:
        """Yield the bytes, or fail."""
        if offset >= self.part * PART:
            raise KeyboardInterrupt
        return super().chunks(offset, size)


def interrupted_put(place: Place, path: str, part: int, data: bytes = DATA) -> StagedFiles:
    """Begin to store a file, and stop as a killed program does."""
    staged = StagedFiles(place.again())
    with pytest.raises(KeyboardInterrupt):
        staged.add_source(path, Broken(data, part), len(data))
    return staged


def test_a_file_in_parts_is_one_file(place: Place, tmp_path: Path) -> None:
    """Views, ranges, open files, copies and downloads have the bytes, and removing leaves no object."""
    fsspec = pytest.importorskip("fsspec", reason="fsspec is not installed: make setup")
    before = place.objects()
    local = tmp_path / "local"
    local.write_bytes(DATA)
    files = fsspec.filesystem("dios", skip_instance_cache=True)
    files.put_file(str(local), f"{place.alias}/a")
    entry = place.files.entry("a")
    assert (entry.in_parts, entry.size, len(entry.names)) == (True, len(DATA), 6)
    assert entry.digest == blake3(DATA).digest()
    assert files.info(f"{place.alias}/a")["size"] == len(DATA)
    assert files.cat(f"{place.alias}/a") == DATA
    for start, end in [(10, 20), (PART - 5, PART + 5), (PART, 3 * PART + 1), (-7, None), (None, -7), (5, 2)]:
        assert files.cat_file(f"{place.alias}/a", start, end) == DATA[start:end]
    with files.open(f"{place.alias}/a") as file:
        assert file.seek(2 * PART - 3) == 2 * PART - 3
        assert file.read(10) == DATA[2 * PART - 3 : 2 * PART + 7]
        assert file.seek(0) == 0
        assert b"".join(file) == DATA
    files.cp(f"{place.alias}/a", f"{place.alias}/b")
    files.mv(f"{place.alias}/a", f"{place.alias}/c")
    files.get(f"{place.alias}/c", str(tmp_path / "copy"))
    assert (tmp_path / "copy").read_bytes() == files.cat(f"{place.alias}/b") == DATA
    files.rm([f"{place.alias}/b", f"{place.alias}/c"])
    assert place.objects() == before + 1, "only the catalogue is left"


def test_a_file_is_stored_while_it_is_written(place: Place) -> None:
    """Two pages are in memory at a time, wherever the program writes, and nothing is visible before close."""
    fsspec = pytest.importorskip("fsspec", reason="fsspec is not installed: make setup")
    files = fsspec.filesystem("dios", skip_instance_cache=True)
    before = place.objects()
    path = f"{place.alias}/a"
    tracemalloc.start()
    with files.open(path, "wb") as file:
        for start in range(0, len(DATA), 1000):
            file.write(DATA[start : start + 1000])
        for offset, whence in ((0, 3), (-1, io.SEEK_SET)):
            with pytest.raises(ValueError, match=r"whence|before the beginning"):
                file.seek(offset, whence)
        file.seek(10)
        file.write(b"patched")
        assert tracemalloc.get_traced_memory()[1] < 4 * PART
        tracemalloc.stop()
        assert not place.again().tree().is_file("a")
        assert place.again().tree().unfinished["a"].parts
        file.seek(0, io.SEEK_END)
        file.write(b"end")
    expected = DATA[:10] + b"patched" + DATA[17:] + b"end"
    entry = place.again().entry("a")
    assert (entry.in_parts, entry.digest) == (True, blake3(expected).digest())
    assert files.cat(path) == expected
    assert place.objects() == before + 1 + 6
    with files.open(path, "ab") as file:
        file.write(DATA)
    with files.open(path, "r+b") as file:
        file.seek(3 * PART)
        assert file.read(5) == expected[3 * PART : 3 * PART + 5]
        file.truncate(4 * PART)
    assert files.cat(path) == expected[: 4 * PART]
    with files.open(path, "w+b") as file:
        file.write(DATA[:100])
    assert files.cat(path) == DATA[:100]
    assert place.objects() == before + 2


def test_a_writer_that_fails_leaves_nothing(place: Place) -> None:
    """Neither an exception in its body, nor a path that another program took, leaves a part or a list."""
    fsspec = pytest.importorskip("fsspec", reason="fsspec is not installed: make setup")
    files = fsspec.filesystem("dios", skip_instance_cache=True)
    place.put("taken", b"first")
    before = place.objects()

    def fail() -> None:
        with files.open(f"{place.alias}/a", "wb") as file:
            file.write(DATA)
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    file = files.open(f"{place.alias}/b", "xb")
    file.write(DATA)
    place.put("b", b"first")
    with pytest.raises(FileExistsError):
        file.close()
    assert bytes(place.again().view("b")) == b"first"
    assert not place.again().tree().unfinished
    assert place.objects() == before + 1
    with files.transaction:
        with files.open(f"{place.alias}/c", "wb") as file:
            file.write(DATA)
        assert not place.again().tree().is_file("c")
    assert files.cat(f"{place.alias}/c") == DATA


def test_an_interrupted_put_is_continued(place: Place) -> None:
    """A later program stores the missing parts only, and nothing is left of what is not needed."""
    before = place.objects()
    interrupted_put(place, "a", 3)
    begun = place.files.tree().unfinished["a"]
    assert not place.files.tree().is_file("a")
    stored = {part.name for part in begun.parts[:3]}
    assert place.objects() == before + 1 + len(begun.parts), "every object is listed"
    changed = DATA[:PART] + b"?" * PART + DATA[2 * PART :]
    place.put("a", changed)
    assert bytes(place.files.view("a")) == changed
    assert len(stored & set(place.files.entry("a").names)) == 2, "the second part is another one"
    assert not place.files.tree().unfinished
    assert place.objects() == before + 1 + 6


def test_a_put_that_was_taken_over_is_refused(place: Place) -> None:
    """Of two programs that store one path, the first cannot make parts visible that are not its own."""
    first = StagedFiles(place.again())
    first.add_source("a", MemorySource(memoryview(DATA)), len(DATA))
    place.put("a", DATA[::-1])
    with pytest.raises(Conflict, match="another program"):
        first.publish()
    assert bytes(place.files.view("a")) == DATA[::-1]


def test_discarding_leaves_nothing(place: Place) -> None:
    """What is discarded is neither stored nor listed."""
    before = place.objects()
    interrupted_put(place, "a", 3).discard()
    assert not place.files.tree().unfinished
    assert place.objects() == before + 1


def test_a_pipe_of_unknown_size_is_stored(place: Place) -> None:
    """The end of a pipe may be at the end of a part, or anywhere; a short one is a single object."""
    for size in (10, PART, 4 * PART, len(DATA)):
        staged = StagedFiles(place.again())
        staged.add_pipe(f"p{size}", io.BytesIO(DATA[:size]))
        staged.publish()
        assert bytes(place.files.view(f"p{size}")) == DATA[:size]
        assert place.files.entry(f"p{size}").in_parts is (size >= PART)


def test_an_interrupted_download_is_continued(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next run keeps the parts that are right, and reads the others again."""
    place.put("a")
    entry, target = place.files.entry("a"), tmp_path / "copy"
    moved: list[int] = []

    def stop(size: int) -> None:
        moved.append(size)
        if len(moved) == 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        downloads.download(place.files, entry, target, stop)
    assert not target.exists()
    (partial,) = tmp_path.iterdir()
    assert downloads.is_partial(partial.name)
    with partial.open("r+b") as file:
        file.seek(2 * PART)
        file.write(b"damaged")
    read: list[int] = []
    read_part = StoredParts.read

    def noted(parts: StoredParts, number: int, action: Callable[[SoundReplicas], T]) -> T:
        read.append(number)
        return read_part(parts, number, action)

    monkeypatch.setattr(StoredParts, "read", noted)
    downloads.download(place.files, entry, target)
    assert read == [2, 3, 4, 5]
    assert target.read_bytes() == DATA
    assert list(tmp_path.iterdir()) == [target]


def test_damaged_parts_are_noticed(place: Place, tmp_path: Path) -> None:
    """A download with a part whose digest is another one fails, and no file appears."""
    place.put("a")
    number = 3
    part = place.node.find(place.files.entry("a").names[number], group=place.group)
    assert part is not None
    with part, part.write(PART, blank=True) as request:
        request.fill(memoryview(b"x" * PART))
    with pytest.raises(DamagedError, match="part 4 of a"):
        downloads.download(place.files, place.files.entry("a"), tmp_path / "copy")
    assert not (tmp_path / "copy").exists()


def test_a_backup_has_the_whole_file(place: Place, tmp_path: Path) -> None:
    """It comes back from a backup, and an unchanged file is not read a second time."""
    place.put("a")
    key = generate()
    target = LocalTarget(tmp_path / "backup")
    writer = Writer(target, recipient=key.recipient())
    source = BackupSource(place.alias, place.group.name or b"", place.files)
    report = writer.create([source], Keyring.load())
    assert (report.size, report.read_bytes, report.left_out) == (len(DATA), len(DATA), [])
    assert writer.create([source], Keyring.load()).read_bytes == 0
    other = next(aliases)
    record = writer.repository.read(1).snapshot.groups[0]
    restore_group(writer.repository, record, place.node, Keyring.load(), alias=other)
    group = place.node.group(bytes(Keyring.load().groups[other]))
    assert group is not None
    restored = GroupFiles(place.node, group, KeyringCatalogue(place.node, Keyring.load(), other, group))
    assert restored.entry("a").in_parts
    assert bytes(restored.view("a")) == DATA


def test_commands_see_one_file(place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """put, ls, du, stat, get and rm work on a file in parts, and on one that is not finished."""

    def types(*words: str) -> list[dict[str, object]]:
        done = CliRunner().invoke(app, [*words, "--json"])
        assert done.exit_code == 0, done.output
        rows = json.loads(done.stdout)
        return rows if isinstance(rows, list) else [rows]

    monkeypatch.chdir(tmp_path)
    Path("a").write_bytes(DATA)
    path = f"{place.alias}/a"
    interrupted_put(place, "a", 4)
    before = place.objects()
    (row,) = types("ls", "--unfinished", "--group", place.alias)
    assert (row["path"], row["stored"], row["size"]) == (path, 4 * PART, len(DATA))
    types("put", "a", "--group", place.alias)
    assert types("du", path) == [{"path": path, "files": 1, "size": len(DATA)}]
    (stat,) = types("stat", path)
    assert (stat["parts"], stat["lost"]) == (6, 0)
    assert stat["replicas"] == [{"node": "", "rack": "", "parts": 6, "size": len(DATA)}]
    types("get", path, "--output", "b")
    assert Path("b").read_bytes() == DATA
    assert types("ls", "--orphans") == [], "the parts are in a catalogue"
    interrupted_put(place, "c", 1)
    types("rm", path, f"{place.alias}/c")
    assert not place.again().tree().unfinished
    assert place.objects() == before - 6, "only the catalogue is left"


def test_a_task_gets_a_file_in_parts_as_one_file(place: Place, tmp_path: Path) -> None:
    """`dios run --input` copies its parts in their order into one file."""
    place.put("a")
    program = tmp_path / "size.py"
    program.write_text(
        "import hashlib\nprint(hashlib.sha256(open('/inputs/data', 'rb').read()).hexdigest())\n"
    )
    done = CliRunner().invoke(app, ["run", str(program), "--input", f"data={place.alias}/a"])
    assert done.exit_code == 0, done.output
    assert done.stdout.strip() == hashlib.sha256(DATA).hexdigest()
    named = CliRunner().invoke(app, ["run", str(program), "--input", f"{place.alias}/a"])
    assert "--input FILE=NAME" in named.output


def test_every_part_of_a_labelled_file_has_the_label(place: Place) -> None:
    """Also the parts whose bytes an earlier run stored without a label."""
    interrupted_put(place, "pay", 3)
    staged = StagedFiles(place.again(), secrecy=["payroll"])
    staged.add_bytes("pay", DATA)
    staged.publish()
    (entry,) = place.again().entries()
    assert len(entry.names) == 6
    for name in entry.names:
        reference = place.node.find(name, group=place.group)
        assert reference is not None
        with reference:
            assert [tag.partition("/")[2] for tag in reference.secrecy] == ["payroll"]
