"""``make starved``: start and use nodes beside busy loops, with processes that are stopped at chosen moments.

python -m tests.starved.run [--busy 20] [--stop 15] [--only WORD] [--report FILE]
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

from tests.starved.plays import PLAYS, WrongError, perform

ROOT: Final = Path(__file__).parents[2]


def say(text: str) -> None:
    """Print one line at once."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def _commit() -> str:
    command = ["git", "describe", "--always", "--dirty"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout.strip() or "an unknown commit"


def main() -> int:
    """Perform the plays one after the other; return 1 if one of them went wrong."""
    parser = argparse.ArgumentParser(prog="make starved")
    parser.add_argument("--busy", type=int, default=20, help="programs that always want a processor")
    parser.add_argument("--stop", type=float, default=15.0, help="seconds for which a process is stopped")
    parser.add_argument("--only", default="", help="perform the plays with this word in their name")
    parser.add_argument("--report", type=Path, help="write a table in Markdown to this file")
    options = parser.parse_args()
    rows: list[tuple[str, str]] = []
    wrong = 0
    for play in PLAYS:
        if options.only not in play.name:
            continue
        say(f"{play.name} ...")
        began = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="dios-starved-") as folder:
            Path(folder).chmod(0o755)
            try:
                notes = perform(play, Path(folder), busy=options.busy, stop_s=options.stop)
                result = "works"
            except WrongError as error:
                notes, result, wrong = [str(error)], "WRONG", wrong + 1
        text = "; ".join(notes).replace(folder + "/", "").replace(folder, "")
        say(f"  {result} after {time.monotonic() - began:.0f} s: {text}")
        rows.append((play.name, f"{result}: {text}"))
    if options.report is not None:
        head = (
            f"# A starved machine\n\n`make starved` at commit {_commit()}: {options.busy} busy loops on "
            f"{os.cpu_count()} processors; the named process is stopped for {options.stop:.0f} s.\n\n"
            "| play | outcome |\n|---|---|\n"
        )
        lines = (
            f"| {name} | {text.replace('|', '/')} |\n".replace("\n", " ").rstrip() for name, text in rows
        )
        options.report.write_text(head + "\n".join(lines) + "\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
