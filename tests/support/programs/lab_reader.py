"""A user's process that reads of another node: ``lab_reader.py SOCKET HOST CONNECTIONS BYTES EVERY_MS``.

Not for: judging what it saw. Each connection has an object of so many bytes on the node called HOST. Then,
for each line with a number of seconds on the standard input, all connections read theirs again and again so
long, one each EVERY_MS or without a pause, and a line of JSON tells how many ms each reading took.
"""

from __future__ import annotations

import json
import sys
import threading
import time

import dios


def read_for(blob: dios.Reference, seconds: float, every_s: float, times_ms: list[float]) -> None:
    """Read until the time is over; a reading that comes late is made at once, one that is missed is not."""
    began = time.monotonic()
    due = began
    while (now := time.monotonic()) - began < seconds:
        if due > now:
            time.sleep(due - now)
        due = max(due, now) + every_s
        started = time.monotonic()
        with blob.read() as request:
            assert len(request.view) == blob.size
        times_ms.append((time.monotonic() - started) * 1000)


def say(text: str) -> None:
    """A line for whoever started this."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def main() -> None:
    """Serve lines until there are no more."""
    place, host, connections, size, every_ms = sys.argv[1:]
    nodes = [dios.connect(place, groups=()) for _ in range(int(connections))]
    data = bytes(int(size))
    blobs = [
        node.create(dios.SHMEM_BLOB, groups=[node.home] if node.home else [], data=data, host=host)
        for node in nodes
    ]
    say("ready")
    for line in sys.stdin:
        times_ms: list[float] = []
        threads = [
            threading.Thread(target=read_for, args=(blob, float(line), float(every_ms) / 1000, times_ms))
            for blob in blobs
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        say(json.dumps(times_ms))
    for node in nodes:
        node.close()


if __name__ == "__main__":
    main()
