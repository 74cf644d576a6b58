from __future__ import annotations

import os
import sys
from pathlib import Path

import dios
from dios.host.sandbox import view


def test_the_view_holds_the_library_and_no_whole_prefix() -> None:
    """The standard library is in; the root, a prefix, a home or this repository as a whole is not."""
    trees = view.library_trees(())
    assert str(Path(os.__file__).resolve().parent) in trees
    repository = Path(__file__).resolve().parents[4]
    too_much = {"/", "/usr", "/etc", "/home", str(repository), str(Path.home())}
    too_much |= {os.path.realpath(sys.prefix), os.path.realpath(sys.base_prefix)}
    assert not too_much & set(trees)


def test_the_package_comes_with_its_own_directory_alone() -> None:
    """Of a package outside the library's trees, its own directory is in and what lies beside it is not."""
    trees = view.library_trees(())
    package = os.path.realpath(next(iter(dios.__path__)))
    holders = [tree for tree in trees if package == tree or package.startswith(tree + "/")]
    assert len(holders) == 1
    assert holders[0] == package or "-packages" in holders[0]


def test_declared_paths_are_in_once(tmp_path: Path) -> None:
    """A declared path is in by its real name, not again for a path inside it; a missing one is not."""
    inner = tmp_path / "a" / "b"
    inner.mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "a")
    declared = (str(tmp_path / "link"), str(inner), str(tmp_path / "missing"))
    real = str(tmp_path.resolve())
    assert [tree for tree in view.library_trees(declared) if tree.startswith(real)] == [f"{real}/a"]
