"""How the programs end when their output is full or closed, and at Ctrl-C while they still import."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest

from dios.cli.common.output import counted
from dios.cli.common.streams import INTERRUPTED

CLI = Path(__file__).parents[4] / "dios" / "cli"
COMMANDS = [
    ["dios", "--help"],
    ["dios", "--version"],
    ["dios", "ls", "--help"],
    ["dios", "config"],
    ["dios", "schema", "ls"],
    ["dios_node", "--help"],
    ["dios_node", "status"],
]


def started(words: list[str], before: str = "", **streams: object) -> subprocess.CompletedProcess[str]:
    """Run a program as its entry point does; ``before`` is code that runs first."""
    program, *arguments = words
    code = f"{before}\nfrom dios.cli.program import {program} as main\nmain()"
    done: subprocess.CompletedProcess[str] = subprocess.run(  # type: ignore[call-overload] # streams by name
        [sys.executable, "-c", code, *arguments], stderr=subprocess.PIPE, text=True, check=False, **streams
    )
    return done


@pytest.fixture(autouse=True)
def _nobodys_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HOME", "XDG_RUNTIME_DIR", "XDG_STATE_HOME", "XDG_CONFIG_HOME"):
        monkeypatch.setenv(name, str(tmp_path / "home"))


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_a_full_device_is_told_in_one_line(words: list[str]) -> None:
    """Output that cannot be written is a failure with its reason, and no traceback or message at exit."""
    with Path("/dev/full").open("w") as full:
        done = started(words, stdout=full)
    lines = [line for line in done.stderr.splitlines() if not line.startswith("next: ")]
    assert len(lines) == 1, done.stderr
    assert lines[0].endswith("standard output: No space left on device")
    assert done.returncode in {1, 3}


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_a_closed_pipe_ends_quietly(words: list[str]) -> None:
    """A reader that has enough is no error that anybody must read about."""
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "wb") as pipe:
        done = started(words, stdout=pipe)
    assert [line for line in done.stderr.splitlines() if not line.startswith("next: ")] == []
    assert done.returncode in {1, 3}


@pytest.mark.parametrize("module", ["typer", "dios.cli.main", "dios.cli.objects.files", "msgspec"])
def test_ctrl_c_during_imports_is_one_line(module: str) -> None:
    """Ctrl-C while a program still loads ends it with one line and the status of an interrupt."""
    before = (
        "import sys\n"
        "class Interrupting:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        f"        if name == {module!r}: raise KeyboardInterrupt\n"
        "sys.meta_path.insert(0, Interrupting())"
    )
    done = started(["dios", "ls"], before, stdout=subprocess.PIPE)
    assert re.fullmatch(r"dios( ls)?: interrupted\n", done.stderr), done.stderr
    assert done.returncode == INTERRUPTED


@pytest.mark.parametrize(
    ("number", "text"), [(0, "0 files"), (1, "1 file"), (2, "2 files"), (1500, "1,500 files")]
)
def test_one_thing_is_no_plural(number: int, text: str) -> None:
    """A number and its noun agree."""
    assert counted(number, "file") == text
    assert counted(1, "vertex", "vertices") == "1 vertex"
    assert counted(2, "vertex", "vertices") == "2 vertices"


COUNTS = re.compile(r"(^|\.)(files|replicas|tasks|snapshots|packs|chunks|removed|count)$|^len\(")
THINGS = re.compile(r" ([a-z]+ )?(files|shares|replicas|tasks|objects|parts|packs|rows|groups)\b")
SEVERAL = re.compile(r"(matches|fits|stored in|these files have) $")


def test_every_number_of_things_is_formatted_in_one_place() -> None:
    """No command writes a plural after a number that may be one; ``counted`` does."""
    plurals: list[str] = []
    for path in sorted(CLI.rglob("*.py")):
        for text in ast.walk(ast.parse(path.read_text())):
            if not isinstance(text, ast.JoinedStr):
                continue
            parts = text.values
            for at, (number, noun) in enumerate(pairwise(parts)):
                before = parts[at - 1] if at else None
                words = before.value if isinstance(before, ast.Constant) else ""
                if (
                    isinstance(number, ast.FormattedValue)
                    and isinstance(noun, ast.Constant)
                    and COUNTS.search(ast.unparse(number.value))
                    and re.match(
                        r" ([a-z]+ )?(files|shares|replicas|tasks|objects|parts|packs|rows|groups)\b",
                        str(noun.value),
                    )
                    and not SEVERAL.search(str(words))
                ):
                    plurals.append(f"{path.relative_to(CLI)}:{text.lineno}: {ast.unparse(text)}")
    assert not plurals
