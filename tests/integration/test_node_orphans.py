"""``dios-node orphans`` as a person types it: unreachable objects are listed, and removed on request."""

from __future__ import annotations

import json
from pathlib import Path

import dios
from dios.ids import Name
from tests.support.node.command_user import Person
from tests.support.node.running_node import running_node


def _listed(person: Person, *options: str) -> dict[str, str]:
    rows = json.loads(person.types("dios-node orphans --json --data", *options).stdout)
    return {row["fingerprint"]: row["reason"] for row in rows}


def test_orphans_are_listed_and_removed(tmp_path: Path) -> None:
    """An object in no group, one in a lost group, and that group are listed; what a keyring has is not."""
    data = tmp_path / "node0"
    keyring = tmp_path / "keyring.toml"
    person = Person(tmp_path)
    with running_node(data, pool_size="0") as node, dios.connect(node.place, groups=()) as session:
        kept, lost = session.create_group(), session.create_group()
        assert session.home is not None
        dios.Keyring.load(keyring).add("kept", Name(kept.read_name()))
        alone = session.create(dios.DURABLE_BLOB, data=b"alone")
        astray = session.create(dios.DURABLE_BLOB, groups=[lost], data=b"astray")
        safe = [
            session.create(dios.DURABLE_BLOB, groups=[group], data=b"safe") for group in (kept, session.home)
        ]
        named = {lost.fingerprint, alone.fingerprint, astray.fingerprint}
        running = person.types("dios-node orphans --data", str(data), status=1).stderr
        assert f"process {node.running.pid}" in running
    reasons = _listed(person, str(data), "--keyring", str(keyring))
    assert set(reasons) == named
    assert reasons[alone.fingerprint] == "it is in no group"
    assert reasons[astray.fingerprint] == "no keyring has the name of one of its groups"
    told = person.types("dios-node orphans --data", str(data), "--remove", safe[1].fingerprint, status=1)
    assert "no orphaned object has the fingerprint" in told.stderr
    shown = person.types("dios-node orphans --data", str(data)).stdout
    assert "dios1" not in shown, "names are secrets"
    gone = [alone.fingerprint, astray.fingerprint]
    removed = _listed(person, str(data), "--keyring", str(keyring), "--remove", gone[0], "--remove", gone[1])
    assert set(removed) == set(gone)
    assert set(_listed(person, str(data), "--keyring", str(keyring))) == {lost.fingerprint}
    person.types("dios-node check --data", str(data))
    with running_node(data, pool_size="0") as node, dios.connect(node.place, groups=()) as session:
        assert session.read_state()["objects"]
