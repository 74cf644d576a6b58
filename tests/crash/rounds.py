"""Rounds of the crash test: one node is killed under load again and again, and its data is checked each time.

The clients are in ``writer``, the checks in ``verdict``. The seed decides the operations and the kind of
kill; the exact moment depends on the machine, so a seed repeats a kind of round.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import threading
import time
from pathlib import Path
from typing import Final

from msgspec import Struct

from dios.host.audit.reader import verify
from dios.node.daemon import DaemonProcess, command
from tests.crash.verdict import AuditWatch, BrokenError, must, on_the_disk, only_ours, through_the_node
from tests.crash.writer import Client, Journal
from tests.support.node.running_node import RunningNode, exists, wait_until

CLIENTS: Final = 4
ACKNOWLEDGED_MAX: Final = 90
SPIN_MAX: Final = 100_000
START_S_MAX: Final = 0.3
AUDIT_EVERY: Final = 25
_DEADLINE_S: Final = 60.0


class Tally(Struct):
    """The counts of all rounds."""

    rounds: int = 0
    kills: int = 0
    kills_while_starting: int = 0
    kills_of_tasks: int = 0
    acknowledged: int = 0
    unacknowledged_there: int = 0
    objects_read: int = 0
    audit_records: int = 0
    seconds: float = 0.0


class Rounds:
    """The node in ``data``, its clients, and their journals."""

    def __init__(self, data: Path, seed: int) -> None:
        self.data: Final = data
        self.seed: Final = seed
        self.tally: Final = Tally()
        self._rng: Final = random.Random(seed)  # noqa: S311 - it chooses moments, it guards nothing
        self.journals: Final = [Journal(number) for number in range(CLIENTS)]
        self._clients: Final = [
            Client(journal, random.Random(f"{seed} {journal.number}"), runs_tasks=not journal.number % 2)  # noqa: S311 - likewise
            for journal in self.journals
        ]
        self._seen: Final[set[int]] = set()
        self._node: Final = RunningNode(data, {"pool_size": "0"})
        self._audit: Final = AuditWatch(data / "audit")

    @property
    def extents(self) -> int:
        """Return the number of extent files in the data directory."""
        return sum(path.is_file() for path in (self.data / "extents").glob("*/*"))

    def play(self) -> None:
        """Load the node, kill it, check the disk, start it, check what it serves; raise BrokenError."""
        began = time.monotonic()
        self._load_and_kill()
        self.tally.unacknowledged_there += len(unknown := on_the_disk(self.data, self.journals))
        for _ in range(self._rng.choice((0, 0, 0, 1, 2))):
            self._kill_while_starting()
            must(
                on_the_disk(self.data, self.journals) == unknown, "a start that is cut short changes nothing"
            )
        self._node.restart()
        self.tally.objects_read += through_the_node(self._node.place, self.journals, unknown)
        self.tally.audit_records += self._audit.follow(self.journals)
        only_ours(self.data)
        self.tally.rounds += 1
        if not self.tally.rounds % AUDIT_EVERY:
            self.verify_audit()
        self.tally.acknowledged = sum(journal.acknowledged for journal in self.journals)
        self.tally.seconds += time.monotonic() - began

    def verify_audit(self) -> None:
        """Check that the chain of the audit log is complete."""
        verdict = verify(self.data / "audit")
        must(verdict.ok, f"the audit log verifies: {verdict.problem} at record {verdict.index}")

    def finish(self) -> None:
        """Stop the node normally, and check that nothing is left over."""
        self._seen.update(self._node.descendants())
        self._node.stop()
        must(not on_the_disk(self.data, self.journals), "after a normal stop nothing is in doubt")
        self.verify_audit()
        self._nobody_left()

    def abandon(self) -> None:
        """Kill the node in any state."""
        if exists(self._node.running.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._node.running.pid, signal.SIGKILL)
        wait_until(lambda: not exists(self._node.running.pid), "the daemon is gone")

    # -- killing ------------------------------------------------------------------------------------
    def _load_and_kill(self) -> None:
        killing = threading.Event()
        told = threading.Semaphore(0)
        threads = [
            threading.Thread(
                target=client.write_until_killed, args=(self._node.place, told.release, killing), daemon=True
            )
            for client in self._clients
        ]
        for thread in threads:
            thread.start()
        for _ in range(self._rng.randint(1, ACKNOWLEDGED_MAX)):
            must(told.acquire(timeout=_DEADLINE_S), "the node answers under load")
            if self._rng.random() < 0.02:
                self._kill_a_process()
        self._seen.update(self._node.descendants())
        # A busy loop of random length, so that the kill can hit any operation.
        for _ in range(self._rng.randrange(SPIN_MAX)):
            pass
        killing.set()
        self._node.kill()
        self.tally.kills += 1
        for thread in threads:
            thread.join(_DEADLINE_S)
            must(not thread.is_alive(), "a client of a killed node does not hang")
        for client in self._clients:
            if client.unexpected is not None:
                raise BrokenError("a client was refused by a living node") from client.unexpected
        self._nobody_left()

    def _kill_a_process(self) -> None:
        """Kill a task or a zygote; the node must survive it."""
        below = sorted(self._node.descendants())
        if below:
            self._seen.update(below)
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._rng.choice(below), signal.SIGKILL)
            self.tally.kills_of_tasks += 1

    def _kill_while_starting(self) -> None:
        """Start the node, and kill it before or during its recovery."""
        with (
            (self.data / "node.log").open("ab") as log,
            subprocess.Popen(
                command(self.data, config=None, flags=self._node.flags),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            ) as process,
        ):
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(self._rng.uniform(0.02, START_S_MAX))
            must(process.poll() is None, "a node that is starting does not end by itself")
            self._node.running = DaemonProcess(process.pid, self._node.running.socket)
            self._seen.update(self._node.descendants())
            process.kill()
        self.tally.kills_while_starting += 1
        self._nobody_left()

    def _nobody_left(self) -> None:
        """Check that no zygote and no task outlives the node."""
        wait_until(lambda: not any(exists(pid) for pid in self._seen), "every process of the node is gone")
        self._seen.clear()


def figures(tally: Tally) -> list[tuple[str, str]]:
    """Return the counts as text."""
    per_round = tally.seconds / max(tally.rounds, 1)
    return [
        ("rounds", f"{tally.rounds}, {per_round:.2f} s each"),
        ("daemon killed under load", str(tally.kills)),
        ("daemon killed while starting", str(tally.kills_while_starting)),
        ("tasks and zygotes killed", str(tally.kills_of_tasks)),
        ("acknowledged changes", str(tally.acknowledged)),
        ("acknowledged and lost, or torn", "0"),
        ("not acknowledged, but complete on the disk", str(tally.unacknowledged_there)),
        ("objects read back and compared", str(tally.objects_read)),
        ("audit records verified", str(tally.audit_records)),
    ]
