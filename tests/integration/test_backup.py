"""Backups on a real node: the loss of everything, and the files that come back with their bytes and paths."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

import dios
from dios.lib.backup.create import Created, Source, Writer
from dios.lib.backup.repository import open_repository
from dios.lib.backup.restore import restore_group
from dios.lib.backup.verify import Verification
from dios.lib.catalogue import CatalogueEntry
from dios.lib.files.catalogue_places import KeyringCatalogue
from dios.lib.files.group_files import GroupFiles
from dios.lib.files.sound_replicas import SoundReplicas
from dios.lib.files.staging import StagedFiles
from dios.lib.packs.failures import TargetError
from dios.lib.packs.keys import PrivateKey, generate
from dios.lib.packs.targets import open_target
from dios.wire.types import Resource, Scope
from tests.support.node.command_user import Person
from tests.support.node.running_node import RunningNode, running_node

pytestmark = pytest.mark.long

ROOT = Path(__file__).resolve().parents[2]
MIB = 1024 * 1024


class CreatedRow(msgspec.Struct):
    """A run as `dios backup create --json` shows it."""

    sequence: int
    files: int
    size: int
    read_bytes: int
    stored_bytes: int
    left_out: list[str]
    groups: list[str]
    notices: list[str]


class FileRow(msgspec.Struct):
    """A file as `dios ls --json` shows it."""

    path: str
    size: int
    put: int


class PromiseRow(msgspec.Struct):
    """A promise of replicas as `dios group describe --json` shows it."""

    replicas: int
    apart: bool


class DescribedRow(msgspec.Struct):
    """A group with its promise."""

    promise: PromiseRow | None


class VerifiedRow(msgspec.Struct):
    """The findings as `dios backup verify --json` shows them."""

    snapshots: int
    files: int
    unused_packs: int
    damages: list[str]


@pytest.fixture
def person(tmp_path: Path) -> Iterator[Person]:
    """A user with a node and a key pair."""
    someone = Person(tmp_path)
    someone.types("dios-node start --data ./node0 --detach")
    someone.types("dios backup keygen ./backup.key")
    yield someone
    someone.types("dios-node stop")


def created(person: Person, line: str = "dios backup create ./backups", *, status: int = 0) -> CreatedRow:
    """Run ``dios backup create``."""
    return msgspec.json.decode(person.types(f"{line} --json", status=status).stdout, type=CreatedRow)


def listed(person: Person) -> list[FileRow]:
    """All files of the user."""
    return msgspec.json.decode(person.types("dios ls --json").stdout, type=list[FileRow])


def contents(folder: Path) -> dict[str, bytes]:
    """All files and directories below a folder, with their bytes."""
    paths = sorted(folder.rglob("*"))
    return {str(path.relative_to(folder)): b"" if path.is_dir() else path.read_bytes() for path in paths}


def lose_everything(person: Person) -> None:
    """Lose the node with its data, the keyring, and all else that this user's machine knew."""
    person.types("dios-node stop")
    shutil.rmtree(person.home / "node0")
    shutil.rmtree(person.home / ".config")
    person.types("dios-node start --data ./node0 --detach")
    person.types("dios ls")


def test_after_the_loss_of_everything_all_files_come_back(person: Person) -> None:
    """Files, directories, times and logs are the same after the node's data and the keyring are gone."""
    large = hashlib.shake_256(b"seed").digest(9 * MIB)
    person.writes("data/one.txt", "one")
    person.writes("data/deep/two.txt", "two" * 40_000)
    (person.home / "data" / "large").write_bytes(large)
    (person.home / "data" / "empty").touch()
    (person.home / "data" / "folder").mkdir()
    person.types("dios group create papers")
    person.types("dios group create results")
    person.types("dios put data --recursive --group papers")
    person.types("dios put data/one.txt --group results --as kept/one")
    person.types("dios journal create events --group results")
    person.types("dios journal append events first second")
    first = created(person, "dios backup create ./backups --recipient backup.key.pub")
    assert (first.sequence, first.files, first.left_out) == (1, 6, [])
    assert first.stored_bytes > len(large)
    person.writes("data/one.txt", "one, changed")
    person.types("dios put data/one.txt --group papers --replace")
    person.types("dios journal append events third")
    second = created(person)
    assert second.sequence == 2
    assert second.read_bytes < 100, "only the changed file and the log are read"
    assert second.stored_bytes < 10_000, "only what changed is stored"
    before = listed(person)

    lose_everything(person)
    assert listed(person) == []
    shown = msgspec.json.decode(person.types("dios backup ls ./backups --key backup.key --json").stdout)
    assert [row["snapshot"] for row in shown["snapshots"]] == [1, 2]
    person.types("dios backup restore ./backups --key backup.key")
    assert sorted(listed(person), key=str) == sorted(before, key=str)
    person.types("dios get papers/data --recursive --output back")
    assert contents(person.home / "back") == contents(person.home / "data")
    assert person.types("dios journal read events").stdout == "first\nsecond\nthird\n"
    assert person.types("dios get results/kept/one").stdout == "one"

    third = created(person, "dios backup create ./backups --key backup.key")
    assert third.sequence == 3
    assert third.stored_bytes < 10_000, "the bytes of restored files are stored already"
    person.types("dios backup restore ./backups --group papers --as before --snapshot 1")
    assert person.types("dios get before/data/one.txt").stdout == "one"


def test_the_target_has_neither_names_nor_paths_nor_bytes(person: Person) -> None:
    """Nothing of the user's is readable in the target, and the keys' files are for their owner alone."""
    person.writes("secret-path.txt", "secret-content " * 100)
    person.types("dios group create secret-alias")
    person.types("dios put secret-path.txt --group secret-alias")
    created(person, "dios backup create ./backups --recipient backup.key.pub")
    stored = b"".join(path.read_bytes() for path in (person.home / "backups").rglob("*") if path.is_file())
    keyring = (person.home / ".config" / "dios" / "keyring.toml").read_text()
    secrets = [b"secret-", *(name.encode() for name in re.findall(r"dios1\w+", keyring))]
    secrets += [bytes(dios.parse_name(name.decode())) for name in secrets[1:]]
    assert len(secrets) == 5
    assert not [secret for secret in secrets if secret in stored]
    private = [person.home / "backup.key", person.home / "backup.key.pub"]
    private += (person.home / ".config" / "dios" / "backups").iterdir()
    assert {stat.S_IMODE(path.stat().st_mode) for path in private} == {0o600}


def test_many_small_files_make_few_stored_ones(person: Person) -> None:
    """A thousand small files are one pack, and a second run reads none of them."""
    for number in range(1_000):
        person.writes(f"many/{number}", f"file {number}")
    person.types("dios group create many")
    person.types("dios put many --recursive --group many")
    assert created(person, "dios backup create ./backups --recipient backup.key.pub").files == 1_000
    assert len(list((person.home / "backups" / "packs").iterdir())) == 1
    again = created(person)
    assert (again.read_bytes, again.stored_bytes) == (0, 0)


def test_what_cannot_be_stored_is_said(person: Person) -> None:
    """A file whose object is gone is left out with its reason, and ends the command with 1."""
    person.writes("a", "a")
    person.writes("b", "b")
    person.types("dios group create papers")
    person.types("dios put a b --group papers")
    script = (
        "import dios\nkeyring = dios.Keyring.load()\n"
        "from dios.lib.files.groups import ReachableGroups\n"
        "groups = ReachableGroups()\n"
        "files = groups.files('papers')\n"
        "files.node.find(files.entry('a').name).destroy()\n"
        "keyring.add('other', files.entry('b').name, section='objects')\n"
    )
    person.writes("lose.py", script)
    assert person.pastes("python lose.py").returncode == 0
    report = created(person, "dios backup create ./backups --recipient backup.key.pub", status=1)
    assert report.files == 1
    assert report.left_out == ["papers/a: its object was destroyed"]
    assert [text for text in report.notices if "1 other object " in text]
    assert "could not be read" in person.types("dios backup restore ./backups --group papers --as p2").stderr


def test_nothing_is_overwritten(person: Person) -> None:
    """An alias that is used is refused before anything is stored; a key file is never written over."""
    person.writes("a", "a")
    person.types("dios group create papers")
    person.types("dios group create other")
    person.types("dios put a --group papers")
    created(person, "dios backup create ./backups --recipient backup.key.pub")
    assert "--as ANOTHER" in person.types("dios backup restore ./backups", status=1).stderr
    assert "exists" not in person.types("dios backup restore ./backups --group papers --as new").stderr
    person.types("dios backup keygen ./backup.key", status=1)
    person.types("dios-node stop")
    shutil.rmtree(person.home / "node0")
    person.types("dios-node start --data ./node0 --detach")
    assert "group forget" in person.types("dios backup restore ./backups", status=1).stderr
    person.types("dios group forget papers --yes")
    assert "group forget other" in person.types("dios backup restore ./backups", status=1).stderr
    assert [row.path for row in listed(person)] == []


def test_a_lost_keyring_alone_comes_back_with_the_old_names(person: Person) -> None:
    """With --names the keyring finds the groups that are still there."""
    person.writes("a", "a")
    person.types("dios group create papers")
    person.types("dios put a --group papers")
    created(person, "dios backup create ./backups --recipient backup.key.pub")
    keyring = person.home / ".config" / "dios" / "keyring.toml"
    keyring.unlink()
    person.types("dios backup restore ./backups --key backup.key --names")
    assert person.types("dios get papers/a").stdout == "a"


def test_old_snapshots_are_pruned_and_the_newest_stays_whole(person: Person) -> None:
    """Packs that only removed snapshots need go with them; the rest verifies."""
    person.types("dios group create papers")
    for text in ("one", "two", "three"):
        person.writes("a", text)
        person.types("dios put a --group papers --replace")
        created(person, "dios backup create ./backups --recipient backup.key.pub")
    assert "removed 2 snapshots and 2 packs" in person.types("dios backup prune ./backups --keep 1").stderr
    verified = msgspec.json.decode(
        person.types("dios backup verify ./backups --json").stdout, type=VerifiedRow
    )
    assert (verified.snapshots, verified.files, verified.unused_packs, verified.damages) == (1, 1, 0, [])
    person.types("dios backup restore ./backups --group papers --as again")
    assert person.types("dios get again/a").stdout == "three"


def test_a_damaged_or_rolled_back_target_is_noticed(person: Person) -> None:
    """A changed pack fails verify and restore; a target of last week is refused by create."""
    person.writes("a", "a" * 1_000)
    person.types("dios group create papers")
    person.types("dios put a --group papers")
    created(person, "dios backup create ./backups --recipient backup.key.pub")
    shutil.copytree(person.home / "backups", person.home / "last-week")
    person.writes("a", "b" * 1_000)
    person.types("dios put a --group papers --replace")
    created(person)
    (person.home / "backups").rename(person.home / "today")
    (person.home / "last-week").rename(person.home / "backups")
    refused = person.types("dios backup create ./backups", status=1).stderr
    assert "rolled back" in refused
    assert "--accept-rollback" in refused
    assert "rolled back" in person.types("dios backup verify ./backups", status=1).stderr
    created(person, "dios backup create ./backups --accept-rollback")
    assert "snapshot 2 is missing" in person.types("dios backup ls ./backups", status=1).stderr
    for pack in (person.home / "backups" / "packs").iterdir():
        data = bytearray(pack.read_bytes())
        data[20] ^= 1
        pack.write_bytes(data)
    assert "was changed" in person.types("dios backup verify ./backups", status=1).stderr
    failed = person.types("dios backup restore ./backups --group papers --as broken", status=1)
    assert "was changed" in failed.stderr
    assert "broken" not in person.types("dios group ls").stdout


def test_a_restore_goes_on_after_a_damaged_file(person: Person) -> None:
    """The sound files are there, large and small; the damaged one is listed, and the status is 1."""
    person.types("dios group create papers")
    person.writes("old", "x" * 100_000)
    person.types("dios put old --group papers")
    created(person, "dios backup create ./backups --recipient backup.key.pub")
    damaged = list((person.home / "backups" / "packs").iterdir())
    person.writes("new", "y" * 100_000)
    person.writes("small", "z")
    person.types("dios put new small --group papers")
    created(person)
    for pack in damaged:
        data = bytearray(pack.read_bytes())
        data[20] ^= 1
        pack.write_bytes(data)
    done = person.types("dios backup restore ./backups --group papers --as back --json", status=1)
    assert "not restored: back/old: " in done.stderr
    row = json.loads(done.stdout)
    assert (list(row["failed"]), row["groups"][0]["files"], row["groups"][0]["size"]) == (
        ["back/old"], 2, 100_001,
    )  # fmt: skip
    assert sorted(row.path for row in listed(person) if row.path.startswith("back/")) == [
        "back/new", "back/small",
    ]  # fmt: skip
    assert person.types("dios get back/new").stdout == "y" * 100_000
    assert person.types("dios ls --orphans").stderr.startswith("every stored object")


def test_the_page_rehearses_the_disaster(person: Person) -> None:
    """Every command of docs/backup.md in a block of its rehearsal succeeds, in order."""
    page = (ROOT / "docs" / "backup.md").read_text().partition("## A rehearsal")[2].partition("\n## ")[0]
    blocks = re.findall(r"^```\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    assert len(blocks) >= 3
    person.types("dios-node stop")
    (person.home / "backup.key").unlink()
    (person.home / "backup.key.pub").unlink()
    shutil.rmtree(person.home / "node0")
    done = person.pastes("\n".join(blocks))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "the same bytes" in done.stdout


def test_promises_of_replicas_are_made_again_in_another_cluster(person: Person) -> None:
    """The promise of the group and that of a file come back with the files."""
    person.types("dios up --nodes 2 --pool-size 0")
    try:
        person.environment["DIOS_NODE"] = "n1"
        person.writes("a", "a")
        person.writes("b", "b")
        person.types("dios group create papers")
        person.types("dios put a --group papers")
        person.types("dios put b --group papers --replicas 1")
        person.types("dios group set papers --replicas 2 --apart rack")
        created(person, "dios backup create ./backups --recipient backup.key.pub")
        person.types("dios backup restore ./backups --group papers --as again")
        shown = person.types("dios group describe again --json").stdout
        promise = msgspec.json.decode(shown, type=DescribedRow).promise
        assert promise is not None
        assert (promise.replicas, promise.apart) == (2, True)
    finally:
        del person.environment["DIOS_NODE"]
        person.types("dios down")
    alone = person.types("dios backup restore ./backups --group papers --as alone").stderr
    assert "this node is in no cluster" in alone


# -- in one process ---------------------------------------------------------------------------------
class Owner:
    """A program with a keyring and a group, on a running node."""

    def __init__(self, node: dios.Node) -> None:
        self.node = node
        self.keyring = dios.Keyring.load()

    def files(self, alias: str) -> GroupFiles:
        """The files of a group, which is made if there is none."""
        if alias not in self.keyring.groups:
            group_name = self.node.create_group().name or b""
            self.keyring.add(alias, dios.parse_name(dios.format_name(group_name)))
        group = self.node.group(bytes(self.keyring.groups[alias]))
        assert group is not None
        return GroupFiles(self.node, group, KeyringCatalogue(self.node, self.keyring, alias, group))

    def put(self, alias: str, path: str, data: bytes) -> list[CatalogueEntry]:
        """Store a file."""
        staged = StagedFiles(self.files(alias))
        staged.add_bytes(path, data)
        return staged.publish()

    def create(self, url: str, key: PrivateKey, alias: str) -> Created:
        """Make a snapshot of a group."""
        source = Source(alias, bytes(self.keyring.groups[alias]), self.files(alias))
        return Writer(open_target(url), recipient=key.recipient()).create([source], self.keyring)


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningNode]:
    """A node."""
    with running_node(tmp_path_factory.mktemp("node") / "data") as node:
        yield node


@pytest.fixture
def owner(running: RunningNode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Owner]:
    """A program with a keyring of its own."""
    monkeypatch.setenv("DIOS_KEYRING", str(tmp_path / "keyring.toml"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    with dios.connect(running.place, groups=()) as node:
        yield Owner(node)


def test_a_bucket_of_fsspec_is_a_target(owner: Owner) -> None:
    """A file system of fsspec takes a backup, and gives it back."""
    pytest.importorskip("fsspec", reason="fsspec is not installed: make setup")
    url, key = "memory://bucket/backups", generate()
    data = hashlib.shake_256(b"seed").digest(5 * MIB)
    owner.put("papers", "data/a", data)
    owner.put("papers", "data/b", b"b")
    assert owner.create(url, key, "papers").files == 2
    owner.put("papers", "data/b", b"changed")
    assert owner.create(url, key, "papers").stored_bytes < 10_000
    repository = open_repository(open_target(url), key)
    verified = Verification(repository).read()
    assert (verified.snapshots, verified.damages) == (2, [])
    record = repository.read(2).snapshot.groups[0]
    restore_group(repository, record, owner.node, owner.keyring, alias="again")
    again = owner.files("again")
    assert bytes(again.view("data/a")) == data
    assert bytes(again.view("data/b")) == b"changed"


def objects_of(node: dios.Node) -> int:
    """The number of objects that count with the user."""
    (principal,) = (limit for limit in node.limits() if limit.scope is Scope.PRINCIPAL)
    return principal.used[Resource.OBJECTS]


class CutTarget:
    """A target whose machine is lost at one of its writes."""

    def __init__(self, url: str) -> None:
        self._inner = open_target(url)
        self.writes_left = 0

    @property
    def place(self) -> str:
        """The place of the real target."""
        return self._inner.place

    def read(self, path: str, size_max: int) -> bytes:
        """Read from the real target."""
        return self._inner.read(path, size_max)

    def write(self, path: str, data: bytes) -> None:
        """Write to the real target, if that was not lost before."""
        if not self.writes_left:
            raise TargetError(f"cannot write {path}")
        self.writes_left -= 1
        self._inner.write(path, data)

    def names(self, folder: str) -> list[str]:
        """List the real target."""
        return self._inner.names(folder)

    def remove(self, path: str) -> None:
        """Remove nothing."""
        raise AssertionError(path)


def test_a_run_that_breaks_off_at_any_write_leaves_the_earlier_snapshots(
    owner: Owner, tmp_path: Path
) -> None:
    """Between any two writes the target has whole snapshots only, and the next run succeeds."""
    key, target = generate(), CutTarget(str(tmp_path / "backups"))
    owner.put("papers", "a", hashlib.shake_256(b"seed").digest(40 * MIB))
    stored = []
    for writes in (0, 1, 2, 1, 5):
        target.writes_left = writes
        source = Source("papers", bytes(owner.keyring.groups["papers"]), owner.files("papers"))
        try:
            Writer(target, recipient=key.recipient()).create([source], owner.keyring)
        except TargetError:
            if writes:
                verified = Verification(open_repository(target, key)).read()
                assert (verified.snapshots, verified.damages) == (0, [])
        stored.append(writes - target.writes_left)
    assert stored == [0, 1, 2, 1, 1], "the configuration, two packs, the last pack, the snapshot"
    verified = Verification(open_repository(target, key)).read()
    assert (verified.snapshots, verified.files, verified.damages) == (1, 1, [])
    assert verified.unused_packs == 0, "a run uses the packs of those that broke off"


def test_files_that_are_replaced_or_removed_during_a_run_are_not_missed(owner: Owner, tmp_path: Path) -> None:
    """A file is stored as it was before or afterwards, and one that was removed is no file left out."""
    key, url = generate(), str(tmp_path / "backups")
    for name in ("a", "b", "c"):
        owner.put("papers", name, b"before")
    other = owner.files("papers")
    changes: list[Callable[[], object]] = [
        lambda: owner.put("papers", "b", b"after"),
        lambda: other.remove(["c"]),
    ]

    def interfere(size: int) -> None:
        while changes:
            changes.pop()()

    source = Source("papers", bytes(owner.keyring.groups["papers"]), owner.files("papers"))
    writer = Writer(open_target(url), recipient=key.recipient())
    report = writer.create([source], owner.keyring, moved=interfere)
    assert (report.files, report.left_out) == (2, [])
    restore_group(
        writer.repository,
        writer.repository.read(1).snapshot.groups[0],
        owner.node,
        owner.keyring,
        alias="again",
    )
    assert bytes(owner.files("again").view("b")) == b"after"


def test_bytes_that_a_program_wrote_into_a_file_are_not_stored(owner: Owner, tmp_path: Path) -> None:
    """The file is left out with the reason, and the earlier snapshot keeps the bytes that were put."""
    key = generate()
    (entry,) = owner.put("papers", "a", b"before")
    owner.create(str(tmp_path / "backups"), key, "papers")
    reference = owner.node.find(entry.name)
    assert reference is not None
    with reference.write(6) as request:
        request.view[:] = b"behind"
    report = owner.create(str(tmp_path / "backups"), key, "papers")
    assert (report.files, report.left_out_count) == (0, 1)
    assert (
        "papers/a: no replica of a is sound: the replica on this node has other bytes" in report.left_out[0]
    )
    repository = open_repository(open_target(str(tmp_path / "backups")), None)
    restore_group(repository, repository.read(1).snapshot.groups[0], owner.node, owner.keyring, alias="b")
    assert bytes(owner.files("b").view("a")) == b"before"


def test_sound_files_are_read_by_one_lookup_of_many(
    owner: Owner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other replicas are looked for only if the nearest one has not the bytes that were put."""
    for path in ("a", "b", "c"):
        owner.put("papers", path, path.encode())
    searched: list[str] = []
    replicas = GroupFiles.replicas

    def noted(files: GroupFiles, entry: CatalogueEntry) -> SoundReplicas:
        searched.append(entry.file)
        return replicas(files, entry)

    monkeypatch.setattr(GroupFiles, "replicas", noted)
    assert owner.create(str(tmp_path / "backups"), generate(), "papers").files == 3
    assert not searched


def test_a_restore_that_is_interrupted_leaves_nothing(owner: Owner, tmp_path: Path) -> None:
    """Neither an alias nor an object of the group stays, and a second try succeeds."""
    key = generate()
    owner.put("papers", "a", bytes(MIB))
    owner.put("papers", "b", b"b")
    owner.create(str(tmp_path / "backups"), key, "papers")
    repository = open_repository(open_target(str(tmp_path / "backups")), key)
    record = repository.read(1).snapshot.groups[0]
    before = objects_of(owner.node)
    aliases = set(owner.keyring.groups), set(owner.keyring.objects)

    def interrupt(size: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        restore_group(repository, record, owner.node, owner.keyring, alias="again", moved=interrupt)
    assert (set(owner.keyring.groups), set(owner.keyring.objects)) == aliases
    assert objects_of(owner.node) == before
    restore_group(repository, record, owner.node, owner.keyring, alias="again")
    assert bytes(owner.files("again").view("b")) == b"b"
