"""What tests of confined tasks ask for first: a machine that has what it takes, and an ordinary user."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from dios.host.sandbox.mechanisms import Mechanism, missing_for_pure, probe

NOBODY = 65534


def mechanisms_or_skip() -> dict[str, Mechanism]:
    """What the machine has; skips, with the reasons, where it cannot hold a pure task."""
    found = probe()
    missing = missing_for_pure(found)
    if missing:
        pytest.skip(f"pure tasks cannot be confined here: {missing}")
    return found


def passes_as_nobody(file: str, **environment: str) -> None:
    """Run a file of tests as an ordinary user, which only root can; fails with what they print."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", file]
    try:
        done = subprocess.run(
            command,
            user=NOBODY,
            group=NOBODY,
            extra_groups=[],
            env={"PATH": os.environ["PATH"], "PYTHONDONTWRITEBYTECODE": "1", **environment},
            cwd=Path(__file__).resolve().parents[3],
            capture_output=True,
            text=True,
            check=False,
        )
    except PermissionError as error:
        pytest.skip(f"user {NOBODY} cannot run the interpreter: errno {error.errno}")
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-1000:]
