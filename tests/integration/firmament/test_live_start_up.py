"""A coordinator with real nodes, whose compilation of kernels never ends, or was recorded by mistake."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio

import dios
from dios import kernels
from dios.client.aio.node import AsyncNode, open_node
from dios.firmament.coordinator import scheduler_service
from dios.firmament.coordinator.assignment import SetUp, StartOptions
from dios.firmament.coordinator.coordinator import Coordinator
from dios.firmament.coordinator.kernel_compilation import KernelProgress
from dios.firmament.knowledge.knowledge_base import KnowledgeBase
from dios.node import local_cluster
from dios.node.local_cluster import LocalCluster

pytestmark = pytest.mark.long

DEADLINE_S = 60
LONG = b"import time; time.sleep(600)"


class SlowCompiler:
    """A compilation that does not end while the test runs."""

    progress = KernelProgress(3, 150)

    def is_ready(self) -> bool:
        """Return False."""
        return False

    async def compile(self, *, again: bool = False) -> None:
        """Wait until cancelled."""
        await trio.sleep_forever()


class MistakenCompiler(SlowCompiler):
    """A compilation that was recorded as complete, although no kernel can be loaded."""

    def __init__(self) -> None:
        self.again: list[bool] = []

    def is_ready(self) -> bool:
        """Return True."""
        return True

    async def compile(self, *, again: bool = False) -> None:
        """Record the call, and wait until cancelled."""
        self.again.append(again)
        await super().compile(again=again)


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalCluster]:
    """Two nodes without coordinators of their own."""
    run = tmp_path / "run"
    run.mkdir(mode=0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(run))
    settings = {"coordinator": "off", "pool_size": "1", "accept_weaker_sandbox": "yes"}
    live_cluster = local_cluster.make(tmp_path / "cluster", nodes=2, settings=settings)
    try:
        local_cluster.start(live_cluster)
        yield live_cluster
    finally:
        local_cluster.stop(live_cluster)


def test_a_run_with_needs_is_placed_while_kernels_are_compiled(cluster: LocalCluster) -> None:
    """It runs at once; a second one that does not fit waits, and status and explanation say why."""
    socket = cluster.nodes[0].socket

    async def scenario() -> None:
        async with open_node(socket, groups=()) as own, open_node(socket, groups=()) as user:
            options = StartOptions(SetUp.CENTRALISED, "spread")
            knowledge = KnowledgeBase("n1", 1)
            coordinator = Coordinator(
                own, options, knowledge=knowledge, delegation_s=1.0, kernels=SlowCompiler()
            )
            async with trio.open_nursery() as nursery:
                nursery.start_soon(coordinator.run)
                with trio.fail_after(DEADLINE_S):
                    status = await _status(user, nodes=2)
                    assert status["placed_by"] == "first-fit"
                    assert "'compiled': 3" in str(status["kernels"])
                    task = await user.run(LONG, label="fits", work=dios.work(constraints=["node=n2"], cpus=1))
                    nursery.start_soon(_run, user)
                    explanation = await _explain(user, "too large", "waiting")
                    assert "too small: 4000 CPUs wanted" in str(explanation["lines"])
                    assert "kernels are being compiled (3 of 150)" in str(explanation["lines"])
                    explanation = await _explain(user, "fits", "running")
                    assert explanation["node"] == "n2"
                    await task.delete()
                nursery.cancel_scope.cancel()

    trio.run(scenario)


def test_no_run_waits_for_kernels_that_turn_out_to_be_missing(
    cluster: LocalCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The flow scheduler finds no kernel to load, so the simple rule places runs, and the status says it."""
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "empty"))
    monkeypatch.setattr(kernels, "_folders", kernels._folders.__wrapped__)

    # The scheduler's own kernels may have been loaded into this process before.
    @kernels.kernel
    def double(number: int) -> int:
        return 2 * number

    monkeypatch.setattr(scheduler_service, "exercise_kernels", lambda _model: double(21))
    socket, compiler = cluster.nodes[0].socket, MistakenCompiler()

    async def scenario() -> None:
        async with open_node(socket, groups=()) as own, open_node(socket, groups=()) as user:
            options = StartOptions(SetUp.CENTRALISED, "spread")
            knowledge = KnowledgeBase("n1", 1)
            coordinator = Coordinator(own, options, knowledge=knowledge, delegation_s=1.0, kernels=compiler)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(coordinator.run)
                with trio.fail_after(DEADLINE_S):
                    # A question wakes a coordinator that believes in its record.
                    status = await _status(user, nodes=2)
                    assert status["placed_by"] == "first-fit"
                    assert "'state': 'compiling'" in str(status["kernels"])
                    task = await user.run(LONG, label="fits", work=dios.work(cpus=1))
                    await _explain(user, "fits", "running")
                    await task.delete()
                nursery.cancel_scope.cancel()

    trio.run(scenario)
    assert compiler.again == [True]


async def _run(user: AsyncNode) -> None:
    await user.run(LONG, label="too large", work=dios.work(cpus=4000))


async def _status(user: AsyncNode, nodes: int) -> dict[str, object]:
    """Return the status once a coordinator knows all nodes."""
    while True:
        status = await _ask(user, {"ask": "status"})
        rows = status.get("nodes")
        if isinstance(rows, list) and len(rows) == nodes:
            return status
        await trio.sleep(0.1)


async def _explain(user: AsyncNode, label: str, phase: str) -> dict[str, object]:
    """Return the explanation once the task is in this phase."""
    while True:
        explanation = await _ask(user, {"ask": "explain", "task": label})
        if explanation.get("phase") == phase:
            return explanation
        await trio.sleep(0.1)


async def _ask(user: AsyncNode, question: dict[str, str]) -> dict[str, object]:
    try:
        answer = await user.ask_scheduler(json.dumps(question).encode())
    except dios.UnreachableError:
        return {}
    reply: dict[str, object] = json.loads(answer)
    return reply
