from __future__ import annotations

import errno
import os
import socket
from pathlib import Path

import pytest

from dios.host.confinement import landlock
from tests.support.node.subprocess_lines import lines_of

CONFINED = """
import errno, os, socket, sys
from dios.host.confinement import landlock, privileges

readable, beside, name = sys.argv[1:]
rules = landlock.ruleset([readable])
privileges.no_new_privileges()
landlock.restrict_self(rules)

def tell(attempt):
    try:
        attempt()
        print("did")
    except OSError as error:
        print(errno.errorcode[error.errno])

tell(lambda: os.open(readable + "/file", os.O_RDONLY))
tell(lambda: os.listdir(readable))
tell(lambda: os.open(readable + "/file", os.O_WRONLY))
tell(lambda: os.open(readable + "/new", os.O_CREAT | os.O_WRONLY))
tell(lambda: os.unlink(readable + "/file"))
tell(lambda: os.open(beside, os.O_RDONLY))
tell(lambda: os.open("/etc/passwd", os.O_RDONLY))
tell(lambda: os.execv("/bin/true", ["true"]))
tell(lambda: socket.create_connection(("127.0.0.1", 1)))
tell(lambda: socket.socket(socket.AF_UNIX).connect("\\0" + name))
tell(lambda: os.kill(os.getppid(), 0))
"""
FILES = ["did", "did", "EACCES", "EACCES", "EACCES", "EACCES", "EACCES", "EACCES"]
NET_FROM = 4
SCOPED_FROM = 6


@pytest.fixture
def abi() -> int:
    """The kernel's Landlock version; without one there is nothing to test."""
    try:
        return landlock.abi()
    except OSError as error:
        pytest.skip(f"no Landlock: {errno.errorcode[error.errno or 0]}")


def test_a_restricted_process_reads_below_its_trees_and_does_nothing_else(abi: int, tmp_path: Path) -> None:
    """Reading below a tree works; writing, making, removing, running, and reading beside it do not."""
    tree = tmp_path / "tree"
    tree.mkdir()
    (tree / "file").write_text("x")
    (tmp_path / "beside").write_text("x")
    said = lines_of(CONFINED, str(tree), str(tmp_path / "beside"), "none")
    assert said[: len(FILES)] == FILES
    assert (tree / "file").read_text() == "x"


def test_tcp_sockets_and_signals_stay_inside(abi: int, tmp_path: Path) -> None:
    """Connecting TCP and abstract sockets, and signals to its parent, are refused where the kernel can."""
    (tmp_path / "file").write_text("x")
    name = f"dios-landlock-{os.getpid()}"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("\0" + name)
        listener.listen()
        said = lines_of(CONFINED, str(tmp_path), str(tmp_path / "none"), name)
    connects, abstract, signals = said[len(FILES) :]
    assert connects == ("EACCES" if abi >= NET_FROM else "ECONNREFUSED")
    assert abstract == ("EPERM" if abi >= SCOPED_FROM else "did")
    assert signals == ("EPERM" if abi >= SCOPED_FROM else "did")


def test_a_tree_that_is_not_there_makes_no_ruleset(abi: int, tmp_path: Path) -> None:
    """A missing path is an error at once, and no descriptor is left behind."""
    before = len(list(Path("/proc/self/fd").iterdir()))
    with pytest.raises(FileNotFoundError):
        landlock.ruleset([str(tmp_path / "missing")])
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_one_ruleset_serves_many(abi: int, tmp_path: Path) -> None:
    """A file alone may be a tree, and the descriptor of a ruleset can be used again."""
    (tmp_path / "file").write_text("x")
    rules = landlock.ruleset([str(tmp_path / "file"), str(tmp_path)])
    os.close(rules)
