"""``dios-node`` with shorter pauses of the keeper, so that a round is short.

A node that refused a copy, or was dead at that moment, is passed over for a minute, a damaged replica for
two, and a copy of a list that was not added stays for half a minute. No claim depends on these times.

It is run as the command, whose nodes are this module again, with a folder in place of a command's word.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final
from unittest import mock

from dios import limits
from dios.cli.nodes import daemon as commands
from dios.node import daemon

PAUSE_MS: Final = 3_000
STRAY_MS: Final = 8_000


def command(
    data: Path, *, config: Path | None, flags: Mapping[str, str] | None, ready: int | None = None
) -> list[str]:
    """Return the command of a daemon with this module in place of its own."""
    line = _honest(data, config=config, flags=flags, ready=ready)
    line[line.index("-m") + 1] = "tests.chaos.kept.impatient_daemon"
    return line


_honest = daemon.command


def main() -> int:
    """Run the command, or a node; return the exit status."""
    if sys.argv[1].startswith("/"):
        with (
            mock.patch.object(limits, "KEPT_REFUSED_MS", PAUSE_MS),
            mock.patch.object(limits, "KEPT_DAMAGED_MS", PAUSE_MS),
            mock.patch.object(limits, "KEPT_STRAY_MS", STRAY_MS),
        ):
            return daemon.main(sys.argv[1:])
    with mock.patch.object(daemon, "command", command):
        commands.main()
    return 0


if __name__ == "__main__":
    sys.exit(main())
