"""A cluster as containers: runs the project's compose file with Docker Compose.

docs/deploy.md#docker-compose describes the file.
"""

from __future__ import annotations

import shutil
import subprocess
import time
from pathlib import Path
from typing import Final

from dios.cli.common.output import progress
from dios.cli.common.results import OutputOptions
from dios.cli.common.rows import Row
from dios.errors import DiosError, InvalidError

FILE: Final = Path("cluster", "compose.yaml")
_ASK_SECONDS: Final = 30
_HEALTHY_SECONDS: Final = 300.0
_HEALTH: Final = (
    '{{index .Config.Labels "com.docker.compose.service"}} '
    "{{if .State.Health}}{{.State.Health.Status}}{{else}}healthy{{end}}"
)
"""The service of a container and its health, which is "healthy" where nothing checks it."""


def _file() -> Path:
    """Return the compose file: below the working directory, else in this program's source tree."""
    for base in (Path.cwd(), Path(__file__).resolve().parents[3]):
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


def _run(command: list[str], file: Path, *words: str) -> None:
    """Run a command of Compose on its file. Raise DiosError if it fails."""
    # Its progress goes to standard error, because standard output is for this command's result. Version 1
    # looks for files named in the compose file in the working directory.
    ended = subprocess.run([*command, "-f", file.name, *words], stdout=2, cwd=file.parent, check=False)
    if ended.returncode:
        line = " ".join([Path(command[0]).name, *command[1:], "-f", str(file), *words])
        raise DiosError(f"`{line}` failed with status {ended.returncode}; see its output above")


def _unhealthy(command: list[str], file: Path) -> dict[str, str]:
    """Return the health of each service that is not healthy. Raise DiosError without an answer."""
    listed = [*command, "-f", file.name, "ps", "--quiet"]
    try:
        containers = subprocess.check_output(listed, cwd=file.parent, text=True, timeout=_ASK_SECONDS).split()
        if not containers:
            return {}
        inspect = ["docker", "inspect", "--format", _HEALTH, *containers]
        states = subprocess.check_output(inspect, text=True, timeout=_ASK_SECONDS).splitlines()
    except (subprocess.SubprocessError, OSError) as error:
        raise DiosError(f"the containers were started; their health is unknown: {error}") from error
    health = dict(state.split(" ", 1) for state in states)
    return {service: state for service, state in sorted(health.items()) if state != "healthy"}


def _wait_until_healthy(command: list[str], file: Path) -> None:
    """Return when all containers are healthy. Raise DiosError with the others after a bounded time."""
    deadline = time.monotonic() + _HEALTHY_SECONDS
    with progress("waiting until the containers are healthy") as report:
        while unhealthy := _unhealthy(command, file):
            text = ", ".join(f"{service} is {state}" for service, state in unhealthy.items())
            report(text)
            if time.monotonic() > deadline:
                raise DiosError(
                    f"the containers run, but after {_HEALTHY_SECONDS:g} s {text}. "
                    f"Read why, in {file.parent}: {' '.join(command)} logs {' '.join(unhealthy)}"
                )
            time.sleep(0.5)


class ComposeUpRow(Row):
    """The compose file whose containers run, or do not."""

    compose: str
    up: bool


class ComposeDownRow(ComposeUpRow):
    """A compose file, and True if the volumes of its containers were removed."""

    removed: bool


def up(output: OutputOptions) -> None:
    """Build and start the containers, and return when they are healthy. Raise DiosError."""
    command, file = _engine(), _file()
    _run(command, file, "up", "--detach", "--build")
    _wait_until_healthy(command, file)
    output.print_row(
        ComposeUpRow(str(file), up=True),
        f"next, in {file.parent}: docker compose exec n1 dios node ls; at the end: dios down --compose",
        facts={"cluster": "as containers", "file": str(file)},
    )


def down(output: OutputOptions, *, delete: bool) -> None:
    """Stop and remove the containers, and their volumes with all data if ``delete``. Raise DiosError."""
    file = _file()
    _run(_engine(), file, "down", *(["--volumes"] if delete else []))
    kept = "next: `dios up --compose` continues with these data; `dios down --compose --delete` deletes them"
    output.print_row(
        ComposeDownRow(str(file), up=False, removed=delete),
        *(() if delete else (kept,)),
        facts={"cluster": "stopped", "file": str(file), "volumes": "deleted" if delete else "kept"},
    )
