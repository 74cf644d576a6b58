"""A real node whose coordinator computes rates by DC-DRF from its second control interval on.

Without this it does so when exact shares were too slow, for which it takes very many principals.
"""

from __future__ import annotations

import sys

from dios.node import coordinator_supervisor, daemon

_PROGRAM = b"""
from dios import limits
limits.RATE_SLOW_SOLVES, limits.RATE_CALM_SOLVES = 0, 10**9
from dios.firmament.coordinator.main import main
main()
"""

if __name__ == "__main__":
    coordinator_supervisor._PROGRAM = _PROGRAM  # type: ignore[misc] # another program
    sys.exit(daemon.main(sys.argv[1:]))
