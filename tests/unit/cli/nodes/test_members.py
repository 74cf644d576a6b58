"""`dios-node init`, `token`, and what `start --join` refuses; joining itself is in the integration tests."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from dios.cli.nodes import daemon, joining
from dios.transport.identity import identity, tokens
from dios.wire.node_roles import ROLE_WORDS, NodeRole, roles_of

LISTEN = ("--listen", "127.0.0.1:7400")


@pytest.fixture(autouse=True)
def _nobodys_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HOME", "XDG_RUNTIME_DIR", "XDG_STATE_HOME"):
        monkeypatch.setenv(name, str(tmp_path / "home"))
    for name in ("DIOS_NODE", "DIOS_TOKEN", "DIOS_NAME", "DIOS_LISTEN"):
        monkeypatch.delenv(name, raising=False)


def typed(*words: str, status: int = 0) -> Result:
    """The end of `dios-node` with these words."""
    result = CliRunner().invoke(daemon.app, words)
    assert result.exit_code == status, result.output
    return result


def test_init_makes_a_cluster_and_prints_the_line_to_type_next(tmp_path: Path) -> None:
    """The identity has the chosen name, the settings are kept, and the line has a token that holds."""
    data = tmp_path / "n"
    told = json.loads(
        typed("init", "--data", str(data), *LISTEN, "--name", "n1", "--rack", "r1", "--json").stdout
    )
    own = identity.load(data)
    assert own is not None
    assert (own.name, told["cluster"]) == ("n1", own.cluster.hex())
    assert (data / "node.toml").read_text() == 'name = "n1"\nrack = "r1"\nlisten = "127.0.0.1:7400"\n'
    assert told["join"].endswith(f"--join 127.0.0.1:7400 --invitation {told['token']}")
    assert tokens.read(told["token"]).cluster == own.cluster


def test_init_refuses_a_second_time(tmp_path: Path) -> None:
    """A directory with an identity keeps it."""
    typed("init", "--data", str(tmp_path), *LISTEN)
    before = (tmp_path / "identity" / "node.key").read_bytes()
    again = typed("init", "--data", str(tmp_path), *LISTEN, status=1)
    assert "belongs to a node of a cluster" in again.output
    assert (tmp_path / "identity" / "node.key").read_bytes() == before


def test_init_refuses_what_a_lone_node_has_used(tmp_path: Path) -> None:
    """Objects of a lone node would be lost in a cluster: the reason is told, and nothing is made."""
    (tmp_path / "store").mkdir()
    (tmp_path / "store" / "data.mdb").write_bytes(b"")
    refused = typed("init", "--data", str(tmp_path), *LISTEN, status=1)
    assert "home groups" in " ".join(refused.output.split())
    assert identity.load(tmp_path) is None


def test_init_wants_an_address(tmp_path: Path) -> None:
    """A cluster's node that nobody reaches makes no sense, and nothing is made."""
    assert "--listen" in typed("init", "--data", str(tmp_path), status=1).output
    assert list(tmp_path.iterdir()) == []


def test_init_keeps_what_stands_in_the_file(tmp_path: Path) -> None:
    """Settings that are there stay, also tables at the end; one that says otherwise is refused."""
    text = 'listen = "127.0.0.1:7400"\n[task_limits]\ntasks = 3\n'
    (tmp_path / "node.toml").write_text(text)
    typed("init", "--data", str(tmp_path), "--name", "n1")
    assert (tmp_path / "node.toml").read_text() == f'name = "n1"\n{text}'


def test_a_token_is_made_while_the_node_is_stopped(tmp_path: Path) -> None:
    """`token` needs the data directory only; a lone node's is refused with what to do."""
    typed("init", "--data", str(tmp_path / "n"), *LISTEN)
    told = json.loads(typed("token", "--data", str(tmp_path / "n"), "--uses", "2", "--json").stdout)
    token = tokens.read(told["token"])
    tokens.check(tmp_path / "n" / "identity", token.number)
    assert "dios-node init" in typed("token", "--data", str(tmp_path), status=1).output


@pytest.mark.parametrize("role", [None, *ROLE_WORDS, "border,scheduler"])
def test_an_invitation_is_for_roles(tmp_path: Path, role: str | None) -> None:
    """Without the option for members; several roles are the union of their rights."""
    data = str(tmp_path / "n")
    typed("init", "--data", data, *LISTEN)
    option = () if role is None else ("--role", role)
    told = json.loads(typed("invite", "--data", data, *option, "--json").stdout)
    number = tokens.read(told["token"]).number
    assert tokens.check(tmp_path / "n" / "identity", number) == roles_of(role or "member")


@pytest.mark.parametrize("role", ["boss", "worker,authority", "worker,keeper", "member,member", ""])
def test_an_invitation_for_no_roles_is_refused(tmp_path: Path, role: str) -> None:
    """A word that is none, and a role that adds nothing to the others, are named in the error."""
    data = str(tmp_path / "n")
    typed("init", "--data", data, *LISTEN)
    assert "role" in typed("invite", "--data", data, "--role", role, status=1).output


def test_a_key_of_the_root_authorizes(tmp_path: Path) -> None:
    """The file is new and private, and makes nodes of its cluster authorities, and of no other."""
    key, data = tmp_path / "root.key", tmp_path / "n"
    typed("init", "--data", str(data), *LISTEN, "--root-key", str(key))
    assert key.stat().st_mode & 0o777 == 0o600
    own = identity.load(data)
    assert own is not None
    member = identity.admit_here(own, tmp_path / "m", name="m")
    typed("authorize", "--data", str(member.folder.parent), "--root-key", str(key))
    after = identity.load(tmp_path / "m")
    assert after is not None
    assert (after.node, after.card.node_role, after.card.until_s) == (member.node, NodeRole.AUTHORITY, None)
    again = typed("init", "--data", str(tmp_path / "o"), *LISTEN, "--root-key", str(key), status=1)
    assert "Choose another file" in again.output
    typed("init", "--data", str(tmp_path / "o"), *LISTEN)
    refused = typed("authorize", "--data", str(tmp_path / "o"), "--root-key", str(key), status=1)
    assert "another cluster" in " ".join(refused.output.split())


def test_joining_needs_a_place_and_a_token(tmp_path: Path) -> None:
    """Without token, with two, with a damaged one, or without an address nothing begins."""
    start = ("start", "--data", str(tmp_path / "n"), "--detach")
    file = tmp_path / "token"
    file.write_text("x")
    assert "needs an invitation" in typed(*start, "--join", "127.0.0.1:1", status=1).output
    twice = typed(*start, "--join", "h:1", "--invitation", "x", "--invitation-file", str(file), status=1)
    assert "once" in twice.output
    assert (
        "not an invitation" in typed(*start, "--join", "h:1", "--invitation-file", str(file), status=1).output
    )
    assert "--join must be" in typed(*start, "--join", "here", "--invitation", "x", status=1).output
    assert "with --join" in " ".join(typed(*start, "--invitation", "x", status=1).output.split())
    assert not (tmp_path / "n").exists()


def test_a_member_keeps_its_name_and_listens(tmp_path: Path) -> None:
    """A start under another name, and one without an address, are refused with what to change."""
    typed("init", "--data", str(tmp_path), *LISTEN, "--name", "n1")
    start = ("start", "--data", str(tmp_path), "--detach")
    assert "it cannot be n2" in " ".join(typed(*start, "--name", "n2", status=1).output.split())
    assert "must listen" in " ".join(typed(*start, "--listen", "", status=1).output.split())


def test_a_member_is_told_that_it_does_not_join_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A start with a token of its own cluster spends none, and says so: a forgotten node needs to know."""
    answer = json.loads(typed("init", "--data", str(tmp_path), *LISTEN, "--json").stdout)
    token = str(answer["token"])
    assert not joining.join_first(
        tmp_path, config=None, flags={}, address="127.0.0.1:1", token=token, token_file=None
    )
    assert "already belongs to a node of this cluster" in capsys.readouterr().err


def test_a_member_does_not_join_another_cluster(tmp_path: Path) -> None:
    """A token of another cluster is refused by a directory that has an identity."""
    typed("init", "--data", str(tmp_path / "one"), *LISTEN)
    other = json.loads(typed("init", "--data", str(tmp_path / "two"), *LISTEN, "--json").stdout)
    start = ("start", "--data", str(tmp_path / "one"), "--detach", "--join", "127.0.0.1:1")
    refused = typed(*start, "--invitation", other["token"], status=1)
    assert "another cluster" in " ".join(refused.output.split())
