from __future__ import annotations

from pathlib import Path

import pytest

from dios.client.locate import config_directory, default_socket, local_cluster, resolve_node
from dios.errors import InvalidError


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("DIOS_NODE", "XDG_RUNTIME_DIR", "XDG_CONFIG_HOME", "XDG_STATE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))


def test_default_is_the_runtime_link(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """With nothing said, the node is the link in the runtime directory, else one below the home."""
    assert resolve_node() == default_socket() == tmp_path / ".dios/run/default.sock"
    monkeypatch.setenv("XDG_RUNTIME_DIR", "/run/user/7")
    assert resolve_node() == Path("/run/user/7/dios/default.sock")


def test_argument_over_environment_over_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The argument wins over DIOS_NODE, which wins over client.toml."""
    config = config_directory()
    config.mkdir(parents=True)
    (config / "client.toml").write_text('node = "/from/file.sock"\n')
    assert resolve_node() == Path("/from/file.sock")
    monkeypatch.setenv("DIOS_NODE", "/from/environment.sock")
    assert resolve_node() == Path("/from/environment.sock")
    assert resolve_node("/from/argument.sock") == Path("/from/argument.sock")


def test_directory_means_its_socket(tmp_path: Path) -> None:
    """A data directory stands for the node.sock in it."""
    assert resolve_node(str(tmp_path)) == tmp_path / "node.sock"


@pytest.mark.parametrize("text", ["nod = 'x'", "node = 7", "node = "])
def test_bad_file_is_refused(text: str) -> None:
    """A client.toml that means nothing is an error that names the file."""
    config = config_directory()
    config.mkdir(parents=True)
    (config / "client.toml").write_text(text)
    with pytest.raises(InvalidError, match=r"client\.toml"):
        resolve_node()


def test_a_word_means_a_node_of_the_local_cluster(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A word that is no path is the local cluster's node of that name, else refused."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InvalidError, match="there is no node 'n2'"):
        resolve_node("n2")
    assert resolve_node("n2.sock") == Path("n2.sock")
    (local_cluster() / "n2").mkdir(parents=True)
    assert resolve_node("n2") == tmp_path / ".local/state/dios/cluster/n2/node.sock"
    assert resolve_node("./n2") == Path("n2")
    (tmp_path / "n2").mkdir()
    assert resolve_node("n2") == Path("n2/node.sock")
