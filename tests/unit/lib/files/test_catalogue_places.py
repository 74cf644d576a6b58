"""A list of files that has a name and no replica is lost, or on a silent node, and never empty."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import pytest

from dios.client.keyring import Keyring
from dios.client.ops.cluster import Gathered
from dios.errors import DamagedError, UnreachableError
from dios.ids import Name
from dios.lib.files.catalogue_places import CATALOGUE_ALIAS, CataloguePlace, KeyringCatalogue, SharedCatalogue
from dios.lib.files.group_files import GroupFiles

if TYPE_CHECKING:
    from dios.client.sync.node import Group, Node

LISTED = Name(b"\x02" * 32)


def place_of(kind: str, tmp_path: Path, *, incomplete: bool = False, nodes: int = 2) -> GroupFiles:
    """The files of a group whose list no node has, of this number of nodes in a cluster."""
    members = [SimpleNamespace(name=f"n{n}", address=f"n{n}:1", usable=True) for n in range(nodes)]
    node = cast(
        "Node",
        SimpleNamespace(lookup=lambda *_, **__: Gathered([], incomplete=incomplete), nodes=lambda: members),
    )
    group = cast("Group", SimpleNamespace(fingerprint="f" * 8))
    keyring = Keyring.load(tmp_path / "keyring.toml")
    keyring.add("papers", Name(b"\x01" * 32))
    if kind != "new":
        keyring.add(CATALOGUE_ALIAS + "papers", LISTED, section="objects")
    place: CataloguePlace = KeyringCatalogue(node, keyring, "papers", group)
    if kind == "shared":
        place = SharedCatalogue(node, group, LISTED)
    return GroupFiles(node, group, place)


def test_a_group_whose_list_was_never_made_is_empty(tmp_path: Path) -> None:
    """The keyring has no name of a list, so nothing was stored."""
    files = place_of("new", tmp_path)
    assert not files.entries()
    assert not files.tree().files


@pytest.mark.parametrize(("kind", "way_out"), [("own", "dios backup restore"), ("shared", "Ask its owner")])
def test_a_list_that_no_node_has_is_lost(kind: str, way_out: str, tmp_path: Path) -> None:
    """All nodes answered: listing and writing say so, with the way out."""
    files = place_of(kind, tmp_path)
    for read in (files.entries, files.tree, lambda: files.edit(lambda tree: tree.entries)):
        with pytest.raises(DamagedError, match="is lost: all nodes answered") as caught:
            read()
        assert way_out in caught.value.message


def test_a_node_that_has_met_no_other_one_does_not_know_that_a_list_is_lost(tmp_path: Path) -> None:
    """It has just started, and all nodes that it knows have answered: itself."""
    with pytest.raises(UnreachableError, match="has met no other one"):
        place_of("own", tmp_path, nodes=1).entries()


@pytest.mark.parametrize("kind", ["own", "shared"])
def test_a_list_is_not_lost_while_its_node_is_met(kind: str, tmp_path: Path) -> None:
    """A node that has just started met the other one after it had begun to look for the list."""
    files = place_of(kind, tmp_path)
    there = SimpleNamespace(object_id=1)
    answers = [Gathered([], incomplete=False), Gathered([there], incomplete=False)]
    files.node.lookup = lambda *_, **__: answers.pop(0)  # type: ignore[method-assign,assignment]
    assert list(files._place.replicas()) == [there]


@pytest.mark.parametrize("kind", ["own", "shared"])
def test_a_list_may_be_on_a_node_that_does_not_answer(kind: str, tmp_path: Path) -> None:
    """It is not lost then, and not empty."""
    with pytest.raises(UnreachableError, match="on a node that does not answer"):
        place_of(kind, tmp_path, incomplete=True).entries()
