"""A user is enrolled by commands: from then on the nodes act for the user with mandates alone."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.node.command_user import Person
from tests.support.security.hostile_member.turncoat import free_address

pytestmark = pytest.mark.long

OWN = f"uid:{os.getuid()}"


@pytest.fixture
def person(tmp_path: Path) -> Iterator[Person]:
    """Somebody with the nodes n1 and n2, of one cluster."""
    person = Person(tmp_path)
    person.writes("job.py", "print('done')\n")
    person.types("dios-node init --data n1 --name n1 --json", "--listen", free_address())
    try:
        person.types("dios-node start --data n1 --detach --pool-size 0")
        invited = json.loads(person.types("dios-node invite --data n1 --json").stdout)
        join = ("--join", invited["address"], "--invitation", invited["token"], "--listen", free_address())
        person.types("dios-node start --data n2 --detach --name n2 --pool-size 0", *join)
        yield person
    finally:
        for data in ("n2", "n1"):
            person.types(f"dios-node stop --data {data}")


def restarted(person: Person, data: str, *settings: str) -> None:
    """Start a node anew: it has forgotten the mandates of its users, and those that other nodes sent."""
    person.types(f"dios-node stop --data {data}")
    person.types(f"dios-node start --data {data} --detach --pool-size 0", *settings)
    person.types("dios node ls --node n1")


def test_an_enrolled_user_is_served_with_the_key_alone(person: Person) -> None:
    """One command enrols; without the key the other node refuses, and with it all is as before."""
    assert "no user is enrolled" in person.types("dios user ls --node n1").stderr
    assert person.types("dios run job.py --on n2 --node n1").stdout == "done\n"

    (row,) = json.loads(person.types("dios user enrol-all --node n1 --json").stdout)
    config = person.home / ".config" / "dios"
    for key in ("user.key", "administrator.key"):
        assert stat.S_IMODE((config / key).stat().st_mode) == 0o600
    assert row["principal"] == OWN
    assert json.loads(person.types("dios user key --json").stdout)["key"] == row["key"]
    assert json.loads(person.types("dios user ls --node n2 --json").stdout) == [row]

    assert person.types("dios run job.py --on n2 --node n1").stdout == "done\n"
    person.types("dios group create papers --node n1")
    person.types("dios put job.py --group papers --node n1")
    person.types("dios replicate job.py --on n2 --node n1")
    assert "n2" in person.types("dios stat job.py --node n2").stdout

    # Without the key, a node that has no mandate any more is refused by the other one, whose audit log says
    # so. The register is still there after a restart.
    (config / "user.key").rename(config / "away.key")
    restarted(person, "n1")
    restarted(person, "n2")
    refused = person.types("dios run job.py --on n2 --node n1", status=125).stderr
    assert f"node n1 may not act for {OWN}" in refused
    assert "dios user vouch n1" in refused
    assert json.loads(person.types("dios user ls --node n1 --json").stdout) == [row]
    audit = "".join(path.read_text(errors="replace") for path in (person.home / "n2" / "audit").iterdir())
    assert "may not act" in audit or "has no mandate" in audit
    assert "not enrolled with a key" in person.types("dios user vouch n1 --node n1", status=1).stderr

    (config / "away.key").rename(config / "user.key")
    assert person.types("dios run job.py --on n2 --node n1").stdout == "done\n"
    mandate = json.loads(person.types("dios user vouch n2 --for 2d --node n1 --json").stdout)
    assert (mandate["node"], mandate["principal"]) == ("n2", OWN)
    assert person.types("dios run job.py --on n1 --node n2").stdout == "done\n"

    # The administrator's key alone changes the list, and the list is the way back.
    (config / "administrator.key").rename(config / "kept.key")
    assert "only the administrator" in person.types(f"dios user rm {OWN} --node n1", status=1).stderr
    (config / "kept.key").rename(config / "administrator.key")
    person.types(f"dios user rm {OWN} --node n2")
    (config / "user.key").unlink()
    restarted(person, "n1")
    restarted(person, "n2")
    assert person.types("dios run job.py --on n2 --node n1").stdout == "done\n"


def test_where_all_must_be_enrolled_others_are_refused(person: Person) -> None:
    """The setting of one node, and how a user gets in."""
    restarted(person, "n2", "--principals", "signed")
    refused = person.types("dios run job.py --on n2 --node n1", status=125).stderr
    assert "dios user add" in refused
    key = json.loads(person.types("dios user key --json").stdout)["key"]
    person.types(f"dios user add {OWN} {key} --node n1")
    assert person.types("dios run job.py --on n2 --node n1").stdout == "done\n"
