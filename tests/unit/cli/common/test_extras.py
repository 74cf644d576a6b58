from __future__ import annotations

import subprocess
import sys

import pytest

from dios.installation import extra_command


@pytest.mark.parametrize("package", ["numba", "numpy"])
def test_a_missing_extra_is_reported_with_the_command_that_adds_it(package: str) -> None:
    """A command whose packages are missing ends with one line, and without a traceback."""
    program = (
        "import sys\n"
        "class Missing:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        f"        if name.split('.')[0] == '{package}':\n"
        "            raise ModuleNotFoundError(name, name=name)\n"
        "sys.meta_path.insert(0, Missing())\n"
        "from dios.cli.main import app\n"
        "app(['nf', 'run', 'monitor', '--in', 'in0', '--out', 'out0'])\n"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert ended.returncode == 1
    assert extra_command("cluster") in " ".join(ended.stderr.split())
    assert "Traceback" not in ended.stderr
