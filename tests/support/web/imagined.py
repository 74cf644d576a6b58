"""A dashboard of an imagined cluster with many tasks, in which every text is hostile.

``python -m tests.support.web.imagined COUNT`` prints its address on standard error, like ``dios ui``.
"""

from __future__ import annotations

import json
import sys
import time
from types import SimpleNamespace
from typing import Final, cast

from dios.client.ops.cluster import Gathered, Member
from dios.client.ops.status import Status
from dios.client.sync.node import Node
from dios.web.dashboard.server import DashboardPlace, serve
from dios.wire.types import Cause, NodeStatus, TaskState

EVIL: Final = (
    "<img src=x onerror=\"document.title='broken'\"><script>document.title='broken'</script>\x1b[31m\u202e"
)
"""HTML that would change the title of the page, a colour of terminals, and a change of direction."""
SHOWN: Final = "<img src=x"
_S: Final = 1_000_000_000
_STATES: Final = (TaskState.RUNNING, TaskState.ENDED, TaskState.PAUSED, TaskState.ENDED)


def _task(number: int, now_ns: int) -> Status:
    """Return a task; each second one has ended, some of them badly."""
    state = _STATES[number % 4]
    ended = state is TaskState.ENDED
    started = now_ns - (1 + number % 600) * _S
    return Status(
        f"{number:012x}",
        f"{EVIL} {number}",
        state,
        principal=EVIL,
        started_ns=started,
        ended_ns=started + (_S if ended else 0),
        cause=Cause.KILLED if number % 8 == 1 else Cause.EXITED,
        detail=EVIL if ended else "",
        parent="ffffffffffff",
        node=("n1", "n2", EVIL)[number % 3],
        secrecy=(EVIL,) if number % 2 else (),
    )


def _answers(now_s: float) -> dict[str, object]:
    """Return the answers of a scheduler by question."""
    round_ = {"number": 7, "algorithm": EVIL, "waiting": 1, "running": 2, "arcs": 3, "total_s": 0.1}
    account = {"weight": 1.0, "entitlement": 0.5, "share": 0.4, "resource": EVIL, "commitment": 0.1}
    steps = [[now_s - 60, 2.0, 2**30], [now_s + 60, 0.0, 0]]
    job = {
        "number": 1,
        "principal": EVIL,
        "job": EVIL,
        "began_s": now_s - 60,
        "ends_s": now_s + 60,
        "members": [{"member": EVIL, "node": "n1", "running": True, "steps": steps}],
        "edges": [
            {
                "from": EVIL,
                "to": "b",
                "source_node": "n1",
                "target_node": EVIL,
                "moving_bytes_s": 2e6,
                "steps": [[now_s - 60, 5_000_000]],
            }
        ],
    }
    return {
        "status": {
            "nodes": [{"node": "n1", "cpus": 4, "cpus_set_aside": 1, "cpus_used": 2.5, "memory_used": 2**30}],
            "worth_copies": [{"task": f"{4:012x}", "seconds_left": 33.0}],
        },
        "shares": {
            "fairness": EVIL,
            "memory_s": 60.0,
            "sharing": 3,
            "principals": [
                {**account, "principal": EVIL, "credit": 0.1, "running": 1, "waiting": 2, "turn": 1},
                {**account, "principal": "uid:2", "credit": -0.1, "waiting": 1, "turn": 2, "next_in_s": 41.0},
            ],
        },
        "history": {"rounds": [round_]},
        "export": {"links": [[f"task {EVIL}", EVIL, 1, 5], [EVIL, "n1", 1, 2]]},
        "explain": {"lines": [EVIL]},
        "pack": {
            "now_s": now_s,
            "nodes": [{"node": "n1", "cpus": 4.0, "memory_bytes": 2**33}],
            "jobs": [job],
        },
    }


class ImaginedNode:
    """The calls of a node that the dashboard uses."""

    groups = ()

    def __init__(self, count: int) -> None:
        now_ns = time.time_ns()
        self._tasks = [_task(number, now_ns) for number in range(count)]
        waiting = Status("abcdef", f"{EVIL} waits", TaskState.WAITING, node="n1")
        self._tasks.append(waiting)

    def nodes(self) -> list[Member]:
        """Return three nodes, one of them with a hostile name."""
        return [
            Member(number, name, EVIL, "", NodeStatus.ALIVE, False, 1, 0, 5, 4, 2**33, not number)
            for number, name in enumerate(("n1", "n2", EVIL))
        ]

    def tasks(self) -> Gathered[Status]:
        """Return the tasks, the same each time."""
        return Gathered(self._tasks)

    def info(self, *, host: str = "") -> object:
        """Describe a node."""
        return SimpleNamespace(version=EVIL, node="/nowhere", counts={"peer_connections": 2})

    def read_table(self, name: str) -> list[dict[str, object]]:
        """Return rows of a table."""
        if name == "metrics":
            return [{"metric": "dios_peer_connected", "labels": f"peer={EVIL}", "value": 1}]
        if name == "references":
            row = {"task": f"{1:012x}", "object": EVIL, "permissions": 3, "provenance": EVIL, "origin": EVIL}
            return [{**row, "secrecy": EVIL}]
        if name == "waiting":
            return [{"task": f"{1:012x}", "call": EVIL, "objects": "", "requests": 1}]
        counts = dict.fromkeys(("size", "v_r", "v_w", "a_r", "a_w", "references", "waiters"), 1)
        return [{"fingerprint": EVIL, "type": EVIL, "persistence": EVIL, "secrecy": EVIL, **counts}]

    def ask_scheduler(self, question: bytes) -> bytes:
        """Answer a question."""
        answer = _answers(time.time())[json.loads(question)["ask"]]
        return json.dumps({"ok": True, **cast("dict[str, object]", answer)}).encode()

    def find(self, name: bytes) -> None:
        """Find nothing."""

    def present_all(self) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""


def main() -> None:
    """Serve until SIGINT."""
    count = int(sys.argv[1])

    def started(address: str) -> None:
        sys.stderr.write(f"{address}\n")
        sys.stderr.flush()

    serve(lambda: cast("Node", ImaginedNode(count)), DashboardPlace(), started, lambda _: None)


if __name__ == "__main__":
    main()
