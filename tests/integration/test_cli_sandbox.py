"""`dios sandbox run` and `dios sandbox shell`, as a person types them."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import pty
import re
import select
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import dios
from dios.host.confinement.mechanisms import probe
from dios.host.confinement.notifications import FORKS
from tests.support.node.command_user import DEADLINE_SECONDS, Person
from tests.support.node.running_node import wait_until

pytestmark = pytest.mark.long

PAGE = (Path(__file__).parents[2] / "docs" / "sandbox.md").read_text()
SALES = "city,amount\nBerlin,4\nRome,8\n"
ANSWER = """\
import csv, io
rows = list(csv.DictReader(io.TextIOWrapper(inputs["sales"])))
print(len(rows), "rows")
max(rows, key=lambda row: int(row["amount"]))["city"]
"""
CONTROL = "print('\\x1b]0;title\\x07\\x9b2J\\rover')\nraise ValueError('\\x1b[8m')"


@pytest.fixture(scope="module")
def person(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Person]:
    """A person with a node, a file of data and files of code."""
    someone = Person(tmp_path_factory.mktemp("home"))
    someone.types("dios-node start --data ./node0 --detach")
    someone.writes("sales.csv", SALES)
    someone.writes("city.py", ANSWER)
    someone.writes("control.py", CONTROL)
    yield someone
    someone.types("dios-node stop")


def test_a_file_is_run_over_an_input(person: Person) -> None:
    """Output and the last value are shown; an input has the name that was given, or that of its file."""
    done = person.types("dios sandbox run city.py --input sales=sales.csv --memory 256MiB")
    assert done.stdout == "2 rows\n'Rome'\n"
    person.writes("year=2026/sales.csv", SALES)
    for given in ("sales.csv", "./year=2026/sales.csv"):
        done = person.types(f"dios sandbox run - --input {given}", typed="inputs['sales.csv'].read(4)")
        assert done.stdout == "b'city'\n"


def test_three_commands_are_enough(person: Person) -> None:
    """The code of the page runs over one's own Parquet file, as the page shows it, and draws a figure."""
    pytest.importorskip("matplotlib")
    polars = pytest.importorskip("polars")
    code, commands, shown = re.findall(r"^```(?:py)?\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)[:3]
    command = next(line for line in commands.splitlines() if line.startswith("dios sandbox run"))
    polars.DataFrame({"city": ["Berlin", "Rome", "Paris"], "amount": [4, 8, 3]}).write_parquet(
        person.home / "sales.parquet"
    )
    person.writes("answer.py", code)
    done = person.types(command)
    assert [line.rstrip() for line in (done.stdout + done.stderr).splitlines()] == shown.splitlines()[1:]
    assert (person.home / "pictures" / "figure-1.png").read_bytes().startswith(b"\x89PNG")


def test_files_are_copied_out(person: Person) -> None:
    """A file that the code wrote is at the path that was given; one that it did not write is an error."""
    person.writes("write.py", "for name in ('sum.csv', 'plain'):\n    open(name, 'w').write(name * 10)")
    person.types("dios sandbox run write.py --output sum.csv --output plain=other --timeout none")
    assert (person.home / "sum.csv").read_text() == "sum.csv" * 10
    assert (person.home / "other").read_text() == "plain" * 10
    done = person.types("dios sandbox run write.py --output missing.csv", status=1)
    assert "cannot copy missing.csv out of the session: FileNotFoundError" in done.stderr
    done = person.types("dios sandbox run write.py --output sum.csv=nowhere/sum.csv", status=1)
    assert "cannot write nowhere/sum.csv" in done.stderr


def test_bounds_are_options(person: Person) -> None:
    """A bound cuts the output; a wrong one is refused with the names of all."""
    done = person.types("dios sandbox run - --bound output_bytes=5", typed="print('long' * 100)")
    assert done.stdout.startswith("longl\n[output over 5 bytes")
    for wrong in ("figure=1", "figures=many", "figures=1000"):
        done = person.types(f"dios sandbox run - --bound {wrong}", typed="1", status=1)
        assert "figures" in done.stderr, wrong


def test_an_exception_is_shown_with_what_was_refused(person: Person) -> None:
    """The status is 1; the lines of the code and the remedy are on standard error."""
    source = "print('first')\nopen('/etc/passwd')"
    done = person.types("dios sandbox run -", typed=source, status=1)
    assert done.stdout == "first\n"
    assert "    open('/etc/passwd')\n" in done.stderr
    assert "The sandbox refused: files of the machine." in done.stderr
    done = person.types("dios sandbox run - --timeout 1", typed="while True: pass", status=1)
    assert "TimeoutError" in done.stderr
    done = person.types("dios sandbox run -", typed="import os; os._exit(4)", status=1)
    assert "exit status 4" in done.stderr


def test_the_result_is_a_document(person: Person) -> None:
    """With --json everything is on standard output, and numbers that JSON does not have are text."""
    done = person.types("dios sandbox run city.py --input sales=sales.csv --json")
    told = json.loads(done.stdout)
    assert (told["ok"], told["value"], told["error"]) == (True, "'Rome'", None)
    assert told["cpu_seconds"] > 0
    done = person.types("dios sandbox run - --json", typed="1 / 0", status=1)
    told = json.loads(done.stdout)
    assert told["error"]["type"] == "ZeroDivisionError"
    assert not told["error"]["ended"]


def test_frames_and_figures_are_shown(person: Person) -> None:
    """A data frame is a table, figures are files, or base64 in the document."""
    pytest.importorskip("matplotlib")
    pytest.importorskip("pandas")
    source = (
        "import pandas, matplotlib.pyplot as plt\nsales = pandas.read_csv(inputs['sales.csv'])\n"
        "plt.bar(sales['city'], sales['amount'])\nsales['part'] = sales['amount'] / 0\nsales"
    )
    person.writes("plot.py", source)
    done = person.types("dios sandbox run plot.py --input sales.csv --figures pictures")
    assert [line.split() for line in done.stdout.splitlines()] == [
        ["city", "amount", "part"],
        ["Berlin", "4", "inf"],
        ["Rome", "8", "inf"],
    ]
    assert "figure: pictures/figure-1.png" in done.stderr
    assert (person.home / "pictures" / "figure-1.png").read_bytes().startswith(b"\x89PNG")
    both = "import pandas\ndisplay(pandas.DataFrame({'n': [1]}))\n42"
    assert person.types("dios sandbox run -", typed=both).stdout == "n\n1\n42\n"
    told = json.loads(person.types("dios sandbox run plot.py --input sales.csv --json").stdout)
    assert told["tables"][0]["rows"] == [["Berlin", 4, "inf"], ["Rome", 8, "inf"]]
    assert base64.b64decode(told["figures"][0]).startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ("--memory much", "memory must be"),
        ("--timeout 0", "timeout must be"),
        ("--timeout 1e18", "timeout must be"),
        ("--memory 1MiB", "64 MiB"),
        ("--input sales.csv --input sales.csv", "two inputs"),
        ("--input a/b=sales.csv", "an input's name"),
        ("--input x=nothing.csv", "nothing.csv"),
        ("--node ./nowhere", "nowhere"),
    ],
)
def test_a_wrong_option_is_explained(person: Person, options: str, told: str) -> None:
    """The error names the option, and nothing runs."""
    assert told in person.types(f"dios sandbox run city.py {options}", status=1).stderr


def test_nothing_controls_the_terminal(person: Person) -> None:
    """On a terminal, output, values, tables and tracebacks of the code are escaped; a pipe gets the bytes."""
    shown = Terminal(person, "dios sandbox run control.py").rest()
    assert "\\x1b]0;title\\x07\\x9b2J\r\nover" in shown
    assert "\\x1b[8m" in shown
    assert not {"\x1b", "\x07", "\x9b"} & set(shown)
    piped = person.types("dios sandbox run control.py", status=1)
    assert "\x1b]0;title" in piped.stdout
    assert "\x1b" not in piped.stderr
    person.writes("value.py", "class V:\n    def __repr__(self): return '\\x1b[2J'\nV()")
    assert "\x1b" not in Terminal(person, "dios sandbox run value.py").rest()


def running_task_has_printed(person: Person) -> bool:
    """Return True if the session that runs has written to its console."""
    rows = json.loads(person.types("dios ps --json").stdout)
    (running,) = [row for row in rows if row["state"] == "running" and row["label"] == "sandbox"]
    return "it runs" in person.types(f"dios logs {running['fingerprint']}").stdout


def test_the_shell_keeps_variables(person: Person) -> None:
    """Statements of several lines, values, errors, Ctrl-C and %reset work at the prompt."""
    terminal = Terminal(person, "dios sandbox shell --input sales=sales.csv")
    terminal.types("x = 20", until=">>> ")
    terminal.types("def double(n):", until="... ")
    terminal.types("    return 2 * n", until="... ")
    terminal.types("", until=">>> ")
    assert "42" in terminal.types("double(x) + 2", until=">>> ")
    assert "Berlin" in terminal.types("inputs['sales'].read()", until=">>> ")
    assert "SyntaxError" in terminal.types("x = = 1", until=">>> ")
    terminal.types("import os", until=">>> ")
    terminal.types("while os.write(1, b'it runs'): pass", until="... ")
    terminal.sends("\r")
    wait_until(lambda: running_task_has_printed(person), "the loop runs")
    terminal.sends("\x03")
    assert "KeyboardInterrupt" in terminal.reads(">>> ")
    assert "20" in terminal.types("x", until=">>> ")
    terminal.types("%reset", until=">>> ")
    assert "NameError" in terminal.types("x", until=">>> ")
    assert "fresh session" in terminal.types("import os; os._exit(1)", until=">>> ")
    terminal.sends("\x04")
    terminal.rest()
    assert terminal.process.returncode == 0


LIES = """\
import sys; sys.modules['dios.lib.sandbox.session']._completions = lambda known, text: {answer}
"""


def test_the_shell_completes_names(person: Person) -> None:
    """Tab completes variables, attributes and commands, and indents at the begin of a line."""
    terminal = Terminal(person, "dios sandbox shell")
    terminal.types("import math; a_long_name = 'found'", until=">>> ")
    terminal.sends("a_lo\t")
    terminal.reads("a_long_name")
    assert "found" in terminal.types("", until=">>> ")
    terminal.sends("len(a_lo\t) + math.sqr\t(16)\r")
    assert "9.0" in terminal.reads(">>> ")
    terminal.types("def double(n):", until="... ")
    terminal.sends("\treturn 2 * n\r")
    terminal.reads("... ")
    terminal.types("", until=">>> ")
    assert "42" in terminal.types("double(21)", until=">>> ")
    terminal.sends("%res\t\r")
    terminal.reads(">>> ")
    assert "NameError" in terminal.types("a_long_name", until=">>> ")
    terminal.sends("\x04")
    terminal.rest()


@pytest.mark.parametrize(
    "answer",
    ["[text + '\\x1b[2Jevil']", "[text + 'evil'] * 1000", "['evil']", "b'evil'", "[text + 'e' * 1000]"],
)
def test_completions_are_names_or_nothing(person: Person, answer: str) -> None:
    """A session that answers with anything else completes nothing; its variables stay."""
    terminal = Terminal(person, "dios sandbox shell")
    terminal.types("x = 20", until=">>> ")
    terminal.types(LIES.format(answer=answer).strip(), until=">>> ")
    terminal.sends("x\t")
    shown = terminal.reads("x")
    terminal.sends(" + 2\r")
    shown += terminal.reads(">>> ")
    assert "22" in shown
    assert "evil" not in shown
    assert "\x1b" not in shown
    terminal.sends("\x04")
    terminal.rest()


def test_a_completion_has_a_bound_of_time(person: Person) -> None:
    """Code that takes for ever is stopped; a session that does not stop is replaced by a fresh one."""
    terminal = Terminal(person, "dios sandbox shell")
    for line in ("class Slow:", "    def __dir__(self):", "        while True: pass"):
        terminal.types(line, until="... ")
    terminal.types("", until=">>> ")
    terminal.types("slow, kept = Slow(), 20", until=">>> ")
    terminal.sends("slow.\t\x15kept + 2\r")
    assert "22" in terminal.reads(">>> ")
    terminal.types(LIES.format(answer="__import__('os')._exit(3)").strip(), until=">>> ")
    terminal.sends("kep\t\x15'after'\r")
    shown = terminal.reads(">>> ")
    assert "exit status 3" in shown
    assert "fresh session" in shown
    assert "'after'" in shown
    assert "NameError" in terminal.types("kept", until=">>> ")
    terminal.sends("\x04")
    terminal.rest()


def test_a_shell_without_a_terminal_runs_its_input_once(person: Person) -> None:
    """Piped code is one cell, and its status is that of the command."""
    assert person.types("dios sandbox shell", typed="x = 1\n\nprint(x)\n").stdout == "1\n"
    assert "ZeroDivisionError" in person.types("dios sandbox shell", typed="1 / 0", status=1).stderr


def listed(person: Person) -> list[dict[str, object]]:
    """Return the sessions that run."""
    rows: list[dict[str, object]] = json.loads(person.types("dios sandbox ls --json").stdout)
    return rows


@pytest.mark.extended
def test_sessions_are_listed_and_stopped(person: Person) -> None:
    """A session is stopped by its fingerprint or process id, all by --all; its program learns of it."""
    wait_until(lambda: listed(person) == [], "the sessions of other tests end")
    assert "no session" in person.types("dios sandbox ls").stderr
    assert json.loads(person.types("dios sandbox stop --all --json").stdout) == []
    with dios.connect(person.home / "node0") as node, contextlib.ExitStack() as stack:
        boxes = [stack.enter_context(dios.Sandbox(node=node)) for _ in range(3)]
        marks_by_pid = {row["pid"]: str(row["fingerprint"]) for row in listed(person)}
        assert len(marks_by_pid) == 3
        shown = person.types("dios sandbox ls").stdout
        assert all(mark in shown and str(pid) in shown for pid, mark in marks_by_pid.items())
        (pid, _), (_, mark), _ = marks_by_pid.items()
        for wrong in ("", "nothing", f"{mark} nothing", f"{mark} --all"):
            assert "sandbox ls" in person.types(f"dios sandbox stop {wrong}", status=1).stderr
        assert len(listed(person)) == 3
        person.types(f"dios sandbox stop {pid} {mark}")
        wait_until(lambda: len(listed(person)) == 1, "two sessions end")
        told = [box.run("1").error for box in boxes]
        assert sorted(error is None for error in told) == [False, False, True]
        assert all(error is None or "it was killed" in error.message for error in told)
        (stopped,) = json.loads(person.types("dios sandbox stop --all --json").stdout)
        assert stopped["stopped"]
        wait_until(lambda: listed(person) == [], "the last one ends")


def needs_forks() -> None:
    """Skip where sessions cannot be forked."""
    listeners = probe()[FORKS]
    if not listeners.available:
        pytest.skip(f"sessions cannot be forked here: {listeners.detail}")


def test_continuations_run_in_forks(person: Person) -> None:
    """Each file of --then has the state of the first one and nothing of the others; one may raise."""
    needs_forks()
    person.writes("load.py", "numbers = [1, 2]\nprint('loaded')\n")
    person.writes("add.py", "numbers.append(3)\nsum(numbers)\n")
    person.writes("fail.py", "numbers.clear()\nnumbers[0]\n")
    line = "dios sandbox run load.py --then add.py --then fail.py --then add.py"
    done = person.types(line, status=1)
    assert done.stdout == "loaded\n6\n"
    assert "IndexError" in done.stderr
    outcome = json.loads(person.types("dios sandbox run load.py --then add.py --json").stdout)
    assert outcome["stdout"] == "loaded\n"
    assert outcome["then"]["add.py"]["value"] == "6"
    failed = person.types("dios sandbox run fail.py --then add.py --json", status=1)
    assert json.loads(failed.stdout)["then"] == {}


def test_the_shell_forks_and_goes_back(person: Person) -> None:
    """%fork goes on in a fork, %back returns to the state before; without --forkable it says what to do."""
    needs_forks()
    terminal = Terminal(person, "dios sandbox shell --forkable")
    terminal.types("x = [1]", until=">>> ")
    for number in (1, 2):
        assert "fork" in terminal.types("%fork", until=">>> ")
        terminal.types(f"x.append({number})", until=">>> ")
    assert "[1, 1, 2]" in terminal.types("x", until=">>> ")
    terminal.types("%back", until=">>> ")
    assert "[1, 1]" in terminal.types("x", until=">>> ")
    terminal.types("%back", until=">>> ")
    assert "[1]" in terminal.types("x", until=">>> ")
    assert "no fork" in terminal.types("%back", until=">>> ")
    terminal.types("file = open('kept', 'w')", until=">>> ")
    assert "kept" in terminal.types("%fork", until=">>> ")
    terminal.sends("\x04")
    terminal.rest()
    assert "--forkable" in person.types("dios sandbox shell", typed="%fork").stderr


def test_families_are_listed_and_stopped(person: Person) -> None:
    """A session and its forks have the fingerprint of the first one, also after its end."""
    needs_forks()
    wait_until(lambda: listed(person) == [], "the sessions of other tests end")
    with dios.connect(person.home / "node0") as node, contextlib.ExitStack() as stack:
        other = stack.enter_context(dios.Sandbox(node=node))
        first = stack.enter_context(dios.Sandbox(node=node, forkable=True))
        fork = stack.enter_context(first.fork())
        last = stack.enter_context(fork.fork())
        families = [row["family"] for row in listed(person)]
        assert families[1:] == [families[1]] * 3
        assert families[0] != families[1]
        shown = person.types("dios sandbox ls").stdout
        assert "FAMILY" in shown
        assert shown.count(str(families[1])) == 4
        fork.close()
        first.close()
        wait_until(lambda: len(listed(person)) == 2, "two sessions end")
        person.types(f"dios sandbox stop {families[1]}", status=1)
        person.types(f"dios sandbox stop --family {families[1]}")
        wait_until(lambda: len(listed(person)) == 1, "the last fork ends")
        assert last.run("1").error is not None
        assert other.run("1").ok


class Terminal:
    """A command on a terminal of its own."""

    def __init__(self, person: Person, line: str) -> None:
        self._end, far = pty.openpty()
        self.process = subprocess.Popen(
            ["setsid", "--wait", "--ctty", *person.command(line)],
            cwd=person.home,
            env={**person.environment, "TERM": "dumb"},
            stdin=far,
            stdout=far,
            stderr=far,
        )
        os.close(far)
        self._begun = "shell" not in line

    def sends(self, text: str) -> None:
        """Press keys."""
        os.write(self._end, text.encode())

    def types(self, line: str, *, until: str) -> str:
        """Type a line, after the first prompt, and return what is shown until a text comes."""
        if not self._begun:
            self.reads(">>> ")
            self._begun = True
        self.sends(line + "\r")
        self.reads("\n")
        return self.reads(until) if until != "\n" else ""

    def reads(self, until: str) -> str:
        """Return what is shown until a text comes."""
        return self._read(until)

    def rest(self) -> str:
        """Return what is shown until the command ends."""
        shown = self._read("")
        self.process.wait(DEADLINE_SECONDS)
        os.close(self._end)
        return shown

    def _read(self, until: str) -> str:
        shown = ""
        deadline = time.monotonic() + DEADLINE_SECONDS
        while not until or not shown.endswith(until):
            left = deadline - time.monotonic()
            assert select.select([self._end], [], [], max(0.0, left))[0], f"{until!r} did not come: {shown!r}"
            try:
                # One after the other, so that nothing behind the text is lost.
                data = os.read(self._end, 1)
            except OSError:
                data = b""
            if not data:
                assert not until, f"{until!r} did not come: {shown!r}"
                break
            shown += data.decode("latin-1")
        return shown
