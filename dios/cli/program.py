"""The entry points of the programs ``dios`` and ``dios-node``.

This module imports nothing of weight, so that Ctrl-C during all other imports ends a program with one line.
"""

from __future__ import annotations

from typing import NoReturn

from dios.cli.common.streams import Program, run


def dios() -> NoReturn:
    """Run the program ``dios``."""

    def load() -> Program:
        from dios.cli.main import app  # noqa: PLC0415 - see above

        return app

    run("dios", load)


def dios_node() -> NoReturn:
    """Run the program ``dios-node``."""

    def load() -> Program:
        from dios.cli.nodes.daemon import app  # noqa: PLC0415 - see above

        return app

    run("dios-node", load)
