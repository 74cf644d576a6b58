"""Make a virtual environment and install into it, with progress; the Makefile calls it for each environment.

``python set_up.py FOLDER [--lock FILE] ARGUMENT...`` needs the standard library alone; the arguments are
those of ``pip install``. With a lock every package has the version and one of the hashes in it, and is a
wheel, so that no code of a package runs before its hash was checked.

On a terminal one line is rewritten. Elsewhere a line is printed at the start and the end of each stage, and
every two seconds in between. The next call continues after an interruption: it makes an environment without a
working pip again, and installs again the packages that are installed by half.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
import tomllib
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Final

_REPORT_S: Final = 2.0
_REDRAW_S: Final = 0.2
_END_S: Final = 5.0
_WIDTH: Final = 78
_STOPPED: Final = 128 + signal.SIGINT

_NAMED: Final = re.compile(r"(?:Collecting|Requirement already satisfied:|Processing) ([^\s<>=!~;\[(]+)")
"""The package that pip looks at."""
_INSTALLS: Final = re.compile(r"Installing collected packages: (.+)")
_PIP: Final = re.compile(r"^pip==(?:.*\\\n)*.*\n", re.MULTILINE)
"""The lines of a lock about pip itself."""
_TO_SHOW: Final = re.compile(r"WARNING|ERROR|DEPRECATION")
_NO_SUCH_PLACE: Final = re.compile(r"WARNING: Location '.*' is ignored: it is neither a file nor a directory")
"""One of several places of a user's configuration has no such package; pip fails if none has it."""


class Stage:
    """The progress of one stage: its name, and words that change.

    Args:
        name: the words at the start of each line.
        words: returns the words that change, or "".
    """

    def __init__(self, name: str, words: Callable[[], str] = str) -> None:
        self._name = name
        self._words = words
        self._terminal = sys.stdout.isatty()
        self._ended = threading.Event()
        self._began = time.monotonic()
        self._reporter = threading.Thread(target=self._report, daemon=True)

    def __enter__(self) -> None:
        self._show("")
        self._reporter.start()

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._ended.set()
        self._reporter.join()
        if kind is None:
            self._show(f"done in {time.monotonic() - self._began:.0f} s", end="\n")
        elif self._terminal:
            _print("\n")

    def _report(self) -> None:
        while not self._ended.wait(_REDRAW_S if self._terminal else _REPORT_S):
            seconds = f"{time.monotonic() - self._began:.0f} s"
            self._show(", ".join(filter(None, (self._words(), seconds))))

    def _show(self, words: str, end: str = "") -> None:
        text = f"{self._name}: {words}" if words else self._name
        _print(f"\r{text[:_WIDTH]:<{_WIDTH}}{end}" if self._terminal else f"{text}\n")


class Installation:
    """The progress of pip, read from its output and from the folder into which it installs."""

    def __init__(self, packages: Path) -> None:
        self._packages = packages
        self._names: set[str] = set()
        self._last = ""
        self._before = self._installed()
        self._wanted = 0

    def read(self, line: str) -> None:
        """Learn from one line of pip's output."""
        if match := _INSTALLS.match(line):
            self._wanted = match[1].count(",") + 1
        elif match := _NAMED.match(line):
            self._last = Path(match[1]).name.split("-")[0]
            self._names.add(self._last.lower())

    def words(self) -> str:
        """Return the number of packages that pip has looked at, or the number of those that are installed."""
        if self._wanted:
            installed = min(self._installed() - self._before, self._wanted)
            return f"{installed} of {self._wanted} packages installed"
        return f"{len(self._names)} packages collected ({self._last})" if self._names else ""

    def _installed(self) -> int:
        return sum(1 for _ in self._packages.glob("*.dist-info/INSTALLER"))


def run(command: list[str], read: Callable[[str], None] = lambda _line: None) -> None:
    """Run a command to its end; show its warnings, and all of its output if it fails.

    The command has a session of its own, so that Ctrl-C reaches this process alone, which ends the command.

    Args:
        command: the program and its arguments.
        read: called with each line of output.

    Raises:
        SystemExit: the command failed.
    """
    lines: list[str] = []
    with subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    ) as process:
        assert process.stdout is not None
        try:
            for line in process.stdout:
                lines.append(line)
                read(line)
            status = process.wait()
        except BaseException:
            _end(process)
            raise
    if status:
        _print("\n", "".join(lines), to=sys.stderr.fileno())
        raise SystemExit(f"{' '.join(command)} ended with status {status}")
    shown = [line for line in lines if _TO_SHOW.match(line) and not _NO_SUCH_PLACE.match(line)]
    if shown:
        _print("\n", *shown)


def make_environment(folder: Path) -> None:
    """Make a virtual environment for this interpreter, unless one whose pip works is there."""
    python = folder / "bin" / "python"
    if python.exists():
        checked = subprocess.run([python, "-m", "pip", "--version"], capture_output=True, check=False)
        if checked.returncode == 0:
            return
    with Stage(f"making {folder} with {sys.executable}"):
        run([sys.executable, "-m", "venv", "--clear", str(folder)])


def install(folder: Path, arguments: Sequence[str], lock: Path | None) -> None:
    """Install what ``arguments`` of pip name into an environment, with the versions of ``lock``."""
    remove_half_installed(_packages(folder))
    if lock is not None:
        _install_locked(folder, arguments, lock)
        return
    if "--group" in arguments:
        with Stage(f"upgrading pip in {folder}"):
            run([*_pip(folder), "--upgrade", "pip>=25.1"])
    _install(folder, _names(arguments), arguments)


def _install_locked(folder: Path, arguments: Sequence[str], lock: Path) -> None:
    """Install with a lock; a project that stays a folder has no hash, so it is installed before the rest.

    Earlier versions of pip take no hashes from constraints, so pip is replaced first.
    """
    with Stage(f"upgrading pip in {folder}"), NamedTemporaryFile("w") as own_lines:
        own_lines.writelines(_PIP.findall(lock.read_text()))
        own_lines.flush()
        run([*_pip(folder), "--require-hashes", "--requirement", own_lines.name])
    checked = ["--require-hashes", "--only-binary=:all:", "--constraint", str(lock)]
    places = [place for option, place in pairwise(arguments) if option == "--editable"]
    others = [word for word in arguments if word != "--editable" and word not in places]
    if places:
        _install(folder, "the tools that build DIOS", [*checked, "--group", "build"])
        folders = [word for place in places for word in ("--editable", place.partition("[")[0])]
        _install(folder, _names(arguments), ["--no-index", "--no-deps", "--no-build-isolation", *folders])
    projects = [_name(place) for place in places]
    _install(folder, _names(["its packages", *others]), [*checked, *projects, *others])


def _install(folder: Path, words: str, arguments: Iterable[str]) -> None:
    progress = Installation(_packages(folder))
    with Stage(f"installing {words} into {folder}", progress.words):
        run([*_pip(folder), "--progress-bar", "off", *arguments], progress.read)


def _names(arguments: Iterable[str]) -> str:
    words = ", ".join(argument for argument in arguments if not argument.startswith("--"))
    return words.replace(".", "DIOS", 1)


def _name(place: str) -> str:
    """Return the name, with extras, of the project in a folder such as ``.[data]``."""
    folder, bracket, extras = place.partition("[")
    project = tomllib.loads((Path(folder) / "pyproject.toml").read_text())["project"]
    return f"{project['name']}{bracket}{extras}"


def _pip(folder: Path) -> list[str]:
    return [str(folder / "bin" / "python"), "-m", "pip", "install"]


def _packages(folder: Path) -> Path:
    """Return the folder of an environment's packages."""
    return next(folder.glob("lib/python*/site-packages"))


def remove_half_installed(packages: Path) -> None:
    """Forget the packages whose installation was interrupted, so that pip installs them again.

    Pip writes the file INSTALLER last but one.
    """
    for described in packages.glob("*.dist-info"):
        if not (described / "INSTALLER").exists():
            shutil.rmtree(described)


def _end(process: subprocess.Popen[str]) -> None:
    """End a command with its children."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with suppress(subprocess.TimeoutExpired):
            process.wait(_END_S)
            return


def _print(*parts: str, to: int | None = None) -> None:
    """Write to standard output at once, also when it is a pipe; a reader that has gone is no error."""
    with suppress(BrokenPipeError):
        os.write(sys.stdout.fileno() if to is None else to, "".join(parts).encode())


def main() -> None:
    """Make the environment, then install into it."""
    parser = argparse.ArgumentParser(description="Make a virtual environment and install into it.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--lock", type=Path)
    options, arguments = parser.parse_known_args()
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.default_int_handler)
    try:
        make_environment(options.folder)
        install(options.folder, arguments, options.lock)
    except KeyboardInterrupt:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # a second Ctrl-C prints no traceback
        _print("stopped; the next `make` continues\n")
        sys.exit(_STOPPED)


if __name__ == "__main__":
    main()
