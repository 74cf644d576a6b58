"""Tiered files on a real node: out to a store and back by reading, whatever is killed or changed."""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import shutil
import signal
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import msgspec
import pytest
from blake3 import blake3
from typer.testing import CliRunner

import dios
from dios import limits
from dios.cli.common.context import opened
from dios.cli.main import app
from dios.client.keyring import Keyring
from dios.client.sync.node import Group, Node
from dios.errors import DiosError, InvalidError, UnreachableError
from dios.ids import Name
from dios.lib.backup.create import Source, Writer
from dios.lib.backup.repository import open_repository
from dios.lib.backup.restore import restore_group
from dios.lib.catalogue import CatalogueEntry
from dios.lib.files.catalogue_places import KeyringCatalogue
from dios.lib.files.downloads import download
from dios.lib.files.group_files import GroupFiles
from dios.lib.files.group_list import Destroyed, destroy
from dios.lib.files.sources import Source as FileSource
from dios.lib.files.staging import StagedFiles
from dios.lib.files.tier import entries, inward, outward
from dios.lib.files.tier.entries import prune, release
from dios.lib.files.tier.inward import bring_back, leave_store
from dios.lib.files.tier.outward import Moved, chosen, tier_out
from dios.lib.kept.promises import Promises
from dios.lib.kept.records import KeptPromise
from dios.lib.packs.failures import DamagedBackupError, TargetError
from dios.lib.packs.keys import PrivateKey, generate, save_pair
from dios.lib.packs.targets import LocalTarget
from dios.lib.packs.tier_store import TierStore, begin_store, known_store, open_store
from dios.lib.packs.writer_state import StateFile
from dios.node import daemon, local_cluster
from dios.node.local_cluster import LocalCluster
from tests.support.node.command_user import Person, require_schema
from tests.support.node.running_node import RunningNode, exists, running_node, wait_until

pytestmark = pytest.mark.long

PATIENCE_S = 90
PART = 64 * limits.KIB
LARGE = hashlib.shake_256(b"seed").digest(5 * PART + 1_000)
SMALL = b"a cold file\n" * 50


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningNode]:
    """A node for all tests of this module, which have small parts."""
    home = tmp_path_factory.mktemp("home")
    with pytest.MonkeyPatch.context() as patch, running_node(home / "data") as node:
        patch.setenv("DIOS_KEYRING", str(home / "keyring.toml"))
        patch.setenv("DIOS_NODE", node.place)
        patch.setenv("XDG_STATE_HOME", str(home / "state"))
        patch.setenv("XDG_CONFIG_HOME", str(home / "config"))
        patch.setattr(limits, "FILE_WHOLE_BYTES_MAX", 2 * PART)
        patch.setattr(limits, "FILE_PART_BYTES", PART)
        patch.setattr(limits, "FILE_PARTS_ANNOUNCED", 2)
        yield node


class Place:
    """A group of its own, with its files and its store."""

    def __init__(self, node: Node, alias: str, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self.node = node
        self.patch = patch
        self.alias = alias
        self.group: Group = node.create_group()
        Keyring.load().add(alias, Name(self.group.name or b""))
        self.folder = folder
        self.key: PrivateKey = generate()
        self.store: TierStore = begin_store(str(folder), self.key.recipient(), self.group)

    @property
    def files(self) -> GroupFiles:
        """The files as a new program sees them."""
        keyring = Keyring.load()
        return GroupFiles(self.node, self.group, KeyringCatalogue(self.node, keyring, self.alias, self.group))

    def put(self, path: str, data: bytes) -> None:
        """Store a file."""
        staged = StagedFiles(self.files)
        staged.add_bytes(path, data)
        staged.publish()

    def out(self, *paths: str) -> Moved:
        """Tier files."""
        return tier_out(self.files, self.store, paths)

    def objects(self) -> int:
        """The number of durable objects of the node."""
        return sum(row["type"] == "DURABLE_BLOB" for row in self.node.read_table("objects"))

    def packs(self) -> list[Path]:
        """The packs in the store."""
        return sorted((self.folder / "packs").iterdir()) if (self.folder / "packs").exists() else []


aliases = (f"cold{number}" for number in itertools.count())


@pytest.fixture
def place(running: RunningNode, tmp_path: Path) -> Iterator[Place]:
    """A new group with a store."""
    with dios.connect(running.place, groups=()) as node, pytest.MonkeyPatch.context() as patch:
        yield Place(node, next(aliases), tmp_path / "store", patch)


class Killed(BaseException):
    """The end of a program at this point."""


def kill_at(patch: pytest.MonkeyPatch, module: object, name: str, *, after: bool, call: int = 1) -> None:
    """Let a program end before or after the call with this number of a function."""
    former = getattr(module, name)
    calls = itertools.count(1)

    def dying(*arguments: object, **named: object) -> object:
        if next(calls) != call:
            return former(*arguments, **named)
        if after:
            former(*arguments, **named)
        raise Killed

    patch.setattr(module, name, dying)


def test_files_go_out_and_come_back_by_reading(place: Place) -> None:
    """A small file and one in parts leave no object and no plain byte, and are read as before."""
    place.put("keep", b"warm")
    before = place.objects()
    place.put("small", SMALL)
    place.put("large", LARGE)
    put_ns = place.files.entry("large").put_ns
    outcome = place.out("small", "large")
    assert [entry.file for entry in outcome.moved] == ["small", "large"]
    assert place.objects() == before
    stored = b"".join(path.read_bytes() for path in place.packs())
    assert LARGE[:64] not in stored
    assert SMALL[:24] not in stored
    entry = place.files.entry("large")
    assert (entry.tiered, entry.names, entry.size, entry.digest) == (
        True,
        [],
        len(LARGE),
        blake3(LARGE).digest(),
    )
    assert place.out("small").before == ["small"]
    assert bytes(place.files.view("large", 10, 20)) == LARGE[10:20]
    with place.files.open("small") as file:
        assert file.read() == SMALL
    back = place.files.entry("large")
    assert (back.tiered, back.tier, back.put_ns, back.in_parts) == (False, None, put_ns, True)
    assert place.packs() == []
    assert not place.files.tree().unfinished


OUTWARD = [
    (entries, "switch", False, 1),
    (entries, "switch", True, 1),
    (TierStore, "put", True, 1),
    (outward, "_stored", True, 1),
    (entries, "switch", True, 2),
    (outward, "destroy", True, 1),
]


@pytest.mark.parametrize(("module", "name", "after", "call"), OUTWARD)
def test_a_kill_on_the_way_out_loses_nothing(
    place: Place,
    monkeypatch: pytest.MonkeyPatch,
    module: object,
    name: str,
    after: bool,  # noqa: FBT001
    call: int,
) -> None:
    """After a kill between two steps the file can be read, and a second run leaves it in the store alone."""
    place.put("keep", b"warm")
    before = place.objects()
    place.put("large", LARGE)
    with monkeypatch.context() as patch:
        owner = outward if module is entries else module
        kill_at(patch, owner, name, after=after, call=call)
        with pytest.raises(Killed):
            place.out("large")
    assert place.files.entry("large").tiered or place.objects() > before
    place.out("large")
    entry = place.files.entry("large")
    assert entry.tier is not None
    assert (entry.tiered, entry.tier.left, place.objects()) == (True, False, before)
    assert prune(place.files, place.store) == 0
    assert bytes(place.files.view("large")) == LARGE
    assert place.packs() == []


@pytest.mark.parametrize(("module", "name", "after", "call"), OUTWARD[1:])
def test_a_file_can_be_read_after_a_kill(
    place: Place,
    monkeypatch: pytest.MonkeyPatch,
    module: object,
    name: str,
    after: bool,  # noqa: FBT001
    call: int,
) -> None:
    """Right after a kill on the way out a reader gets the bytes, from here or from the store."""
    place.put("small", SMALL)
    with monkeypatch.context() as patch:
        owner = outward if module is entries else module
        kill_at(patch, owner, name, after=after, call=call)
        with pytest.raises(Killed):
            place.out("small")
    assert bytes(place.files.view("small")) == SMALL


INWARD = [
    (StagedFiles, "add_source", False),
    (StagedFiles, "add_source", True),
    (StagedFiles, "publish", True),
    (inward, "finish", False),
    (TierStore, "remove", True),
]


@pytest.mark.parametrize(("module", "name", "after"), INWARD)
def test_a_kill_on_the_way_back_loses_nothing(
    place: Place,
    monkeypatch: pytest.MonkeyPatch,
    module: object,
    name: str,
    after: bool,  # noqa: FBT001
) -> None:
    """After a kill between two steps the file can be read, and a second run leaves nothing in the store."""
    place.put("large", LARGE)
    place.out("large")
    with monkeypatch.context() as patch:
        kill_at(patch, module, name, after=after)
        with pytest.raises(Killed):
            bring_back(place.files, "large")
    assert bytes(place.files.view("large")) == LARGE
    entries.finish(place.files, place.files.entry("large"))
    assert place.files.entry("large").tier is None
    assert place.packs() == []


def test_what_a_hostile_store_changes_is_found(place: Place) -> None:
    """A changed, swapped or missing pack is an error, no byte of it is read, and the file stays tiered."""
    place.put("one", LARGE)
    place.put("two", LARGE[::-1])
    place.out("one", "two")
    packs = place.packs()
    first, second = (pack.read_bytes() for pack in packs)
    changed = first[:-1] + bytes([first[-1] ^ 1]), second[:100]
    for stored in (changed, (second, first), (b"", b"")):
        for pack, data in zip(packs, stored, strict=True):
            pack.write_bytes(data)
        for path in ("one", "two"):
            with pytest.raises(DamagedBackupError):
                place.files.view(path)
            assert place.files.entry(path).tiered
    for pack in packs:
        pack.unlink()
    with pytest.raises(DamagedBackupError, match="missing"):
        place.files.view("one")
    packs[0].write_bytes(first)
    packs[1].write_bytes(second)
    assert bytes(place.files.view("one")) == LARGE


def test_a_store_that_keeps_nothing_takes_no_file(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the store does not return what it got, the local bytes stay."""
    place.put("small", SMALL)
    write = LocalTarget.write
    monkeypatch.setattr(LocalTarget, "write", lambda self, path, data: write(self, path, data[:-1] + b"?"))
    with pytest.raises(DamagedBackupError):
        place.out("small")
    monkeypatch.undo()
    assert not place.files.entry("small").tiered
    assert bytes(place.files.view("small")) == SMALL


def test_a_reader_without_the_key_changes_nothing(place: Place, tmp_path: Path) -> None:
    """Another machine gets an error with the next step, and reads after `dios tier open` alone."""
    place.put("small", SMALL)
    place.out("small")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CONFIG_HOME", str(tmp_path / "other"))
        with pytest.raises(InvalidError, match="dios tier open"):
            place.files.view("small")
        with pytest.raises(InvalidError, match="dios tier open"):
            place.files.remove(["small"])
        assert place.files.entry("small").tiered
        with pytest.raises(DamagedBackupError):
            open_store(str(place.folder), generate())
        open_store(str(place.folder), place.key)
        assert bytes(place.files.view("small")) == SMALL


def test_a_store_belongs_to_one_group(place: Place, running: RunningNode) -> None:
    """A second group is refused, and so is a place that has a backup."""
    with dios.connect(running.place, groups=()) as node, pytest.raises(InvalidError, match="another group"):
        begin_store(str(place.folder), None, node.create_group())
    (place.folder / "config").write_text('{"format": "DIOS backup"}')
    with pytest.raises(DiosError):
        known_store(str(place.folder), place.group)


def test_labelled_and_empty_files_are_refused(place: Place) -> None:
    """A file with a secrecy label, and one without bytes, stay as they are, with the reason."""
    staged = StagedFiles(place.files, secrecy=["payroll"])
    staged.add_bytes("labelled", SMALL)
    staged.publish()
    place.put("empty", b"")
    refused = place.out("labelled", "empty").refused
    assert "payroll" in refused["labelled"]
    assert "no bytes" in refused["empty"]
    assert place.packs() == []


def test_replacing_and_removing_a_tiered_file_empties_the_store(place: Place) -> None:
    """The bytes in the store go with the file, and what a broken run left there is pruned."""
    for path in ("replaced", "removed", "moved"):
        place.put(path, SMALL)
    place.out("replaced", "removed", "moved")
    assert len(place.packs()) == 3
    place.put("replaced", b"new")
    place.files.remove(["removed"])
    place.files.move({"moved": "elsewhere"})
    assert len(place.packs()) == 1
    (place.folder / "packs" / ("ab" * 32)).write_bytes(b"left")
    assert prune(place.files, place.store) == 1
    assert bytes(place.files.view("elsewhere")) == SMALL


def test_a_backup_has_the_bytes_of_tiered_files(place: Place, tmp_path: Path) -> None:
    """A snapshot reads them from the store once, leaves them there, and is restored as local files."""
    place.put("large", LARGE)
    place.out("large")
    target, key = LocalTarget(tmp_path / "backup"), generate()
    source = Source(place.alias, place.group.name or b"", place.files)
    keyring = Keyring.load()
    writer = Writer(target, recipient=key.recipient())
    first = writer.create([source], keyring)
    second = writer.create([source], keyring)
    assert (first.left_out, first.read_bytes, second.read_bytes) == ([], len(LARGE), 0)
    assert place.files.entry("large").tiered
    repository = open_repository(target, key)
    record = repository.read(1).snapshot.groups[0]
    restored = restore_group(repository, record, place.node, keyring, alias=f"{place.alias}-again")
    assert (restored.files, restored.size) == (1, len(LARGE))
    place.store.remove_pack(bytes.fromhex(place.packs()[0].name))
    place.files.edit(lambda tree: [msgspec.structs.replace(entry, file="other") for entry in tree.entries])
    lost = Writer(LocalTarget(tmp_path / "further"), recipient=key.recipient()).create([source], keyring)
    assert "missing" in lost.left_out[0]


def test_the_commands_show_what_is_where(place: Place, running: RunningNode, tmp_path: Path) -> None:
    """The commands tier by age and size, count tiered bytes apart, and read and remove tiered files."""
    cold = place.alias
    key = tmp_path / "tier.key"
    store = tmp_path / "cold"
    local = tmp_path / "local"
    save_pair(key, generate())

    def typed(line: str, *, status: int = 0) -> str:
        result = CliRunner().invoke(app, [*line.split(), "--node", running.place])
        assert result.exit_code == status, result.output
        if "--json" in line:
            require_schema(f"dios {line}", result.stdout)
        return result.stdout

    for path, data in (("a.txt", b"a" * 3_000), ("b.txt", b"b" * 50), ("c.txt", b"c" * 4_000)):
        place.put(path, data)
    typed(f"tier out --older 1h --group {cold} --to {store}", status=1)
    begin = f"tier out --larger 1KiB --group {cold} --to {store} --recipient {key}.pub --json"
    report = json.loads(typed(begin))
    assert (report["moved"], report["size"]) == ([f"{cold}/a.txt", f"{cold}/c.txt"], 7_000)
    typed(f"tier out none.txt --group {cold} --to {store}", status=1)
    assert json.loads(typed(f"tier out {cold}/a.txt --group {cold} --to {store} --json"))["before"] == [
        f"{cold}/a.txt"
    ]
    listed = json.loads(typed(f"ls {cold} --json"))
    assert [row.get("store") for row in listed] == [str(store), None, str(store)]
    assert "(tiered)" in typed(f"ls {cold}")
    assert json.loads(typed(f"du {cold} --json")) == [{"path": cold, "files": 3, "size": 50, "tiered": 7_000}]
    assert "TIERED" in typed(f"du {cold}")
    assert json.loads(typed(f"stat {cold}/a.txt --json"))["type"] == "TIERED"
    assert "dios tier in" in CliRunner().invoke(app, ["replicate", f"{cold}/a.txt", "--to", "n1"]).output
    assert {row["state"] for row in json.loads(typed(f"tier ls --group {cold} --json"))} == {"stored"}
    typed(f"get {cold}/a.txt --output {local}")
    assert local.read_bytes() == b"a" * 3_000
    assert [row["file"] for row in json.loads(typed(f"tier ls --group {cold} --json"))] == ["c.txt"]
    typed(f"tier out a.txt --group {cold} --to {store}")
    with opened(running.place) as context:
        (handed,) = context.file_objects(f"{cold}/a.txt")
        assert handed.read_bytes() == b"a" * 3_000
    typed(f"tier out a.txt --group {cold} --to {store}")
    assert json.loads(typed(f"tier in {cold}/a.txt --json"))[0]["brought_back"]
    assert json.loads(typed(f"rm {cold}/c.txt --json"))[0]["destroyed"]
    assert json.loads(typed(f"tier prune {store} --group {cold} --json"))["packs"] == 0
    typed(f"tier out a.txt --group {cold} --to {store}")
    assert json.loads(typed(f"tier forget {cold}/a.txt --yes --json"))[0]["store"] == str(store)
    assert json.loads(typed(f"tier prune {store} --group {cold} --json"))["packs"] == 1
    assert CliRunner().invoke(app, ["tier", "open", str(store), "--key", str(key)]).exit_code == 0


def test_files_come_back_next_to_one_that_cannot(place: Place, running: RunningNode) -> None:
    """`tier in` brings the others back, names the one whose bytes are gone, and ends with 1."""
    place.put("a.txt", b"a" * 3_000)
    place.out("a.txt")
    (pack,) = place.packs()
    place.put("b.txt", b"b" * 3_000)
    place.out("b.txt")
    pack.unlink()
    line = f"tier in {place.alias}/a.txt {place.alias}/b.txt --json"
    result = CliRunner().invoke(app, [*line.split(), "--node", running.place])
    assert result.exit_code == 1
    require_schema(f"dios {line}", result.stdout)
    back, failed = json.loads(result.stdout)
    assert (back["path"], back["brought_back"]) == (f"{place.alias}/b.txt", True)
    assert failed["path"] == f"{place.alias}/a.txt"
    assert failed["failure"] in result.stderr
    assert [place.files.entry(path).tiered for path in ("a.txt", "b.txt")] == [True, False]


def test_programs_change_tiered_files_in_place(place: Place) -> None:
    """The file system appends to a tiered file, copies it, and opens a large one in ranges."""
    fsspec = pytest.importorskip("fsspec", reason="fsspec is not installed: make setup")
    files = fsspec.filesystem("dios", skip_instance_cache=True)
    place.put("small", SMALL)
    place.put("large", LARGE)
    place.out("small", "large")
    with files.open(f"{place.alias}/small", "ab") as file:
        file.write(b"more")
    assert files.cat(f"{place.alias}/small") == SMALL + b"more"
    assert files.cat_ranges([f"{place.alias}/large"], [5], [9]) == [LARGE[5:9]]
    place.out("large")
    files.cp_file(f"{place.alias}/large", f"{place.alias}/copy")
    assert files.cat(f"{place.alias}/copy") == LARGE
    assert place.packs() == []


def test_of_two_readers_one_brings_a_file_back(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader that is overtaken by another program uses the objects of the other."""
    place.put("small", SMALL)
    place.out("small")
    others, add_source = place.files, StagedFiles.add_source

    def overtaken(staged: StagedFiles, path: str, source: FileSource, size: int) -> None:
        monkeypatch.setattr(StagedFiles, "add_source", add_source)
        inward._bring_back(others, "small", lambda _: None)
        add_source(staged, path, source, size)

    before = place.objects()
    monkeypatch.setattr(StagedFiles, "add_source", overtaken)
    assert bytes(place.files.view("small")) == SMALL
    assert place.objects() == before + 1
    assert place.files.entry("small").tier is None


def test_a_store_that_is_gone_is_forgotten(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """A local file that a broken run marked can be read, and goes elsewhere once its store is forgotten."""
    place.put("small", SMALL)
    with monkeypatch.context() as patch:
        kill_at(patch, TierStore, "put", after=False)
        with pytest.raises(Killed):
            place.out("small")
    shutil.rmtree(place.folder)
    StateFile(str(place.folder)).path.unlink()
    assert bytes(place.files.view("small")) == SMALL
    other = begin_store(f"{place.folder}-other", place.key.recipient(), place.group)
    assert "dios tier open" in tier_out(place.files, other, ["small"]).refused["small"]
    entries.forget(place.files, place.files.entry("small"))
    assert tier_out(place.files, other, ["small"]).moved
    assert bytes(place.files.view("small")) == SMALL


def test_a_bucket_needs_its_package_alone(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """A store of fsspec works as a directory does; without the package the error names it."""
    pytest.importorskip("fsspec", reason="fsspec is not installed: make setup")
    place.put("small", SMALL)
    place.store = begin_store(f"memory://{place.alias}/cold", place.key.recipient(), place.group)
    place.out("small")
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "fsspec.core", None)
        with pytest.raises(TargetError, match="pip install"):
            place.files.view("small")
    assert place.files.entry("small").tiered
    assert bytes(place.files.view("small")) == SMALL
    assert place.store.packs() == set()


def test_a_node_that_does_not_answer_is_asked_again(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Replicas that were out of reach are destroyed by a later run, and nothing is pruned meanwhile."""
    before = place.objects()
    place.put("small", SMALL)
    kept = place.objects() - before
    with monkeypatch.context() as patch:
        patch.setattr(
            outward, "destroy", lambda _, names, **__: {name: Destroyed(0, False) for name in names}
        )
        place.out("small")
        patch.setattr(GroupFiles, "list_is_complete", lambda _: False)
        with pytest.raises(UnreachableError):
            prune(place.files, place.store)
    tier = place.files.entry("small").tier
    assert tier is not None
    assert tier.left
    assert chosen(place.files, older_ns=None, larger=10**9, now_ns=0) == ["small"]
    place.out("small")
    assert place.objects() == before + kept - 1
    assert chosen(place.files, older_ns=None, larger=None, now_ns=0) == []
    assert bytes(place.files.view("small")) == SMALL


# -- a promise of replicas --------------------------------------------------------------------------
def promise(place: Place, replicas: int) -> None:
    """Let the cluster of the node have promised replicas for the group; one node cannot meet two."""
    known = [KeptPromise(0, place.group.name or b"", bytes(32), place.alias, replicas)] if replicas else []
    place.patch.setattr(Promises, "known", lambda _: known)


def downloaded(files: GroupFiles, path: str, folder: Path) -> bytes:
    """The bytes of a file after it was written to a folder."""
    download(files, files.entry(path), folder / path)
    return (folder / path).read_bytes()


@pytest.fixture
def both(place: Place) -> Place:
    """A group with a small and a large file that were read from the store, and are not kept yet."""
    place.put("small", SMALL)
    place.put("large", LARGE)
    place.out("small", "large")
    promise(place, 2)
    assert bytes(place.files.view("large")) == LARGE
    assert bytes(place.files.view("small")) == SMALL
    assert [(entry.tiered, entry.in_store) for entry in place.files.entries()] == [(False, True)] * 2
    return place


@pytest.mark.parametrize(("path", "data"), [("small", SMALL), ("large", LARGE)])
def test_a_file_that_is_lost_before_its_promise_is_met_comes_from_the_store(
    both: Place, tmp_path: Path, path: str, data: bytes
) -> None:
    """Each way of reading finds the store's bytes when an object of the file is gone."""
    reads: list[Callable[[GroupFiles], object]] = [
        lambda files: bytes(files.view(path)),
        lambda files: files.open(path).read(),
        lambda files: downloaded(files, path, tmp_path),
    ]
    for read in reads:
        destroy(both.node, both.files.entry(path).names[-1:])
        assert read(both.files) == data
        entry = both.files.entry(path)
        assert (entry.tiered, entry.in_store) == (False, True)
    assert len(both.packs()) == 2


@pytest.mark.parametrize(("path", "data"), [("small", SMALL), ("large", LARGE)])
def test_a_file_that_is_damaged_before_its_promise_is_met_comes_from_the_store(
    both: Place, tmp_path: Path, path: str, data: bytes
) -> None:
    """A reader that compares the digest fetches the file again if its objects have other bytes."""
    damaged = both.files.entry(path)
    with both.node.lookup(damaged.names[-1], group=both.group)[0] as reference:
        reference.write_bytes(bytes(reference.size))
    assert downloaded(both.files, path, tmp_path) == data
    assert both.files.entry(path).name != damaged.name


def test_bytes_leave_the_store_when_the_promise_is_met(both: Place) -> None:
    """Pruning and a further run keep what is on too few nodes; without the promise nothing is stranded."""
    both.put("other", b"another file")
    assert prune(both.files, both.store) == 0
    assert both.out("other").refused == {}
    assert leave_store(both.files, both.files.entries()).keys() == {"small", "large"}
    assert len(both.packs()) == 3
    promise(both, 0)
    assert prune(both.files, both.store) == 2
    assert [entry.tier for entry in both.files.entries()][:2] == [None, None]
    assert len(both.packs()) == 1


def test_replicas_with_other_bytes_meet_no_promise(both: Place) -> None:
    """Without a promise one sound replica is enough, and a damaged one is not."""
    promise(both, 0)
    damaged = both.files.entry("small")
    with both.node.lookup(damaged.name, group=both.group)[0] as reference:
        reference.write_bytes(bytes(reference.size))
    assert leave_store(both.files, both.files.entries()).keys() == {"small"}
    assert both.files.entry("large").tier is None


def test_promises_that_are_not_known_are_not_met(both: Place) -> None:
    """While no node with the promises answers, the bytes stay in the store."""

    def silent(_: Promises) -> list[KeptPromise]:
        raise UnreachableError("n2 does not answer")

    both.patch.setattr(Promises, "known", silent)
    assert len(release(both.files, both.files.entries())) == 2
    both.put("further", SMALL)
    both.out("further")
    assert bytes(both.files.view("further")) == SMALL
    assert both.files.entry("further").in_store
    assert len(both.packs()) == 3


def test_a_file_in_both_places_goes_out_without_being_stored_again(both: Place) -> None:
    """It is not old enough for `--older` because of that, and another store does not take it."""
    assert chosen(both.files, older_ns=None, larger=10**9, now_ns=0) == []
    packs = {path: path.stat().st_mtime_ns for path in both.packs()}
    other = begin_store(f"{both.folder}-other", both.key.recipient(), both.group)
    assert str(both.folder) in tier_out(both.files, other, ["small"]).refused["small"]
    promise(both, 0)
    before = both.objects()
    assert len(both.out("small", "large").moved) == 2
    assert both.objects() < before
    assert {path: path.stat().st_mtime_ns for path in both.packs()} == packs
    assert all(entry.tiered for entry in both.files.entries())
    assert bytes(both.files.view("large")) == LARGE


def test_a_file_that_its_store_has_damaged_stays_local(both: Place) -> None:
    """The bytes in the store are read again before the local ones are destroyed."""
    for pack in both.packs():
        pack.write_bytes(pack.read_bytes()[:-1])
    assert both.out("small", "large").refused.keys() == {"small", "large"}
    assert bytes(both.files.view("small")) == SMALL


RELEASE = [
    (entries, "kept_ones", True, 1),
    (entries, "switch", True, 1),
    (TierStore, "remove", True, 1),
    (entries, "switch", True, 2),
]


@pytest.mark.parametrize(("module", "name", "after", "call"), RELEASE)
def test_a_kill_while_files_leave_the_store_strands_nothing(
    both: Place,
    monkeypatch: pytest.MonkeyPatch,
    module: object,
    name: str,
    after: bool,  # noqa: FBT001
    call: int,
) -> None:
    """After a kill between two steps the files can be read, and pruning finishes."""
    promise(both, 0)
    with monkeypatch.context() as patch:
        kill_at(patch, module, name, after=after, call=call)
        with pytest.raises(Killed):
            prune(both.files, both.store)
    assert bytes(both.files.view("small")) == SMALL
    prune(both.files, both.store)
    assert [entry.tier for entry in both.files.entries()] == [None, None]
    assert both.packs() == []
    assert bytes(both.files.view("large")) == LARGE


@pytest.mark.parametrize(("module", "name", "after"), [(inward, "switch", True), *INWARD[:3]])
def test_a_kill_while_a_lost_file_is_fetched_again_loses_nothing(
    both: Place,
    monkeypatch: pytest.MonkeyPatch,
    module: object,
    name: str,
    after: bool,  # noqa: FBT001
) -> None:
    """After a kill between two steps the next reader fetches the file, and no object is left over."""
    before = both.objects()
    destroy(both.node, both.files.entry("large").names[:1])
    with monkeypatch.context() as patch:
        kill_at(patch, module, name, after=after)
        with pytest.raises(Killed):
            both.files.view("large")
    assert bytes(both.files.view("large")) == LARGE
    assert both.objects() == before
    assert len(both.packs()) == 2


def test_an_overtaken_run_does_not_take_what_a_reader_needs(
    both: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While a program counts replicas, a reader fetches the file again and needs the store's bytes."""
    promise(both, 0)
    kept_ones = entries.kept_ones

    def overtaken(files: GroupFiles, several: Iterable[CatalogueEntry]) -> list[CatalogueEntry]:
        kept = kept_ones(files, several)
        monkeypatch.undo()
        promise(both, 2)
        destroy(both.node, both.files.entry("small").names)
        assert bytes(both.files.view("small")) == SMALL
        return kept

    monkeypatch.setattr(entries, "kept_ones", overtaken)
    release(both.files, [both.files.entry("small")])
    assert both.files.entry("small").in_store
    assert len(both.packs()) == 2


def test_a_backup_reads_lost_objects_from_the_store(both: Place, tmp_path: Path) -> None:
    """A file in both places is in the snapshot although its objects are gone."""
    destroy(both.node, both.files.entry("small").names)
    key = generate()
    source = Source(both.alias, both.group.name or b"", both.files)
    report = Writer(LocalTarget(tmp_path / "backup"), recipient=key.recipient()).create(
        [source], Keyring.load()
    )
    assert (report.left_out, report.files) == ([], 2)


def test_a_store_that_vanishes_takes_no_file(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder in the place of the store, such as that of a disk that was unmounted, is not the store."""
    place.put("small", SMALL)
    put = TierStore.put

    def vanishing(store: TierStore, mark: bytes, pieces: Iterable[memoryview]) -> bytes:
        shutil.move(place.folder, f"{place.folder}-elsewhere")
        return put(store, mark, pieces)

    monkeypatch.setattr(TierStore, "put", vanishing)
    with pytest.raises(DamagedBackupError, match="not mounted"):
        place.out("small")
    assert not place.files.entry("small").tiered
    assert bytes(place.files.view("small")) == SMALL
    with pytest.raises(DamagedBackupError, match="no file config"):
        begin_store(str(place.folder), None, place.group)


def test_local_objects_stay_while_the_list_is_on_too_few_disks(place: Place) -> None:
    """Else an older list, which the cluster may return to, would have files without objects."""
    place.put("small", SMALL)
    promise(place, 2)
    before = place.objects()
    assert place.out("small").moved
    tier = place.files.entry("small").tier
    assert tier is not None
    assert (tier.stored, tier.left, place.objects()) == (True, True, before)
    promise(place, 0)
    place.out("small")
    assert place.objects() == before - 1


def test_the_commands_show_files_in_both_places(both: Place, running: RunningNode) -> None:
    """`tier ls` and `tier in` say that the store has them, too, and `tier in` says why."""

    def typed(line: str) -> str:
        result = CliRunner().invoke(app, [*line.split(), "--node", running.place])
        assert result.exit_code == 0, result.output
        if "--json" in line:
            require_schema(f"dios {line}", result.stdout)
        return result.output

    rows = json.loads(typed(f"tier ls --group {both.alias} --json"))
    assert [row["state"] for row in rows] == ["both", "both"]
    assert "dios tier prune" in typed(f"tier ls --group {both.alias}")
    (row,) = json.loads(typed(f"tier in {both.alias}/small --json"))
    assert (row["brought_back"], row["in_store"]) == (False, True)
    assert "1 of 2 disks" in typed(f"tier in {both.alias}/small")


# -- clusters ---------------------------------------------------------------------------------------
class Cluster:
    """Nodes and a user with a group of four files; commands go to the first node that runs."""

    def __init__(self, live_cluster: LocalCluster, home: Path) -> None:
        home.mkdir()
        self.local = live_cluster
        self.person = Person(home)
        self.texts = {f"f{number}": f"a line of file {number}\n" * 10_000 for number in range(4)}

    def types(self, line: str) -> str:
        """Type a command."""
        running = self.local.running()
        node = next(node for node in self.local.nodes if node.name in running)
        self.person.environment["DIOS_NODE"] = str(node.data)
        return self.person.types(line).stdout

    def put(self, acknowledge: int) -> None:
        """Put the files, and make the key pair of a store."""
        for name, text in self.texts.items():
            self.person.writes(name, text)
        self.types("dios backup keygen key")
        self.types("dios group create papers")
        self.types(f"dios put {' '.join(self.texts)} --group papers --acknowledge {acknowledge}")

    def states(self) -> dict[str, tuple[str, bool]]:
        """The state of each file with bytes in a store, and True if local objects may be left."""
        rows = json.loads(self.types("dios tier ls --json"))
        return {row["file"]: (row["state"], row["local_left"]) for row in rows}

    def kill(self, name: str) -> None:
        """Kill -9 a node."""
        node = next(node for node in self.local.nodes if node.name == name)
        running = daemon.find(node.socket)
        if running is not None:
            os.kill(running.pid, signal.SIGKILL)
            wait_until(lambda: daemon.find(node.socket) is None, f"{name} is silent")
            wait_until(lambda: not exists(running.pid), f"{name} is gone")


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    """Three nodes whose keepers copy slowly, killed at the end whatever happened."""
    settings = {
        "accept_weaker_sandbox": "yes",
        "coordinator": "off",
        "pool_size": "0",
        "replica_grace": "1s",
        "replica_rate": "64KiB",
    }
    live_cluster = local_cluster.make(tmp_path / "cluster", nodes=3, keep=True, settings=settings)
    harness = Cluster(live_cluster, tmp_path / "person")
    try:
        local_cluster.start(live_cluster)
        yield harness
    finally:
        for node in live_cluster.nodes:
            harness.kill(node.name)


def test_no_file_is_lost_with_the_node_that_brought_it_back(cluster: Cluster) -> None:
    """`tier in` makes the promised replicas; a file that was only read stays in the store until then."""
    cluster.put(acknowledge=3)
    cluster.types("dios group set papers --replicas 3")
    cluster.types("dios tier out f0 f1 f2 f3 --group papers --to cold --recipient key.pub")
    rows = json.loads(cluster.types("dios tier in papers/f0 papers/f1 --json"))
    assert [row["in_store"] for row in rows] == [False, False]
    for name in ("f2", "f3"):
        cluster.types(f"dios get papers/{name} --output {name}")
    assert cluster.states() == {"f2": ("both", False), "f3": ("both", False)}
    cluster.kill("n1")
    shutil.rmtree(cluster.local.nodes[0].data)
    for name, text in cluster.texts.items():
        assert cluster.types(f"dios get papers/{name}") == text

    cluster.types("dios node forget n1 --yes")
    cluster.types("dios group set papers --replicas 2")

    def has_left_the_store() -> bool:
        cluster.types("dios tier prune cold --group papers")
        return not cluster.states()

    wait_until(has_left_the_store, "the files meet their promise", PATIENCE_S)
    assert not list((cluster.person.home / "cold" / "packs").iterdir())


def test_a_node_that_was_away_loses_what_is_in_the_store(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A replica that `tier out` could not destroy is destroyed by the next run when its node is back."""
    monkeypatch.setenv("DIOS_KEYRING", str(cluster.person.home / "keyring.toml"))
    cluster.person.environment["DIOS_KEYRING"] = os.environ["DIOS_KEYRING"]
    cluster.put(acknowledge=3)
    # Every node knows the user's promises then, of which the group has none.
    cluster.types("dios group create other")
    cluster.types("dios put f1 --group other")
    cluster.types("dios group set other --replicas 2")
    away = cluster.local.nodes[2]
    with opened(str(away.data), ["papers"]) as context:
        name = context.files("papers").entry("f0").name
    cluster.kill(away.name)
    cluster.types("dios tier out f0 --group papers --to cold --recipient key.pub")
    assert cluster.states() == {"f0": ("stored", True)}
    local_cluster.start(cluster.local)

    def nodes_with_it() -> list[str]:
        with opened(str(away.data), ["papers"]) as context:
            return [replica.node for replica in context.node.lookup(name)]

    assert nodes_with_it() == [away.name]
    cluster.types("dios tier out f0 --group papers --to cold")
    assert cluster.states() == {"f0": ("stored", False)}
    assert nodes_with_it() == []
    assert cluster.types("dios get papers/f0") == cluster.texts["f0"]
