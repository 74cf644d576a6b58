from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from labs.benchmarks.neighbours.kinds import KINDS

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.extended
def test_an_innocent_client_is_answered_correctly_next_to_greedy_ones(tmp_path: Path) -> None:
    """For a second next to a few kinds, and next to all of these at once: right answers, nothing left."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith("DIOS_")}
    line = [sys.executable, "-m", "labs.benchmarks.neighbours", "--seconds", "1", "--out", str(tmp_path)]
    done = subprocess.run(
        [*line, "--only", "selects,deaf,half-frames,killed-children,output-floods,durable-writes"],
        cwd=ROOT,
        env={**environment, "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert not done.returncode, done.stdout + done.stderr
    table = (tmp_path / "neighbours.md").read_text()
    assert KINDS["deaf"].text in table
    assert "one client of each kind, all together" in table
