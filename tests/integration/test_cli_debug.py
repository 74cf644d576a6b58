"""`dios describe`, `debug` and `limits` against a real node, as a person types them."""

from __future__ import annotations

import json
import os
import pty
import select
import signal
import subprocess
import time
from collections.abc import Iterator

import pytest

from tests.support.node.command_user import DEADLINE_SECONDS, Person
from tests.support.node.running_node import wait_until

pytestmark = pytest.mark.long

ME = f"uid:{os.geteuid()}"
FAILS = """\
import sys, dios

def mean(items):
    total = 0
    for item in items:
        total += len(item.read_bytes())
    return total / (len(items) - 1)

with dios.connect() as node:
    print("began with", sys.argv, [item.label for item in node.inputs], node.label)
    print(mean(node.inputs))
"""
TRIES = """\
tries = (
    lambda: __import__("socket").socket(),
    lambda: open("/etc/shadow"),
    lambda: __import__("os").fork(),
)
for attempt in tries:
    try:
        attempt()
        print("did")
    except Exception as error:
        print(type(error).__name__, flush=True)
raise ValueError
"""
LOOPS = """\
import itertools
for count in itertools.count(1):
    if count == 1:
        print("looping", flush=True)
"""


@pytest.fixture(scope="module")
def person(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Person]:
    """A person whose task `fails.py` has failed on an input, for a reason."""
    someone = Person(tmp_path_factory.mktemp("home"))
    someone.types("dios-node start --data ./node0 --detach")
    someone.types("dios group create analytics")
    someone.writes("a.txt", "hello\n")
    someone.types("dios put a.txt --group analytics")
    someone.writes("fails.py", FAILS)
    someone.types("dios run fails.py --group analytics --input a.txt --limit objects=7 -- --top 3", status=1)
    try:
        yield someone
    finally:
        someone.types("dios-node stop")


def debugged(person: Person, line: str, *commands: str, status: int) -> str:
    """What `dios debug` prints for these commands in a pipe."""
    return person.types(
        f"dios debug {line}", typed="".join(f"{command}\n" for command in commands), status=status
    ).stdout


# -- describe ---------------------------------------------------------------------------------------
def test_a_dead_task_is_told_whole(person: Person) -> None:
    """The cause of death in plain words, what it was given, its last lines, its records, what to do next."""
    wait_until(
        lambda: "PURE fails.py" in person.types("dios describe fails.py").stdout, "its records are stored"
    )
    told = person.types("dios describe fails.py")
    for words in (
        "an unhandled exception ended its program",
        "ZeroDivisionError: division by zero",
        "try: read the traceback",
        "'--top' '3'",
        "groups      analytics",
        "a.txt  durable_blob, 6 B",
        "with all it starts: objects",
        "began with",
    ):
        assert words in told.stdout, told.stdout
    assert "dios debug" in told.stderr


def test_a_description_is_there_for_programs(person: Person) -> None:
    """`--json` has the same: cause, inputs with their state, limits with use, records."""
    told = json.loads(person.types("dios describe fails.py --json").stdout)
    assert (told["cause"], told["exit_status"], told["arguments"]) == ("exception", 1, ["--top", "3"])
    assert [(item["label"], item["rights"], item["gone"]) for item in told["inputs"]] == [
        ("a.txt", "r--g-", False)
    ]
    assert told["usage"]["limits"]["objects"] == 7
    assert told["memory_bytes"] > 0
    assert "ended" in {record["action"] for record in told["audit"]}
    assert told["not_repeatable"] == ""


# -- debug ------------------------------------------------------------------------------------------
def test_a_failed_task_is_looked_at_where_it_failed(person: Person) -> None:
    """The same code fails on the same inputs; the frames are the program's, its variables can be seen."""
    told = debugged(
        person, "fails.py", "p total, [item.label for item in items]", "up", "where", "q", status=1
    )
    assert "> fails.py(7)mean()" in told
    assert "(6, ['a.txt'])" in told
    assert "began with ['fails.py', '--top', '3'] ['a.txt'] fails.py" in told
    assert "> fails.py(11)<module>()" in told
    assert not [line for line in told.splitlines() if "debugger.py" in line or "task_main.py" in line]


def test_a_task_is_stepped_through(person: Person) -> None:
    """With --step it stops before the first line, at breakpoints, and in the post-mortem after them."""
    told = debugged(
        person, "fails.py --step", "n", "b 7", "c", "where", "p total", "c", "p total + 1", "q", status=1
    )
    assert told.startswith("> fails.py(1)<module>()\n-> import sys, dios\n")
    assert "Breakpoint 1 at fails.py:7" in told
    assert "(Pdb) p total\n6\n" in told
    assert "ZeroDivisionError" in told
    assert "(Pdb) p total + 1\n7\n" in told
    assert not [line for line in told.splitlines() if "debugger.py" in line or "task_main.py" in line]


def test_the_debugger_is_in_the_sandbox(person: Person) -> None:
    """What the task was refused, its debugger is refused too, in the same way."""
    person.writes("tries.py", TRIES)
    tried = person.types("dios run tries.py", status=1).stdout.split()[:3]
    commands = [f"p tries[{number}]()" for number in range(3)]
    told = debugged(person, "tries.py", *commands, "q", status=1)
    assert len(tried) == 3
    assert all(error == "did" or f"*** {error}" in told for error in tried), (tried, told)


def test_a_program_may_stop_itself(person: Person) -> None:
    """`breakpoint()` asks here; a program that ends itself passes its status on, and nothing is left."""
    person.writes(
        "stops.py", "import sys\nanswer = 42\nbreakpoint()\nsys.exit(answer if sys.argv[1:] else 0)\n"
    )
    person.types("dios run stops.py -- x", status=1)
    told = debugged(person, "stops.py --post-mortem", "p answer", "c", status=42)
    assert "(Pdb) p answer\n42\n" in told
    assert "The program ended itself, with 42." in told
    assert "debug stops.py" not in person.types("dios ps").stdout


def test_the_end_of_lines_ends_it(person: Person) -> None:
    """Without a command, as with Ctrl-D, the task ends, and says what became of it for programs."""
    told = person.types("dios debug fails.py --step --json")
    assert json.loads(told.stdout)["label"] == "debug fails.py"
    assert "> fails.py(1)<module>()" in told.stderr


def test_ctrl_c_stops_a_program_where_it_is(person: Person) -> None:
    """One that computes for ever is interrupted, looked at, and ended."""
    person.writes("loops.py", LOOPS)
    person.types("dios run loops.py --detach")
    with subprocess.Popen(
        person.command("dios debug loops.py --step"),
        cwd=person.home,
        env=person.environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as running:
        assert running.stdin is not None
        assert running.stdout is not None
        running.stdin.write("c\n")
        running.stdin.flush()
        seen = ""
        while "looping" not in seen:
            seen += running.stdout.readline()
        running.send_signal(signal.SIGINT)
        try:
            told, beside = running.communicate("p count > 0\nq\n", timeout=DEADLINE_SECONDS)
        finally:
            running.kill()
    person.types("dios kill loops.py")
    assert "The program was interrupted" in told, beside
    assert "(Pdb) p count > 0\nTrue\n" in told
    assert running.returncode == 0
    assert "the first run is still running" in beside


def test_a_terminal_is_asked_with_a_prompt(person: Person) -> None:
    """On a terminal lines are edited here; Ctrl-D at the prompt ends the task and the command."""
    ours, theirs = pty.openpty()
    environment = {**person.environment, "TERM": "dumb"}
    command = person.command("dios debug fails.py")
    running = subprocess.Popen(
        command, cwd=person.home, env=environment, stdin=theirs, stdout=theirs, stderr=theirs
    )
    os.close(theirs)
    seen = read_until(ours, b"(Pdb) ")
    os.write(ours, b"p 6 * 7\n")
    seen += read_until(ours, b"42")
    seen += read_until(ours, b"(Pdb) ")
    os.write(ours, b"\x04")
    assert running.wait(DEADLINE_SECONDS) == 1
    os.close(ours)
    assert b"differs: the time" in seen


def read_until(descriptor: int, wanted: bytes) -> bytes:
    """What a terminal shows, up to and with some words."""
    seen = b""
    deadline = time.monotonic() + DEADLINE_SECONDS
    while wanted not in seen:
        assert time.monotonic() < deadline, seen
        if select.select([descriptor], [], [], 1)[0]:
            seen += os.read(descriptor, 4096)
    return seen


# -- limits -----------------------------------------------------------------------------------------
def test_limits_are_set_and_shown(person: Person) -> None:
    """What is set for a user and a group is shown with its use, for people and for programs."""
    person.types(f"dios limits set {ME} objects=1000 cpu=10h")
    try:
        person.types("dios limits set group:analytics bytes=1MiB")
        told = person.types("dios limits")
        assert "10 h 00 min" in told.stdout
        assert "group:analytics" in told.stdout
        assert max(map(len, told.stdout.splitlines())) <= 80
        rows = {row["subject"]: row for row in json.loads(person.types("dios limits --json").stdout)}
        assert rows[ME]["limits"]["objects"] == 1000
        assert rows[ME]["limits"]["cpu_ms"] == 36_000_000
    finally:
        (lifted,) = json.loads(person.types(f"dios limits set {ME} objects=none cpu=none --json").stdout)
    assert lifted["limits"]["objects"] is None


def test_a_task_over_its_limit_is_told_whose_it_is(person: Person) -> None:
    """A task started with --limit is refused beyond it; the command ends as it did, with the reason."""
    person.writes(
        "many.py", "import dios\nnode = dios.connect()\n[node.create(dios.SHMEM_BLOB) for _ in range(3)]\n"
    )
    told = person.types("dios run many.py --limit objects=2", status=1)
    assert "LimitError" in told.stderr
    assert "the limit of 2 objects for task" in told.stderr


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("dios limits set uid:5 objecte=3", "did you mean objects?"),
        ("dios limits set uid:5 cpu=10", "like 90s, 5min or 10h"),
        ("dios limits set nobody-here objects=3", "there is no user"),
        ("dios limits set pid:5 objects=3", "group:ALIAS or task:FINGERPRINT"),
        ("dios limits --json set uid:5 objects=3", "put options after the subcommand"),
        ("dios run fails.py --limit tasks=0", "Leave the limit out"),
    ],
)
def test_a_mistake_in_limits_is_told_with_what_is_right(person: Person, line: str, says: str) -> None:
    """Each mistake is answered with the words that would have been understood."""
    status = 125 if line.startswith("dios run") else 1
    assert says in person.types(line, status=status).stderr


# -- what has changed: last, for it changes the input --------------------------------------------------
def test_what_is_not_as_it_was_is_said_first(person: Person) -> None:
    """An input that was written since is named; one that is gone stops it, and is named."""
    person.types("dios shell", typed=f"lookup {name_of(person)}\nwrite r1 changed\n")
    told = person.types("dios debug fails.py", typed="p total\n", status=1)
    assert "input a.txt was written since" in told.stderr
    assert "(Pdb) p total\n7\n" in told.stdout
    assert "changed since" in person.types("dios describe fails.py").stdout
    person.types("dios rm a.txt")
    assert "input a.txt" in person.types("dios debug fails.py", status=1).stderr
    assert "GONE" in person.types("dios describe fails.py").stdout


def name_of(person: Person) -> str:
    """The name of the input."""
    rows = json.loads(person.types("dios ls --names --json").stdout)
    return next(str(row["name"]) for row in rows if row["file"] == "a.txt")
