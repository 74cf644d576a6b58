"""``make chaos MINUTES=30``: real nodes fail under load, and the clients' own records are checked.

    python -m tests.chaos.run --minutes 30 [--seed N] [--report FILE]

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
    chosen = parser.parse_args()
    seed = secrets.randbits(32) if chosen.seed is None else chosen.seed
    folder = Path(tempfile.mkdtemp(prefix="dios-chaos-"))
    # The nodes leave the links and files of the user alone, and start no schedulers.
    os.environ.update({name: str(folder) for name in _ISOLATED})
    os.environ["DIOS_COORDINATOR"] = "off"
    say(f"seed {seed}: {chosen.minutes:g} minutes on {folder}")
    interrupted: list[int] = []

    def interrupt(number: int, frame: FrameType | None) -> None:
        del frame
        interrupted.append(number)
        say("  ending after this fault")

    signal.signal(signal.SIGINT, interrupt)
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
