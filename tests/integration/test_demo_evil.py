"""The evil word count, as ``make demo-evil`` runs it, and that it would notice what goes through."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from rich.console import Console

from dios.host.confinement.mechanisms import obstacle_to_pure, probe
from examples.demo_evil import NOT_HERE, WORKERS, Said, reason, tell, was_stopped
from examples.evil_attempts import ALL, CHAPTERS
from examples.evil_traps import Traps
from examples.evil_words import attempts

ROOT = Path(__file__).resolve().parents[2]
SECONDS_MAX = 120


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> subprocess.CompletedProcess[str]:
    """One run, as the make target starts it; it must leave its directory for temporary files empty."""
    home, temporary = tmp_path_factory.mktemp("home"), tmp_path_factory.mktemp("temporary")
    environment = {"HOME": str(home), "TMPDIR": str(temporary), "PATH": "/usr/bin:/bin", "COLUMNS": "140"}
    run = subprocess.run(
        [sys.executable, "-m", "examples.demo_evil"],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
        check=False,
    )
    assert not list(temporary.iterdir())
    missing = obstacle_to_pure(probe())
    if missing:
        assert run.returncode == NOT_HERE, run.stdout + run.stderr
        assert "dios doctor" in run.stdout
        pytest.skip(f"pure tasks cannot be confined here: {missing}")
    return run


def test_every_attempt_is_stopped_and_the_count_is_right(story: subprocess.CompletedProcess[str]) -> None:
    """It tells of every attempt, each stopped by its expected layer, and no process is left."""
    assert story.returncode == 0, story.stdout + story.stderr
    assert f"All {len(ALL)} attempts were stopped" in story.stdout
    assert "another layer than expected" not in story.stdout
    assert all(chapter.title in story.stdout for chapter in CHAPTERS)
    # The name of the call comes from the kernel's log, which only root may read, and which drops records
    # when other tests' tasks are ended at the same moment.
    ends = ["ptrace", "a forbidden system call"]
    told = " ".join(story.stdout.split())
    assert any(f"the sandbox ended it because it made {end}" in told for end in ends)
    assert "48,000 words" in story.stdout
    assert "processes is left" in story.stdout


def test_the_audit_records_are_shown(story: subprocess.CompletedProcess[str]) -> None:
    """What the core refused, the names looked up in vain and the sandbox's end are shown by `dios audit`."""
    assert "$ dios audit verify" in story.stdout
    shown = [line.split() for line in story.stdout.splitlines() if " uid:" in line]
    audited = {(words[3], words[4]) for words in shown}
    wanted = {
        (attempt.record, "empty" if "" in attempt.stopped else "denied")
        for attempt in ALL.values()
        if attempt.record
    }
    assert audited >= wanted | {("ended", "sandbox")}


def test_no_name_is_shown(story: subprocess.CompletedProcess[str]) -> None:
    """The story holds no name's text, and not the secret that the job is after."""
    assert "dios1" not in story.stdout + story.stderr
    assert "SECRET-" not in story.stdout + story.stderr


def test_the_catalogue_has_every_attempt_of_the_job() -> None:
    """What the story tells of and what the job tries are the same, attempt by attempt."""
    assert set(ALL) == set(attempts())


def test_what_went_through_was_not_made_or_proves_nothing_is_no_success() -> None:
    """One mapper that got something, an attempt that broke, or one that is missing, is not "stopped"."""
    refused, through, broken = ("refused", "EPERM"), ("through", ""), ("broken", "KeyError: 'x'")
    assert was_stopped(Counter({refused: WORKERS}))
    assert was_stopped(Counter({("nothing", ""): WORKERS}))
    assert not was_stopped(Counter({refused: WORKERS - 1, through: 1}))
    assert not was_stopped(Counter({refused: WORKERS - 1, broken: 1}))
    assert not was_stopped(Counter({refused: WORKERS - 1}))
    assert not was_stopped(Counter())


def test_a_chapter_with_one_hole_says_so() -> None:
    """A chapter in which one attempt went through is shown with it, and fails."""
    chapter = CHAPTERS[0]
    said: Said = {
        attempt.name: Counter({("refused", next(iter(attempt.stopped))): WORKERS})
        for attempt in chapter.attempts
    }
    shown = io.StringIO()
    console = Console(file=shown, width=140)
    assert tell(console, 1, chapter, said)
    assert "NOTHING" not in shown.getvalue()
    said[chapter.attempts[0].name] = Counter({("through", ""): WORKERS})
    assert not tell(console, 1, chapter, said)
    assert "NOTHING" in shown.getvalue()


def test_a_layer_is_named_only_for_the_answer_that_it_gives() -> None:
    """An answer that the catalogue does not expect is not credited to the layer that it names."""
    attempt = ALL["connect_tcp"]
    assert "seccomp" in reason(attempt, Counter({("refused", "EPERM"): WORKERS}))
    assert "another layer" in reason(attempt, Counter({("refused", "ENETUNREACH"): WORKERS}))


def test_the_traps_catch_what_an_ordinary_program_sends(tmp_path: Path) -> None:
    """The same attempts by a process without a sandbox go through, and each listener hears of it."""
    names = ["read_mail_file", "connect_tcp", "send_udp", "connect_unix", "connect_abstract", "write_file"]
    with Traps(tmp_path, b"the secret") as traps:
        verdicts = traps.tried_by_an_ordinary_program(names, tmp_path)
        assert verdicts == dict.fromkeys(names, "through"), json.dumps(verdicts)
        assert sorted(traps.caught()) == ["abstract", "file", "tcp", "udp", "unix"]
        assert traps.caught() == []
