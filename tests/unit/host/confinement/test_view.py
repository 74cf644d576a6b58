from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import dios
from dios.host.confinement import privileges, view

CONFINED = """import os, sys
from dios.host.confinement import linux_calls, privileges, view
tree = sys.argv[1]
assert not view.are_open_to_all([tree])
parts = view.parts_of([tree])
privileges.become_unprivileged()
try:
    os.stat(tree)
except PermissionError:
    print("out of reach")
view.enter_user_namespace(linux_calls.CLONE_NEWNS)
view.enter(parts)
print(open(tree + "/module").read(), "proc" in os.listdir("/"))
for attempt in (lambda: open(tree + "/new", "w"), lambda: os.unlink(tree + "/module")):
    try:
        attempt()
    except OSError as error:
        print(type(error).__name__, error.errno)
"""


def test_the_view_holds_the_library_and_no_whole_prefix() -> None:
    """The standard library is in; the root, a prefix, a home or this repository as a whole is not."""
    trees = view.library_trees(())
    library = Path(os.__file__).resolve().parent
    # A shared libpython next to it makes the folder around both one tree.
    assert any(library.is_relative_to(tree) for tree in trees)
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


def test_folders_that_not_everybody_may_enter_are_found(tmp_path: Path) -> None:
    """Each folder above a tree counts; the tree itself and files beside it do not."""
    for name, mode in (("open", 0o755), ("closed", 0o700)):
        (tmp_path / name / "inner" / "tree").mkdir(parents=True)
        (tmp_path / name).chmod(mode)
    assert view.are_open_to_all(["/usr/lib", "/"])
    assert not view.are_open_to_all(["/usr/lib", str(tmp_path / "closed" / "inner" / "tree")])
    assert view.are_open_to_all([str(tmp_path / "open" / "inner")]) == view.are_open_to_all([str(tmp_path)])


def test_a_view_of_a_private_folder_is_made_before_rights_are_dropped(tmp_path: Path) -> None:
    """A process of another user reads root's folder in its view only, and can change nothing there."""
    if not privileges.may_mount():
        pytest.skip("only root with the right to mount prepares a view for others")
    tree = tmp_path / "private" / "library"
    tree.mkdir(parents=True)
    tree.parent.chmod(0o700)
    (tree / "module").write_text("text")
    (tree / "module").chmod(0o644)
    done = subprocess.run(
        [sys.executable, "-c", CONFINED, str(tree)], capture_output=True, text=True, check=False
    )
    if "Errno 1]" in done.stderr and "unshare" in done.stderr:
        pytest.skip("this machine denies user namespaces to ordinary users")
    assert done.stdout.splitlines() == ["out of reach", "text False", "OSError 30", "OSError 30"], done
