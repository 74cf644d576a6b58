"""The limit of open descriptors."""

from __future__ import annotations

import resource

from dios.host.process.descriptor_limit import raise_descriptor_limit


def test_the_limit_becomes_the_maximum() -> None:
    """Also when it is the maximum already."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(before[0], before[1] - 1), before[1]))
        for _ in range(2):
            raise_descriptor_limit()
            assert resource.getrlimit(resource.RLIMIT_NOFILE) == (before[1], before[1])
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
