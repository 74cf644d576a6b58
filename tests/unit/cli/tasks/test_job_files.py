"""What a job's description says of its programs, and what is wrong with it."""

from __future__ import annotations

from pathlib import Path

import pytest

from dios.cli.tasks.job import _of, _programs, described
from dios.errors import InvalidError

FILE = Path("/jobs/words.toml")


def test_programs_stand_beside_the_description() -> None:
    """Paths count from the description's folder; copies of a task have its program."""
    text = """
[tasks.map]
count = 2
program = "map.py"
args = ["--fast"]
inputs = ["a.txt"]
[tasks."map.9"]
program = "/other.py"
"""
    programs = _programs(FILE, text)
    assert _of(programs, "map.1").path == Path("/jobs/map.py")
    assert (_of(programs, "map.1").args, _of(programs, "map.1").inputs) == (("--fast",), ("a.txt",))
    assert _of(programs, "map.9").path == Path("/other.py"), "a task of just that name comes first"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("[tasks.a]\ncpu = 1\n", "tasks.a.program is missing"),
        ("[tasks.a]\nprogram = 3\n", "tasks.a.program is missing"),
        ('[tasks.a]\nprogram = "a.py"\nargs = "x"\n', "tasks.a.args must be a list of texts"),
        ('[tasks.a]\nprogram = "a.py"\ninputs = [1]\n', "tasks.a.inputs must be a list of texts"),
        ("[task.a]\n", "instead of 'task'"),
        ("tasks = 3\n", "it has no tasks"),
        ("a = = 3\n", "line 1"),
    ],
)
def test_what_is_wrong_is_named(text: str, why: str) -> None:
    """Each mistake is told with its file and field."""
    with pytest.raises(InvalidError) as caught:
        _programs(FILE, text)
    assert str(FILE) in caught.value.message
    assert why in caught.value.message


def test_a_file_that_cannot_be_read_is_told(tmp_path: Path) -> None:
    """Missing ones, and ones that are no text."""
    for path in (tmp_path / "none.toml", tmp_path):
        with pytest.raises(InvalidError, match="cannot read"):
            described(path)
    (tmp_path / "bytes.toml").write_bytes(b"\xff\xfe\xff")
    with pytest.raises(InvalidError, match="cannot read"):
        described(tmp_path / "bytes.toml")
