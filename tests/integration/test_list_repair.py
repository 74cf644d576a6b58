"""Lists of files on real nodes: in conflict and repaired, or without a majority; and what commands say."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
import pytest
from blake3 import blake3

from dios.client.keyring import Keyring
from dios.client.sync.node import Group, Node, connect
from dios.lib.catalogue import CatalogueEntry, decode, encode
from dios.lib.files.catalogue_places import CATALOGUE_ALIAS
from dios.node import local_cluster
from dios.node.doctor.replicas import examine_replicas
from dios.wire.types import ObjectType, Persistence
from tests.integration.test_kept_replicas import PATIENCE_S, SETTINGS, Keeping, NodeLine, is_kept
from tests.support.node.running_node import wait_until

pytestmark = pytest.mark.long


class ListRow(msgspec.Struct):
    """The list of a group as `dios group describe --json` shows it."""

    state: str
    replicas: list[dict[str, str]]
    reason: str
    next: str


class DescribedRow(msgspec.Struct):
    """A group as `dios group describe --json` shows it."""

    files: int | None
    list: ListRow


class ListedRow(msgspec.Struct):
    """A file as `dios ls --long --json` shows it."""

    file: str
    disks: int
    promised: int | None


class UnitedRow(msgspec.Struct):
    """A file as `dios group repair --json` shows it."""

    file: str
    listed: int
    former_path: str | None


class RepairRow(msgspec.Struct):
    """The output of `dios group repair --json`."""

    repaired: bool
    lists: int
    files: int | None
    united: list[UnitedRow]


@pytest.fixture
def three(tmp_path: Path) -> Iterator[Keeping]:
    """Three nodes that wait for a silent one, killed at the end whatever happened."""
    settings = {**SETTINGS, "replica_grace": "10min"}
    live_cluster = local_cluster.make(tmp_path / "cluster", nodes=3, keep=True, settings=settings)
    keeping = Keeping(live_cluster, tmp_path / "person")
    try:
        local_cluster.start(live_cluster)
        yield keeping
    finally:
        for node in live_cluster.nodes:
            keeping.kill(node.name)


def dead_nodes(three: Keeping) -> set[str]:
    """Return the names of the nodes that n1 knows as dead."""
    return {row.name for row in three.asks("dios node ls", list[NodeLine]) if row.status == "dead"}


def describe(three: Keeping) -> DescribedRow:
    """Return the description of the group."""
    return three.asks("dios group describe papers", DescribedRow)


def stored(node: Node, group: Group, path: str, text: str) -> CatalogueEntry:
    """Store a file that no list has."""
    data = text.encode()
    with node.create(ObjectType.DURABLE_BLOB, groups=[group], data=data) as blob:
        name = bytes(blob.name or b"")
    return CatalogueEntry(path, name, len(data), time.time_ns(), blake3(data).digest())


def divide(three: Keeping) -> list[CatalogueEntry]:
    """Leave three lists that differ on the nodes, as earlier releases did; return both versions of c.txt."""
    keyring = Keyring.load(three.person.home / ".config" / "dios" / "keyring.toml")
    name = keyring.objects[f"{CATALOGUE_ALIAS}papers"]
    with connect(three.local.nodes[0].socket, groups=[keyring.name_of("papers")]) as node:
        group = node.group(keyring.name_of("papers"))
        assert group is not None
        listed = list(decode(node.lookup(name, group=group)[0].read_bytes()))
        early, late = (stored(node, group, "c.txt", text) for text in ("early", "late"))
        lists: Sequence[list[CatalogueEntry]] = (
            [*listed, early],
            [*listed, late, stored(node, group, "d/two.txt", "two")],
            [stored(node, group, "d/three.txt", "three")],
        )
        first = node.lookup(name, group=group)[0]
        for host in ("n2", "n3"):
            first.copy(host=host, persistence=Persistence.DURABLE).close()
        replicas = node.lookup(name, group=group)
        assert len(replicas) == len(lists)
        for replica, entries in zip(replicas, lists, strict=True):
            replica.write_bytes(encode(entries))
    return [early, late]


@pytest.mark.extended
def test_a_list_in_conflict_is_shown_and_repaired(three: Keeping) -> None:
    """Every command that lists says so and fails; then no file of any list is missing on any node."""
    three.person.writes("a.txt", "one")
    three.types("dios group create papers")
    three.types("dios put a.txt --group papers")
    early, _ = divide(three)
    three.types("dios group set papers --replicas 2")

    for command in ("ls", "ls papers", "ls --json", "du"):
        refused = three.person.types(f"dios {command}", status=1)
        assert "dios group repair papers" in refused.stderr
    refused = three.person.types("dios put a.txt --group papers --as e.txt --acknowledge 1", status=1)
    assert "`dios group repair` unites them" in refused.stderr
    described = describe(three)
    assert (described.list.state, described.list.next) == ("conflict", "dios group repair papers")
    assert "in conflict; next: dios group repair papers" in three.types("dios group describe papers")

    def advised() -> bool:
        looked = examine_replicas(three.local.nodes[0].data)
        return looked is not None and "`dios group repair papers` unites" in looked.advice

    wait_until(advised, "the doctor offers the repair", PATIENCE_S)

    repaired = three.asks("dios group repair papers", RepairRow)
    other = f"c (conflict {early.digest.hex()[:8]}).txt"
    assert (repaired.repaired, repaired.lists, repaired.files) == (True, 3, 5)
    assert {(united.file, united.listed, united.former_path) for united in repaired.united} == {
        ("a.txt", 2, None),
        ("c.txt", 1, None),
        (other, 1, "c.txt"),
        ("d/two.txt", 1, None),
        ("d/three.txt", 1, None),
    }
    texts = {"a.txt": "one", "c.txt": "late", other: "early", "d/two.txt": "two", "d/three.txt": "three"}
    for node in three.local.nodes:
        three.person.environment["DIOS_NODE"] = str(node.data)
        listed = msgspec.json.decode(three.person.types("dios ls papers --json").stdout)
        assert {row["path"] for row in listed} == {
            "papers/a.txt",
            "papers/c.txt",
            f"papers/{other}",
            "papers/d",
        }
        for path, text in texts.items():
            assert three.person.types("dios get", f"papers/{path}").stdout == text
    again = three.person.types("dios group repair papers")
    assert "not in conflict, and nothing was changed" in again.stderr

    three.until(is_kept(len(texts) + 1), "two replicas of each file and of their list")
    rows = {row.file: (row.disks, row.promised) for row in three.asks("dios ls --long", list[ListedRow])}
    assert rows == dict.fromkeys(texts, (2, 2))
    assert "2 of 2" in three.types("dios ls papers -l")
    assert describe(three).list.state == "equal"
    three.person.writes("e.txt", "five")
    three.types("dios put e.txt --group papers")
    assert three.types("dios get papers/e.txt") == "five"


def is_readable(three: Keeping) -> bool:
    """True if the lists of all groups can be read."""
    try:
        three.types("dios ls")
    except AssertionError:
        return False
    return True


def test_a_minority_changes_nothing_and_shows_nothing(three: Keeping) -> None:
    """The errors name the missing nodes and the next step, until these are back, or are forgotten."""
    three.person.writes("a.txt", "one")
    three.types("dios group create papers")
    three.types("dios put a.txt --group papers --acknowledge 2")
    rows = three.asks("dios ls --long", list[ListedRow])
    assert [(row.disks, row.promised) for row in rows] == [(2, None)]
    assert "nobody replaces a lost replica of the list" in three.types("dios group describe papers")
    three.types("dios group set papers --replicas 2")
    three.until(is_kept(2), "two replicas of the file and of the list")
    wait_until(lambda: len(describe(three).list.replicas) == 3, "a third replica of the list", PATIENCE_S)
    wait_until(lambda: describe(three).list.state == "equal", "equal replicas of the list", PATIENCE_S)
    assert "on n1, n2, n3; all equal" in three.types("dios group describe papers")

    three.kill("n3")
    described = describe(three)
    assert described.list.state == "behind"
    assert {replica["node"]: replica["state"] for replica in described.list.replicas}["n3"] == "missing"
    three.types("dios put a.txt --group papers --as b.txt")

    three.kill("n2")
    for command in ("put a.txt --group papers --as c.txt", "ls", "ls papers", "du", "group describe papers"):
        refused = three.person.types(f"dios {command}", status=1)
        assert "1 of 3 replicas" in refused.stderr, command
        assert "without n2, n3. Start these nodes, or `dios node forget`" in refused.stderr, command
    described_text = three.person.types("dios group describe papers", status=1).stdout
    assert "cannot be read" in described_text
    assert "2 of each file" in described_text, "the promise is shown"
    shown = three.person.types("dios group describe papers --json", status=1)
    row = msgspec.json.decode(shown.stdout, type=DescribedRow)
    assert (row.files, row.list.state) == (None, "unreadable")
    assert "n2, n3" in row.list.reason

    local_cluster.start(three.local)
    wait_until(lambda: describe(three).list.state == "equal", "equal replicas again", PATIENCE_S)
    three.types("dios put a.txt --group papers --as c.txt")
    three.until(is_kept(4), "two replicas of each file")

    three.kill("n2")
    three.kill("n3")
    # A node that is not known to be dead is asked for its confirmation, and the command fails without it.
    wait_until(lambda: dead_nodes(three) == {"n2", "n3"}, "two nodes to be known as dead", PATIENCE_S)
    three.types("dios node forget n2 --yes")
    three.types("dios node forget n3 --yes")
    wait_until(lambda: is_readable(three), "the keeper to go on with one replica", PATIENCE_S)
    three.types("dios put a.txt --group papers --as d.txt --acknowledge 1")
    rows = three.asks("dios ls --long", list[ListedRow])
    assert {row.file for row in rows} == {"a.txt", "b.txt", "c.txt", "d.txt"}
    assert {(row.disks, row.promised) for row in rows} <= {(0, 2), (1, 2)}
