"""Reads on real nodes find a sound replica and name the bad one; bulk commands go on after a bad file."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import cast

import pytest

import dios
from dios.client.keyring import Keyring
from dios.lib.files.catalogue_places import CATALOGUE_ALIAS, KeyringCatalogue
from dios.lib.files.group_files import GroupFiles
from dios.node import local_cluster
from tests.integration.test_kept_replicas import SETTINGS, Keeping, is_kept
from tests.integration.test_scrubbing import LARGE, extents, flip

pytestmark = pytest.mark.long

CONTENTS = {f"{number}.bin": bytes([number]) + LARGE + bytes(number) for number in range(4)}
STRAY = b"not the bytes of the file"


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Keeping]:
    """Three nodes that repair nothing, each with a replica of each file; that of 0.bin on n1 is damaged."""
    home = tmp_path_factory.mktemp("three")
    settings = SETTINGS | {"scrub_rate": "off"}
    live_cluster = local_cluster.make(home / "cluster", nodes=3, keep=True, settings=settings)
    keeping = Keeping(live_cluster, home / "person")
    try:
        local_cluster.start(live_cluster)
        for file, content in CONTENTS.items():
            (keeping.person.home / file).write_bytes(content)
        keeping.person.writes("note.txt", "small")
        keeping.types("dios group create papers")
        keeping.types("dios group create other")
        keeping.types(f"dios put {' '.join(CONTENTS)} --group papers")
        keeping.types("dios put note.txt --group other")
        keeping.types("dios group set papers --replicas 3")
        keeping.until(is_kept(len(CONTENTS) + 1), "three replicas of each file and of their list")
        keeping.types("dios group set papers --replicas 0")
        keeping.kill("n1")
        flip(*extents(live_cluster.nodes[0].data, len(CONTENTS["0.bin"])))
        local_cluster.start(live_cluster)
        yield keeping
    finally:
        for node in live_cluster.nodes:
            keeping.kill(node.name)


class Files:
    """The files of a group, for a program on n1."""

    def __init__(self, three: Keeping, alias: str) -> None:
        self.keyring = Keyring.load(three.person.home / ".config" / "dios" / "keyring.toml")
        name = bytes(self.keyring.groups[alias])
        self.node = dios.connect(three.local.nodes[0].data, groups=[name])
        group = self.node.group(name)
        assert group is not None
        self.files = GroupFiles(self.node, group, KeyringCatalogue(self.node, self.keyring, alias, group))

    def write_into(self, file: str, *nodes: str) -> None:
        """Write other bytes into the replicas of a file on these nodes."""
        for replica in self.node.lookup(self.files.entry(file).name, group=self.files.group):
            if replica.node in nodes:
                replica.write_bytes(STRAY)


@pytest.fixture
def papers(three: Keeping) -> Iterator[Files]:
    """The files of the group, for a program on n1."""
    files = Files(three, "papers")
    with files.node:
        yield files


def fetched(three: Keeping, file: str, *, status: int = 0) -> tuple[bytes | None, str]:
    """The bytes that `dios get` writes on n1, and what it says."""
    three.person.environment["DIOS_NODE"] = str(three.local.nodes[0].data)
    target = three.person.home / "copy"
    target.unlink(missing_ok=True)
    told = three.person.types(f"dios get papers/{file} --output copy", status=status).stderr
    return target.read_bytes() if target.exists() else None, told


def test_every_replica_has_the_version_of_the_put(papers: Files) -> None:
    """So bytes in place need not be compared again with each read."""
    for file in CONTENTS:
        replicas = papers.node.lookup(papers.files.entry(file).name, group=papers.files.group)
        assert [replica.v_w for replica in replicas] == [1, 1, 1]


def test_a_damaged_replica_of_the_own_node_is_passed_over(three: Keeping, papers: Files) -> None:
    """The bytes come from another node, and the damaged one is named; a sound file says nothing."""
    data, told = fetched(three, "0.bin")
    assert data == CONTENTS["0.bin"]
    assert "the replica of 0.bin on n1 is damaged; it was read from n" in told
    assert fetched(three, "1.bin") == (CONTENTS["1.bin"], "")
    assert papers.files.view("0.bin") == CONTENTS["0.bin"]
    with papers.files.open("0.bin") as file:
        assert file.read() == CONTENTS["0.bin"]


def test_a_direct_write_to_a_file_is_never_returned(three: Keeping, papers: Files) -> None:
    """Whatever its version: a replica with the digest of the catalogue goes before it."""
    papers.write_into("1.bin", "n1", "n2")
    data, told = fetched(three, "1.bin")
    assert data == CONTENTS["1.bin"]
    assert "the replica of 1.bin on n1 has other bytes than the file" in told
    assert "it was read from n3" in told
    assert papers.files.view("1.bin") == CONTENTS["1.bin"]


def test_bulk_commands_go_on_after_a_bad_file(three: Keeping, papers: Files) -> None:
    """They end with the file, its nodes and status 1, and nothing is deleted."""
    papers.write_into("2.bin", "n1", "n2", "n3")
    data, told = fetched(three, "2.bin", status=1)
    assert data is None
    for node in ("n1", "n2", "n3"):
        assert f"on {node} has other bytes than the file" in told
    assert "dios backup restore" in told
    sound = {file: content for file, content in CONTENTS.items() if file != "2.bin"}

    home = three.person.home
    got = three.person.types("dios get papers --recursive --output all --json", status=1)
    rows = json.loads(got.stdout)
    assert {row["file"] for row in rows if "file" in row} == {f"all/{file}" for file in sound}
    assert [row["path"] for row in rows if "failure" in row] == ["papers/2.bin"]
    assert "failed: papers/2.bin: no replica of 2.bin is sound: the replica on n1" in got.stderr
    assert {path.name: path.read_bytes() for path in (home / "all").iterdir()} == sound

    (home / "mirror").mkdir()
    three.person.writes("mirror/old.txt", "only here")
    synced = three.person.types("dios sync papers ./mirror --delete --json", status=1)
    plan = json.loads(synced.stdout)
    assert (sorted(plan["copied"]), plan["deleted"], list(plan["failed"])) == (sorted(sound), [], ["2.bin"])
    assert (home / "mirror" / "old.txt").exists()

    three.person.types("dios backup keygen ./backup.key")
    outcome = three.person.types(
        "dios backup create ./backups --recipient backup.key.pub --group papers --json", status=1
    )
    row = json.loads(outcome.stdout)
    assert (row["files"], row["left_out_count"]) == (len(sound), 1)
    assert row["left_out"][0].startswith("papers/2.bin: no replica of 2.bin is sound")
    three.person.types("dios backup restore ./backups --group papers --as back")
    three.person.types("dios get back --recursive --output back")
    assert {path.name: path.read_bytes() for path in (home / "back").iterdir()} == sound
    assert "replica of 0.bin on n1 is damaged" in outcome.stderr


def test_a_lost_list_is_an_error_and_the_other_groups_are_listed(three: Keeping) -> None:
    """With the cause, the next step and status 1, in each command that lists; nothing is listed as empty."""
    lost = Files(three, "papers")
    with lost.node:
        name = lost.keyring.objects[CATALOGUE_ALIAS + "papers"]
        for replica in lost.node.lookup(name, group=lost.files.group):
            replica.destroy()
    listed = three.person.types("dios ls", status=1)
    assert "note.txt" in listed.stdout
    assert "2.bin" not in listed.stdout
    cause = "the list of the files of group 'papers' is lost: all nodes answered"
    assert f"not listed: papers: {cause}" in listed.stderr
    assert "dios backup restore" in listed.stderr
    rows = cast("list[dict[str, object]]", json.loads(three.person.types("dios ls --json", status=1).stdout))
    assert [row["path"] for row in rows if "failure" in row] == ["papers"]
    for command in (
        "dios ls papers",
        "dios ls --group papers",
        "dios ls --unfinished",
        "dios ls --orphans",
        "dios du",
        "dios du papers",
        "dios tier ls",
        "dios group describe papers",
        "dios get papers/0.bin",
        "dios put note.txt --group papers",
        "dios rm papers/0.bin",
        "dios group rm papers --all --yes",
        "dios sync papers ./mirror --delete",
    ):
        assert cause in three.person.types(command, status=1).stderr, command
    three.types("dios get note.txt")
