"""A node without its audit log, or without its accounting, to measure their cost.

It is only for benchmarks: no setting can turn either off.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Final

from dios.core.effects import Audit
from dios.core.model import accounts
from dios.host.audit.log import AuditLog
from dios.node import daemon


def _record_nothing(_: AuditLog, record: Audit) -> None:
    del record


def _count_nothing(*_: object, **__: object) -> None:
    """Do not count."""


def _without_audit() -> None:
    AuditLog.append = _record_nothing  # type: ignore[method-assign, assignment]


def _without_accounts() -> None:
    # This must happen before the core is loaded, whose modules import these functions by name.
    for name in ("charge_all", "charge_bytes", "require_all", "require_bytes", "require_each"):
        setattr(accounts, name, _count_nothing)
    for name in ("charge", "require"):
        setattr(accounts.Account, name, _count_nothing)


WAYS: Final[dict[str, Callable[[], None]]] = {"audit": _without_audit, "accounts": _without_accounts}


def main(arguments: Sequence[str]) -> int:
    """Remove one part and run the daemon."""
    WAYS[arguments[0]]()
    return daemon.main(arguments[1:])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
