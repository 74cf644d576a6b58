"""What ``dios doctor`` says about a data directory."""

from __future__ import annotations

from pathlib import Path

from dios.core.effects import Audit
from dios.host.audit.log import AuditLog
from dios.node.doctor.store import examine_store


def test_the_size_of_the_audit_log_is_shown(tmp_path: Path) -> None:
    """A directory with a log shows the log's size; one without shows none."""
    assert "audit log" not in examine_store(tmp_path).detail
    log = AuditLog(tmp_path / "audit")
    for _ in range(100):
        log.append(Audit(1, "create", "ok", "uid:0", "t", "s", "d" * 5_000))
    log.close()
    assert "audit log 0.5 MiB" in examine_store(tmp_path).detail
