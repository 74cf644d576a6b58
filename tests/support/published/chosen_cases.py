"""A plugin of pytest that leaves out the cases of a suite that a test names, or runs these alone."""

from __future__ import annotations

import os

import pytest


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Choose the cases."""
    left_out, only = (set(os.environ[name].split("\n")) - {""} for name in ("CASES_LEFT_OUT", "CASES_CHOSEN"))
    chosen = [item for item in items if item.name not in left_out and (not only or item.name in only)]
    config.hook.pytest_deselected(items=[item for item in items if item not in chosen])
    items[:] = chosen
