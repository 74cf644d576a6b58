"""The sections of the benchmarks are modules that can be run."""

from __future__ import annotations

import importlib

import pytest

from labs.benchmarks import run


@pytest.mark.parametrize("name", run.SECONDS_MAX)
def test_a_section_is_a_module_with_a_run(name: str) -> None:
    """The runner finds the module of each section that it lists, and its function ``run``."""
    assert callable(importlib.import_module(f"{run.SECTIONS}.{name}").run)
