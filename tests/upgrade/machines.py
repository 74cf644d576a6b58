"""Nodes with a package of their own each, built from a commit or from the working tree."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
CLIENT: Final = Path(__file__).with_name("client.py")
NEXT: Final = "+next"
ENVIRONMENT: Final = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
"""The working tree must not stand in for an installed package."""

SETTINGS: Final = {"accept_weaker_sandbox": "yes", "pool_size": "1", "coordinator": "off"}
MAKE: Final = """
import json, sys
from pathlib import Path
from dios.node import local_cluster
settings = json.loads(sys.argv[2])
for node in local_cluster.make(Path(sys.argv[1]), nodes=3, settings=settings).nodes:
    print(node.name, node.data, node.socket, flush=True)
"""


def say(text: str) -> None:
    """Print one line at once."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def build(folder: Path, commit: str | None) -> Path:
    """Build the wheel of a commit; without one that of the working tree, with another version."""
    source = folder / "source"
    source.mkdir(parents=True)
    if commit is None:
        listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True).stdout
        for name in filter(None, listed.decode().split("\0")):
            if (ROOT / name).is_file():
                (source / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, source / name)
        settings = source / "pyproject.toml"
        named = re.compile(r'^(version = "[^"]+)"', re.MULTILINE)
        settings.write_text(named.sub(rf'\1{NEXT}"', settings.read_text()))
    else:
        archive = subprocess.run(["git", "archive", commit], cwd=ROOT, capture_output=True, check=True).stdout
        subprocess.run(["tar", "-x"], cwd=source, input=archive, check=True)
    command = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", str(folder), str(source)]
    subprocess.run(command, check=True)
    return next(folder.glob("*.whl"))


class Machine:
    """One node with an environment of its own."""

    def __init__(self, folder: Path, wheel: Path) -> None:
        venv.create(folder, with_pip=False)
        self.python: Final = folder / "bin" / "python"
        self.site: Final = next(folder.glob("lib/python*/site-packages"))
        # The dependencies are those of this environment; only DIOS itself is the machine's own.
        (self.site / "shared.pth").write_text(sysconfig.get_path("purelib") + "\n")
        self.install(wheel)
        self.name = self.data = self.socket = ""
        self.client: subprocess.Popen[str] | None = None

    def install(self, wheel: Path) -> None:
        """Replace the installed package."""
        for old in (*self.site.glob("dios"), *self.site.glob("dios[-_]*.dist-info")):
            shutil.rmtree(old)
        with zipfile.ZipFile(wheel) as packed:
            packed.extractall(self.site)

    def command(self, *words: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Run ``dios-node`` of the installed package."""
        line = [str(self.python), "-P", "-m", "dios.cli.nodes.daemon", *words, "--data", self.data]
        done = subprocess.run(line, capture_output=True, text=True, check=False, env=ENVIRONMENT)
        if check and done.returncode:
            raise RuntimeError(f"dios-node {words[0]} failed: {done.stdout}{done.stderr}")
        return done

    def connect(self) -> None:
        """Start a client with the installed package."""
        line = [str(self.python), "-P", str(CLIENT), self.socket]
        self.client = subprocess.Popen(
            line, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=ENVIRONMENT
        )

    def ask(self, name: str, *values: str) -> object:
        """Let the client carry out a command."""
        assert self.client is not None
        assert self.client.stdin is not None
        assert self.client.stdout is not None
        self.client.stdin.write(json.dumps([name, *values]) + "\n")
        self.client.stdin.flush()
        line = self.client.stdout.readline()
        if not line:
            raise RuntimeError(f"the client of {self.name} ended during {name}")
        return json.loads(line)

    def disconnect(self) -> None:
        """End the client."""
        if self.client is not None and self.client.stdin is not None:
            self.client.stdin.close()
            self.client.wait(30)


@contextmanager
def cluster(folder: Path, wheel: Path, settings: Mapping[str, str] = SETTINGS) -> Iterator[list[Machine]]:
    """Start three nodes with this package and these settings, and stop them at the end."""
    machines = [Machine(folder / f"m{number}", wheel) for number in range(3)]
    listing = subprocess.run(
        [str(machines[0].python), "-P", "-c", MAKE, str(folder / "cluster"), json.dumps(dict(settings))],
        capture_output=True,
        text=True,
        check=True,
        env=ENVIRONMENT,
    )
    for machine, line in zip(machines, listing.stdout.splitlines(), strict=True):
        machine.name, machine.data, machine.socket = line.split()
    try:
        for machine in machines:
            machine.command("start", "--detach")
        for machine in machines:
            machine.connect()
        yield machines
    finally:
        for machine in machines:
            machine.disconnect()
            machine.command("stop", check=False)


def expect(actual: object, wanted: object, subject: str) -> None:
    """Raise RuntimeError if two values differ."""
    if actual != wanted:
        raise RuntimeError(f"{subject}: {actual!r} instead of {wanted!r}")
