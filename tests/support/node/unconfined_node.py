"""A node that refuses pure tasks, as on a machine that cannot confine them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_DAEMON = """
import dataclasses, sys
from dios.host.confinement import mechanisms
found = mechanisms.probe()
missing = mechanisms.Availability.MISSING
poorer = {**found, "mount": dataclasses.replace(found["mount"], availability=missing)}
mechanisms.Probe.run = lambda probe: probe.results.update(poorer)
from dios.node import daemon
sys.exit(daemon.main(sys.argv[1:]))
"""


@contextmanager
def unconfined_node(data: Path) -> Iterator[Path]:
    """A node on a new data directory, which it returns, until the end of the block."""
    until, until_far = os.pipe()
    ready, ready_far = os.pipe()
    flags = [f"--ready={ready_far}", f"--until={until}", "coordinator=off"]
    command = [sys.executable, "-c", _DAEMON, str(data), *flags]
    with subprocess.Popen(command, pass_fds=(until, ready_far)) as process:
        try:
            os.close(ready_far)
            assert os.read(ready, 100) == b"ready\n"
            yield data
        finally:
            for number in (until, until_far, ready):
                os.close(number)
            process.terminate()
