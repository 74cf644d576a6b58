"""Run the tests that reach each mutant of a sample, and report how many of the mutants they kill.

A first run of the tests records the lines that each test executes. A mutant is then placed in a copy of the
repository, in which the tests that execute its line run, the fastest first, until one fails. A watchdog ends
a run that takes much longer than these tests took before: such a mutant is killed, too. Only code that runs
in the process of a test counts as executed.

The tests of the short run come first, so that the report shows the mutants that only the others kill.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import Final
from xml.etree import ElementTree as ET

import coverage

ROOT: Final = Path(__file__).resolve().parents[2]
LEFT_OUT: Final = shutil.ignore_patterns(".git", ".venv*", ".mutants")
"""What the copies of the repository lack. They have its compiled kernels, which git ignores."""
ALL: Final = "not extended"
SHORT: Final = "not extended and not long"
"""The marks of ``make test-all`` and of ``make test``."""
TESTS_MAX: Final = 60
"""Tests of each kind that run for one mutant: others could kill some of those that survive."""
SLOW_FACTOR: Final = 5
SLOW_S: Final = 30.0
KILLED: Final = "killed by the short run"
KILLED_LATER: Final = "killed by other tests only"
SURVIVED: Final = "survived"
UNREACHED: Final = "not reached by a test"


@dataclass(frozen=True, slots=True)
class Mutant:
    """One change of one file.

    Attributes:
        path: the changed file, relative to the repository.
        line: the first changed line.
        source: the file with the changed text.
        diff: the removed and the added lines.
    """

    path: str
    line: int
    source: Path
    diff: str


@dataclass(frozen=True, slots=True)
class Reach:
    """The durations in seconds of the tests that passed, and by path and line the tests that executed it."""

    durations: dict[str, float]
    tests: dict[str, dict[int, frozenset[str]]]
    short: frozenset[str]

    def batches(self, mutant: Mutant) -> tuple[list[str], list[str]]:
        """Return the tests of a mutant's statement: those of the short run, and the others."""
        tests = self._fastest(mutant)
        return (
            [test for test in tests if test in self.short][:TESTS_MAX],
            [test for test in tests if test not in self.short][:TESTS_MAX],
        )

    def _fastest(self, mutant: Mutant) -> list[str]:
        """Return the tests of a mutant's statement, the fastest first.

        A statement that is executed when its module is imported belongs to every test of the module.
        """
        by_line = self.tests.get(mutant.path, {})
        lines = statement_lines((ROOT / mutant.path).read_text(), mutant.line)
        if not any(line in by_line for line in lines):
            return []
        tests = frozenset().union(*(by_line.get(line, frozenset()) for line in lines))
        tests = tests or frozenset().union(*by_line.values())
        return sorted(tests & self.durations.keys(), key=lambda test: (self.durations[test], test))


def statement_lines(source: str, line: int) -> range:
    """Return the lines of the innermost statement at a line; of a compound statement, those of its head."""
    head = range(line, line + 1)
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.stmt) and node.end_lineno is not None:
            body = getattr(node, "body", None)
            end = body[0].lineno if body and body[0].lineno > node.lineno else node.end_lineno + 1
            if node.lineno <= line < end:
                head = range(node.lineno, end)
    return head


def environment(tree: Path) -> dict[str, str]:
    """Return an environment in which the packages of a copy come before the installed ones."""
    return {**os.environ, "PYTHONPATH": str(tree), "COVERAGE_FILE": str(tree / ".coverage")}


def pytest_command(*arguments: str) -> list[str]:
    """Return the command for a quiet run of tests that leaves no cache behind."""
    return [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments]


@contextmanager
def copies(count: int) -> Iterator[list[Path]]:
    """Copy the repository with its compiled kernels a number of times, for the duration of a block."""
    with tempfile.TemporaryDirectory(prefix="dios-mutants-") as folder:
        trees = [Path(folder) / str(number) for number in range(count)]
        for tree in trees:
            shutil.copytree(ROOT, tree, symlinks=True, ignore=LEFT_OUT)
        yield trees


def collect(tree: Path, tests: list[str], marks: str) -> frozenset[str]:
    """Return the identifiers of the tests that a run with these marks has."""
    command = pytest_command("--collect-only", "-m", marks, *tests)
    lines = subprocess.run(
        command, cwd=tree, env=environment(tree), stdout=subprocess.PIPE, text=True, check=True
    )
    return frozenset(line for line in lines.stdout.splitlines() if "::" in line)


def record_reach(tree: Path, package: str, tests: list[str], workers: int) -> Reach:
    """Run the tests once and return what each of them executed."""
    report = tree / "tests.xml"
    coverage_options = (f"--cov={package}", "--cov-context=test", "--cov-report=")
    report_options = (f"--junitxml={report}", "-o", "junit_family=xunit1")
    options = ("-n", str(workers), "--dist", "loadfile", "-m", ALL, *report_options, *coverage_options)
    subprocess.run(pytest_command(*options, *tests), cwd=tree, env=environment(tree), check=False)
    identifiers = collect(tree, tests, ALL)
    durations = {test: duration_s for test, duration_s in passed(report) if test in identifiers}
    data = coverage.CoverageData(str(tree / ".coverage"))
    data.read()
    reached = {
        str(Path(path).relative_to(tree)): {
            line: frozenset(context.partition("|")[0] for context in contexts if context)
            for line, contexts in data.contexts_by_lineno(path).items()
        }
        for path in data.measured_files()
    }
    return Reach(durations, reached, collect(tree, tests, SHORT))


def passed(report: Path) -> Iterator[tuple[str, float]]:
    """Yield the identifier and the duration in seconds of each test that passed."""
    for case in ET.parse(report).iter("testcase"):  # noqa: S314 - pytest wrote it a moment ago
        if not any(case.iter("failure")) and not any(case.iter("error")) and not any(case.iter("skipped")):
            file = case.attrib["file"]
            classes = case.attrib["classname"].removeprefix(file.removesuffix(".py").replace("/", "."))
            names = [file, *filter(None, classes.split(".")), case.attrib["name"]]
            yield "::".join(names), float(case.attrib["time"])


def outcome(mutant: Mutant, reach: Reach, tree: Path) -> str:
    """Place a mutant in a copy, run its tests there, and restore the file."""
    batches = reach.batches(mutant)
    if not any(batches):
        return UNREACHED
    path = tree / mutant.path
    original = path.read_bytes()
    path.write_bytes(mutant.source.read_bytes())
    try:
        for tests, kill in zip(batches, (KILLED, KILLED_LATER), strict=True):
            patience_s = SLOW_S + SLOW_FACTOR * sum(reach.durations[test] for test in tests)
            if tests and fails(tests, patience_s, tree):
                return kill
    finally:
        path.write_bytes(original)
    return SURVIVED


def fails(tests: list[str], patience_s: float, tree: Path) -> bool:
    """Run tests until one fails or the watchdog ends them, and return True in both cases."""
    process = subprocess.Popen(
        pytest_command("-x", *tests),
        cwd=tree,
        env=environment(tree),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        return process.wait(patience_s) != 0
    except subprocess.TimeoutExpired:
        return True
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def run_all(mutants: list[Mutant], reach: Reach, trees: list[Path]) -> list[str]:
    """Return the outcome of each mutant, and print the progress."""
    free: SimpleQueue[Path] = SimpleQueue()
    for tree in trees:
        free.put(tree)

    def run_one(mutant: Mutant) -> str:
        tree = free.get()
        try:
            return outcome(mutant, reach, tree)
        finally:
            free.put(tree)

    outcomes: list[str] = []
    with ThreadPoolExecutor(len(trees)) as pool:
        for mutant, result in zip(mutants, pool.map(run_one, mutants), strict=True):
            outcomes.append(result)
            sys.stdout.write(f"{len(outcomes)} of {len(mutants)}: {result}: {mutant.path}:{mutant.line}\n")
            sys.stdout.flush()
    return outcomes


def main() -> None:
    """Write a table of the counts, and the mutants that survived."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("mutants", type=Path, help="the folder that generate.py wrote")
    parser.add_argument("tests", nargs="+", help="test files or folders, relative to the repository")
    parser.add_argument("--package", required=True)
    parser.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--report", type=Path)
    arguments = parser.parse_args()
    rows = json.loads((arguments.mutants / "mutants.json").read_text())
    mutants = [
        Mutant(row["path"], row["line"], (arguments.mutants / row["source"]).resolve(), row["diff"])
        for row in rows
    ]
    with copies(arguments.workers) as trees:
        reach = record_reach(trees[0], arguments.package, arguments.tests, arguments.workers)
        outcomes = run_all(mutants, reach, trees)
    report = describe(arguments.package, arguments.tests, mutants, outcomes)
    sys.stdout.write(report)
    if arguments.report:
        arguments.report.write_text(report)


def describe(package: str, tests: list[str], mutants: list[Mutant], outcomes: list[str]) -> str:
    """Return the report as Markdown."""
    lines = [
        f"# Mutants of `{package}`",
        "",
        f"{len(mutants)} mutants, tests: {', '.join(tests)}; at most {TESTS_MAX} of each kind for a mutant.",
        "",
        *(f"- {state}: {outcomes.count(state)}" for state in (KILLED, KILLED_LATER, SURVIVED, UNREACHED)),
    ]
    for mutant, result in zip(mutants, outcomes, strict=True):
        if result not in (KILLED, KILLED_LATER):
            lines += ["", f"{mutant.path}:{mutant.line} {result}", "", "```diff", mutant.diff, "```"]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
