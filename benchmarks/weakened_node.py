"""A node without its audit log, or without its accounts, to see what they cost: nothing else runs it.

Not for: users. No setting turns either off.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Final

from dios.core.accounts import Account
from dios.core.effects import Audit
from dios.host.audit import AuditLog
from dios.node import daemon
from dios.wire.types import Resource


def _record_nothing(_: AuditLog, record: Audit) -> None:
    del record


def _count_nothing(_: Account, resource: Resource, amount: int) -> None:
    del resource, amount


def _without_audit() -> None:
    AuditLog.append = _record_nothing  # type: ignore[method-assign, assignment]


def _without_accounts() -> None:
    Account.charge = _count_nothing  # type: ignore[method-assign, assignment]
    Account.require = _count_nothing  # type: ignore[method-assign, assignment]


WAYS: Final[dict[str, Callable[[], None]]] = {"audit": _without_audit, "accounts": _without_accounts}


def main(arguments: Sequence[str]) -> int:
    """Take one thing away and be the daemon."""
    WAYS[arguments[0]]()
    return daemon.main(arguments[1:])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
