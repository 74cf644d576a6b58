"""``dios-node`` with shorter pauses of the keeper, so that a round is short.

A node that refused a copy, or was dead at that moment, is passed over for a minute, a damaged replica for
two, and a copy of a list that was not added stays for half a minute. No claim depends on these times.
"""

from __future__ import annotations

from typing import Final

from dios import limits

PAUSE_MS: Final = 3_000
STRAY_MS: Final = 8_000


def main() -> None:
    """Run the command."""
    limits.KEPT_REFUSED_MS = PAUSE_MS  # type: ignore[misc]
    limits.KEPT_DAMAGED_MS = PAUSE_MS  # type: ignore[misc]
    limits.KEPT_STRAY_MS = STRAY_MS  # type: ignore[misc]
    from dios.cli.nodes.daemon import main as daemon_main

    daemon_main()


if __name__ == "__main__":
    main()
