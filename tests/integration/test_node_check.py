"""``dios-node check`` as somebody types it: beside a running node, after a crash, after damage.

Not for: each kind of finding (``tests/unit/store/test_check.py``).
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

import dios
from dios.host.audit.reader import verify
from tests.support.node.command_user import Person
from tests.support.node.running_node import running_node, wait_until

SIZES = (10, 5_000, 200_000)
RECORDS = 10  # one for the session, three for the groups, six for the objects


@pytest.fixture(scope="module")
def crashed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The data directory of a node that held six objects and was killed."""
    data = tmp_path_factory.mktemp("crashed") / "node0"
    with running_node(data, pool_size="0") as node:
        person = Person(data.parent)
        told = person.types("dios-node check --data", str(data), status=1).stderr
        assert f"process {node.running.pid}" in told, "a running node is named"
        with dios.connect(node.place, groups=()) as session:
            for size in SIZES:
                for groups in (session.groups[:1], (session.create_group(),)):
                    session.create(dios.DURABLE_BLOB, groups=groups, data=os.urandom(size))
        wait_until(lambda: verify(data / "audit").records >= RECORDS, "the audit log is on the disk")
        node.kill()
    return data


def somebody(data: Path, name: str) -> Person:
    """Somebody with a home directory beside the node."""
    home = data.parent / name
    home.mkdir()
    return Person(home)


def one_extent(data: Path) -> Path:
    """A file with an object's bytes."""
    return next(path for path in sorted((data / "extents").glob("*/*")) if path.is_file())


def test_a_killed_node_is_whole(crashed: Path) -> None:
    """After a kill the check finds every object whole, says so, and ends with 0."""
    told = somebody(crashed, "a").types("dios-node check --data", str(crashed)).stdout
    assert "is there and intact" in told
    checked = json.loads(somebody(crashed, "b").types("dios-node check --json --data", str(crashed)).stdout)
    assert checked["ok"]
    assert not [finding for finding in checked["findings"] if finding["level"] == "damage"]
    # The home group, three groups and six objects.
    assert (checked["objects"], checked["extents"]) == (10, 2)
    assert checked["audit_records"] >= RECORDS


def test_damage_is_told_with_what_to_do(crashed: Path) -> None:
    """Damage ends the check with 1, and says what it is, what it means and what to do."""
    person = somebody(crashed, "c")
    file = one_extent(crashed)
    whole = file.read_bytes()
    file.chmod(0o600)
    file.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    told = person.types("dios-node check --data", str(crashed), status=1).stdout
    assert str(file.relative_to(crashed)) in told
    assert "content-damaged" in told
    assert "backup" in told
    file.write_bytes(whole)
    person.types("dios-node check --data", str(crashed))


def test_a_repair_says_what_it_did(crashed: Path) -> None:
    """`--repair` says what it moved and where to, and the next check finds nothing but that."""
    person = somebody(crashed, "d")
    stray = crashed / "extents" / "00" / "0000000000000007"
    stray.write_bytes(b"left over")
    told = person.types("dios-node check --repair --data", str(crashed)).stdout
    assert "repaired  moved 1 file without an object to lost+found/extents" in told
    assert (crashed / "lost+found" / "extents" / stray.name).read_bytes() == b"left over"
    checked = json.loads(person.types("dios-node check --json --data", str(crashed)).stdout)
    assert [finding["kind"] for finding in checked["findings"]] == ["set-aside"]


def test_a_broken_audit_chain_is_told(crashed: Path) -> None:
    """A record changed in the audit log is damage, with its place, and no repair touches it."""
    (segment,) = (crashed / "audit").glob("*.audit")
    whole = segment.read_bytes()
    changed = bytearray(whole)
    changed[200] ^= 1
    segment.write_bytes(bytes(changed))
    told = somebody(crashed, "e").types("dios-node check --repair --data", str(crashed), status=1)
    assert "audit-damaged" in told.stdout
    assert segment.name in told.stdout
    assert segment.read_bytes() == bytes(changed)
    segment.write_bytes(whole)


def test_a_place_without_a_node_is_refused(tmp_path: Path) -> None:
    """A directory that is no node's, or not there, is refused with what to do, and nothing is made."""
    person = Person(tmp_path)
    for name in (".", "nowhere"):
        told = person.types(f"dios-node check --data {name}", status=1).stderr
        assert "--data" in told
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run"]


def test_the_check_explains_itself(tmp_path: Path) -> None:
    """`dios-node check --help` shows examples and says what `--repair` does not do."""
    told = Person(tmp_path).types("dios-node check --help").stdout
    assert "dios-node check --data ./node0 --repair" in told.partition("Examples:")[2]
    assert "never deleted" in " ".join(told.split())
