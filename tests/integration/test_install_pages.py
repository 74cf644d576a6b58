"""The pages on installing and upgrading, typed as they stand, with an index that also has a stranger's dios.

The index is a folder: our wheel in several versions, the wheels of the packages that are installed here, and
a library that is called dios there and has a higher version than ours.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import re
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from dios.installation import DISTRIBUTION
from dios.node.bringup import wheel
from tests.support.node.command_user import Person
from tests.support.node.wheels import (
    renamed_version,
    requirements_of,
    small_wheel,
    wheel_of_installed,
    write_index,
)

pytestmark = pytest.mark.long

DOCS = Path(__file__).resolve().parents[2] / "docs"
PROGRAM = """import dios

def shout(word):
    return word.upper()

if __name__ == "__main__":
    with dios.Executor() as executor:
        print(*executor.map(shout, ["one", "fish"]))
"""
ELSEWHERE = "# on another node"
STRANGER = ("dios", "0.6.0")


def commands(page: str, heading: str) -> list[str]:
    """Return the lines of the first code block below a heading of a page."""
    section = (DOCS / page).read_text().partition(f"\n## {heading}\n")[2]
    block = re.search(r"^```\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)
    assert block is not None, f"{page} has no commands below {heading!r}"
    return block.group(1).splitlines()


class Reader:
    """Somebody with a new home who types what the pages say."""

    def __init__(self, folder: Path) -> None:
        self.index = folder / "index"
        self.person = Person(folder / "home")
        self.data = folder / "home" / "node"
        base = Path(sys.base_prefix, "bin", f"python3.{sys.version_info.minor}")
        python = self.person.writes("python/python3", f'#!/bin/sh\nexec {base} "$@"\n')
        python.chmod(0o755)
        self.person.environment |= {
            "PATH": f"{self.person.home}/.local/bin:{python.parent}:/usr/bin:/bin",
            "PIP_CONFIG_FILE": "/dev/null",
            "PIP_INDEX_URL": f"{self.index.as_uri()}/simple",
            "PIP_NO_CACHE_DIR": "1",
            "PIP_NO_COMPILE": "0",  # as pip reads it: do not compile
        }
        self.person.writes("program.py", PROGRAM)
        self._own = wheel.of_running_version()
        self.version = importlib.metadata.version(DISTRIBUTION)

    @property
    def environment(self) -> Path:
        """The place that tutorial.md names."""
        return self.person.home / ".local/share/dios/env"

    def fills_index(self) -> None:
        """Put this version, all that it may need, and the stranger's library into the index."""
        wheels = self.index / "wheels"
        for name in sorted(requirements_of([DISTRIBUTION, "numpy", "numba", "zstandard"]) - {DISTRIBUTION}):
            wheel_of_installed(wheels, name)
        small_wheel(wheels, *STRANGER, files={"dios/__init__.py": "raise ImportError('a stranger')\n"})
        (wheels / self._own.name).write_bytes(self._own.data)
        write_index(self.index)

    def sees_a_release(self) -> None:
        """Put the next version of this package into the index."""
        *first, last = self.version.split(".")
        self.version = ".".join([*first, str(int(last) + 1)])
        renamed_version(self.index / "wheels", self._own.data, self.version)
        write_index(self.index)

    def types(self, line: str, *statuses: int) -> str:
        """Return what a line prints; it ends with 0, or with one of these statuses."""
        done = self.person.pastes(line)
        assert done.returncode in {0, *statuses}, f"{line}: {done.returncode}\n{done.stdout}{done.stderr}"
        return done.stdout

    def follows(self, page: str, heading: str, places: dict[str, str] | None = None) -> None:
        """Type the commands of a page, with other directories for those that it names."""
        for line in commands(page, heading):
            if ELSEWHERE in line:
                continue
            for place, mine in (places or {}).items():
                line = re.sub(rf"{place}(?![\w-])", mine, line)  # noqa: PLW2901 - the same line
            # The doctor ends with 1 where something could be better; the machine decides that.
            self.types(line, *([1] if line.startswith("dios doctor") else []))

    def sees_dios_work(self) -> None:
        """Try the commands and a program."""
        assert self.types("dios --version") == f"dios {self.version}\n"
        assert self.types(f"{self.environment}/bin/python program.py") == "ONE FISH\n"
        listed = json.loads(self.types(f"{self.environment}/bin/pip list --format json"))
        versions = {row["name"]: row["version"] for row in listed}
        assert versions[DISTRIBUTION] == self.version
        assert "dios" not in versions


@pytest.fixture(scope="module")
def reader() -> Iterator[Reader]:
    """A reader who has followed tutorial.md, and has a running node."""
    if importlib.util.find_spec("ensurepip") is None:
        pytest.skip("this Python cannot make environments: ensurepip is not installed")
    # Not in pytest's folders, which stay: it has hundreds of megabytes.
    with tempfile.TemporaryDirectory(prefix="dios-pages-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        (folder / "home").mkdir()
        someone = Reader(folder)
        try:
            someone.fills_index()
        except importlib.metadata.PackageNotFoundError as error:
            pytest.skip(f"{error.name} is not installed here, so the index cannot have it: make setup")
        someone.follows("tutorial.md", "Install")
        someone.types(f"dios-node start --data {someone.data} --detach")
        try:
            yield someone
        finally:
            someone.person.pastes(f"dios-node stop --data {someone.data}")


def running_version(reader: Reader) -> object:
    """Return the version that the reader's node says it is."""
    return json.loads(reader.types(f"dios-node status --data {reader.data} --json"))["version"]


def test_the_installed_package_is_ours_and_works(reader: Reader) -> None:
    """Commands, a node and a first program work after the commands of tutorial.md."""
    reader.sees_dios_work()
    assert running_version(reader) == reader.version


def test_the_command_in_a_message_installs_the_extra(reader: Reader) -> None:
    """The command that is given for a missing extra adds its package to this environment."""
    python = f"{reader.environment}/bin/python"
    reader.types(f"! {python} -c 'import zstandard' 2> /dev/null")
    command = reader.types(
        f"{python} -c 'from dios.installation import extra_command; print(extra_command(\"zstd\"))'"
    )
    reader.types(command)
    reader.types(f"{python} -c 'import zstandard'")


@pytest.mark.parametrize(
    ("page", "heading"), [("tutorial.md", "Upgrade"), ("recovery.md", "Upgrade one machine")]
)
def test_an_upgrade_brings_the_next_version_of_ours(reader: Reader, page: str, heading: str) -> None:
    """The commands of the page install the next release, and the running node becomes it."""
    places = {
        "/opt/dios": str(reader.environment),
        "/var/lib/dios": str(reader.data),
        "DIR": str(reader.data),
    }
    reader.sees_a_release()
    reader.follows(page, heading, places)
    reader.sees_dios_work()
    assert running_version(reader) == reader.version


def test_nothing_is_left_after_the_uninstallation(reader: Reader) -> None:
    """The commands of tutorial.md stop the node, and remove it, the environment and the commands."""
    reader.follows("tutorial.md", "Uninstall", {"DIR": str(reader.data)})
    assert not reader.data.exists()
    assert not reader.environment.exists()
    assert list((reader.person.home / ".local/bin").iterdir()) == []
