from __future__ import annotations

import pytest

from tests.support.core.harness import Node


@pytest.fixture
def node() -> Node:
    """A fresh core."""
    return Node()
