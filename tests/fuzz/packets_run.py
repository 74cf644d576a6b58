"""``make fuzz-frames``: a file of bad packets through network functions, with progress.

    python -m tests.fuzz.packets_run --frames 1000000 [--seed N] [--report FILE.md]

The exit status is 1 for a finding, which its seed repeats. Packets are made in ``bad_packets.py``, the checks
are in ``packet_checks.py``.
"""

from __future__ import annotations

import argparse
import os
import platform
import secrets
import sys
import tempfile
import time
import traceback
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from random import Random

from dios.sprayer.pcap import read_pcap
from tests.fuzz.bad_packets import frames, seeds
from tests.fuzz.packet_checks import CORES, FUNCTIONS, through_a_file, through_memory, write
from tests.fuzz.run import TELL_S, say

FLAT_BYTES = 48 * 2**20
"""The memory growth after the first tenth that a run itself may cause."""


def resident() -> int:
    """Return the resident memory of this process in bytes."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")


@dataclass
class Watch:
    """The memory during the replay of a file."""

    size: int
    told: float = field(default_factory=time.monotonic)
    first: int = 0
    last: int = 0

    def __call__(self, done: int) -> None:
        """Record the memory after ``done`` bytes."""
        self.last = resident()
        if not self.first and done > self.size // 10:
            self.first = self.last
        if time.monotonic() - self.told > TELL_S:
            self.told = time.monotonic()
            say(f"  {100 * done // self.size:>3} %  {self.last >> 20} MiB", over=True)


def attack(folder: Path, count: int, seed: int) -> dict[str, dict[str, int]]:
    """Run all functions; return the counts by function. Raises AssertionError for a finding."""
    rng = Random(seed)  # noqa: S311 - repeatable, nothing secret
    path = folder / "in.pcap"
    write(path, frames(rng, count, seeds(rng)), count)
    size = path.stat().st_size - 24 - 16 * count
    say(f"{count:,} packets, {size:,} bytes, seed {seed}")
    counts_by_name: dict[str, dict[str, int]] = {}
    for name in FUNCTIONS:
        began = time.monotonic()
        watch = Watch(size)
        counts_by_name[name] = through_a_file(path, folder / "out.pcap", name, count, watch)
        grown = watch.last - watch.first
        assert grown < FLAT_BYTES, f"{name}: {watch.first:,} bytes of memory, and {watch.last:,} at the end"
        with path.open("rb") as file:
            changed = through_memory(read_pcap(file, "in"), name)["changed"]
        counts_by_name[name] |= {
            "changed": changed,
            "MiB before": watch.first >> 20,
            "MiB after": watch.last >> 20,
        }
        say(f"  {name}: {counts_by_name[name]}  {time.monotonic() - began:.0f} s")
    return counts_by_name


def report(
    path: Path, count: int, seed: int, counts_by_name: dict[str, dict[str, int]], seconds: float
) -> None:
    """Write the page of results."""
    rows = list(dict.fromkeys(row for told in counts_by_name.values() for row in told))
    ends = [row for row in ("sent", "changed", "MiB before", "MiB after") if row in rows]
    today = date.today().isoformat()  # noqa: DTZ011 - the day here
    system, python = f"{platform.system()} {platform.release().split('-')[0]}", platform.python_version()
    lines = [
        "# Network functions with bad packets",
        "",
        f"`make fuzz-frames`, {today}, seed {seed}. **Nothing found:** {count:,} packets through each of",
        f"{len(counts_by_name)} functions on {CORES} cores, twice, in {seconds:.0f} s.",
        "[How it works](../../docs/testing.md#fuzzing).",
        "",
        f"Machine: {system}, Python {python}, {os.cpu_count()} processors.",
        "",
        "Each packet was received once, sent or dropped for one cause, and its place released once.",
        "Packets cross between cores, and tables and ports are small, so that they fill up.",
        "",
        "| | " + " | ".join(counts_by_name) + " |",
        "|---|" + "---|" * len(counts_by_name),
    ]
    for row in [*ends[:2], *(cause for cause in rows if cause not in ends), *ends[2:]]:
        name = f"dropped: {row}" if row not in ends else row
        lines.append(
            f"| {name} | " + " | ".join(f"{told.get(row, 0):,}" for told in counts_by_name.values()) + " |"
        )
    lines += ["", "Memory is that of the whole process after a tenth of the packets, and after the last.", ""]
    path.write_text("\n".join(lines))


def main() -> int:
    """Run the campaign; return the exit status."""
    parser = argparse.ArgumentParser(description="Send bad packets through network functions.")
    parser.add_argument("--frames", type=int, default=1_000_000, help="the number of packets")
    parser.add_argument("--seed", type=int, default=None, help="random by default")
    parser.add_argument("--report", type=Path, default=None, help="the file for the page of results")
    chosen = parser.parse_args()
    seed = secrets.randbits(32) if chosen.seed is None else chosen.seed
    began = time.monotonic()
    try:
        with tempfile.TemporaryDirectory() as folder:
            counts_by_name = attack(Path(folder), chosen.frames, seed)
    except Exception:  # noqa: BLE001 - whatever it is, it is the finding
        say(f"\nFINDING:\n{traceback.format_exc()}")
        say(f"repeat it with\n  make fuzz-frames SEED={seed} FRAMES={chosen.frames}")
        return 1
    seconds = time.monotonic() - began
    say(f"nothing found: {chosen.frames:,} packets through {', '.join(counts_by_name)}, {seconds:.0f} s")
    if chosen.report:
        report(chosen.report, chosen.frames, seed, counts_by_name, seconds)
    return 0


if __name__ == "__main__":
    sys.exit(main())
