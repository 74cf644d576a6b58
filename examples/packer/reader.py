"""A task that reads its inputs at a given rate in each of its phases, and prints the rate that it got.

Its arguments are phases, SECONDSxMB/s: ``5x2 5x8`` is five seconds of 2 MB/s and then five of 8 MB/s; 0 means
as fast as possible. It prints a line for each second.
"""

import sys
import time

import dios

LATE_S = 0.5
"""A reader that was delayed catches up with at most this much."""


def main() -> None:
    """Read as the arguments say."""
    phases = [
        (float(span), float(rate) * 1e6) for span, _, rate in (word.partition("x") for word in sys.argv[1:])
    ]
    with dios.connect() as node:
        sources = node.inputs
        begun = second = time.monotonic()
        came = turn = 0
        end = begun
        for span, rate in phases:
            due, end = end, end + span
            while (now := time.monotonic()) < end:
                if now - second >= 1.0:
                    print(f"{now - begun:5.1f} {came / (now - second) / 1e6:.2f}", flush=True)
                    came, second = 0, now
                if now < due:
                    time.sleep(due - now)
                    continue
                size = len(sources[turn % len(sources)].read_bytes())
                came, turn = came + size, turn + 1
                due = max(due + (size / rate if rate else 0.0), time.monotonic() - LATE_S)


main()
