"""The example web server as a process, for tests that talk to it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

EXAMPLE = Path(__file__).resolve().parents[3] / "examples" / "httpd.py"
SECONDS_MAX = 60


@contextmanager
def web_server(place: str, home: Path, *hosts: str) -> Iterator[tuple[str, int]]:
    """The example on a free port for the length of a block; gives its address, and ends it as Ctrl-C does."""
    process = subprocess.Popen(
        [sys.executable, str(EXAMPLE), "127.0.0.1:0", *hosts],
        env={"DIOS_NODE": place, "PATH": os.environ["PATH"], "HOME": str(home)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line, process.communicate(timeout=SECONDS_MAX)
        host, port = line.split()[0].removeprefix("http://").rstrip("/").split(":")
        yield host, int(port)
    finally:
        # Killed, it would leave its tasks behind.
        process.send_signal(signal.SIGINT)
        said, complaint = process.communicate(timeout=SECONDS_MAX)
    assert (process.returncode, said, complaint) == (0, "good bye\n", "")
