"""The files of native programs, which the daemon finds before any task exists."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from dios.errors import InvalidError
from dios.host.confinement.mechanisms import Availability, Mechanism
from dios.host.confinement.native_programs import ProgramSetting, examine
from dios.host.process import zygote_pool

PYTHON = os.path.realpath(sys.executable)
HEAD = Path(PYTHON).read_bytes()[:64]


def test_a_program_has_its_loader_and_its_libraries(tmp_path: Path) -> None:
    """The paths are those that the loader lists, and those of ``read``; executable are two of them."""
    link = tmp_path / "python"
    link.symlink_to(PYTHON)
    program = examine(ProgramSetting("python", str(link), (str(tmp_path),)))
    assert program.path == PYTHON
    assert str(link) in program.files
    assert str(tmp_path) in program.files
    assert program.executable == ((PYTHON, program.loader) if program.loader else (PYTHON,))
    if program.loader:
        assert any("libc." in Path(path).name for path in program.files)
    assert all(Path(path).exists() for path in program.files)


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"#!/bin/sh\n", "name its interpreter"),
        (b"", "no ELF program"),
        (HEAD[:40], "no ELF program"),
        (HEAD, "cannot be a task's"),
        (HEAD[:32] + b"\xff" * 32, "cannot be a task's"),
    ],
    ids=["script", "empty", "cut", "without segments", "nonsense"],
)
def test_a_file_that_is_no_program_is_refused(tmp_path: Path, content: bytes, why: str) -> None:
    """The reason names the program."""
    (tmp_path / "file").write_bytes(content)
    with pytest.raises(InvalidError, match=why) as refused:
        examine(ProgramSetting("mine", str(tmp_path / "file")))
    assert "mine" in str(refused.value)


def test_a_path_that_is_missing_is_refused(tmp_path: Path) -> None:
    """The program's own, and any of ``read``."""
    with pytest.raises(InvalidError, match="No such file"):
        examine(ProgramSetting("mine", str(tmp_path / "absent")))
    with pytest.raises(InvalidError, match="in read does not exist"):
        examine(ProgramSetting("mine", PYTHON, (str(tmp_path / "absent"),)))


async def test_where_a_layer_is_missing_there_are_none(caplog: pytest.LogCaptureFixture) -> None:
    """Also on a node that accepts a weaker sandbox; the log has the reason."""
    setting = ProgramSetting("python", PYTHON)
    landlock = Mechanism(Availability.MISSING, "was refused", needed_for_pure=True)
    assert not await zygote_pool._examined([setting], {"landlock": landlock})
    assert "native programs are refused" in caplog.text
    (program,) = await zygote_pool._examined([setting], {})
    assert program.name == "python"
