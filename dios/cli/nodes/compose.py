"""A cluster as containers: runs the project's compose file with Docker Compose.

docs/deploy-docker.md describes the file.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Final, TypedDict

from dios.cli.common.output import facts, say, write_json
from dios.errors import DiosError, InvalidError

FILE: Final = Path("cluster", "compose.yaml")
_ASK_SECONDS: Final = 30


def _file() -> Path:
    """Return the compose file: below the working directory, else in this program's source tree."""
    for base in (Path.cwd(), Path(__file__).resolve().parents[2]):
        if (base / FILE).is_file():
            return base / FILE
    raise InvalidError(f"{FILE} was not found. Run this in a checkout of the source.")


def _engine() -> list[str]:
    """Return the command of Docker Compose, version 1 or 2. Raise InvalidError without a running engine."""
    docker = shutil.which("docker")
    if docker is None:
        raise InvalidError(
            "no container engine is installed: the command docker was not found. Leave out --compose."
        )
    asked = subprocess.run(
        [docker, "version", "--format", "{{.Server.Version}}"],
        capture_output=True,
        text=True,
        timeout=_ASK_SECONDS,
        check=False,
    )
    if asked.returncode:
        why = (asked.stderr.strip() or "no answer").splitlines()[-1]
        raise InvalidError(f"the container engine does not answer: {why}. Start it, or leave out --compose.")
    newer = subprocess.run(
        [docker, "compose", "version"], capture_output=True, timeout=_ASK_SECONDS, check=False
    )
    if newer.returncode == 0:
        return [docker, "compose"]
    older = shutil.which("docker-compose")
    if older is None:
        raise InvalidError(
            "Docker Compose is not installed (docker compose or docker-compose). Leave out --compose."
        )
    return [older]


def _run(*words: str) -> Path:
    command, file = _engine(), _file()
    # Its progress goes to standard error, because standard output is for this command's result. Version 1
    # looks for files named in the compose file in the working directory.
    done = subprocess.run([*command, "-f", file.name, *words], stdout=2, cwd=file.parent, check=False)
    if done.returncode:
        line = " ".join([Path(command[0]).name, *command[1:], "-f", str(file), *words])
        raise DiosError(f"`{line}` failed with status {done.returncode}; see its output above")
    return file


class ComposeUpRow(TypedDict):
    """The compose file whose containers run, or do not."""

    compose: str
    up: bool


class ComposeDownRow(ComposeUpRow):
    """A compose file, and True if the volumes of its containers were removed."""

    removed: bool


def up(*, as_json: bool) -> None:
    """Build and start the containers, and return when they are healthy. Raise DiosError."""
    file = _run("up", "--detach", "--build")
    if as_json:
        row: ComposeUpRow = {"compose": str(file), "up": True}
        write_json(row)
        return
    facts([("cluster", "as containers"), ("file", str(file))])
    say(f"next, in {file.parent}: docker compose exec n1 dios node ls; at the end: dios down --compose")


def down(*, keep: bool, as_json: bool) -> None:
    """Stop and remove the containers, and their volumes unless ``keep``. Raise DiosError."""
    file = _run("down", *([] if keep else ["--volumes"]))
    if as_json:
        row: ComposeDownRow = {"compose": str(file), "up": False, "removed": not keep}
        write_json(row)
        return
    facts([("cluster", "stopped"), ("file", str(file)), ("volumes", "kept" if keep else "deleted")])
