"""Starting a command imports what that command needs and nothing more."""

from __future__ import annotations

import subprocess
import sys

import pytest

from dios.cli.main import app
from dios.cli.nodes import daemon

HEAVY = ("rich", "pydantic", "trio", "numpy", "numba", "matplotlib", "cryptography", "lmdb")
JUPYTER = ("ipykernel", "jupyter_client", "zmq", "IPython", "tornado", "traitlets")


@pytest.mark.parametrize("words", [["--version"], ["ls", "--help"], ["put", "--help"], ["ps", "--help"]])
def test_a_quick_command_loads_no_heavy_library(words: list[str]) -> None:
    """Commands that people repeat all day import no library that takes longer than the command."""
    program = (
        "import sys; from dios.cli.main import app\n"
        "try: app(sys.argv[1:], prog_name='dios')\n"
        "except SystemExit: pass\n"
        f"print(sorted(set({HEAVY!r}) & set(sys.modules)), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", program, *words], check=True, capture_output=True, text=True)
    assert done.stderr.strip() == "[]"


def test_only_the_kernel_loads_jupyter() -> None:
    """No module of a daemon or a task, and no other command, loads anything of Jupyter."""
    program = (
        "import sys, typer.main\n"
        "import dios.aio, dios.node.serve, dios.host.process.zygote_main, dios.lib.sandbox.session\n"
        "from dios.cli.main import app\n"
        "for command in typer.main.get_command(app).commands.values(): command.get_short_help_str()\n"
        f"print(sorted(set({JUPYTER!r}) & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    assert done.stdout.strip() == "[]"


def test_every_listed_command_exists() -> None:
    """Each entry of the table of commands leads to a command with a help text."""
    from typer.main import get_command

    group = get_command(app)
    commands = dict(group.commands.items())  # type: ignore[attr-defined] # a group's commands by name
    assert len(commands) > 30
    assert all(command.get_short_help_str() for command in commands.values())
    assert get_command(daemon.app) is not None
