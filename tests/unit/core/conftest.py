from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.core.harness import Node
from tests.support.core.local_or_remote import Site


@pytest.fixture
def node() -> Node:
    """A fresh core."""
    return Node()


@pytest.fixture(params=["here", "away"])
def site(request: pytest.FixtureRequest) -> Iterator[Site]:
    """The same scene with the object on the caller's node, and on another; everything is right at the end."""
    opened = Site(request.param)
    yield opened
    opened.cluster.advance(100)
    opened.cluster.check()
