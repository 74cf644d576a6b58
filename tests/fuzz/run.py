"""``make fuzz``: a long campaign against the socket of a real node, with progress; and replays of findings.

    python -m tests.fuzz.run --frames 1000000 [--seed N] [--report DIR]
    python -m tests.fuzz.run --replay FILE

A finding is written to ``.fuzz/`` and ends the run with status 1. Frames are made in ``frames``, the checks
are in ``campaign``.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import secrets
import sys
import time
from dataclasses import asdict
from pathlib import Path

from tests.fuzz.campaign import Campaign, Finding, Result, can_be_another, fuzzed_node
from tests.fuzz.replay import replay
from tests.fuzz.story import read_story

ROOT = Path(__file__).resolve().parents[2]
FINDINGS = ROOT / ".fuzz"
TELL_S = 1.0


def main() -> int:
    """Run a campaign or a replay; return the exit status."""
    parser = argparse.ArgumentParser(description="Fuzz the socket of a real node, or replay a finding.")
    parser.add_argument("--frames", type=int, default=1_000_000, help="the minimum number of frames to send")
    parser.add_argument("--seed", type=int, default=None, help="repeats a campaign; random by default")
    parser.add_argument("--report", type=Path, default=None, help="the folder for fuzz.json, the result")
    parser.add_argument(
        "--limits", default="", help="limits of each principal, as in a node's settings: 'objects=4000'"
    )
    parser.add_argument("--replay", type=Path, default=None, help="send a finding's frames to a new node")
    chosen = parser.parse_args()
    if chosen.replay is not None:
        return repeat(chosen.replay)
    seed = secrets.randbits(32) if chosen.seed is None else chosen.seed
    return campaign(chosen.frames, seed, chosen.report, chosen.limits)


def campaign(frames: int, seed: int, report: Path | None, limits: str) -> int:
    """Run a campaign, with a line of progress each second."""
    foreign = can_be_another()
    say(f"seed {seed}: at least {frames:,} frames, as {'another user' if foreign else 'the same user'}")
    told = 0.0

    def progress(result: Result) -> None:
        nonlocal told
        if time.monotonic() - told > TELL_S:
            told = time.monotonic()
            now = work.figures()
            rate = result.frames / max(result.seconds, 0.001)
            say(
                f"  {result.frames:>9,} frames  {rate:>7,.0f}/s  {result.connections:>6,} connections  "
                f"{now.memory_kib // 1024:>4} MiB  {now.descriptors:>3} descriptors {now.threads:>2} threads",
                over=True,
            )

    with (
        fuzzed_node(foreign=foreign, limits=limits) as (node, path),
        Campaign(node, path, seed, foreign=foreign) as work,
    ):
        try:
            result = work.run(frames, progress)
        except Finding as finding:
            file = FINDINGS / f"finding-{seed}.json"
            work.story.write(file, seed=seed, frames=work.result.frames, what=str(finding))
            say(f"\nFINDING after {work.result.frames:,} frames: {finding}")
            say(f"its frames are in {file.relative_to(ROOT)}; send them to a new node with")
            say(f"  make fuzz-replay FINDING={file.relative_to(ROOT)}")
            say(f"and repeat the whole campaign with\n  make fuzz SEED={seed} FRAMES={frames}")
            return 1
    say("")
    say(f"nothing found: {json.dumps(asdict(result))}")
    if report is not None:
        write_report(report, result)
    return 0


def write_report(folder: Path, result: Result) -> None:
    """Store the result."""
    machine = (
        f"{platform.system()} {platform.release()}, Python {platform.python_version()}, {os.cpu_count()} CPUs"
    )
    told = {
        **asdict(result),
        "before": result.before._asdict(),
        "after": result.after._asdict(),
        "machine": machine,
        "findings": 0,
    }
    path = folder / "fuzz.json"
    known = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps({**known, "socket": told}, indent=2, sort_keys=True) + "\n")


def repeat(file: Path) -> int:
    """Send the frames of a finding to a new node, and print the result."""
    foreign = can_be_another()
    with fuzzed_node(foreign=foreign) as (node, path):
        said = replay(read_story(file), node, path, foreign=foreign)
    say(said or "the node accepted all frames, is alive, and has no errors in its log")
    return 1 if said else 0


def say(line: str, *, over: bool = False) -> None:
    """Print a line; with ``over``, replace the last line on a terminal."""
    end = "\r" if over and sys.stdout.isatty() else "\n"
    sys.stdout.write(line + end)
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
