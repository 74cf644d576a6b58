"""The limit of open descriptors of a process that serves many clients."""

from __future__ import annotations

import resource


def raise_descriptor_limit() -> None:
    """Raise the limit of descriptors to the maximum, because each connection, page and ring needs some."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
