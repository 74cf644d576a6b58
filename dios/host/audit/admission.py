"""Refuses calls while the audit log cannot be written, because an operation must not go unrecorded."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol, cast

from dios.core.effects import Audit
from dios.errors import NoSpaceError
from dios.host.audit.log import BacklogLevel
from dios.wire import dcp, messages
from dios.wire.call_table import CALLS, AuditRule
from dios.wire.dcp_table import REQUESTS
from dios.wire.messages import AnyCall, calls_of
from dios.wire.types import Flag


class Journal(Protocol):
    """The writer of audit records."""

    @property
    def pressure(self) -> BacklogLevel:
        """The amount of records that could not be written yet."""

    @property
    def trouble(self) -> str:
        """The reason why the log could not be written."""

    def append(self, record: Audit) -> object:
        """Add a record and keep it until it can be written."""

    def flush(self) -> None:
        """Write the kept records to the file. On failure keep them and raise DiosError."""


def refusal(journal: Journal, call: AnyCall) -> NoSpaceError | None:
    """Return the reason to refuse ``call``, or None. Called only while there is pressure."""
    rules = tuple(map(_rule_of, calls_of(call)))
    return _refusal(journal, rules or (AuditRule.UNRECORDED,))


def refusal_of_request(journal: Journal, body: dcp.RequestBody) -> NoSpaceError | None:
    """Return the reason to refuse a request of another node, or None."""
    rule = REQUESTS[type(body)].audit
    if rule is None:
        return refusal(journal, cast("dcp.Forward | dcp.Start | dcp.Delegate", body).call)
    return _refusal(journal, (rule,))


def _refusal(journal: Journal, rules: Iterable[AuditRule]) -> NoSpaceError | None:
    if journal.pressure is BacklogLevel.HIGH:
        may_be_done = all(rule is AuditRule.ALWAYS for rule in rules)
    else:
        may_be_done = all(rule is not AuditRule.RECORDED for rule in rules)
    if may_be_done:
        return None
    return NoSpaceError(
        f"the audit log cannot be written ({journal.trouble}), and an unrecorded call is refused. "
        "Free space on the disk of the node's data directory. Calls that leave no record still work."
    )


def _rule_of(call: messages.PlainCall) -> AuditRule:
    if isinstance(call, messages.Delete) and call.flags & Flag.HANDLE_ONLY:
        return AuditRule.ALWAYS
    return CALLS[type(call)].audit
