"""``make fuzz-linux``: network functions and Linux with the same random datagrams, with a page of results.

    python -m tests.fuzz.against_linux_run --frames 100000 [--seed N] [--report FILE.md]

Needs root, nftables and TAYGA. The exit status is 1 for a difference that nothing explains, and for an
explanation that nothing needed in 100,000 frames or more; the seed repeats both.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import platform
import secrets
import subprocess
import sys
import time
from collections.abc import Mapping
from datetime import date
from pathlib import Path
from typing import Final

from tests.fuzz.against_linux import KINDS, Comparison, Play, differences
from tests.fuzz.run import say
from tests.support.sprayer.linux_router import Kind, LinuxRouter

ENOUGH: Final = 100_000
"""The number of frames after which each explanation should have been needed."""
_SHOWN: Final = 5


def compare(kind: Kind, frames: int, seed: int) -> Comparison:
    """Compare one function with Linux."""
    with contextlib.closing(LinuxRouter(kind)) as linux:
        return Play(kind, seed, linux).run(frames)


def tell(kind: Kind, comparison: Comparison, seconds: float) -> None:
    """Print the numbers of a function, and its findings."""
    explained, findings = sum(comparison.explained.values()), comparison.findings
    say(
        f"  {kind}: {comparison.frames:,} frames of {comparison.datagrams:,} datagrams;"
        f" {comparison.forwarded:,} passed both, {comparison.dropped:,} neither,"
        f" {explained:,} explained, {len(findings)} findings  {seconds:.0f} s"
    )
    for finding in findings[:_SHOWN]:
        say(f"    {finding.verdict}: {finding.sample.role}, {sorted(finding.sample.features)}")
        say(f"      {[frame[:100].hex() for frame in finding.sample.frames[0]]}")


def report(path: Path, comparisons: Mapping[Kind, Comparison], seed: int, seconds: float) -> None:
    """Write the page of results."""
    commit = subprocess.run(
        ["git", "rev-parse", "--short=12", "HEAD"], capture_output=True, text=True, check=True
    ).stdout.strip()
    system = f"{platform.system()} {platform.release().split('-')[0]}"
    today = date.today().isoformat()  # noqa: DTZ011 - the day here
    frames = sum(comparison.frames for comparison in comparisons.values())
    lines = [
        "# Network functions and Linux",
        "",
        f"`make fuzz-linux FRAMES={frames}`, {today}, seed {seed}, commit {commit}: {frames:,} frames,",
        f"{seconds:.0f} s. [How it works](../../../docs/testing.md#fuzzing);",
        "[the reasons](../../../docs/translation.md#differences-from-linux).",
        "",
        f"Machine: {system}, Python {platform.python_version()}, {os.cpu_count()} processors.",
        "",
        "| | " + " | ".join(comparisons) + " |",
        "|---|" + "--:|" * len(comparisons),
    ]
    none = [0] * len(comparisons)
    rows = {
        "frames": [comparison.frames for comparison in comparisons.values()],
        "datagrams": [comparison.datagrams for comparison in comparisons.values()],
        "pass both": [comparison.forwarded for comparison in comparisons.values()],
        "pass neither": [comparison.dropped for comparison in comparisons.values()],
        "not explained": [len(comparison.findings) for comparison in comparisons.values()],
    }
    for index, difference in enumerate(differences()):
        counts = [comparison.explained[index] for comparison in comparisons.values()]
        name = f"{' or '.join(difference.verdict)}: {difference.reason}"
        rows[name] = [before + count for before, count in zip(rows.get(name, none), counts, strict=True)]
    lines += [f"| {name} | {' | '.join(f'{count:,}' for count in counts)} |" for name, counts in rows.items()]
    path.write_text("\n".join(lines) + "\n")


def main() -> int:
    """Run the comparison; return the exit status."""
    parser = argparse.ArgumentParser(description="Compare network functions with Linux.")
    parser.add_argument(
        "--frames", type=int, default=ENOUGH, help="the number of frames, of all functions together"
    )
    parser.add_argument("--seed", type=int, default=None, help="random by default")
    parser.add_argument("--report", type=Path, default=None, help="the file for the page of results")
    chosen = parser.parse_args()
    seed = secrets.randbits(32) if chosen.seed is None else chosen.seed
    began = time.monotonic()
    say(f"{chosen.frames:,} frames, seed {seed}")
    comparisons: dict[Kind, Comparison] = {}
    for kind in KINDS:
        start = time.monotonic()
        comparisons[kind] = compare(kind, -(-chosen.frames // len(KINDS)), seed)
        tell(kind, comparisons[kind], time.monotonic() - start)
    if chosen.report:
        report(chosen.report, comparisons, seed, time.monotonic() - began)
    needed = {index for comparison in comparisons.values() for index in comparison.explained}
    idle = [row.reason for index, row in enumerate(differences()) if index not in needed]
    if chosen.frames >= ENOUGH and idle:
        say(f"no difference has these reasons any more; remove them from differences.toml: {idle}")
        return 1
    if any(comparison.findings for comparison in comparisons.values()):
        say(f"repeat it with\n  make fuzz-linux SEED={seed} FRAMES={chosen.frames}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
