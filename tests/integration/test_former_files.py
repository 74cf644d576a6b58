"""Former files on real nodes: replaced ones outlive a lost replacement, and removed ones leave nothing."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from dios.node import local_cluster
from tests.integration.test_kept_replicas import PATIENCE_S, SETTINGS, Keeping
from tests.support.node.running_node import wait_until

pytestmark = pytest.mark.long

FILES = [f"f{number}" for number in range(6)]
SIZE = 500_000


class Former(msgspec.Struct):
    """A former file as `dios group describe --json` shows it."""

    file: str
    removed: bool


class Described(msgspec.Struct):
    """A group with its former files."""

    former: list[Former]


class Orphan(msgspec.Struct):
    """An object that nobody lists."""

    fingerprint: str
    size: int


@pytest.fixture
def three(tmp_path: Path) -> Iterator[Keeping]:
    """Three nodes that copy slowly, killed at the end whatever happened."""
    live_cluster = local_cluster.make(
        tmp_path / "cluster", nodes=3, keep=True, settings={**SETTINGS, "replica_rate": "64KiB"}
    )
    keeping = Keeping(live_cluster, tmp_path / "person")
    try:
        local_cluster.start(live_cluster)
        yield keeping
    finally:
        for node in live_cluster.nodes:
            keeping.kill(node.name)


def fill(three: Keeping, text: str) -> None:
    """Write the files with other bytes."""
    for file in FILES:
        three.person.writes(file, text * (SIZE // len(text)))


def got(three: Keeping, file: str, *options: str) -> tuple[str, str]:
    """The first letter of a file, or "" and the errors if it cannot be read."""
    command = f"dios get papers/{file} {' '.join(options)}"
    done = subprocess.run(
        three.person.command(command),
        cwd=three.person.home,
        env=three.person.environment,
        capture_output=True,
        text=True,
        check=False,
    )
    return (done.stdout[:1], "") if done.returncode == 0 else ("", done.stderr)


def test_a_replaced_file_outlives_the_loss_of_its_replacement(three: Keeping) -> None:
    """The new version was on the lost node alone. The former one is there, and is told and read."""
    fill(three, "old ")
    three.types("dios group create papers")
    three.types(f"dios put {' '.join(FILES)} --group papers --acknowledge 2")
    three.types("dios group set papers --replicas 2")
    fill(three, "new ")
    three.types(f"dios put {' '.join(FILES)} --group papers --replace --acknowledge 1")
    three.kill("n1")
    living = three.local.nodes[1]
    three.person.environment["DIOS_NODE"] = str(living.data)
    news = {file: got(three, file) for file in FILES}
    lost = [file for file, (letter, _) in news.items() if not letter]
    assert lost, "the keeper copies slowly"
    for file in lost:
        assert f"dios get papers/{file} --former" in news[file][1]
        assert got(three, file, "--former") == ("o", "")
    described = three.asks("dios group describe papers", Described)
    assert set(lost) <= {former_file.file for former_file in described.former}
    assert "dios get papers/" in three.types("dios group describe papers")


@pytest.mark.extended
def test_a_removed_file_is_gone_from_a_node_that_comes_back(three: Keeping) -> None:
    """The command succeeds without the node, and says so; nothing stays that no list has."""
    fill(three, "old ")
    three.types("dios group create papers")
    three.types(f"dios put {' '.join(FILES)} --group papers --acknowledge 3")
    three.types("dios group set papers --replicas 3")
    three.kill("n3")
    done = three.person.types("dios rm papers/f0 papers/f1")
    assert "what is left of them is destroyed when the nodes are back" in done.stderr
    assert [
        former_file.removed for former_file in three.asks("dios group describe papers", Described).former
    ] == [True] * 2
    local_cluster.start(three.local)
    three.types("dios group set papers --replicas 0")
    three.person.environment["DIOS_NODE"] = str(three.local.nodes[2].data)
    wait_until(
        lambda: (
            not msgspec.json.decode(three.person.types("dios ls --orphans --json").stdout, type=list[Orphan])
        ),
        "the replicas on n3 are gone",
        PATIENCE_S,
    )
    assert three.asks("dios group describe papers", Described).former == []


def test_a_group_is_destroyed_with_its_former_files(three: Keeping) -> None:
    """Without a promise they stay for a while; nothing of them is left on any node."""
    fill(three, "old ")
    three.types("dios group create papers")
    three.types(f"dios put {' '.join(FILES)} --group papers --acknowledge 2")
    fill(three, "new ")
    three.types(f"dios put {' '.join(FILES)} --group papers --replace")
    assert got(three, "f0") == ("n", "")
    assert got(three, "f0", "--former") == ("o", "")
    three.types("dios rm papers/f0")
    described = three.asks("dios group describe papers", Described)
    assert [former_file.file for former_file in described.former] == FILES[1:]
    three.types("dios group rm papers --all --yes")
    for node in three.local.nodes:
        three.person.environment["DIOS_NODE"] = str(node.data)
        orphans = three.person.types("dios ls --orphans --json").stdout
        assert msgspec.json.decode(orphans, type=list[Orphan]) == []
