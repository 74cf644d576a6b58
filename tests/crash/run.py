"""``make crashtest ROUNDS=500``: kill a real node at random moments, and compare its data with its answers.

    python -m tests.crash.run --rounds 500 [--seed N] [--report DIR]

A failing round prints its seed, keeps the data directory, and ends the run with status 1. See ``rounds``.
"""

from __future__ import annotations

import argparse
import json
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

import msgspec

from tests.crash.rounds import Rounds, figures

TELL_S: Final = 1.0


def say(text: str) -> None:
    """Print one line of progress."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def main() -> int:
    """Run the crash test; return the exit status."""
    parser = argparse.ArgumentParser(description="Kill a node under load, again and again.")
    parser.add_argument("--rounds", type=int, default=500)
    parser.add_argument("--seed", type=int, default=None, help="repeats a run; random by default")
    parser.add_argument("--report", type=Path, default=None, help="the folder for crash.md and crash.json")
    chosen = parser.parse_args()
    seed = secrets.randbits(32) if chosen.seed is None else chosen.seed
    folder = Path(tempfile.mkdtemp(prefix="dios-crash-"))
    say(f"seed {seed}: {chosen.rounds} rounds on {folder}")
    rounds = Rounds(folder / "node0", seed)
    interrupted = Interrupted()
    try:
        _run(rounds, chosen.rounds, interrupted)
    except Exception as error:  # noqa: BLE001 - whatever it was, its data is to be kept and its node ended
        rounds.abandon()
        say(f"round {rounds.tally.rounds + 1} failed: {error}")
        say(f"its data is in {folder}; repeat with: make crashtest SEED={seed} ROUNDS={chosen.rounds}")
        # The causes contain the details, such as the last answers to a client.
        sys.excepthook(type(error), error, error.__traceback__)
        return 1
    report = figures(rounds.tally)
    width = max(len(name) for name, _ in report)
    for name, value in report:
        say(f"  {name.ljust(width)}  {value}")
    if chosen.report is not None and not interrupted.asked:
        _write(chosen.report, seed, rounds)
    shutil.rmtree(folder)
    return 130 if interrupted.asked else 0


class Interrupted:
    """A handler of Ctrl-C that ends the run after the current round, so that no node is left half started."""

    def __init__(self) -> None:
        self.asked = False
        signal.signal(signal.SIGINT, self._ask)

    def _ask(self, number: int, frame: FrameType | None) -> None:
        del number, frame
        self.asked = True
        say("  ending after this round")


def _run(rounds: Rounds, count: int, interrupted: Interrupted) -> None:
    told = time.monotonic()
    for number in range(1, count + 1):
        rounds.play()
        if interrupted.asked:
            break
        if time.monotonic() - told > TELL_S or number == count:
            told = time.monotonic()
            tally = rounds.tally
            say(
                f"  {number:>4} rounds  {tally.seconds / number:.2f} s each"
                f"  {tally.acknowledged:>7} acknowledged"
                f"  {tally.kills_while_starting:>4} killed while starting  {rounds.extents:>3} files"
            )
    rounds.finish()


def _write(folder: Path, seed: int, rounds: Rounds) -> None:
    machine = (
        f"{platform.system()} {platform.release()}, {os.cpu_count()} CPUs, Python {platform.python_version()}"
    )
    folder.mkdir(parents=True, exist_ok=True)
    told = {"seed": seed, "machine": machine, **msgspec.to_builtins(rounds.tally)}
    (folder / "crash.json").write_text(json.dumps(told, indent=2) + "\n")
    rows = "\n".join(f"| {name} | {value} |" for name, value in figures(rounds.tally))
    (folder / "crash.md").write_text(
        "# A node killed at random moments\n\n"
        f"`make crashtest ROUNDS={rounds.tally.rounds} SEED={seed}` on {machine}.\n\n"
        "Four clients create, replace and delete durable objects of 48 bytes to 250 kB, create groups, and "
        "let sandboxed tasks write objects that were delegated to them, until SIGKILL ends the daemon. "
        "The answers to each client are recorded outside of the node. Then they are compared with the data "
        "on the disk, and with the data that the restarted node serves.\n\n"
        f"| | |\n|---|---|\n{rows}\n"
    )


if __name__ == "__main__":
    sys.exit(main())
