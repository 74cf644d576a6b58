"""``make demo-evil``: the evil MapReduce job (§5.4.2), for readers who do not know capabilities.

The exit status is 0 if every attempt was stopped and every check from outside agrees, 1 if not, and 2 if this
machine cannot confine pure tasks. ``tests/security`` tests more than this demo shows.
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

try:
    from rich.box import SIMPLE
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    import dios
    from dios.host.audit.reader import AuditReader
    from dios.host.confinement.mechanisms import obstacle_to_pure, probe
    from dios.lib import mapreduce
    from examples.demo import running_cluster
    from examples.evil_attempts import ALL, CHAPTERS, Attempt, Chapter
    from examples.evil_traps import JOB, Traps
except KeyboardInterrupt:
    sys.exit(130)  # loading takes a part of a second

MARK: Final = b"\0"
CLICKS: Final = 12_000
WORKERS: Final = 2
LOG_SECONDS: Final = 10.0
NOT_HERE: Final = 2
WIDE: Final = 110

Said: TypeAlias = dict[str, Counter[tuple[str, str]]]
"""For each attempt, the number of mappers by verdict and answer."""

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
You are an analyst with two data sets: [bold]click logs[/] of a web site, and a confidential archive of
[bold]mail[/]. A colleague gives you a program that counts the words of the clicks. It counts well. It also
tries to read your mail, and to send everything that it can get to someone else.

You run it as a MapReduce job. DIOS starts each part of it as a [bold]task[/], and gives it
[bold]references[/]: one to its share of the clicks, for reading, and one to each pipe for its results, for
writing. A reference is a key to one object. A task can use only the keys that it was given.

The answers below are the system's error codes. ENOENT: no such object. EPERM and EACCES: not permitted.
EBADF: not a reference of this task. The column "behind that", on a wide terminal, names the layer that would
stop the attempt if the first layer did not; this is by design and is not tested here.
"""

RECORD: Final = """\
The audit log has a record of every call that reached the node and was denied, because a permission or the
reference was missing, and of every failed lookup of a name: the task, the object and the reason. Objects and
tasks are shown as fingerprints, because the log must not contain names. Calls that the kernel refused never
reached the node, so they have no record, except the end of a task. These are the records of the first mapper:
"""


@dataclass(slots=True)
class Scene:
    """The data and tasks of the user on the node before the job."""

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
    """The results of the job: its count, leaks of the secret, and the reports of the mappers."""

    count: Counter[bytes]
    leaked: bool
    said: Said
    mappers: list[str]


def main() -> int:
    """Run the demo; the statuses are those of the module."""
    console = Console(highlight=False)
    missing = obstacle_to_pure(probe())
    if missing:
        console.print(
            f"This machine cannot confine pure tasks ({escape(missing)}), so the demo cannot run.\n"
            "`dios doctor` shows what to change."
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
    """Return the paragraphs without their line ends, for a terminal of any width."""
    return re.sub(r"(?<!\n)\n(?!\n|$)", " ", text)


# -- the scene ----------------------------------------------------------------------------------------
def set_up(node: dios.Node, traps: Traps, secret: bytes) -> Scene:
    """Store the clicks and the mail on the node, in separate groups, and start the accomplice."""
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
    """Show that the attempts are real: an ordinary program makes those that need no node."""
    names = [attempt.name for attempt in ALL.values() if attempt.control]
    scene.ordinary = scene.traps.tried_by_an_ordinary_program(names, scene.data)
    through = sum(verdict == "through" for verdict in scene.ordinary.values())
    caught = scene.traps.caught()
    console.print(
        f"First its code runs as an ordinary program, to show that the attempts are real: "
        f"[red]{through} of {len(names)} succeed[/], and the demo's listeners received {len(caught)} "
        f"messages ({', '.join(sorted(set(caught)))}). Then the same code runs as a DIOS job.\n"
    )


def run_job(scene: Scene) -> Evidence:
    """Run the evil job with everything that its author knows, and sort its output."""
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
                raise TypeError("the job counted something that is not a word")
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
    """Show one chapter's attempts; return True if every mapper made each and all were stopped."""
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
    """Return True if every mapper made the attempt, and none succeeded."""
    return verdicts.total() == WORKERS and all(verdict in {"refused", "nothing"} for verdict, _ in verdicts)


def reason(attempt: Attempt, verdicts: Counter[tuple[str, str]]) -> str:
    """Return the layer that gave the answers, if they are the expected ones."""
    layers = {attempt.stopped.get(answer, "") for _, answer in verdicts}
    return "; ".join(sorted(layers)) if all(layers) else "[yellow]another layer than expected"


def attack(console: Console, scene: Scene) -> tuple[str, bool]:
    """Run a job that attacks the system; return its fingerprint, and True if the sandbox ended it."""
    console.print(f"[bold]{len(CHAPTERS) + 1}. Attack the system below")
    console.print(
        "Some system calls, such as ptrace, which controls other processes, are useful only to an attacker. "
        "A task that makes such a call is ended at once, and the job fails."
    )
    try:
        mapreduce.run(scene.node, ATTACK, [b"one line"], workers=1, reducers=1, attempts=1).close()
    except mapreduce.JobFailedError as error:
        status = error.failures[0].status
        console.print(f"\n  the job's end: [green]{escape(error.message)}\n")
        return status.fingerprint, status.cause is dios.Cause.SANDBOX
    console.print("\n  [red]the job continued\n")
    return "", False


# -- the record ---------------------------------------------------------------------------------------
def show_audit(console: Console, scene: Scene, evidence: Evidence, killed: str) -> bool:
    """Print the audit log of the job; return True if it has every call that reached the node."""
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
    """Return the attempts that should have left a record with each mapper, but did not."""
    wanted = {
        (task, attempt.record, "empty" if "" in attempt.stopped else "denied"): attempt.name
        for attempt in ALL.values()
        if attempt.record
        for task in evidence.mappers
    }
    wanted[killed, "ended", "sandbox"] = "the end caused by the sandbox"
    deadline = time.monotonic() + LOG_SECONDS
    reader = AuditReader(scene.data / "audit")
    # The log is written a few times a second.
    while wanted and time.monotonic() < deadline:
        for entry in reader.poll():
            wanted.pop((entry.record.task, entry.record.action, entry.record.outcome), None)
        time.sleep(0.02)
    return sorted(set(wanted.values()))


def dios_audit(console: Console, scene: Scene, *options: str) -> bool:
    """Run `dios audit` with options and show its output; return True if it succeeded."""
    console.print(f"[bold]$ dios audit {' '.join(options)}")
    command = [sys.executable, "-m", "dios.cli.main", "audit", *options, "--data", str(scene.data)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    console.print(escape(done.stdout), soft_wrap=True)
    return done.returncode == 0


# -- the witnesses ------------------------------------------------------------------------------------
def ask_witnesses(console: Console, scene: Scene, evidence: Evidence) -> bool:
    """Check from outside, because the job's own reports prove nothing; return True if all is as before."""
    console.print("[bold]The witnesses")
    console.print("All answers above are reports of the job itself. So the demo also checked from outside:\n")
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
        ("the demo's listeners received nothing, and no file was written", not caught),
        (
            "no reference to the mail was given away: the log has only its creation",
            given == ["create"],
        ),
        (
            "no read or write of the mail was committed: its counters are unchanged",
            mail_now == scene.versions,
        ),
        ("the clicks are the same, byte for byte", scene.clicks.read_bytes() == scene.text),
        ("the accomplice received nothing", b"got" not in heard),
        ("the mail's secret is not in the job's output", not evidence.leaked),
        ("the job reported every attempt, and nothing else", set(evidence.said) == set(ALL)),
        ("no task ran outside the sandbox", kinds == {dios.Brand.PURE}),
        (f"and the count is right: {plain.total():,} words, {len(plain)} different", evidence.count == plain),
    )
    for text, holds in findings:
        console.print(f"  {'[green]yes' if holds else '[red]NO '}[/]  {text}")
    console.print()
    return all(holds for _, holds in findings)


def finish(console: Console, evidence: Evidence, *, all_fine: bool) -> int:
    """Print the summary, and return the exit status."""
    if not all_fine:
        console.print("[red bold]An attempt succeeded, or a check failed; see the red lines above.")
        return 1
    console.print("You have the result that you asked for. The most frequent words of the clicks are:")
    for word, number in sorted(evidence.count.items(), key=lambda item: (-item[1], item[0]))[:5]:
        console.print(f"  {number:>8,}  {word.decode()}")
    console.print(
        f"\n[green bold]All {len(ALL)} attempts were stopped in each of {len(evidence.mappers)} mappers, "
        "and the attack ended its task.[/]\n"
        "A job can still put what it may read into its own result, which only you receive. "
        "docs/sandbox.md#the-evil-job explains more.\n"
    )
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except dios.DiosError as error:
        sys.exit(f"demo-evil: {error}")
    except KeyboardInterrupt:
        sys.exit(130)
