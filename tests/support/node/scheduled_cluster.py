"""A local cluster of three nodes that is scheduled, and a person who uses it.

Not for: starting it; each file of tests has settings of its own.
"""

from __future__ import annotations

import json
import os

from tests.support.node.command_user import Person
from tests.support.node.running_node import wait_until

CPUS = len(os.sched_getaffinity(0))
NODES = ["n1", "n2", "n3"]
LOADED_S = 900
"""The time for the first start, in which the scheduler's kernels are compiled."""


class Site:
    """A person, and a cluster with a coordinator on each node."""

    def __init__(self, person: Person) -> None:
        self.person = person
        person.writes("short.py", "print('ran')\n")
        person.writes("long.py", "import time\nprint('begins', flush=True)\ntime.sleep(600)\n")

    def ask(self, line: str) -> dict[str, object]:
        """A command's JSON, once it answers."""
        replies: list[dict[str, object]] = []

        def answers() -> bool:
            done = self.person.tries(f"{line} --json")
            if done.returncode:
                return False
            told: dict[str, object] = json.loads(done.stdout)
            replies.append(told)
            return True

        wait_until(answers, f"`{line}` answers", LOADED_S)
        return replies[-1]

    def is_whole(self) -> bool:
        """Return True if the flow scheduler of one coordinator schedules every node."""
        told = self.ask("dios sched status")
        rows = told["nodes"]
        assert isinstance(rows, list)
        if told["placed_by"] != "flow":
            return False
        return told["attends"] == NODES and [row["node"] for row in rows if row["coordinator"]] == NODES

    def rows(self) -> list[dict[str, object]]:
        """The person's tasks that have not ended."""
        rows: list[dict[str, object]] = json.loads(self.person.types("dios ps --json").stdout)
        return rows

    def tasks(self, label: str) -> list[dict[str, object]]:
        """Those with this label."""
        return [row for row in self.rows() if row["label"] == label]

    def until(self, label: str, state: str, count: int = 1) -> list[dict[str, object]]:
        """So many tasks of this label once they are in this state."""

        def there() -> bool:
            return [row["state"] for row in self.tasks(label)].count(state) == count

        wait_until(there, f"{count} tasks {label} are {state}", 60)
        return self.tasks(label)

    def clear(self) -> None:
        """End everything but the coordinators."""
        for row in json.loads(self.person.types("dios ps --json").stdout):
            if row["label"] != "coordinator" and row["state"] != "waiting":
                self.person.types(f"dios kill {row['fingerprint']}")
        wait_until(lambda: self.ask("dios sched status")["running"] == len(NODES), "all tasks have ended", 60)


def is_attended(person: Person) -> bool:
    """Return True if one coordinator attends to both nodes of a cluster of two, which has no other one."""
    done = person.tries("dios sched status --json")
    if done.returncode:
        return False
    told = json.loads(done.stdout)
    if told["placed_by"] != "flow":
        return False
    return len(told["attends"]) == 2 and [row["coordinator"] for row in told["nodes"]] == [True, True]
