from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from dios import limits
from dios.client.ops.cluster import Member
from dios.node import seeds
from dios.node.doctor.cluster import examine_cluster, judge_clocks, judge_keepers
from dios.node.doctor.finding import DoctorFinding, DoctorLevel
from dios.transport.identity import identity
from dios.wire.node_roles import NodeRole
from dios.wire.types import NodeStatus


def member(data: Path, listen: str, *more: str) -> Path:
    """A data directory of a cluster's node."""
    identity.create_cluster(data, name="n1")
    (data / "node.toml").write_text("".join(f"{line}\n" for line in (f'listen = "{listen}"', *more)))
    return data


def about(data: Path, name: str) -> DoctorFinding:
    """What was found about one thing."""
    return next(looked for looked in examine_cluster(data) if looked.name == name)


@pytest.fixture
def taken() -> Iterator[socket.socket]:
    """Somebody who listens on a port of this machine."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener


def test_a_lone_node_is_asked_nothing(tmp_path: Path) -> None:
    """Where nothing speaks of a cluster, nothing is tried."""
    assert examine_cluster(tmp_path) == []
    assert examine_cluster(tmp_path / "absent") == []


def test_a_whole_member_is_found_well(tmp_path: Path, taken: socket.socket) -> None:
    """Identity, port and known nodes are ok; an address of this machine alone is told."""
    port = taken.getsockname()[1]
    taken.close()
    data = member(tmp_path, f"127.0.0.1:{port}")
    checks = {looked.name: looked for looked in examine_cluster(data)}
    assert list(checks) == ["identity", "clock", "port", "address"]
    assert not any(looked.level is DoctorLevel.MISSING for looked in checks.values())
    assert checks["identity"].detail.startswith("n1 of cluster")
    assert "is free" in checks["port"].detail
    assert "advertise" in checks["address"].advice


def test_a_border_without_the_role_is_told(tmp_path: Path) -> None:
    """A node whose roles open no border, and whose settings want one, learns it with its roles."""
    first = identity.create_cluster(tmp_path / "n1", name="n1")
    identity.admit_here(first, tmp_path / "n2", name="n2", role=NodeRole.SCHEDULER | NodeRole.KEEPER)
    data = tmp_path / "n2"
    (data / "node.toml").write_text('listen = "127.0.0.1:7400"\n')
    assert not about(data, "identity").advice
    (data / "node.toml").write_text('listen = "127.0.0.1:7400"\nborder = "127.0.0.1:7500"\n')
    assert "a keeper, which holds" in about(data, "identity").detail
    assert "remove the setting `border`: n2 has the role scheduler,keeper" in about(data, "identity").advice


def test_all_advice_on_the_identity_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A certificate that is due, and a border that the role does not open, are two things to do."""
    first = identity.create_cluster(tmp_path / "n1", name="n1")
    identity.admit_here(first, tmp_path / "n2", name="n2", role=NodeRole.RUNNER)
    (tmp_path / "n2" / "node.toml").write_text('listen = "127.0.0.1:7400"\nborder = "127.0.0.1:7500"\n')
    later_s = time.time() + 0.7 * limits.CERTIFICATE_DAYS * 24 * 3600
    monkeypatch.setattr("dios.node.certificate_keeper.time.time", lambda: later_s)
    advice = about(tmp_path / "n2", "identity").advice
    assert "let the node run: it renews by itself; remove the setting `border`" in advice


def test_fewer_nodes_that_keep_than_were_promised_are_told() -> None:
    """Runners and drained nodes keep nothing; nodes that were never connected may keep some."""

    def node(name: str, *roles: str, draining: bool = False) -> Member:
        return Member(1, name, "", "h:1", NodeStatus.ALIVE, draining, 1, 0, 0, 1, 0, False, roles=roles)

    members = [node("n1", "authority"), node("n2", "runner"), node("n3", "keeper", draining=True), node("n4")]
    assert not list(judge_keepers(members, 2))
    (check,) = judge_keepers(members, 3)
    assert check.detail == "3 replicas are promised, and 2 nodes may keep some"
    assert "--role keeper" in check.advice


def test_a_damaged_identity_is_told(tmp_path: Path) -> None:
    """A missing file and a key that others may read are refused, with the file."""
    data = member(tmp_path, "127.0.0.1:7400")
    (data / "identity" / "node.key").chmod(0o644)
    assert about(data, "identity").level is DoctorLevel.MISSING
    assert "node.key" in about(data, "identity").detail
    (data / "identity" / "node.key").unlink()
    assert "node.key is missing" in about(data, "identity").detail


def test_a_port_in_use_and_a_strange_address_are_told(tmp_path: Path, taken: socket.socket) -> None:
    """Somebody else's port, and an address that this machine has not, are refused with what to do."""
    data = member(tmp_path, f"127.0.0.1:{taken.getsockname()[1]}")
    assert about(data, "port").level is DoctorLevel.MISSING
    assert "Another program" in about(data, "port").advice
    (data / "node.toml").write_text('listen = "192.0.2.1:7400"\n')
    assert "no such address" in about(data, "port").advice


def test_a_member_that_does_not_listen_is_told(tmp_path: Path) -> None:
    """An identity without an address to listen on is no node that others reach."""
    identity.create_cluster(tmp_path, name="n1")
    assert about(tmp_path, "port").level is DoctorLevel.MISSING


def test_what_cannot_be_read_is_told(tmp_path: Path) -> None:
    """A settings file with a mistake is a finding, not an end."""
    (tmp_path / "node.toml").write_text("listen = 3\n")
    (check,) = examine_cluster(tmp_path)
    assert check.level is DoctorLevel.MISSING
    assert "node.toml:1" in check.detail


def test_known_nodes_are_dialled(tmp_path: Path, taken: socket.socket) -> None:
    """Of the nodes that were known, those that answer are counted, and the others named."""
    data = member(tmp_path, "127.0.0.1:7400")
    there = f"127.0.0.1:{taken.getsockname()[1]}"
    with socket.create_server(("127.0.0.1", 0)) as other:
        gone = f"127.0.0.1:{other.getsockname()[1]}"
    seeds.write(data, [there])
    assert not about(data, "other nodes").advice
    seeds.write(data, [there, gone])
    assert about(data, "other nodes").detail.startswith("1 of 2")
    assert gone in about(data, "other nodes").detail


def measured(name: str, offset_s: float, error_s: float, **changes: object) -> Member:
    """A node whose clock was measured."""
    row = Member(1, name, "", "", NodeStatus.ALIVE, False, 1, 0, 0, 1, 1, False)
    clock = {"clock_offset_ns": int(offset_s * 1e9), "clock_error_ns": int(error_s * 1e9)}
    return replace(row, **{**clock, **changes})  # type: ignore[arg-type] # fields by their names


def test_a_clock_is_blamed_only_if_it_is_wrong_for_certain() -> None:
    """The error of the measurement counts for it, and dead nodes have no clock."""
    fine = [measured("n2", 0.2, 0.1), measured("n3", -1.5, 0.6), measured("n4", 9, 0, status=NodeStatus.DEAD)]
    (check,) = judge_clocks(fine)
    assert (check.detail, check.advice) == ("those of 2 other nodes are within 2100 ms", "")
    (check,) = judge_clocks([*fine, measured("n5", -3, 0.1)])
    assert check.detail == "n5 is -3.0 s ahead"
    assert "chrony" in check.advice
    (check,) = judge_clocks([measured("n2", 60, 0.1), measured("n3", 61, 0.1)])
    assert "this node's own clock" in check.advice
    assert list(judge_clocks([])) == []
