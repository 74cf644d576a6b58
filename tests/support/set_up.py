"""Make a virtual environment and install into it, with progress; the Makefile calls it for each environment.

``python set_up.py FOLDER ARGUMENT...`` needs the standard library alone; the arguments are those of
``pip install``. On a terminal one line is rewritten. Elsewhere a line is printed at the start and the end of
each stage, and every two seconds in between. The next call continues after an interruption: it makes an
environment without a working pip again, and installs again the packages that are installed by half.
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
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Final

_REPORT_S: Final = 2.0
_REDRAW_S: Final = 0.2
_END_S: Final = 5.0
_WIDTH: Final = 78
_STOPPED: Final = 128 + signal.SIGINT

_NAMED: Final = re.compile(r"(?:Collecting|Requirement already satisfied:|Processing) ([^\s<>=!~;\[(]+)")
"""The package that pip looks at."""
_INSTALLS: Final = re.compile(r"Installing collected packages: (.+)")
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


def install(folder: Path, arguments: Iterable[str]) -> None:
    """Install what ``arguments`` of pip name into an environment."""
    python = folder / "bin" / "python"
    packages = next(folder.glob("lib/python*/site-packages"))
    remove_half_installed(packages)
    wanted = list(arguments)
    if "--group" in wanted:
        with Stage(f"upgrading pip in {folder}"):
            run([str(python), "-m", "pip", "install", "--upgrade", "pip>=25.1"])
    progress = Installation(packages)
    words = ", ".join(argument for argument in wanted if not argument.startswith("--"))
    with Stage(f"installing {words.replace('.', 'DIOS', 1)} into {folder}", progress.words):
        run([str(python), "-m", "pip", "install", "--progress-bar", "off", *wanted], progress.read)


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
    options, arguments = parser.parse_known_args()
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.default_int_handler)
    try:
        make_environment(options.folder)
        install(options.folder, arguments)
    except KeyboardInterrupt:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # a second Ctrl-C prints no traceback
        _print("stopped; the next `make` continues\n")
        sys.exit(_STOPPED)


if __name__ == "__main__":
    main()
