"""The command line against a real node, as a person types it: separate processes, a HOME of their own."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from dios.limits import GROUPS_PER_CALL_MAX
from dios.wire.nametext import parse_name
from tests.support.node.command_user import DEADLINE_SECONDS, Person


@pytest.fixture(scope="module")
def person(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Person]:
    """A person whose node runs, with a group."""
    someone = Person(tmp_path_factory.mktemp("home"))
    someone.types("dios-node start --data ./node0 --detach")
    someone.types("dios group create analytics")
    try:
        yield someone
    finally:
        someone.types("dios-node stop")


@pytest.mark.long
def test_a_node_says_how_it_is(person: Person) -> None:
    """Status gives process, socket and counts; a second start on the same data is refused."""
    told = json.loads(person.types("dios-node status --json").stdout)
    assert told["running"]
    assert told["pid"] == int((person.home / "node0" / "node.pid").read_text())
    again = person.types("dios-node start --data ./node0 --detach", status=1)
    assert "already" in again.stderr


@pytest.mark.extended
@pytest.mark.long
def test_files_come_back_as_they_were_put(person: Person) -> None:
    """Small, large and empty files are put, listed, looked at, got back byte for byte, and removed."""
    contents = {"data/small.txt": "a b c\n", "data/large.bin": "0123456789abcdef" * 200_000, "data/empty": ""}
    for name, text in contents.items():
        person.writes(name, text)
    put = person.types("dios put --group analytics --json --names", *contents)
    names = {item["file"]: item["name"] for item in json.loads(put.stdout)}
    assert set(names) == set(contents)
    listed = {item["file"]: item["size"] for item in json.loads(person.types("dios ls --json").stdout)}
    for name, text in contents.items():
        assert listed[name] == len(text)
        assert person.types("dios get", name).stdout == text
        person.types("dios get --output copy", names[name])
        assert (person.home / "copy").read_text() == text
    assert json.loads(person.types("dios stat small.txt --json").stdout)["persistence"] == "durable"
    person.types("dios rm", *contents)
    assert not set(contents) & {item["file"] for item in json.loads(person.types("dios ls --json").stdout)}
    refused = person.types("dios get", names["data/small.txt"], status=1)
    assert "cannot find" in refused.stderr


@pytest.mark.extended
@pytest.mark.long
def test_an_ambiguous_file_name_lists_what_fits(person: Person) -> None:
    """Two files of one name in different directories are told apart by path or fingerprint."""
    mark = ""
    for folder in ("one", "two"):
        person.writes(f"{folder}/twice.txt", folder)
        put = person.types(f"dios put {folder}/twice.txt --group analytics --json")
        mark = json.loads(put.stdout)[0]["fingerprint"]
    told = person.types("dios get twice.txt", status=1).stderr
    assert mark in told
    assert person.types("dios get", mark).stdout == "two"
    assert person.types("dios get one/twice.txt").stdout == "one"
    assert person.types("dios get analytics/two/twice.txt").stdout == "two"


def test_a_path_that_is_put_again_is_replaced_only_on_demand(person: Person) -> None:
    """A second put is refused, and with --replace the former object is gone; the output has no name."""
    person.writes("again.txt", "one")
    put = person.types("dios put again.txt --group analytics --json --names")
    person.writes("again.txt", "two")
    person.writes("beside.txt", "x")
    refused = person.types("dios put beside.txt again.txt --group analytics", status=1).stderr
    assert "analytics/again.txt exists already" in refused
    assert person.types("dios get analytics/again.txt").stdout == "one"
    assert "beside.txt" not in person.types("dios ls").stdout
    assert "dios1" not in person.types("dios put again.txt --group analytics --replace").stdout
    assert person.types("dios get analytics/again.txt").stdout == "two"
    person.types("dios get", json.loads(put.stdout)[0]["name"], status=1)


def test_directories_are_put_listed_fetched_and_removed(person: Person) -> None:
    """A directory goes in and out whole, in paths of the group; du counts it; rm needs --recursive."""
    contents = {"tree/a.txt": "a", "tree/deep/b.bin": "b" * 100_000, "tree/deep/c": ""}
    for name, text in contents.items():
        person.writes(name, text)
    (person.home / "tree" / "empty").mkdir()
    assert "--recursive" in person.types("dios put tree --group analytics", status=1).stderr
    person.types("dios put tree --recursive --group analytics --as kept/tree")
    shown = person.types("dios ls analytics/kept/tree").stdout
    assert [line.split()[0] for line in shown.splitlines()] == ["FILE", "a.txt", "deep/", "empty/"]
    listed = json.loads(person.types("dios ls analytics/kept/tree/deep --json").stdout)
    assert [row["path"] for row in listed] == [f"analytics/kept/tree/deep/{name}" for name in ("b.bin", "c")]
    counted = json.loads(person.types("dios du analytics/kept --json").stdout)
    assert counted == [{"path": "analytics/kept", "files": 3, "size": 100_001}]
    counted = json.loads(
        person.types("dios du analytics/kept/tree/empty analytics/kept/tree/a.txt --json").stdout
    )
    assert [(row["files"], row["size"]) for row in counted] == [(0, 0), (1, 1)]
    assert "no file or directory" in person.types("dios du analytics/kep", status=1).stderr
    person.types("dios get analytics/kept/tree --recursive --output back")
    for name, text in contents.items():
        assert (person.home / "back" / name.removeprefix("tree/")).read_text() == text
    assert (person.home / "back" / "empty").is_dir()
    assert "--recursive" in person.types("dios rm analytics/kept", status=1).stderr
    person.types("dios rm analytics/kept --recursive")
    assert "no file or directory" in person.types("dios ls analytics/kept", status=1).stderr
    assert "kept" not in person.types("dios ls").stdout


def test_standard_input_is_put_under_a_chosen_path(person: Person) -> None:
    """`put -` stores what is typed or piped; without --as it is refused."""
    person.types("dios put - --group analytics --as typed/in.txt", typed="through a pipe")
    assert person.types("dios get analytics/typed/in.txt").stdout == "through a pipe"
    assert "--as" in person.types("dios put - --group analytics", status=1, typed="x").stderr


def test_directories_are_synchronized_in_both_directions(person: Person) -> None:
    """Only what differs is copied; --dry-run changes nothing; --delete removes what only the target has."""
    for name, text in {"site/a": "a", "site/deep/b": "b" * 50_000, "site/swap/file": "f"}.items():
        person.writes(name, text)
    (person.home / "site" / "empty").mkdir()

    def sync(arguments: str) -> dict[str, object]:
        told: dict[str, object] = json.loads(person.types(f"dios sync {arguments} --json").stdout)
        return told

    assert sync("./site analytics/site")["copied"] == ["a", "deep/b", "swap/file"]
    told = sync("./site analytics/site")
    assert (told["copied"], told["unchanged"]) == ([], 3)
    # The same size with other bytes, a file in place of a directory, and a new and a missing file.
    (person.home / "site" / "swap" / "file").unlink()
    (person.home / "site" / "swap").rmdir()
    (person.home / "site" / "a").unlink()
    for name, text in {"site/deep/b": "c" * 50_000, "site/swap": "s", "site/new": "n"}.items():
        person.writes(name, text)
    wanted = {"copied": ["new", "swap", "deep/b"], "deleted": ["swap/file", "swap", "a"]}
    for option in ("--dry-run", ""):
        told = sync(f"./site dios://analytics/site --delete {option}")
        assert {key: told[key] for key in wanted} == wanted
    person.writes("mirror/extra/x", "x")
    told = sync("analytics/site ./mirror --delete")
    assert (told["copied"], told["deleted"]) == (["deep/b", "new", "swap"], ["extra/x", "extra"])
    subprocess.run(["diff", "-r", person.home / "site", person.home / "mirror"], check=True)
    assert sync("analytics/site ./mirror")["unchanged"] == 3
    assert "local directory" in person.types("dios sync site analytics/site", status=1).stderr


def test_a_group_is_emptied_and_destroyed(person: Person) -> None:
    """`--group` chooses among equal paths; `rm --all` and `group rm` ask first; orphans have no files."""
    person.types("dios group create doomed")
    for text in ("one", "two"):
        person.writes("equal.txt", text)
        person.types(f"dios put equal.txt --group {'analytics' if text == 'one' else 'doomed'}")
    assert person.types("dios get equal.txt --group doomed").stdout == "two"
    assert person.types("dios get equal.txt --group analytics").stdout == "one"
    person.types("dios put equal.txt --group doomed --as deep/other.txt")
    assert "--yes" in person.types("dios rm --group doomed --all", status=1).stderr
    assert "--all" in person.types("dios group rm doomed --yes", status=1).stderr
    assert json.loads(person.types("dios group rm doomed --all --yes --json").stdout)["files"] == 2
    assert "doomed" not in person.types("dios group ls").stdout
    assert person.types("dios get equal.txt").stdout == "one"
    person.types("dios group create doomed")
    person.types("dios put equal.txt --group doomed")
    before = person.types("dios ls --orphans --json").stdout
    person.types("dios group forget doomed --yes")
    lost = json.loads(person.types("dios ls --orphans --json").stdout)
    assert len(lost) == len(json.loads(before)) + 2, "the file and its catalogue"


def test_a_put_that_fails_leaves_nothing(person: Person) -> None:
    """When one path is taken by a directory, no file of the command becomes visible."""
    person.writes("part/file", "x")
    person.types("dios put part/file --group analytics")
    person.writes("other.txt", "x")
    (person.home / "part" / "file").unlink()
    (person.home / "part").rmdir()
    person.writes("part", "x")
    person.types("dios put other.txt part --group analytics", status=1)
    assert "other.txt" not in person.types("dios ls").stdout


def test_a_mistyped_name_is_refused_before_it_is_looked_up(person: Person) -> None:
    """A name with one letter changed is no name."""
    person.writes("typo.txt", "x")
    name = json.loads(person.types("dios put typo.txt --group analytics --json --names").stdout)[0]["name"]
    changed = name[:-1] + ("q" if name[-1] != "q" else "p")
    assert "the checksum of the name does not match" in person.types("dios stat", changed, status=1).stderr


def test_a_tasks_output_and_status_are_passed_on(person: Person) -> None:
    """`dios run` streams the console, gives arguments and inputs to the task, and ends as it does."""
    person.writes("input.txt", "hello")
    person.types("dios put input.txt --group analytics")
    person.writes(
        "job.py",
        "import sys, dios\n"
        "with dios.connect() as node:\n"
        "    print(sys.argv[1:], node.inputs[0].read_bytes().decode(), flush=True)\n"
        "sys.exit(7)\n",
    )
    done = person.types("dios run job.py --group analytics --input input.txt -- --top 20", status=7)
    assert done.stdout == "['--top', '20'] hello\n"
    assert "exited 7" in done.stderr


def test_long_output_arrives_whole(person: Person) -> None:
    """A task that prints faster than it is read waits; nothing of its output is lost."""
    person.writes("wordy.py", "import sys\nfor number in range(300_000):\n    print(number, 'is a line')\n")
    told = person.types("dios run wordy.py")
    assert told.stdout == "".join(f"{number} is a line\n" for number in range(300_000))
    assert not told.stderr
    assert "missing" in person.types("dios logs wordy.py").stderr


def test_a_failure_tells_its_cause(person: Person) -> None:
    """An exception in the task gives status 1, its traceback, and what to try."""
    person.writes("broken.py", "raise ValueError('on purpose')\n")
    done = person.types("dios run broken.py", status=1)
    assert "on purpose" in done.stdout
    assert "dios logs" in done.stderr
    assert "Traceback" not in done.stderr, "the console was streamed already"


def test_a_detached_task_is_watched_paused_resumed_and_killed(person: Person) -> None:
    """ps, logs, pause, resume and kill find a task by its fingerprint and act on it."""
    person.writes("sleeper.py", "import time\nprint('awake', flush=True)\ntime.sleep(600)\n")
    mark = json.loads(person.types("dios run sleeper.py --detach --json").stdout)["fingerprint"]
    deadline = time.monotonic() + DEADLINE_SECONDS
    while "awake" not in person.types("dios logs", mark).stdout:
        assert time.monotonic() < deadline

    def state() -> str:
        rows = json.loads(person.types("dios ps --all --json").stdout)
        return next(str(row["state"]) for row in rows if row["fingerprint"] == mark)

    assert state() == "running"
    person.types("dios pause", mark)
    assert state() == "paused"
    person.types("dios resume", mark)
    assert state() == "running"
    person.types("dios resume", mark, status=1)
    person.types("dios kill", mark)
    while state() != "ended":
        assert time.monotonic() < deadline
    person.types("dios kill", mark)
    person.types("dios pause", mark, status=1)
    marks = {
        label: json.loads(
            person.types(f"dios run sleeper.py --detach --json --title {label} {option}").stdout
        )["fingerprint"]
        for label, option in {"train-1": "", "train-2": "--group analytics", "other": ""}.items()
    }

    def killed(arguments: str) -> dict[str, bool]:
        rows = json.loads(person.types(f"dios kill {arguments} --json").stdout)
        return {row["fingerprint"]: row["killed"] for row in rows}

    assert "choose them" in person.types("dios kill", status=1).stderr
    person.types(f"dios kill {marks['other']} nonsense", status=1)
    assert killed("--title train-* --group analytics") == {marks["train-2"]: True}
    assert killed(f"--title train-* {marks['other']}") == {marks["train-1"]: True, marks["other"]: True}


def test_arguments_that_are_no_text_are_refused(person: Person) -> None:
    """Bytes that are no UTF-8 among a task's arguments give a sentence and no stack trace."""
    person.writes("never.py", "")
    told = person.types("dios run never.py --", "\udcff\udcfe", status=125).stderr
    assert "not UTF-8" in told
    assert "Traceback" not in told


def test_get_writes_to_a_pipe_and_never_in_its_place(person: Person) -> None:
    """What is no ordinary file is written to, not replaced; a directory is refused."""
    person.writes("piped.txt", "through")
    person.types("dios put piped.txt --group analytics")
    pipe = person.home / "pipe"
    os.mkfifo(pipe)
    with subprocess.Popen(["cat", str(pipe)], stdout=subprocess.PIPE) as reader:
        person.types("dios get piped.txt --output pipe")
        assert reader.communicate(timeout=DEADLINE_SECONDS)[0] == b"through"
    assert pipe.is_fifo()
    assert "directory" in person.types("dios get piped.txt --output .", status=1).stderr


def test_names_are_listed_on_demand_only(person: Person) -> None:
    """`dios ls` shows names, which are secrets, only with --names, as JSON too."""
    person.writes("secret.txt", "x")
    name = json.loads(person.types("dios put secret.txt --group analytics --json --names").stdout)[0]["name"]
    for option in ("", "--json"):
        assert name not in person.types(f"dios ls {option}").stdout
        assert name in person.types(f"dios ls --names {option}").stdout


@pytest.mark.parametrize(
    ("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)]
)
def test_what_ends_dios_run_ends_its_task(person: Person, number: int, status: int) -> None:
    """Ctrl-C, SIGTERM and a closed terminal end `dios run` as shells say, and leave no task running."""
    person.writes("endless.py", "import time\nprint('going', flush=True)\ntime.sleep(600)\n")
    running = person.starts("dios run endless.py --title endless")
    with running:
        assert running.stdout is not None
        assert running.stdout.readline() == "going\n"
        running.send_signal(number)
        _, told = running.communicate(timeout=DEADLINE_SECONDS)
    assert running.returncode == status, told
    deadline = time.monotonic() + DEADLINE_SECONDS
    while "endless" in person.types("dios ps").stdout:
        assert time.monotonic() < deadline


@pytest.mark.parametrize(
    ("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)]
)
def test_what_ends_a_command_ends_it_cleanly(person: Person, number: int, status: int) -> None:
    """Ctrl-C, SIGTERM and a closed terminal give the shell's status, no traceback, and no part of a file."""
    if not (person.home / "wide").exists():
        person.writes("wide", "0123456789abcdef" * 100_000)
        person.types("dios put wide --group analytics --as ended/wide")
    pipe = person.home / f"pipe-{status}"
    os.mkfifo(pipe)
    running = person.starts("dios get analytics/ended/wide --output", str(pipe))
    # It waits with most of the bytes, because nobody reads on.
    with running, pipe.open("rb", buffering=0) as reader:
        assert reader.read(1) == b"0"
        running.send_signal(number)
        told = running.communicate(timeout=DEADLINE_SECONDS)[1]
    assert running.returncode == status, told
    assert "Traceback" not in told
    typing = person.starts("dios put - --group analytics --as ended/typed", stdin=subprocess.PIPE)
    with typing:
        assert typing.stdin is not None
        while not _waits_for_input(typing.pid):
            assert typing.poll() is None
        typing.send_signal(number)
        told = typing.communicate(timeout=DEADLINE_SECONDS)[1]
    assert typing.returncode == status, told
    assert "Traceback" not in told
    assert "ended/typed" not in person.types("dios ls").stdout


def _waits_for_input(pid: int) -> bool:
    """True if the process has a temporary file for its standard input, in the middle of ``dios put -``."""
    with contextlib.suppress(FileNotFoundError):
        return any(
            "(deleted)" in str(descriptor.readlink()) for descriptor in Path(f"/proc/{pid}/fd").iterdir()
        )
    return False


def test_a_reader_that_has_enough_ends_a_command_quietly(person: Person) -> None:
    """`dios ls | head` ends without a word on standard error, as a table and as JSON."""
    for count in range(600):
        person.writes(f"crowd/{count:03}-{'x' * 100}", "")
    person.types("dios put crowd --recursive --group analytics")
    for option in ("", "--json"):
        done = person.pastes(f"set +e; dios ls {option} | head -1; echo ${{PIPESTATUS[0]}}")
        assert done.stdout.splitlines()[-1] == "1", done.stdout
        assert done.stderr == ""
    closed = person.pastes("set +e; dios ls >&-; echo $?")
    assert "Traceback" not in closed.stderr
    person.types("dios rm analytics/crowd --recursive")


def test_the_shell_works_on_references(person: Person) -> None:
    """The dizibox creates, writes, reads, lists and drops; what it does not know goes to dios."""
    lines = [
        "create durable_blob analytics",
        "write r1 hello there",
        "read r1",
        "refs",
        "ls",
        "nonsense",
        "drop r1",
        "exit",
    ]
    done = person.types("dios shell", typed="\n".join(lines) + "\n")
    assert "hello there" in done.stdout
    assert "DURABLE_BLOB" in done.stdout
    assert "no command 'nonsense'" in done.stderr


def test_the_audit_log_is_listed_and_verified(person: Person) -> None:
    """What was done is in the log, filters select, and the chain holds."""
    deadline = time.monotonic() + DEADLINE_SECONDS
    while not person.types("dios audit --action create --last 1 --json").stdout:
        assert time.monotonic() < deadline
    row = json.loads(person.types("dios audit --action create --last 1 --json").stdout)
    assert row["action"] == "create"
    assert json.loads(person.types("dios audit verify --json").stdout)["ok"]


def test_objects_and_catalogues_survive_the_node(person: Person) -> None:
    """After a stop and a start everything that was put is there."""
    person.writes("lasting.txt", "still here")
    person.types("dios put lasting.txt --group analytics")
    person.types("dios-node stop")
    assert person.types("dios-node status", status=3).stdout.startswith("node")
    person.types("dios-node start --data ./node0 --detach")
    assert person.types("dios get lasting.txt").stdout == "still here"


def test_names_are_in_no_log(person: Person) -> None:
    """No log holds a name, in any spelling, even of a task that prints one and dies of another."""
    person.writes(
        "blabs.py",
        "import dios, sys\n"
        "with dios.connect() as node:\n"
        "    name = node.groups[0].read_name()\n"
        "print(dios.format_name(name), name, name.hex(), flush=True)\n"
        "raise SystemExit(1) if sys.argv[1:] else ValueError(dios.format_name(name))\n",
    )
    person.types("dios run blabs.py --group analytics", status=1)
    person.types("dios run blabs.py --group analytics x", status=1)
    keyring = (person.home / ".config" / "dios" / "keyring.toml").read_text()
    words = [word.strip('"') for word in keyring.split() if word.strip('"').startswith("dios1")]
    names = [parse_name(word) for word in words]
    assert names
    secrets = [
        *(word.encode() for word in words),
        *names,
        *(name.hex().encode() for name in names),
        *(repr(bytes(name))[2:-1].encode() for name in names),
    ]
    logs = [person.home / "node0" / "node.log", *(person.home / "node0" / "audit").iterdir()]
    for log in logs:
        held = log.read_bytes()
        assert not [secret for secret in secrets if secret in held], log


def test_nothing_of_a_person_or_a_node_is_open_to_others(person: Person) -> None:
    """Keyring, history, runtime folder and everything below a data directory have no bit for others."""
    mine = [person.home / ".config" / "dios", person.home / "run" / "dios", person.home / "node0"]
    paths = [path for top in mine for path in (top, *top.rglob("*")) if not path.is_symlink()]
    assert len(paths) > 10
    assert not [path for path in paths if path.stat().st_mode & 0o077]


def test_a_keyring_may_hold_more_groups_than_a_session(person: Person, tmp_path: Path) -> None:
    """Every group of a long keyring can be listed, searched and used, although one message has too many."""
    other = Person(tmp_path)
    other.environment["DIOS_NODE"] = str(person.home / "node0")
    count = GROUPS_PER_CALL_MAX + 3
    other.types("dios shell", typed="".join(f"newgroup g{number}\n" for number in range(count)))
    assert all(row["here"] for row in json.loads(other.types("dios group ls --json").stdout))
    other.writes("deep.txt", "x")
    other.types("dios put deep.txt --group g0")
    assert "deep.txt" in other.types("dios ls --group g0").stdout
    shown = other.types("dios ls")
    assert "deep.txt" in shown.stdout
    assert "left out" not in shown.stderr


def test_a_node_that_hangs_is_told_of_and_stopped(tmp_path: Path) -> None:
    """A node that takes connections and never answers fails status, and is killed by stop."""
    someone = Person(tmp_path)
    someone.types("dios-node start --data ./node0 --detach")
    pid = int((someone.home / "node0" / "node.pid").read_text())
    os.kill(pid, signal.SIGSTOP)
    assert "did not answer" in someone.types("dios-node status", status=1).stderr
    stopped = someone.types("dios-node stop")
    assert "killed" in stopped.stdout
    assert "SIGKILL" in stopped.stderr
    someone.types("dios-node status", status=3)
