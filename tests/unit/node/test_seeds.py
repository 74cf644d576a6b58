from __future__ import annotations

from pathlib import Path

from dios import limits
from dios.node import seeds


def test_what_was_written_is_read(tmp_path: Path) -> None:
    """Addresses come back in their order, without doubles; there are none before the first."""
    assert seeds.read(tmp_path) == ()
    seeds.write(tmp_path, ["10.0.0.2:7400", "10.0.0.1:7400", "10.0.0.2:7400"])
    assert seeds.read(tmp_path) == ("10.0.0.2:7400", "10.0.0.1:7400")
    seeds.write(tmp_path, [])
    assert seeds.read(tmp_path) == ()


def test_rubbish_in_the_file_is_left_out(tmp_path: Path) -> None:
    """Lines that are no addresses cost themselves only."""
    (tmp_path / seeds.NAME).write_bytes(b"# n1\n\nn1:7400  # first\nnonsense\n0.0.0.0:1\n\xff\xfe:1\n")
    assert seeds.read(tmp_path) == ("n1:7400",)


def test_there_are_no_more_than_nodes(tmp_path: Path) -> None:
    """A longer list is cut where a cluster ends."""
    seeds.write(tmp_path, [f"n{number}:7400" for number in range(limits.NODES_MAX + 5)])
    assert len(seeds.read(tmp_path)) == limits.NODES_MAX


def test_nothing_is_written_when_nothing_changed(tmp_path: Path) -> None:
    """The file stays the same one as long as it says the same."""
    seeds.write(tmp_path, ["n1:7400"])
    before = (tmp_path / seeds.NAME).stat().st_ino
    seeds.write(tmp_path, ["n1:7400"])
    assert (tmp_path / seeds.NAME).stat().st_ino == before
