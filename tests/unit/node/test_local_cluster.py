from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Self

import pytest

from dios import limits
from dios.client.locate import CLUSTER_FILE_NAME
from dios.errors import DamagedError, ExistsError, InvalidError, TimeLimitError
from dios.node import daemon, local_cluster, seeds
from dios.node.settings import SettingsError, load
from dios.transport.identity import identity


def test_a_cluster_is_made_of_ordinary_nodes(tmp_path: Path) -> None:
    """Each node has its own identity in one cluster, its own address, and knows where the others are."""
    cluster = local_cluster.make(tmp_path / "c", nodes=3, racks=2, settings={"pool_size": "1"})
    owns = [identity.load(node.data) for node in cluster.nodes]
    assert [own and own.name for own in owns] == ["n1", "n2", "n3"]
    assert len({own.cluster for own in owns if own}) == 1
    assert len({own.node for own in owns if own}) == 3
    settings = [load(node.data, environ={}) for node in cluster.nodes]
    assert [setting.rack for setting in settings] == ["r1", "r2", "r1"]
    assert {setting.pool_size for setting in settings} == {1}
    addresses = [setting.listen for setting in settings]
    assert len(set(addresses)) == 3
    for node in cluster.nodes:
        assert {node.address, *seeds.read(node.data)} == set(addresses)
    assert local_cluster.read(tmp_path / "c") == cluster
    assert cluster.running() == {}


def test_nothing_is_left_of_one_that_could_not_be_made(tmp_path: Path) -> None:
    """A bad setting, and one that each node must have for itself, leave an empty directory."""
    with pytest.raises(SettingsError, match="pool-sise"):
        local_cluster.make(tmp_path / "c", nodes=2, settings={"pool_sise": "1"})
    with pytest.raises(InvalidError, match="listen is chosen"):
        local_cluster.make(tmp_path / "c", nodes=2, settings={"listen": "127.0.0.1:1"})
    assert list((tmp_path / "c").iterdir()) == []


@pytest.mark.parametrize(("nodes", "racks"), [(0, 0), (65, 0), (2, 3), (2, -1)])
def test_numbers_that_make_no_sense_are_refused(tmp_path: Path, nodes: int, racks: int) -> None:
    """No nodes, too many, or more racks than nodes are refused before anything is made."""
    with pytest.raises(InvalidError):
        local_cluster.make(tmp_path / "c", nodes=nodes, racks=racks)
    assert not (tmp_path / "c").exists()


def test_what_is_somebody_elses_stays(tmp_path: Path) -> None:
    """A directory with anything in it is not taken; removing deletes what was made, and nothing beside."""
    place = tmp_path / "c"
    local_cluster.make(place, nodes=1)
    with pytest.raises(ExistsError):
        local_cluster.make(place, nodes=1)
    (place / "notes.txt").write_text("mine")
    local_cluster.remove(place)
    assert [entry.name for entry in place.iterdir()] == ["notes.txt"]
    assert local_cluster.read(place) is None


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        '{"nodes": 3, "keep": true}',
        '{"keep":false,"nodes":[{"name":"../x","rack":"","address":""}]}',
    ],
)
def test_a_damaged_file_is_told(tmp_path: Path, text: str) -> None:
    """A file that nobody could have written is refused, above all one that leads out of the directory."""
    (tmp_path / CLUSTER_FILE_NAME).write_text(text)
    with pytest.raises(DamagedError, match=r"cluster\.json"):
        local_cluster.read(tmp_path)


def test_an_earlier_release_keeps_the_data_too(tmp_path: Path) -> None:
    """The `dios down` of an earlier release deletes the data of a cluster whose file does not say "keep"."""
    local_cluster.make(tmp_path / "c", nodes=1)
    assert json.loads((tmp_path / "c" / CLUSTER_FILE_NAME).read_text())["keep"] is True


class Views:
    """Connected nodes: each sees one more node at each question, or after all questions nobody new."""

    def __init__(self, *views: set[str]) -> None:
        self.views = list(views)
        self.seconds = 0.0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Close nothing."""

    def nodes(self) -> list[SimpleNamespace]:
        """The present view, in which the time of a whole start has passed since the last one."""
        self.seconds += limits.NODE_START_MS_MAX / 1000
        view = self.views.pop(0) if len(self.views) > 1 else self.views[0]
        return [SimpleNamespace(name=name, usable=True) for name in view]

    def monotonic(self) -> float:
        """A clock that moves with each question."""
        return self.seconds

    def sleep(self, _: float) -> None:
        """Sleep in no time."""


@pytest.fixture
def started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[[Views], tuple[list[str], list[str]]]:
    """Start three nodes that have these views; return the nodes that were started, and stopped again."""
    cluster = local_cluster.make(tmp_path / "c", nodes=3)

    def start(views: Views) -> tuple[list[str], list[str]]:
        ended: list[str] = []
        monkeypatch.setattr(local_cluster, "time", views)
        monkeypatch.setattr(local_cluster, "connect", lambda *_, **__: views)
        monkeypatch.setattr(local_cluster, "_stop_one", lambda node, _: ended.append(node.name))
        monkeypatch.setattr(local_cluster, "_claim_default", lambda _: None)
        monkeypatch.setattr(daemon, "start_detached", lambda *_, **__: None)
        try:
            return local_cluster.start(cluster), ended
        except TimeLimitError:
            return [], ended

    return start


def test_nodes_that_find_each_other_slowly_are_waited_for(
    started: Callable[[Views], tuple[list[str], list[str]]],
) -> None:
    """The patience begins anew with each node that is found."""
    assert started(Views({"n1"}, {"n1", "n2"}, {"n1", "n2", "n3"})) == (["n1", "n2", "n3"], [])


def test_nodes_that_have_not_found_each_other_yet_are_not_stopped(
    started: Callable[[Views], tuple[list[str], list[str]]],
) -> None:
    """They run, and find each other later."""
    assert started(Views({"n1"})) == ([], [])


def test_a_lock_leaves_no_empty_directory(tmp_path: Path) -> None:
    """Whoever looks for a cluster that is not there leaves nothing behind."""
    with local_cluster.locked(tmp_path / "c"):
        assert (tmp_path / "c").is_dir()
    assert not (tmp_path / "c").exists()
