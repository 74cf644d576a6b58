"""The example of a job with a temporal profile beside greedy neighbours runs, on a cluster of its own."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.node.scheduled_cluster import LOADED_S

pytestmark = pytest.mark.long

EXAMPLE = Path(__file__).parents[3] / "examples" / "packer" / "neighbours.py"


@pytest.mark.timeout(LOADED_S + 100)
@pytest.mark.extended
def test_a_job_keeps_its_profile_beside_greedy_neighbours() -> None:
    """It is admitted, reads in each of its phases, and tells how much of each it got; the rest is others'."""
    environment = {key: value for key, value in os.environ.items() if key != "DIOS_COORDINATOR"}
    done = subprocess.run(
        [sys.executable, str(EXAMPLE)], capture_output=True, text=True, check=False, env=environment
    )
    # Whether it was all is the machine's business as well: `make lab` measures it on links of its own.
    assert done.returncode in {0, 1}, done.stderr
    assert "keeps: admitted for 12 s, its reader on n2" in done.stdout
    parts = re.findall(r"guaranteed (\d) MB/s: got (\d+)%", done.stdout)
    assert [phase for phase, _ in parts] == ["2", "8", "4"]
    assert any(int(part) > 0 for _, part in parts), done.stdout
    assert re.search(r"the 3 greedy ones: \d", done.stdout)
