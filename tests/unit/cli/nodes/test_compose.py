"""`dios up --compose` with programs in the place of Docker that tell what they were asked."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from dios.cli import main


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only folder in which programs are looked for, and a checkout to work in."""
    folder = tmp_path / "bin"
    folder.mkdir()
    (tmp_path / "cluster").mkdir()
    (tmp_path / "cluster" / "compose.yaml").write_text("services: {}\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", str(folder))
    return folder


def program(folder: Path, name: str, *lines: str) -> None:
    """A program of these shell lines, which notes where it was called, and how."""
    path = folder / name
    note = f'echo "{name} $PWD $*" >>{folder}/calls'
    path.write_text("\n".join(["#!/bin/sh", note, *lines, ""]))
    path.chmod(0o755)


def typed(line: str, status: int = 0) -> Result:
    """The end of a command."""
    result = CliRunner().invoke(main.app, line.split())
    assert result.exit_code == status, result.output
    return result


def calls(folder: Path) -> list[str]:
    """What was called, in order."""
    return (folder / "calls").read_text().splitlines()


def test_without_an_engine_it_says_so(programs: Path) -> None:
    """No docker, one without a daemon, and one without Compose are told apart."""
    assert "the command docker was not found" in " ".join(typed("up --compose", 1).output.split())
    program(programs, "docker", "echo no daemon >&2", "exit 1")
    assert "does not answer: no daemon" in " ".join(typed("up --compose", 1).output.split())
    program(programs, "docker", '[ "$1" = version ]')
    assert "not installed" in typed("up --compose", 1).output


@pytest.mark.parametrize("name", ["docker", "docker-compose"])
def test_either_generation_is_called_beside_its_file(programs: Path, name: str) -> None:
    """Compose runs in the file's folder; down deletes the volumes unless they are to be kept."""
    program(programs, "docker", "exit 0" if name == "docker" else '[ "$1" = version ]')
    program(programs, "docker-compose")
    assert json.loads(typed("up --compose --json").stdout)["up"]
    typed("down --compose")
    typed("down --compose --keep")
    where = programs.parent / "cluster"
    compose = "docker" if name == "docker" else "docker-compose"
    word = " compose" if name == "docker" else ""
    asked = [line for line in calls(programs) if "-f compose.yaml" in line]
    assert asked == [
        f"{compose} {where}{word} -f compose.yaml up --detach --build",
        f"{compose} {where}{word} -f compose.yaml down --volumes",
        f"{compose} {where}{word} -f compose.yaml down",
    ]


def test_a_failure_of_compose_is_one_of_the_command(programs: Path) -> None:
    """A status other than 0 is told with the line that gave it."""
    program(programs, "docker", '[ "$3" != compose.yaml ]')
    assert "failed with status 1" in typed("up --compose", 1).output


def test_the_file_chooses_everything_else(programs: Path) -> None:
    """Numbers and settings beside --compose are refused."""
    assert "the file has the nodes" in " ".join(typed("up --compose --nodes 5", 1).output.split())
    assert not (programs / "calls").exists()
