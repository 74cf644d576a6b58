"""A user's process that stores: ``lab_writer.py SOCKET CONNECTIONS BYTES EVERY_MS SECONDS``.

Not for: judging what it saw. Each connection writes a durable object of so many bytes again and again, one
time each EVERY_MS or without a pause, from a line on the standard input on. Then a line of JSON tells how
many bytes were stored a second, and how many milliseconds each writing took.
"""

from __future__ import annotations

import json
import sys
import threading
import time

import dios


def write_for(blob: dios.Reference, size: int, every_s: float, seconds: float, times_ms: list[float]) -> None:
    """Write until the time is over; a writing that comes late is made at once, one that is missed is not."""
    began = due = time.monotonic()
    while (now := time.monotonic()) - began < seconds:
        if due > now:
            time.sleep(due - now)
        due = max(due, now) + every_s
        started = time.monotonic()
        blob.write_bytes(bytes(size))
        times_ms.append((time.monotonic() - started) * 1000)


def say(text: str) -> None:
    """A line for whoever started this."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def main() -> None:
    """Write once."""
    place, connections, size, every_ms, seconds = sys.argv[1:]
    nodes = [dios.connect(place, groups=()) for _ in range(int(connections))]
    blobs = [node.create(dios.DURABLE_BLOB, groups=[node.home] if node.home else []) for node in nodes]
    say("ready")
    sys.stdin.readline()
    times_ms: list[float] = []
    began = time.monotonic()
    threads = [
        threading.Thread(
            target=write_for, args=(blob, int(size), float(every_ms) / 1000, float(seconds), times_ms)
        )
        for blob in blobs
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    say(json.dumps([len(times_ms) * int(size) / (time.monotonic() - began), times_ms]))
    for node in nodes:
        node.close()


if __name__ == "__main__":
    main()
