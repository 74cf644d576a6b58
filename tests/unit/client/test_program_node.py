"""The rule which callers start a private node, as far as the text of the callers shows it."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import dios
from dios.client import program_node
from dios.client.locate import names_node

ROOT = Path(dios.__file__).parent
USERS_OF_WHAT_RUNS = ("cli", "node", "web", "lib/files")


def starting_calls(path: Path) -> list[str]:
    """Return the calls of ``connect`` in a file whose node may be any and that do not say ``start=False``."""
    tree = ast.parse(path.read_text())
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    homes = {node.module for node in imports if "connect" in {alias.name for alias in node.names}}
    if "dios.client.sync.node" not in homes:
        return []
    return [
        f"{path.relative_to(ROOT)}:{call.lineno}"
        for call in ast.walk(tree)
        if isinstance(call, ast.Call)
        and ast.unparse(call.func) == "connect"
        and not any(word.arg == "start" and ast.unparse(word.value) == "False" for word in call.keywords)
        # A path that was converted to text is a place, and a place is never replaced.
        and not (call.args and ast.unparse(call.args[0]).startswith("str("))
    ]


def test_commands_and_daemons_start_no_node() -> None:
    """Their users ask for what exists; a node of their own would have nothing and end at once."""
    files = [path for folder in USERS_OF_WHAT_RUNS for path in (ROOT / folder).rglob("*.py")]
    calls = [call for path in files for call in starting_calls(path)]
    # This one is within a task, and has the task's node.
    assert [call for call in calls if "lib/files/groups.py" not in call] == []
    assert len(calls) <= 1


def test_a_user_of_a_node_is_as_good_as_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """A program that says who runs its node expects that node."""
    for variable in ("DIOS_NODE", "DIOS_NODE_USER"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", "/nowhere")
    assert not names_node()
    assert names_node("./node0")
    assert names_node(None, 0)
    monkeypatch.setenv("DIOS_NODE_USER", "dios")
    assert names_node()
    assert not program_node.may_start(None, None)
