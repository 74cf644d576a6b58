"""Run a few lines in an interpreter of their own: for what a process cannot take back."""

from __future__ import annotations

import subprocess
import sys

SECONDS_MAX = 60


def lines_of(program: str, *arguments: str) -> list[str]:
    """What a program prints; AssertionError with its traceback when it fails."""
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments],
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.splitlines()
