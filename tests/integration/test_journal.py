"""A node whose standard error is a stream of systemd's journal: a real journald, in namespaces of its own."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

JOURNALD = Path("/lib/systemd/systemd-journald")
WAIT_S = 240

# The daemon begins when journald listens, and ends when its log is in the journal.
SCRIPT = """
set -e
mkdir -p /run/systemd /run/log
mount -t tmpfs none /run/systemd
mount -t tmpfs none /run/log
mkdir -p /run/log/journal
"$1" >/dev/null 2>&1 &
until [ -S /run/systemd/journal/stdout ]; do sleep 0.1; done
systemd-cat --identifier=dios-test sh -c '
  JOURNAL_STREAM=$(stat --dereference --format %d:%i /proc/self/fd/2) exec "$0" "$@"' \
  "$2" -P -m dios.node.daemon "$3" log_level=debug pool_size=0 accept_weaker_sandbox=yes coordinator=off &
has() {
  journalctl --directory=/run/log/journal --identifier=dios-test --output=cat | grep -q "$1"
}
until has "the node serves"; do sleep 0.2; kill -0 $!; done
"$2" -m dios.cli.main ps --node "$3" >/dev/null
until has "the core knows"; do sleep 0.2; kill -0 $!; done
journalctl --directory=/run/log/journal --identifier=dios-test --output=json
"""

pytestmark = [
    pytest.mark.extended,
    pytest.mark.skipif(os.geteuid() != 0, reason="namespaces for a journald need root"),
    pytest.mark.skipif(
        not JOURNALD.exists() or shutil.which("systemd-cat") is None,
        reason="systemd-journald is missing: apt install systemd",
    ),
]


def test_the_journal_has_each_record_with_its_level(tmp_path: Path) -> None:
    """The journal takes the priority of a record from its line, which then has neither it nor a time."""
    command = ["unshare", "--mount", "--pid", "--fork", "--mount-proc", "--kill-child", "bash", "-c", SCRIPT]
    command += ["journal", str(JOURNALD), sys.executable, str(tmp_path / "node")]
    plain = {**os.environ, "SYSTEMD_COLORS": "0"}
    done = subprocess.run(command, env=plain, capture_output=True, text=True, timeout=WAIT_S, check=False)
    if "Operation not permitted" in done.stderr:
        pytest.skip(f"no namespaces here: {done.stderr.strip()}")
    assert done.returncode == 0, done.stderr
    priorities = {}
    for line in done.stdout.splitlines():
        record = json.loads(line)
        priorities[record["MESSAGE"]] = record["PRIORITY"]
    serves = next(message for message in priorities if "the node serves" in message)
    assert serves.startswith("info dios.node.serve: the node serves")
    assert priorities[serves] == "6"
    levels = {"debug": "7", "info": "6", "warning": "4", "error": "3"}
    logged = {message: priority for message, priority in priorities.items() if message.split()[0] in levels}
    assert all(levels[message.split()[0]] == priority for message, priority in logged.items()), logged
    assert set(logged.values()) >= {"6", "7"}
