"""``make test-pythons``: the short suite on other versions of Python than that of the environment.

An interpreter of this machine is used first; otherwise a suite of Debian that has the version is unpacked
into a folder, which becomes the root of the tests. Everything is kept in ``.pythons``. Exit status 0 when
all that ran passed, 1 when something failed, 3 when no version could be run.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Final, NamedTuple, NoReturn, TypeAlias
from xml.etree import ElementTree as ET

from tests.support.lab import private_root
from tests.support.lab.private_root import Plan

ROOT: Final = Path(__file__).resolve().parents[2]
KEPT: Final = ROOT / ".pythons"
VERSIONS: Final = ("3.12", "3.13", "3.14")
UNITS: Final = ("bridges", "cli", "client", "core", "host", "lib", "node", "store", "transport", "wire")
PROCESSES: Final = (
    *("cli", "client", "client_threads", "demo", "doctor", "executor", "mapreduce", "node", "private_node"),
    *(
        "pure_libraries",
        "sandbox_forks",
        "sandboxes",
        "sandboxes_async",
        "templates",
        "three_nodes",
        "zygote",
    ),
)
SHORT: Final = (
    *(f"tests/unit/{name}" for name in UNITS),
    "tests/contract",
    "tests/security",
    *(f"tests/integration/test_{name}.py" for name in PROCESSES),
)
"""What depends on the interpreter: processes, threads, pickles, the sandbox. Not the numeric packages."""
NOTHING_RAN: Final = 3
SUITES: Final = {
    "3.11": ("bookworm", "Debian 12"),
    "3.13": ("trixie", "Debian 13"),
    "3.14": ("testing", "Debian testing"),
    "3.15": ("sid", "Debian sid"),
}
"""Suites of Debian that have a version, by the names that ``debootstrap`` has scripts for."""
PACKAGES: Final = ("ca-certificates", "gcc", "git", "iproute2", "libc6-dev", "nftables", "procps")
ENVIRONMENT: Final = "/opt/venv"
"""The environment's folder below a root of Debian."""
CARRIED: Final = ("HOME", "LANG", "LC_ALL", "TERM")
CONFIGURATION: Final = ("/etc/hosts", "/etc/resolv.conf", "/etc/pip.conf", "/etc/xdg/pip")
"""Files of this machine that a root of Debian has too, where they exist."""
DESCRIBE: Final = """
import ensurepip, json, sys, venv
print(json.dumps([sys.version.split()[0], sys.executable, sys.base_prefix]))
"""


Figures: TypeAlias = dict[str, float]


class NotHereError(Exception):
    """A version cannot be run on this machine."""


class Interpreter(NamedTuple):
    """An interpreter of this machine."""

    version: str
    program: str
    prefix: str


@dataclass(frozen=True, slots=True)
class Outcome:
    """A row of the summary."""

    version: str
    interpreter: str
    text: str
    failed: tuple[str, ...] = ()
    has_run: bool = True


class Place:
    """An interpreter with an environment for the tests, in the machine's root or in one of Debian."""

    def __init__(self, program: str, source: str, folder: Path, *, root: str = "", prefix: str = "") -> None:
        self._source: Final = source
        self._folder: Final = folder
        self._program: Final = program
        self._root: Final = root
        self._environment: Final = Path(root + ENVIRONMENT) if root else folder / "venv"
        self._python: Final = f"{ENVIRONMENT if root else self._environment}/bin/python"
        self._shared: Final = [str(ROOT), *(_configuration() if root else [prefix])]
        self._closed: Final = [] if root else _closed_above(prefix)

    @property
    def title(self) -> str:
        """The exact version, where there is an environment, and the source of the interpreter."""
        settings = self._environment / "pyvenv.cfg"
        lines = settings.read_text().splitlines() if settings.exists() else []
        exact = [line.partition("=")[2].strip() for line in lines if line.startswith("version ")]
        return f"Python {next(iter(exact), self._folder.name)} of {self._source}"

    def run(self, *command: str) -> int:
        """Run a command there, in the repository; return its exit status."""
        environment = {name: value for name, value in os.environ.items() if self._is_carried(name)}
        if self._root:
            environment |= {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
        if os.geteuid() != 0:
            process = subprocess.Popen(command, cwd=ROOT, env=environment)
        else:
            plan = Plan(list(command), str(ROOT), environment, self._root, self._shared, self._closed)
            process = private_root.started(plan)
        try:
            return process.wait()
        except BaseException:
            # After Ctrl-C the command has it too: it gets time to report and to end what it started.
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.terminate()
                process.wait()
            raise

    def prepare(self) -> None:
        """Install DIOS with what development needs, unless that is done; raise NotHereError."""
        stamp = self._environment / ".set-up"
        wanted = f"{self._program} {_requirements()}"
        if stamp.exists() and stamp.read_text() == wanted:
            return
        step(f"installing DIOS and its development tools for {self.title}")
        pip = (self._python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check")
        for command in (
            (self._program, "-m", "venv", "--clear", self._python.removesuffix("/bin/python")),
            (*pip, "--upgrade", "pip>=25.1"),
            (*pip, "--editable", ".", "--editable", "./labs", "--group", "dev"),
        ):
            if status := self.run(*command):
                raise NotHereError(f"`{' '.join(command[1:])}` ended with status {status}; see above")
        stamp.write_text(wanted)

    def test(self, tests: list[str]) -> Outcome:
        """Run tests and count their results."""
        report = self._folder / "results.xml"
        report.unlink(missing_ok=True)
        began = time.monotonic()
        words = (
            "--numprocesses",
            "auto",
            "--dist",
            "loadfile",
            "-m",
            "not extended",
            "-p",
            "no:cacheprovider",
        )
        status = self.run(self._python, "-m", "pytest", *words, f"--junit-xml={report}", *tests)
        minutes = (time.monotonic() - began) / 60
        version = self._folder.name
        if not report.exists():
            return Outcome(version, self.title, f"pytest ended with status {status}", ("the suite",))
        counts, failed = _results(report)
        return Outcome(version, self.title, f"{counts} in {minutes:.0f} min", failed)

    def measure(self) -> Figures:
        """Run the measurements once."""
        report = self._folder / "figures.json"
        report.unlink(missing_ok=True)
        if self.run(self._python, "-m", "labs.benchmarks.pythons", str(report)) or not report.exists():
            raise NotHereError("the measurement failed; see above")
        figures: Figures = json.loads(report.read_text())["figures"]
        return figures

    def _is_carried(self, name: str) -> bool:
        if name in {"PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV"}:
            return False
        return not self._root or name in CARRIED or name.startswith("PIP_")


def step(line: str) -> None:
    """Show a line of progress, also in a pipe."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def _requirements() -> str:
    """A digest of what an environment has of pyproject.toml."""
    tables = tomllib.loads((ROOT / "pyproject.toml").read_text())
    names = ("name", "version", "dependencies", "scripts", "entry-points")
    parts = [*(tables["project"][name] for name in names), tables["dependency-groups"]["dev"]]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def _configuration() -> list[str]:
    """The configuration of pip and of the network on this machine: what exists of it."""
    named = [value for name, value in os.environ.items() if name.startswith("PIP_")]
    paths = [*CONFIGURATION, *(part for value in named for part in value.split() if part.startswith("/"))]
    return [path for path in dict.fromkeys(paths) if Path(path).exists()]


def _closed_above(path: str) -> list[str]:
    """The topmost folder above a path that not every user may enter, if there is one.

    Tasks of a node that runs as root run as another user, which must reach the interpreter.
    """
    folders = [str(folder) for folder in reversed(Path(path).parents) if not folder.stat().st_mode & 0o001]
    return folders[:1]


def _results(report: Path) -> tuple[str, tuple[str, ...]]:
    """The counts of a report of pytest, and the names of tests that did not pass."""
    cases = list(ET.parse(report).iter("testcase"))  # noqa: S314 - pytest has just written it
    failed = tuple(
        f"{case.get('classname', '').replace('.', '/')}.py::{case.get('name')}"
        for case in cases
        if case.find("failure") is not None or case.find("error") is not None
    )
    skipped = sum(case.find("skipped") is not None for case in cases)
    passed = len(cases) - len(failed) - skipped
    return f"{passed:,} passed, {len(failed)} failed, {skipped} skipped", failed


def _candidates(version: str) -> Iterator[str]:
    """Programs of this machine that may be an interpreter of a version: of PATH, then of pyenv."""
    for folder in os.get_exec_path():
        yield f"{folder}/python{version}"
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    for program in sorted(pyenv.glob(f"versions/{version}*/bin/python{version}"), reverse=True):
        yield str(program)


def interpreter_here(version: str) -> Interpreter | None:
    """The first interpreter of this machine that has a version and can make environments, or None."""
    for program in _candidates(version):
        if not os.access(program, os.X_OK):
            continue
        done = subprocess.run([program, "-c", DESCRIBE], capture_output=True, check=False)
        if done.returncode == 0:
            interpreter = Interpreter(*json.loads(done.stdout))
            if interpreter.version.startswith(f"{version}."):
                return interpreter
    return None


def debian_root(version: str, kept: Path) -> str:
    """The folder with a root of Debian that has a version; made if it is not there. Raise NotHereError."""
    if version not in SUITES:
        raise NotHereError("no interpreter on PATH or of pyenv, and no suite of Debian is known to have it")
    if os.geteuid() != 0:
        raise NotHereError("no interpreter on PATH or of pyenv, and only root can make a root of Debian")
    if shutil.which("debootstrap") is None:
        raise NotHereError("no interpreter on PATH or of pyenv, and debootstrap is not installed")
    suite, title = SUITES[version]
    folder = kept / "root"
    if folder.is_dir():
        return str(folder)
    step(f"making a root of {title} with Python {version}: some minutes")
    part = folder.with_name("root.part")
    shutil.rmtree(part, ignore_errors=True)
    packages = ",".join((*PACKAGES, f"python{version}-venv", f"python{version}-dev"))
    # Its mounts are in a namespace of their own, so that none is left in the folder when it is interrupted.
    command = ["unshare", "--mount", "--propagation", "private", "debootstrap", "--variant=minbase"]
    log = kept / "debootstrap.log"
    try:
        with log.open("wb") as output:
            done = subprocess.run(
                [*command, f"--include={packages}", suite, str(part)],
                stdout=output,
                stderr=output,
                check=False,
            )
        if done.returncode:
            lines = log.read_text(errors="replace").strip().splitlines()
            raise NotHereError(f"debootstrap {suite} failed: {lines[-1] if lines else 'without a message'}")
        part.rename(folder)
    finally:
        shutil.rmtree(part, ignore_errors=True)
    return str(folder)


def place_for(version: str, *, debian: bool) -> Place:
    """Where the tests of a version can run; raise NotHereError. ``debian`` looks at no interpreter here."""
    folder = KEPT / (f"{version}-debian" if debian else version)
    folder.mkdir(parents=True, exist_ok=True)
    interpreter = None if debian else interpreter_here(version)
    if interpreter is not None:
        return Place(interpreter.program, "this machine", folder, prefix=interpreter.prefix)
    root = debian_root(version, folder)
    program = f"/usr/bin/python{version}"
    return Place(program, SUITES[version][1], folder, root=root)


def try_version(version: str, tests: list[str], *, debian: bool) -> Outcome:
    """Run the tests on a version, where it can be had."""
    try:
        place = place_for(version, debian=debian)
        place.prepare()
    except NotHereError as error:
        step(f"{version}: {error}")
        return Outcome(version, "", f"not run: {error}", has_run=False)
    step(f"running the tests on {place.title}")
    return place.test(tests)


def compare(versions: list[str], rounds: int, *, debian: bool) -> str:
    """Measure versions in turns; return a table of medians, and ratios to the first version."""
    places: dict[str, Place] = {}
    for version in versions:
        try:
            place = place_for(version, debian=debian)
            place.prepare()
            places[version] = place
        except NotHereError as error:
            step(f"{version}: not measured: {error}")
    measured: dict[str, list[Figures]] = {version: [] for version in places}
    for turn in range(rounds):
        for version, place in places.items():
            step(f"round {turn + 1} of {rounds}: {place.title}")
            measured[version].append(place.measure())
    if not measured:
        return "nothing could be measured"
    first = next(iter(measured))
    rows = [["", *(place.title for place in places.values())], ["---"] * (len(places) + 1)]
    for name in measured[first][0]:
        medians = {version: median(row[name] for row in runs) for version, runs in measured.items()}
        cells = [f"{value:.3g} ({value / medians[first]:.2f})" for value in medians.values()]
        rows.append([name, *cells])
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def summary(outcomes: list[Outcome]) -> str:
    """The results as lines, with the tests that failed."""
    rows = [f"{row.version}  {row.interpreter or '-':<34}  {row.text}" for row in outcomes]
    failed = [f"  {row.version}  {name}" for row in outcomes for name in row.failed]
    return "\n".join([*rows, *(["did not pass:", *failed] if failed else [])])


def _interrupted(_number: int, _frame: object) -> NoReturn:
    raise KeyboardInterrupt


def main() -> int:
    """Run what the command line says."""
    parser = argparse.ArgumentParser(prog="make test-pythons", description=__doc__)
    parser.add_argument("--versions", default=" ".join(VERSIONS), help="versions, separated by spaces")
    parser.add_argument("--debian", action="store_true", help="use no interpreter of this machine")
    parser.add_argument("--measure", type=int, default=0, metavar="ROUNDS", help="measure, and run no test")
    parser.add_argument("tests", nargs="*", default=list(SHORT), help="files and folders with tests")
    chosen = parser.parse_args()
    signal.signal(signal.SIGTERM, _interrupted)
    versions = chosen.versions.split()
    if chosen.measure:
        step(compare(versions, chosen.measure, debian=chosen.debian))
        return 0
    outcomes = [try_version(version, chosen.tests, debian=chosen.debian) for version in versions]
    step(summary(outcomes))
    if not any(row.has_run for row in outcomes):
        return NOTHING_RAN
    return int(any(row.failed for row in outcomes))


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
