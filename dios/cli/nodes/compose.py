"""A cluster as containers: the compose file of this project, run by the engine that is installed.

Not for: what is in the file (docs/deploy-docker.md), or a cluster as processes (``dios.node.local_cluster``).
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Final

from dios.cli.common.output import facts, say, write_json
from dios.errors import DiosError, InvalidError

FILE: Final = Path("cluster", "compose.yaml")
_ASK_SECONDS: Final = 30


def _file() -> Path:
    """The compose file: below the working directory, else in the source tree that this program runs from."""
    for base in (Path.cwd(), Path(__file__).resolve().parents[2]):
        if (base / FILE).is_file():
            return base / FILE
    raise InvalidError(f"there is no {FILE} here; run this in a checkout of the source")


def _engine() -> list[str]:
    """The command of Docker Compose, of either generation, with an engine that answers."""
    docker = shutil.which("docker")
    if docker is None:
        raise InvalidError(
            "no container engine is installed: there is no command docker; leave out --compose"
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
        raise InvalidError(f"the container engine does not answer: {why}; start it, or leave out --compose")
    newer = subprocess.run(
        [docker, "compose", "version"], capture_output=True, timeout=_ASK_SECONDS, check=False
    )
    if newer.returncode == 0:
        return [docker, "compose"]
    older = shutil.which("docker-compose")
    if older is None:
        raise InvalidError(
            "Docker Compose is not installed (docker compose, docker-compose); leave out --compose"
        )
    return [older]


def _run(*words: str) -> Path:
    command, file = _engine(), _file()
    # Its progress is for people, on the error stream; the result of our own command is elsewhere. The older
    # generation looks for the files that the file names where it is started.
    done = subprocess.run([*command, "-f", file.name, *words], stdout=2, cwd=file.parent, check=False)
    if done.returncode:
        line = " ".join([Path(command[0]).name, *command[1:], "-f", str(file), *words])
        raise DiosError(f"`{line}` ended with status {done.returncode}; what it said stands above")
    return file


def up(*, as_json: bool) -> None:
    """Build and start the containers, and return when they are healthy; raises DiosError."""
    file = _run("up", "--detach", "--build")
    if as_json:
        write_json({"compose": str(file), "up": True})
        return
    facts([("cluster", "as containers"), ("file", str(file))])
    say(f"next, in {file.parent}: docker compose exec n1 dios node ls; at the end: dios down --compose")


def down(*, keep: bool, as_json: bool) -> None:
    """Stop and remove the containers, and their volumes unless they are kept; raises DiosError."""
    file = _run("down", *([] if keep else ["--volumes"]))
    if as_json:
        write_json({"compose": str(file), "up": False, "removed": not keep})
        return
    facts([("cluster", "stopped"), ("file", str(file)), ("volumes", "kept" if keep else "deleted")])
