from __future__ import annotations

import importlib.util
import logging
from pathlib import Path

import pytest

from dios.installation import extra_command
from dios.node import coordinator_supervisor
from dios.node.settings import load


@pytest.mark.parametrize(
    ("setting", "level", "remedy"),
    [
        ("on", logging.WARNING, extra_command("cluster")),
        ("auto", logging.INFO, "the extra cluster has them"),
    ],
)
def test_a_node_without_the_extra_says_what_is_missing(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    setting: str,
    level: int,
    remedy: str,
) -> None:
    """A coordinator that was requested is missed with the command that helps, and another one in brief."""
    settings = load(tmp_path, flags={"coordinator": setting}, environ={})
    with monkeypatch.context() as patch, caplog.at_level(logging.INFO):
        patch.setattr(importlib.util, "find_spec", lambda name: None if name == "numba" else name)
        assert not coordinator_supervisor.wanted(settings)
    (record,) = caplog.records
    assert (record.levelno, record.__dict__["why"]) == (level, f"numba missing: {remedy}")
