"""``make chaos MINUTES=30``: real nodes fail under load, and the clients' own records are checked.

    python -m tests.chaos.run --minutes 30 [--seed N] [--report FILE]
    python -m tests.chaos.run --kept --rounds 200 [--nodes 2,3,5] [--programs 2,4,8] [--seed N]

``--kept`` plays rounds with kept replicas (``tests.chaos.kept``); ``make chaos KEPT=1 ROUNDS=200``.

A run that finds a broken promise prints its seed, keeps the nodes' data, and ends with status 1. The seed
decides the calls and the faults; their exact moments depend on the machine.
"""

from __future__ import annotations

import argparse
import os
import platform
import secrets
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path
from types import FrameType
from typing import Final

from tests.chaos.cluster import NODES
from tests.chaos.kept import campaign
from tests.chaos.kept.plan import Kind
from tests.chaos.round import Tally, figures, play
from tests.chaos.workload import CLIENTS_PER_NODE

_ISOLATED: Final = ("HOME", "XDG_RUNTIME_DIR", "XDG_CONFIG_HOME", "XDG_STATE_HOME")


def say(text: str) -> None:
    """Print one line of progress."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def main() -> int:
    """Run the suite; return the exit status."""
    parser = argparse.ArgumentParser(description="Let the nodes of a cluster fail under load.")
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--seed", type=int, default=None, help="repeats a plan; random by default")
    parser.add_argument("--report", type=Path, default=None, help="the file for the figures")
    parser.add_argument("--kept", action="store_true", help="rounds with kept replicas and more faults")
    parser.add_argument("--rounds", type=int, default=200, help="of --kept")
    parser.add_argument("--nodes", type=_numbers, default=(3,), help="of --kept: 3, or 2,3,5")
    parser.add_argument("--programs", type=_numbers, default=(4,), help="of --kept: 4, or 2,4,8")
    parser.add_argument("--faults", type=_kinds, default=None, help="of --kept: only these kinds, or none")
    chosen = parser.parse_args()
    seed = secrets.randbits(32) if chosen.seed is None else chosen.seed
    folder = Path(tempfile.mkdtemp(prefix="dios-chaos-"))
    # The nodes leave the links and files of the user alone, and start no schedulers.
    os.environ.update({name: str(folder) for name in _ISOLATED})
    os.environ["DIOS_COORDINATOR"] = "off"
    amount = f"{chosen.rounds} rounds" if chosen.kept else f"{chosen.minutes:g} minutes"
    say(f"seed {seed}: {amount} on {folder}")
    interrupted: list[int] = []

    def interrupt(number: int, frame: FrameType | None) -> None:
        del frame
        interrupted.append(number)
        say("  ending after this fault")

    signal.signal(signal.SIGINT, interrupt)
    if chosen.kept:
        wish = campaign.Wish(seed, chosen.rounds, chosen.nodes, chosen.programs, chosen.faults)
        return _kept(folder, wish, chosen.report, interrupted)
    end = time.monotonic() + 60 * chosen.minutes
    try:
        tally = play(
            folder / "cluster",
            seed,
            lambda _: bool(interrupted) or time.monotonic() >= end,
            lambda text: say(f"  {text}"),
        )
    except Exception as error:  # noqa: BLE001 - whatever it was, its data is to be kept
        say(f"failed: {error}")
        again = f"make chaos SEED={seed} MINUTES={chosen.minutes:g}"
        say(f"the nodes' data is in {folder}; the same plan: {again}")
        sys.excepthook(type(error), error, error.__traceback__)
        return 1
    rows = figures(tally)
    width = max(len(name) for name, _ in rows)
    for name, value in rows:
        say(f"  {name.ljust(width)}  {value}")
    if chosen.report is not None and not interrupted:
        chosen.report.write_text(_page(chosen.minutes, seed, tally))
    shutil.rmtree(folder)
    return 130 if interrupted else 0


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(word) for word in text.split(","))


def _kinds(text: str) -> tuple[Kind, ...]:
    return () if text in {"", "none"} else tuple(Kind(word.strip()) for word in text.split(","))


def _kept(folder: Path, wish: campaign.Wish, report: Path | None, interrupted: list[int]) -> int:
    """Play the rounds with kept replicas; return the exit status."""
    tally = campaign.play(folder, wish, lambda: bool(interrupted), say)
    rows = campaign.figures(tally)
    width = max(len(name) for name, _ in rows)
    for name, value in rows:
        say(f"  {name.ljust(width)}  {value}")
    if report is not None and not interrupted:
        report.write_text(_kept_page(wish, rows))
    if tally.broken:
        say(f"the notes of the programs and the logs of the nodes are in {folder}")
        return 1
    shutil.rmtree(folder)
    return 130 if interrupted else 0


def _kept_page(wish: campaign.Wish, figure_rows: list[tuple[str, str]]) -> str:
    machine = f"{platform.system()} {platform.release()}, {os.cpu_count()} CPUs"
    rows = "\n".join(f"| {name} | {value} |" for name, value in figure_rows)
    nodes, programs = (",".join(map(str, numbers)) for numbers in (wish.nodes, wish.programs))
    return f"""# Kept replicas on nodes, networks, clocks and disks that fail

`make chaos KEPT=1 ROUNDS={wish.rounds} SEED={wish.seed} NODES={nodes} PROGRAMS={programs}` on {machine},
Python {platform.python_version()}.

In each round some programs put, replace, move, remove, read and tier files of a group with a promise of
two or three replicas, for five seconds, while nodes are killed, paused, cut off from each other and lost
for ever, clocks jump, disks stall, and power cuts lose what was not synced. Each program writes down what
it was answered. Then all faults end, and within 40 seconds the promise must be kept exactly. Each path must
be a linearizable register, also for a last reader on each node; the replicas of the list are equal; no
object is left over of what was acknowledged.

| | |
|---|---|
{rows}
"""


def _page(minutes: float, seed: int, tally: Tally) -> str:
    machine = f"{platform.system()} {platform.release()}, {os.cpu_count()} CPUs"
    rows = "\n".join(f"| {name} | {value} |" for name, value in figures(tally))
    return f"""# Nodes of a cluster killed, frozen and stopped under load

`make chaos MINUTES={minutes:g} SEED={seed}` on {machine}, Python {platform.python_version()}.

{NODES * CLIENTS_PER_NODE} clients at {NODES} nodes read and write registers, increment counters at
each level of semantics, use a key-value store over all nodes, create durable objects, and run pure
tasks, while the nodes are killed (`SIGKILL`), frozen (`SIGSTOP`) and stopped (`SIGTERM`), each for up
to 7 seconds. Each client records what it was answered: *done*, *failed* (nothing was changed), or
*unknown*. Afterwards every register, every strong counter and every key of the store must be
linearizable, every acknowledged object must be there, every run must have been executed as often as
its caller learnt, and nothing may be left: references, buffers, tasks, processes, control groups,
mounts, files.

| | |
|---|---|
{rows}
| broken promises | 0 |
"""


if __name__ == "__main__":
    sys.exit(main())
