"""A cluster of three nodes with one coordinator, and the flow network that it would solve now.

The other two nodes have no coordinator of their own, so that a test reports their machine types and
measurements, in the words of a coordinator.
"""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

import msgspec
import pytest

import dios
from dios.firmament.coordinator.best_effort import NodeLoad
from dios.firmament.coordinator.observer import MeasurementReport
from dios.firmament.knowledge.knowledge_base import KnowledgeBase
from dios.firmament.knowledge.samples import Sample
from dios.node import local_cluster
from dios.node.local_cluster import LocalCluster
from tests.support.node.running_node import exists, wait_until
from tests.support.node.scheduled_cluster import LOADED_S

SLEEPS = b"import time\ntime.sleep(600)\n"
WAITING = "waiting"


class Arc(NamedTuple):
    """Capacity and cost."""

    capacity: int
    cost: int


class FlowNetwork:
    """The network of a round: vertices by their names. A task has the name of its job, if it may wait."""

    def __init__(self, text: str) -> None:
        names: dict[str, str] = {}
        rows: list[tuple[str, str, Arc]] = []
        self.supply: Counter[str] = Counter()
        for line in text.splitlines():
            kind, *words = line.split(" ")
            if line.startswith("c vertex "):
                names[words[1]] = " ".join(words[2:])
            elif kind == "n":
                self.supply[names[words[0]]] += int(words[1])
            elif kind == "a":
                tail, head, least, capacity, cost = words
                assert least == "0"
                rows.append((names[tail], names[head], Arc(int(capacity), int(cost))))
        jobs = {
            tail: head.removeprefix("waiting (").removesuffix(")")
            for tail, head, _ in rows
            if tail.startswith("task ") and head.startswith(WAITING)
        }
        self.arcs: dict[str, dict[str, Arc]] = {}
        """By tail and head; vertices of one name are one."""
        for tail, head, arc in rows:
            place = WAITING if head.startswith(WAITING) and tail in jobs else head
            self.arcs.setdefault(jobs.get(tail, tail), {})[place.removesuffix(" (as allowed)")] = arc
        self.tasks = {tail for tail, _, _ in rows if tail.startswith("task ")}

    def options(self, job: str) -> dict[str, Arc]:
        """The arcs of a job's task, but for those to waiting and to its present place."""
        return {
            head: arc
            for head, arc in self.arcs[job].items()
            if head != WAITING and head.partition("/")[0] not in {"n1", "n2", "n3"}
        }

    def to_machines(self, tail: str) -> dict[str, Arc]:
        """The arcs from a vertex to machines."""
        return {head: arc for head, arc in self.arcs.get(tail, {}).items() if head in {"n1", "n2", "n3"}}


class LiveScheduler:
    """A session at each node, and questions to the coordinator."""

    def __init__(self, cluster: LocalCluster, stack: ExitStack) -> None:
        self.cluster = cluster
        self._stack = stack
        self.sessions = {node.name: self.session(node.name) for node in cluster.nodes}
        self._waiting: list[tuple[threading.Thread, dios.Node]] = []

    def session(self, name: str) -> dios.Node:
        """A further session at a node."""
        (node,) = (node for node in self.cluster.nodes if node.name == name)
        return self._stack.enter_context(dios.connect(str(node.socket)))

    @property
    def node(self) -> dios.Node:
        """The session at the coordinator's node."""
        return self.sessions["n1"]

    def ask(self, question: str, **fields: object) -> dict[str, object]:
        """The coordinator's answer, which must be no refusal."""
        answer: dict[str, object] = json.loads(
            self.node.ask_scheduler(json.dumps({"ask": question, **fields}).encode())
        )
        assert answer.pop("ok"), answer
        return answer

    def model(self, name: str, **parameters: object) -> FlowNetwork:
        """Schedule by a model from now on; the network then."""
        words = {key: str(value) for key, value in parameters.items()}
        self.ask("set-model", model=name, parameters=words)
        return self.network()

    def network(self) -> FlowNetwork:
        """The network of a round that would begin now."""
        return FlowNetwork(str(self.ask("export", **{"as": "dimacs"})["text"]))

    def rounds(self) -> list[dict[str, object]]:
        """The last rounds, with numbers, costs and kinds of changes."""
        rounds = self.ask("history")["rounds"]
        assert isinstance(rounds, list)
        return rounds

    def report(self, name: str, machine_type: str, *samples: Sample, load: NodeLoad | None = None) -> None:
        """Report measurements as the coordinator of a node would."""
        base = KnowledgeBase(name, time.time_ns())
        for sample in samples:
            base.add(sample)
        batch = base.batch(None, 60_000).to_bytes()
        self.sessions[name].report(msgspec.msgpack.encode(MeasurementReport(name, machine_type, batch, load)))

    def runs(self, label: str, **work: object) -> dios.Task:
        """A task with these needs that has its place."""
        inputs = work.pop("inputs", ())
        return self.node.run(SLEEPS, label=label, work=dios.work(**work), inputs=inputs)  # type: ignore[arg-type]

    def submits(self, label: str, **work: object) -> None:
        """A run that may wait; it is withdrawn by ``clear``."""
        session = self.session("n1")

        def run() -> None:
            with suppress(dios.DiosError):  # it is withdrawn
                session.run(SLEEPS, label=label, work=dios.work(**work), detach=True)  # type: ignore[arg-type]

        thread = threading.Thread(target=run)
        thread.start()
        self._waiting.append((thread, session))

    def states(self, label: str) -> list[str]:
        """The states of the tasks with a label that have not ended."""
        states = [task.state.name.lower() for task in self.node.tasks() if task.label == label]
        return sorted(state for state in states if state != "ended")

    def places(self, label: str) -> list[str]:
        """The nodes on which tasks with a label run."""
        return sorted(
            task.node
            for task in self.node.tasks()
            if task.label == label and task.state is dios.TaskState.RUNNING
        )

    def waits(self, label: str) -> None:
        """Wait until the coordinator knows a run that waits."""
        wait_until(lambda: "waiting" in self.states(label), f"{label} waits")
        wait_until(lambda: int(str(self.ask("status")["waiting"])) > 0, "the coordinator knows it")

    def clear(self) -> None:
        """End all runs, and choose what the nodes' settings say."""
        for _, session in self._waiting:
            session.close()
        for thread, _ in self._waiting:
            thread.join(30)
        self._waiting.clear()
        for task in self.node.tasks():
            if task.label != "coordinator" and task.state is not dios.TaskState.ENDED and task.pid:
                self.kill(task.label)
        self.ask("reset")
        wait_until(lambda: self.ask("status")["running"] == 1, "all tasks have ended")

    def kill(self, label: str) -> None:
        """End all tasks with a label."""
        for task in self.node.tasks():
            if task.label == label and task.pid and exists(task.pid):
                os.kill(task.pid, signal.SIGKILL)


@contextmanager
def live_scheduler(folder: Path, **settings: str) -> Iterator[LiveScheduler]:
    """Three nodes in two racks: n1 and n3 in r1, and n2 in r2; n1 has the coordinator."""
    chosen = {
        "accept_weaker_sandbox": "yes",
        "pool_size": "1",
        "measure": "no",
        "tasks_max": "16",
        **settings,
    }
    cluster = local_cluster.make(folder / "cluster", nodes=3, racks=2, settings=chosen)
    with ExitStack() as stack:
        stack.callback(local_cluster.stop, cluster)
        local_cluster.start(cluster)
        pid = int((cluster.nodes[0].data / "node.pid").read_text())
        os.kill(pid, signal.SIGTERM)
        wait_until(lambda: not exists(pid), "n1 has ended")
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("DIOS_COORDINATOR", "on")
            local_cluster.start(cluster)
        scheduler = LiveScheduler(cluster, stack)
        wait_until(lambda: _schedules(scheduler), "the coordinator schedules all nodes", LOADED_S)
        yield scheduler


def _schedules(scheduler: LiveScheduler) -> bool:
    try:
        status = scheduler.ask("status")
    except dios.UnreachableError:
        return False
    rows = status["nodes"]
    assert isinstance(rows, list)
    return status["placed_by"] == "flow" and len(rows) == 3
