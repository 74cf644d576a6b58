"""Keeps a node running where no service manager does: starts it again after a failure.

usage: python -m dios.node.bringup.supervise PIDFILE -- COMMAND…

A node that ends by itself with status 0, as after ``dios-node stop``, is not started again. SIGTERM ends the
node, then this process. ``on_host`` starts and stops it.
"""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import FrameType
from typing import Final, NoReturn

PAUSE_S: Final = 5.0
PAUSE_S_MAX: Final = 60.0
STABLE_S: Final = 300.0
"""A node that ran this long is started again after the first pause. The pause doubles up to the longest.

The units of ``cluster/systemd`` have the first one alone: only new versions of systemd know growing pauses.
"""

NODE_ENDS_S: Final = 20.0


class StoppedError(BaseException):
    """SIGTERM arrived; raised in the main thread."""


def stop(number: int, frame: FrameType | None) -> NoReturn:
    """Raise StoppedError: the handler of SIGTERM."""
    del number, frame
    raise StoppedError


def _say(text: str) -> None:
    sys.stderr.write(f"supervisor: {text}\n")
    sys.stderr.flush()


def supervise(command: list[str]) -> int:
    """Run the command until it succeeds or SIGTERM arrives; return the exit status 0.

    It is never given up: the reason of its failures may pass, like a full disk or a port that is in use.
    """
    pause_s = PAUSE_S
    while True:
        began = time.monotonic()
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL)
        try:
            status = process.wait()
            if status == 0:
                return 0
            if time.monotonic() - began > STABLE_S:
                pause_s = PAUSE_S
            _say(f"the node ended with status {status}, and is started again in {pause_s:.0f} s")
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, PAUSE_S_MAX)
        except StoppedError:
            process.terminate()
            try:
                process.wait(NODE_ENDS_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            return 0


def main(arguments: list[str]) -> int:
    """Hold the pid file, and supervise."""
    path, command = Path(arguments[0]), arguments[2:]
    # The lock ends with this process, whatever ends it: a pid file that is not locked names nobody.
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        _say(f"another supervisor holds {path}")
        return 1
    os.ftruncate(fd, 0)
    os.pwrite(fd, b"%d" % os.getpid(), 0)
    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    return supervise(command)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
