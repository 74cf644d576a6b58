"""`dios up --compose` with programs in the place of Docker that tell what they were asked."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from dios.cli import main
from dios.cli.nodes import compose


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
    """Compose runs in the file's folder; down deletes the volumes only when it is told to."""
    program(programs, "docker", "exit 0" if name == "docker" else '[ "$1" = version ]')
    program(programs, "docker-compose")
    assert json.loads(typed("up --compose --json").stdout)["up"]
    typed("down --compose --delete")
    typed("down --compose")
    folder = programs.parent / "cluster"
    compose = "docker" if name == "docker" else "docker-compose"
    word = " compose" if name == "docker" else ""
    asked = [line for line in calls(programs) if "-f compose.yaml" in line]
    assert asked == [
        f"{compose} {folder}{word} -f compose.yaml up --detach --build",
        f"{compose} {folder}{word} -f compose.yaml ps --quiet",
        f"{compose} {folder}{word} -f compose.yaml down --volumes",
        f"{compose} {folder}{word} -f compose.yaml down",
    ]


def test_up_ends_when_every_container_is_healthy(programs: Path) -> None:
    """It asks for the health of all containers again until none is starting."""
    health = f"""case "$*" in
*ps*) echo c1 c2;;
inspect*) echo n1 healthy; [ -e {programs}/old ] && echo n2 healthy || echo n2 starting; : >{programs}/old;;
esac"""
    program(programs, "docker", health)
    typed("up --compose")
    assert (
        sum(line.partition(" ")[2].partition(" ")[2].startswith("inspect") for line in calls(programs)) == 2
    )


def test_up_tells_which_container_is_not_healthy(programs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After its patience it fails, and names the service and the command for its log."""
    monkeypatch.setattr(compose, "_HEALTHY_SECONDS", 0)
    program(programs, "docker", 'case "$*" in *ps*) echo c1;; inspect*) echo n2 unhealthy;; esac')
    told = " ".join(typed("up --compose", 1).output.split())
    assert "n2 is unhealthy" in told
    assert "docker compose logs n2" in told


def test_elsewhere_the_file_of_the_source_tree_is_used(
    programs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a folder without the file, Compose runs on that of the program's own checkout."""
    program(programs, "docker")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    typed("up --compose")
    own = Path(compose.__file__).parents[3] / "cluster"
    assert f"docker {own} compose -f compose.yaml up --detach --build" in calls(programs)


def test_a_failure_of_compose_is_one_of_the_command(programs: Path) -> None:
    """A status other than 0 is told with the line that gave it."""
    program(programs, "docker", '[ "$3" != compose.yaml ]')
    assert "failed with status 1" in typed("up --compose", 1).output


def test_the_file_chooses_everything_else(programs: Path) -> None:
    """Numbers and settings beside --compose are refused."""
    assert "the file has the nodes" in " ".join(typed("up --compose --nodes 5", 1).output.split())
    assert not (programs / "calls").exists()
