"""Somebody with a home directory of their own who types commands: for tests of the whole."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from jsonschema import Draft202012Validator

from dios.cli.schema import outputs, schema_of
from tests.support.node.command_server import run_command

DEADLINE_SECONDS = 200


@cache
def _validator(command: str) -> Draft202012Validator:
    return Draft202012Validator(schema_of(command))


def require_schema(line: str, output: str) -> None:
    """Check the output of a command with --json against its schema, if it has one."""
    words = [word for word in line.split() if not word.startswith("-")][1:3]
    command = next((name for name in (" ".join(words), *words[:1]) if name in outputs()), None)
    if command is not None:
        for document in documents(output):
            _validator(command).validate(document)


def documents(output: str) -> Iterator[object]:
    """The JSON documents of an output, of which most commands print one."""
    decoder, rest = json.JSONDecoder(), output.lstrip()
    while rest:
        document, end = decoder.raw_decode(rest)
        yield document
        rest = rest[end:].lstrip()


class Person:
    """Somebody with a home directory and a node."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.environment = {
            "HOME": str(home),
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "XDG_RUNTIME_DIR": str(home / "run"),
            "COLUMNS": "120",
            # A machine that cannot confine tasks fully can still run these tests.
            "DIOS_ACCEPT_WEAKER_SANDBOX": "yes",
            # A scheduler's process beside each node costs seconds; tests of it ask for it.
            "DIOS_COORDINATOR": "off",
        }
        if "PYTHONPATH" in os.environ:
            # The tests of another tree than the installed one test that tree.
            self.environment["PYTHONPATH"] = os.environ["PYTHONPATH"]
        (home / "run").mkdir(mode=0o700)

    def command(self, line: str, *arguments: str) -> list[str]:
        """The process for a typed line; ``arguments`` are added whole."""
        program, *words = line.split()
        module = {"dios": "dios.cli.main", "dios-node": "dios.cli.nodes.daemon"}[program]
        return [sys.executable, "-m", module, *words, *arguments]

    def tries(self, line: str, *arguments: str, typed: str = "") -> subprocess.CompletedProcess[str]:
        """Run a line to its end, whatever its exit status."""
        _, _, module, *words = self.command(line, *arguments)
        return run_command(module, words, self.home, self.environment, typed, DEADLINE_SECONDS)

    def types(
        self, line: str, *arguments: str, status: int = 0, typed: str = ""
    ) -> subprocess.CompletedProcess[str]:
        """Run a line to its end; its exit status must be ``status``."""
        done = self.tries(line, *arguments, typed=typed)
        assert done.returncode == status, f"{line}: {done.returncode}\n{done.stdout}\n{done.stderr}"
        if not status and "--json" in line.split() and line.startswith("dios "):
            require_schema(line, done.stdout)
        return done

    def pastes(self, script: str) -> subprocess.CompletedProcess[str]:
        """Give lines to a shell that ends at the first failure."""
        return subprocess.run(
            ["bash", "-eu", "-c", script],
            cwd=self.home,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=DEADLINE_SECONDS,
            check=False,
        )

    def starts(self, line: str, *arguments: str, stdin: int | None = None) -> subprocess.Popen[str]:
        """Begin a line and let it run."""
        return subprocess.Popen(
            self.command(line, *arguments),
            cwd=self.home,
            env=self.environment,
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def writes(self, name: str, text: str) -> Path:
        """A file in the home directory."""
        path = self.home / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path
