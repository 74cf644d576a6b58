"""The command that starts a node which does not answer."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from dios.cli.main import app as dios_app
from dios.cli.nodes import daemon
from dios.client.locate import CLUSTER_FILE_NAME, PID_FILE_NAME, default_socket, local_cluster, resolve_node
from dios.client.node_socket import connect, start_command
from dios.errors import InvalidError, UnreachableError

SOURCES = Path(__file__).parents[3] / "dios"


@pytest.fixture(autouse=True)
def _nobodys_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HOME", "XDG_RUNTIME_DIR", "XDG_STATE_HOME", "XDG_CONFIG_HOME"):
        monkeypatch.setenv(name, str(tmp_path / "home"))
    for name in ("DIOS_NODE", "DIOS_KEYRING"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)


def killed_node(data: Path, *, default: bool = True) -> Path:
    """Leave the files of a node that was killed; return its socket."""
    data.mkdir(parents=True)
    (data / PID_FILE_NAME).write_text("1 \n")
    if default:
        default_socket().parent.mkdir(mode=0o700, parents=True)
        default_socket().symlink_to(data / "node.sock")
    return data / "node.sock"


@pytest.mark.parametrize(
    "command", [["status"], ["dump"], ["restart"], ["ls"], ["group", "create", "g"], ["node", "ls"]]
)
def test_hints_name_the_data_of_a_killed_node(tmp_path: Path, command: list[str]) -> None:
    """Each command whose default node was killed says how to start that node, and no other one."""
    killed_node(tmp_path / "my data")
    app = daemon.app if len(command) == 1 and command != ["ls"] else dios_app
    told = CliRunner().invoke(app, command).output
    assert f"dios-node start --data '{tmp_path}/my data' --detach" in told
    assert "node0" not in told


def test_a_cluster_is_started_as_a_whole(tmp_path: Path) -> None:
    """Where the node is one of a local cluster, the command is the one that starts all of its nodes."""
    assert start_command(default_socket()) == "dios-node start --data node0 --detach"
    for place in (local_cluster(), tmp_path / "other"):
        socket = killed_node(place / "n1", default=False)
        (place / CLUSTER_FILE_NAME).touch()
        ending = "" if place == local_cluster() else f" --dir {place}"
        assert start_command(socket) == f"dios up{ending}"
    assert start_command(default_socket()) == "dios up", "no link is left by nodes that were stopped"


def test_a_socket_elsewhere_names_no_directory(tmp_path: Path) -> None:
    """A socket that a setting placed in another folder does not tell where the data are."""
    (tmp_path / "own.sock").touch()
    with pytest.raises(UnreachableError, match=r"--data DIR --detach$"):
        connect(tmp_path / "own.sock")


def test_a_path_that_was_named_is_the_one_to_start(tmp_path: Path) -> None:
    """A data directory that the user named is started, whether it exists or not."""
    (tmp_path / "new").mkdir()
    for path in ("./new", "./later"):
        with pytest.raises(UnreachableError, match=f"--data [^ ]*{path[2:]} --detach$"):
            connect(resolve_node(path))


def test_a_name_of_no_node_is_told_as_a_name(tmp_path: Path) -> None:
    """A word that names no node of the local cluster is refused with the names that there are."""
    with pytest.raises(InvalidError, match="there is no node 'n7': you have no local cluster"):
        resolve_node("n7")
    for name in ("n2", "n1"):
        (local_cluster() / name).mkdir(parents=True)
        (local_cluster() / name / "node.toml").touch()
    with pytest.raises(InvalidError, match="there is no node 'n7': your local cluster has n1, n2"):
        resolve_node("n7")
    assert resolve_node("n2") == local_cluster() / "n2" / "node.sock"


def texts_outside_of_examples(tree: ast.AST) -> Iterator[str]:
    """Yield the texts of a module, except for the examples under a command's help."""
    for child in ast.iter_child_nodes(tree):
        if isinstance(child, ast.keyword) and child.arg in {"epilog", "examples"}:
            continue
        if isinstance(child, ast.Constant) and isinstance(child.value, str):
            yield child.value
        yield from texts_outside_of_examples(child)


def test_no_message_has_a_directory_of_its_own() -> None:
    """Only examples name a data directory; every message asks ``start_command``."""
    guessing = [
        str(path.relative_to(SOURCES))
        for path in sorted(SOURCES.rglob("*.py"))
        if any("--data ./node0" in text for text in texts_outside_of_examples(ast.parse(path.read_text())))
    ]
    assert not guessing
