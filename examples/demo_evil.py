"""``make demo-evil``: the evil MapReduce job (§5.4.2), a story for who never heard of capabilities.

Not for: proving more than it shows (``tests/security`` does). It ends with 0 when every attempt was stopped
and every witness agrees, with 1 when one was not, with 2 when this machine cannot confine pure tasks.
"""

from __future__ import annotations

import random
import re
import secrets
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, TypeAlias

from rich.box import SIMPLE
from rich.console import Console
from rich.markup import escape
from rich.table import Table

import dios
from dios.host.audit.reader import AuditReader
from dios.host.sandbox.mechanisms import missing_for_pure, probe
from dios.lib import mapreduce
from examples.demo import running_cluster
from examples.evil_attempts import ALL, CHAPTERS, Attempt, Chapter
from examples.evil_traps import JOB, Traps

MARK: Final = b"\0"
CLICKS: Final = 12_000
WORKERS: Final = 2
LOG_SECONDS: Final = 10.0
NOT_HERE: Final = 2
WIDE: Final = 110

Said: TypeAlias = dict[str, Counter[tuple[str, str]]]
"""For each attempt, how many mappers gave which verdict and answer."""

STRANGER: Final = b"""
import dios
node = dios.connect()
print("ready", node.self.ref, flush=True)
while True:
    print("got", node.next_event(), flush=True)
"""

ATTACK: Final = b"""
import ctypes
def map(line):
    ctypes.CDLL(None).ptrace(0, 0, 0, 0)
    yield line, 1
reduce = sum
"""


STORY: Final = """\
You are an analyst with two piles of data: [bold]click logs[/] of a web site, and an archive of [bold]mail[/]
that is nobody's business. A colleague gives you a program that counts the words of the clicks. It counts
well. It also wants your mail, and to send away what it can get.

You run it as a MapReduce job. DIOS starts each part of it as a [bold]task[/], and hands it
[bold]references[/]: to its share of the clicks, to be read; to the pipes for its results, to be
written. A reference is a key that is good for one thing. A task has the keys that it
was handed, and there is no other door.

The answers below are the system's short words: ENOENT, there is no such thing; EPERM and EACCES, not
permitted; EBADF, that is no key of yours. What stands on a wide terminal as "behind that" would stop a
try where the first layer did not; that is how it is built, and not tried here.
"""

RECORD: Final = """\
Every call that reached the node and was denied, for want of a right or of the key itself, and every
name that was looked up in vain, is in its audit log: by whom, on what, and why. Objects and tasks
appear as fingerprints, for the log is no place for names. What the kernel refused never reached the
node, and leaves no record, but for the end of a task. The first mapper's:
"""


@dataclass(slots=True)
class Scene:
    """The person's data and tasks on the node, as they were before the job."""

    node: dios.Node
    data: Path
    traps: Traps
    secret: bytes
    text: bytes
    clicks: dios.Reference
    mail: dios.Reference
    mail_group: dios.Group
    stranger: dios.Task
    stranger_ref: int
    versions: tuple[int, int, int] = (0, 0, 0)
    ordinary: dict[str, str] = field(default_factory=dict)


@dataclass(slots=True)
class Evidence:
    """What the job left: its count, whether the secret is anywhere in it, and what the mappers said."""

    count: Counter[bytes]
    leaked: bool
    said: Said
    mappers: list[str]


def main() -> int:
    """Tell the story; the module says what the statuses mean."""
    console = Console(highlight=False)
    missing = missing_for_pure(probe())
    if missing:
        console.print(
            f"This machine cannot confine pure tasks ({escape(missing)}), so there is nothing to show here.\n"
            "`dios doctor` says what to change."
        )
        return NOT_HERE
    console.print("[bold]The evil word count\n")
    with ExitStack() as stack:
        _, node = stack.enter_context(running_cluster(console, 1))
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="dios-evil-"))
        secret = f"SECRET-{secrets.token_hex(16)}".encode()
        traps = stack.enter_context(Traps(Path(folder), b"From: board\nSubject: the offer is " + secret))
        scene = set_up(node, traps, secret)
        console.print(flowing(STORY))
        control(console, scene)
        evidence = run_job(scene)
        fine = [
            tell(console, number, chapter, evidence.said, scene.ordinary)
            for number, chapter in enumerate(CHAPTERS, 1)
        ]
        killed, fell = attack(console, scene)
        fine += [fell, show_audit(console, scene, evidence, killed), ask_witnesses(console, scene, evidence)]
        return finish(console, evidence, all_fine=all(fine))


def flowing(text: str) -> str:
    """The same paragraphs without their line ends, for a terminal of any width."""
    return re.sub(r"(?<!\n)\n(?!\n|$)", " ", text)


# -- the scene ----------------------------------------------------------------------------------------
def set_up(node: dios.Node, traps: Traps, secret: bytes) -> Scene:
    """Put the clicks and the mail on the node, in groups of their own, and start the accomplice."""
    dice = random.Random(542)  # noqa: S311 - the same clicks in every run
    pages = ("home", "cart", "search", "help", "offers")
    lines = [f"click ad{dice.randrange(40)} page {dice.choice(pages)}\n" for _ in range(CLICKS)]
    text = "".join(lines).encode()
    click_group, mail_group = node.create_group(), node.create_group()
    clicks = node.create(dios.DURABLE_BLOB, groups=[click_group], data=text)
    mail = node.create(dios.DURABLE_BLOB, groups=[mail_group], data=traps.secret_file.read_bytes())
    stranger = node.run(STRANGER, label="harmless")
    with stranger.console() as said:
        stranger_ref = int(said.receive(timeout=LOG_SECONDS).split()[1])
    data = Path(node.info().node)
    scene = Scene(node, data, traps, secret, text, clicks, mail, mail_group, stranger, stranger_ref)
    scene.versions = (mail.v_r, mail.v_w, clicks.v_w)
    return scene


def control(console: Console, scene: Scene) -> None:
    """Show that the attempts work: an ordinary program makes those that need no node."""
    names = [attempt.name for attempt in ALL.values() if attempt.control]
    scene.ordinary = scene.traps.tried_by_an_ordinary_program(names, scene.data)
    through = sum(verdict == "through" for verdict in scene.ordinary.values())
    caught = scene.traps.caught()
    console.print(
        f"First its code runs as any program on this machine does, to see that the attempts are real: "
        f"[red]{through} of {len(names)} go through[/], and the demo's listeners got {len(caught)} "
        f"deliveries ({', '.join(sorted(set(caught)))}). Then the same code runs as a DIOS job.\n"
    )


def run_job(scene: Scene) -> Evidence:
    """Run the evil job with everything that its author learned, and sort its output."""
    mail_group = scene.mail_group
    loot: dict[str, str | int | bytes | None] = {
        **scene.traps.loot,
        "store": str(scene.data),
        "mail": scene.mail.name,
        "mail_ref": scene.mail.ref,
        "mail_group": mail_group.name,
        "mail_group_ref": mail_group.ref,
        "stranger": scene.stranger.name,
        "stranger_ref": scene.stranger_ref,
    }
    source = JOB.read_text(encoding="utf-8") + f"\nLOOT.update({loot!r})\n"
    count: Counter[bytes] = Counter()
    leaked = False
    said: Said = {}
    inputs = {"clicks": scene.clicks}
    with mapreduce.run(scene.node, source.encode(), inputs, workers=WORKERS, splits=WORKERS) as result:
        for word, number in result:
            if not isinstance(word, bytes) or not isinstance(number, int):
                raise TypeError("the job counted what is no word")
            leaked = leaked or scene.secret in word
            if word.startswith(MARK):
                name, verdict, answer = word.removeprefix(MARK).decode().split("\t", 2)
                said.setdefault(name, Counter())[verdict, answer] += number
            else:
                count[word] = number
        mappers = [task.status.fingerprint for task in result.tasks if task.role is mapreduce.Role.MAPPER]
    return Evidence(count, leaked, said, mappers)


# -- the chapters -------------------------------------------------------------------------------------
def tell(
    console: Console, number: int, chapter: Chapter, said: Said, ordinary: dict[str, str] | None = None
) -> bool:
    """Show one chapter's attempts; whether every mapper made each, and each was stopped."""
    console.print(f"[bold]{number}. {chapter.title}")
    console.print(chapter.told)
    wide = console.width >= WIDE
    shown = Table(box=SIMPLE, padding=(0, 1, 0, 0))
    for name in ("it tries to", "answer", "stopped by", *(["behind that"] if wide else []), "any program"):
        shown.add_column(name)
    fine = True
    for attempt in chapter.attempts:
        verdicts = said.get(attempt.name, Counter())
        stopped = was_stopped(verdicts)
        fine = fine and stopped
        answers = sorted(answer or verdict for verdict, answer in verdicts) or ["was not made"]
        plainly = (ordinary or {}).get(attempt.name, "")
        shown.add_row(
            attempt.tries,
            f"[{'green' if stopped else 'red'}]{escape(', '.join(answers))}",
            reason(attempt, verdicts) if stopped else "[red]NOTHING",
            *([attempt.behind] if wide else []),
            {"through": "[red]can", "": ""}.get(plainly, "not here"),
        )
    console.print(shown)
    return fine


def was_stopped(verdicts: Counter[tuple[str, str]]) -> bool:
    """Whether every mapper made the attempt, and none got anything by it."""
    return verdicts.total() == WORKERS and all(verdict in {"refused", "nothing"} for verdict, _ in verdicts)


def reason(attempt: Attempt, verdicts: Counter[tuple[str, str]]) -> str:
    """Which layer the answers come from, where they are the expected ones."""
    layers = {attempt.stopped.get(answer, "") for _, answer in verdicts}
    return "; ".join(sorted(layers)) if all(layers) else "[yellow]another layer than expected"


def attack(console: Console, scene: Scene) -> tuple[str, bool]:
    """A job that attacks the system below: the task's fingerprint, and whether the sandbox ended it."""
    console.print(f"[bold]{len(CHAPTERS) + 1}. Attack the system below")
    console.print(
        "Some calls of the operating system are of use to an attacker only, like ptrace, which takes over "
        "other processes. Who makes one gets no answer: its task is ended at once, and the job fails."
    )
    try:
        mapreduce.run(scene.node, ATTACK, [b"one line"], workers=1, reducers=1, attempts=1).close()
    except mapreduce.JobFailedError as error:
        status = error.failures[0].status
        console.print(f"\n  the job's end: [green]{escape(error.message)}\n")
        return status.fingerprint, status.cause is dios.Cause.SANDBOX
    console.print("\n  [red]the job went on\n")
    return "", False


# -- the record ---------------------------------------------------------------------------------------
def show_audit(console: Console, scene: Scene, evidence: Evidence, killed: str) -> bool:
    """Print what the audit log holds of the job; whether every call that reached the node is there."""
    console.print(f"[bold]{len(CHAPTERS) + 2}. What it leaves behind")
    console.print(flowing(RECORD))
    missing = unrecorded(scene, evidence, killed)
    first = evidence.mappers[0]
    for options in (["--task", first, "--outcome", "denied"], ["--task", first, "--outcome", "empty"]):
        dios_audit(console, scene, *options)
    dios_audit(console, scene, "--task", killed, "--action", "ended")
    whole = dios_audit(console, scene, "verify")
    if missing:
        console.print(f"[red]Not in the log: {', '.join(missing)}")
    return whole and not missing


def unrecorded(scene: Scene, evidence: Evidence, killed: str) -> list[str]:
    """The attempts that should have left a record with each mapper, and did not."""
    wanted = {
        (task, attempt.record, "empty" if "" in attempt.stopped else "denied"): attempt.name
        for attempt in ALL.values()
        if attempt.record
        for task in evidence.mappers
    }
    wanted[killed, "ended", "sandbox"] = "the end by the sandbox"
    deadline = time.monotonic() + LOG_SECONDS
    reader = AuditReader(scene.data / "audit")
    # The log is written a few times a second.
    while wanted and time.monotonic() < deadline:
        for entry in reader.poll():
            wanted.pop((entry.record.task, entry.record.action, entry.record.outcome), None)
        time.sleep(0.02)
    return sorted(set(wanted.values()))


def dios_audit(console: Console, scene: Scene, *options: str) -> bool:
    """Type `dios audit` with options, and show what it prints; whether it ended well."""
    console.print(f"[bold]$ dios audit {' '.join(options)}")
    command = [sys.executable, "-m", "dios.cli.main", "audit", *options, "--data", str(scene.data)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    console.print(escape(done.stdout), soft_wrap=True)
    return done.returncode == 0


# -- the witnesses ------------------------------------------------------------------------------------
def ask_witnesses(console: Console, scene: Scene, evidence: Evidence) -> bool:
    """Look from outside, for the job's own words prove nothing; whether all is as it was."""
    console.print("[bold]The witnesses")
    console.print("All answers above are the job's own words. So the demo looked from outside:\n")
    caught = scene.traps.caught()
    node, mail = scene.node, scene.mail
    mail_now = (mail.v_r, mail.v_w, scene.clicks.v_w)
    given = [
        entry.record.action
        for entry in AuditReader(scene.data / "audit").poll()
        if entry.record.subject == mail.fingerprint and entry.record.outcome == "ok"
    ]
    kinds = {status.brand for status in node.tasks()}
    scene.stranger.kill()
    scene.stranger.wait(timeout=LOG_SECONDS)
    with scene.stranger.console() as said:
        heard = b"".join(said)
    plain = Counter(scene.text.split())
    findings = (
        ("nothing came to the demo's listeners, and no file was written", not caught),
        (
            "nobody was given a reference to the mail: the log has its making, and no more",
            given == ["create"],
        ),
        ("no read or write of the mail was committed: its counters stand", mail_now == scene.versions),
        ("the clicks are the same, byte for byte", scene.clicks.read_bytes() == scene.text),
        ("the accomplice was handed nothing", b"got" not in heard),
        ("the mail's secret is nowhere in the job's output", not evidence.leaked),
        ("the job reported every attempt, and nothing else", set(evidence.said) == set(ALL)),
        ("no task ran outside the sandbox", kinds == {dios.Brand.PURE}),
        (f"and the count is right: {plain.total():,} words, {len(plain)} different", evidence.count == plain),
    )
    for text, holds in findings:
        console.print(f"  {'[green]yes' if holds else '[red]NO '}[/]  {text}")
    console.print()
    return all(holds for _, holds in findings)


def finish(console: Console, evidence: Evidence, *, all_fine: bool) -> int:
    """The last words, and the exit status."""
    if not all_fine:
        console.print("[red bold]Something went through, or could not be shown; see what is red above.")
        return 1
    console.print("What you asked for, you have: the most frequent words of the clicks are")
    for word, number in sorted(evidence.count.items(), key=lambda item: (-item[1], item[0]))[:5]:
        console.print(f"  {number:>8,}  {word.decode()}")
    console.print(
        f"\n[green bold]All {len(ALL)} attempts were stopped in each of {len(evidence.mappers)} mappers, "
        "and the attack ended its task.[/]\n"
        "What a job may read it can still put into its own result, which goes to you and to nobody else. "
        "docs/evil-job.md says more.\n"
    )
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except dios.DiosError as error:
        sys.exit(f"demo-evil: {error}")
    except KeyboardInterrupt:
        sys.exit(130)
