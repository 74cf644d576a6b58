from __future__ import annotations

import os
import signal
import sys
import tempfile
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from dios.client import private_node
from dios.client.private_node import PrivateNode
from dios.errors import UnreachableError

FAILS = """#!/bin/sh
for option; do case "$option" in --ready=*) ready="${option#--ready=}";; esac; done
%s
echo "ZeroDivisionError: the defect" >&2
exit 1
"""
"""A daemon that cannot start; the shell cannot name descriptors above 9."""
WORD = """python3 -c "import os; os.write($ready, b'an unexpected error; see the node\\x27s log\\n')"
"""


def test_tasks_share_numpy_if_the_program_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """A program without numpy pays nothing for it."""
    assert np.__name__ == "numpy"
    assert private_node._shared_modules() == ["numpy"]
    monkeypatch.delitem(sys.modules, "numpy")
    assert private_node._shared_modules() == []


def test_a_module_from_another_folder_is_not_shared(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The zygote would not find it, and the node would not start."""
    module = ModuleType("numpy")
    module.__file__ = str(tmp_path / "numpy" / "__init__.py")
    monkeypatch.setitem(sys.modules, "numpy", module)
    assert private_node._shared_modules() == []


@pytest.mark.parametrize("word", ["", WORD], ids=["nothing is reported", "the log is named"])
def test_an_error_of_the_start_has_the_end_of_the_log(
    word: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The log is deleted with the folder, and so nobody could read it."""
    daemon = tmp_path / "daemon"
    daemon.write_text(FAILS % word)
    daemon.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(daemon))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    private = PrivateNode(1)
    with pytest.raises(UnreachableError, match="ZeroDivisionError: the defect"):
        private.wait_started()
    private.end()
    assert list(tmp_path.iterdir()) == [daemon]


def test_a_node_that_was_killed_leaves_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """It could not delete its folder, so its program does."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    private = PrivateNode(0)
    private.wait_started()
    os.kill(private.pid, signal.SIGKILL)
    private.end()
    assert list(tmp_path.iterdir()) == []
