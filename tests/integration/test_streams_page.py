"""What docs/python-client.md says about network streams and journals is true: its programs run."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.node.running_node import RunningNode, running_node

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "python-client.md").read_text()
SECTION = PAGE.partition("\n## Network streams and journals\n")[2].partition("\n## ")[0]
PROGRAMS = re.findall(r"^```python\n(.*?)^```", SECTION, re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> object:
    """A running node."""
    with running_node(tmp_path_factory.mktemp("page") / "node") as node:
        yield node


@pytest.mark.parametrize("program", PROGRAMS, ids=["network", "log"])
def test_a_program_of_the_page_runs(started: RunningNode, tmp_path: Path, program: str) -> None:
    """Each program of the section ends well on a node as it is."""
    file = tmp_path / "program.py"
    file.write_text(program)
    done = subprocess.run(
        [sys.executable, str(file)],
        env={"DIOS_NODE": started.place, "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
