"""A task that reads what it was handed, so many MB/s in each of its phases, and says what it got.

Its arguments are phases, SECONDSxMB/s: ``5x2 5x8`` is five seconds of 2 MB/s and then five of 8 MB/s; 0 means
as fast as it can. It prints what came in each second.
"""

import sys
import time

import dios

LATE_S = 0.5
"""Who was kept from reading does not catch up with more than this."""


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
