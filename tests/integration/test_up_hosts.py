"""`dios up --hosts` as a person types it, with a client that runs everything here in place of ssh.

`make up-test` types the same with real servers, and installs with pip.
"""

from __future__ import annotations

import json
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from dios.installation import FILE_NAME, version
from dios.node.bringup import on_host
from tests.support.node import fake_ssh
from tests.support.node.command_user import Person

pytestmark = pytest.mark.long

ADDRESSES = {"n1": "127.0.0.2", "n2": "127.0.0.3"}


@pytest.fixture(scope="module")
def python() -> str:
    """The version of the Python that the bootstrap finds."""
    program = "import platform; print(platform.python_version())"
    asked = subprocess.run(["/usr/bin/python3", "-c", program], capture_output=True, text=True, check=False)
    if asked.returncode or asked.stdout < "3.11":
        pytest.skip("/usr/bin/python3 is not Python 3.11 or newer")
    return asked.stdout.strip()


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory, python: str) -> Path:
    """The folder of the hosts' homes and of the client; the hosts have the environment already."""
    folder = tmp_path_factory.mktemp("hosts")
    fake_ssh.make(folder, ADDRESSES)
    for name in ADDRESSES:
        fake_ssh.install(folder / "homes" / name / "dios", python=python)
    return folder


@pytest.fixture(scope="module")
def options(place: Path) -> str:
    """The options of every command."""
    return f"--ssh {place}/ssh --prefix ~/dios"


@pytest.fixture(scope="module")
def up(place: Path, options: str) -> Iterator[tuple[Person, str]]:
    """A person, and the command that has brought up the cluster."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.2", 0))
        port = probe.getsockname()[1]
    person = Person(place)
    command = f"dios up --hosts n1,n2/r2 --extras none --port {port} --pool-size 1 --json {options}"
    try:
        rows = json.loads(person.types(command).stdout)["nodes"]
        assert [(row["name"], row["rack"], row["state"]) for row in rows] == [
            ("n1", "", "made"),
            ("n2", "r2", "made"),
        ]
        assert [row["address"] for row in rows] == [f"{address}:{port}" for address in ADDRESSES.values()]
        yield person, command
    finally:
        person.types(f"dios down --hosts n1,n2 --delete {options}")


def test_hosts_become_a_cluster_and_stay_one(up: tuple[Person, str], place: Path) -> None:
    """After `dios up` each node sees the others; a second run starts only the node that does not run."""
    person, command = up
    nodes = json.loads(person.types(f"dios node ls --json --node {place}/homes/n2/dios/data").stdout)
    assert {row["name"]: row["status"] for row in nodes} == {"n1": "alive", "n2": "alive"}
    person.types(f"dios-node stop --data {place}/homes/n2/dios/data")
    again = json.loads(person.types(command).stdout)["nodes"]
    assert [row["state"] for row in again] == ["was running", "started"]


def test_a_host_that_fails_leaves_a_stated_state(up: tuple[Person, str], options: str) -> None:
    """If a host cannot be reached the command says why, what to do, and how far the others have come."""
    person, _ = up
    failed = person.types(f"dios up --hosts n1,nowhere --extras none {options}", status=1).stderr
    assert "cannot reach nowhere by ssh: ssh: Could not resolve hostname nowhere" in failed
    assert "`ssh nowhere true` must succeed" in failed
    assert "n1: reached; its node runs" in failed
    assert "nowhere: not reached" in failed


def test_a_release_without_a_signature_reaches_no_host(
    up: tuple[Person, str], place: Path, options: str
) -> None:
    """The command ends before anything is uploaded; a release needs the file of signers."""
    person, _ = up
    (place / "release").mkdir()
    (place / "release" / f"{FILE_NAME}-{version()}-py3-none-any.whl").touch()
    (place / "release" / "SHA256SUMS").touch()
    (place / "signers").touch(0o600)
    command = f"dios up --hosts n1,n2 --extras none --release {place}/release {options}"
    failed = person.types(f"{command} --signers {place}/signers", status=1).stderr
    assert f"cannot read {place}/release/SHA256SUMS.sig: No such file or directory" in failed
    assert "n1: reached; its node runs" in failed
    assert "belong together" in person.types(command, status=1).stderr


@pytest.mark.extended
def test_down_keeps_the_data_and_then_deletes_only_its_own_files(
    up: tuple[Person, str], place: Path, options: str
) -> None:
    """`dios down` keeps data, unless --delete; a file that `dios up` did not make stays."""
    person, _ = up
    prefix = place / "homes" / "n2" / "dios"
    (prefix / "mine.txt").touch()
    person.types(f"dios down --hosts n2 {options}")
    assert (prefix / "data" / "identity").exists()
    person.types(f"dios down --hosts n2 --delete {options}")
    assert [path.name for path in prefix.iterdir()] == ["mine.txt"]
    told = json.loads(person.types(f"dios down --hosts n2 --json {options}").stdout)
    assert told["hosts"] == [{"host": "n2", "stopped": False, "deleted": False, "there": False}]
    assert not (prefix / on_host.MADE_BY).exists()
