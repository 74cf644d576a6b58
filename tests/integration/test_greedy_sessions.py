"""Twenty greedy sessions next to a polite one: it is answered, and gets its part of the processors."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest

import dios
from dios.errors import DiosError
from dios.node.doctor.diagnosis import examine
from dios.node.doctor.finding import DoctorLevel
from tests.support.node.running_node import RunningNode, wait_until

PATIENCE_S = 300.0
GREEDY = 20
MEMORY = "96 MiB"

KINDS = {
    "computes": "while True: pass",
    "computes in threads": (
        "import hashlib, threading\ndef burn():\n    while True: hashlib.sha256(bytes(1 << 20)).digest()\n"
        "for _ in range(8): threading.Thread(target=burn, daemon=True).start()\nthreading.Event().wait()"
    ),
    "takes memory": "kept = []\nwhile True: kept.append(bytearray(1 << 20))",
    "takes mapped memory": (
        "import mmap\npages = mmap.mmap(-1, 1 << 30)\nwhile True: pages.write(bytes(1 << 16))"
    ),
    "starts threads": (
        "import threading\nend = threading.Event()\n"
        "while True: threading.Thread(target=end.wait, daemon=True).start()"
    ),
    "fills its folder": "with open('large', 'wb') as file:\n    while True: file.write(bytes(1 << 20))",
    "prints": "while True: print('x' * 10_000)",
    "opens files": "import os\nkept = []\nwhile True: kept.append(os.dup(0))",
    "makes large values": "'x' * 50_000_000",
    "takes the node's descriptors": (
        "import dios\nnode, kept = dios.connect(), []\nwhile True:\n"
        "    kept.append(node.create_stream(ring_bytes=4096))\n    kept[-1].writer.close()"
    ),
    "leaves": "import os; os._exit(1)",
}
"""What greedy sessions do for ever, or until they are stopped."""


@pytest.fixture
def node(tmp_path: Path) -> Iterator[RunningNode]:
    """A node of its own, for the processors are shared."""
    running = RunningNode(tmp_path / "data", {})
    yield running
    running.stop()


@pytest.mark.extended
def test_one_polite_session_is_served_next_to_twenty_greedy_ones(node: RunningNode) -> None:
    """All its answers are right while the others reach their limits again and again."""
    over = threading.Event()
    reached = dict.fromkeys(KINDS, 0)

    def greedy(number: int) -> None:
        kind = list(KINDS)[number % len(KINDS)]
        with dios.Sandbox(node=node.place, memory=MEMORY, cpu_seconds=5, timeout=3.0) as box:
            while not over.is_set():
                try:
                    box.run(KINDS[kind])
                    reached[kind] += 1
                    box.reset()
                except DiosError:
                    if over.is_set():
                        return
                    raise

    with ThreadPoolExecutor(GREEDY) as pool, dios.Sandbox(node=node.place, timeout=PATIENCE_S) as polite:
        running = [pool.submit(greedy, number) for number in range(GREEDY)]
        try:
            assert polite.run("total = 0").ok
            turn = 0
            while not all(reached.values()) or turn < 30:
                assert not any(future.done() for future in running), [
                    future for future in running if future.done()
                ]
                turn += 1
                result = polite.run("total += sum(range(10_000))\nopen('kept', 'w').write(str(total))\ntotal")
                assert result.value_repr == str(turn * 49_995_000), result
        finally:
            over.set()
        for session_run in running:
            session_run.result()
    with dios.Sandbox(node=node.place, timeout=PATIENCE_S) as after:
        assert after.run("1 + 1").value_repr == "2"
    with dios.connect(node.place) as own:
        wait_until(lambda: all(task.ended for task in own.tasks()), "no session is left")


BURN = """
import hashlib, threading, time
begun = []
def burn():
    while True:
        hashlib.sha256(bytes(1 << 20)).digest()
def sample():
    while True:
        begun.append((time.monotonic_ns(), time.process_time_ns()))
        time.sleep(0.05)
for target in (sample, *[burn] * 6):
    threading.Thread(target=target, daemon=True).start()
"""
COMPUTE = """
import hashlib, time
began, used = time.monotonic_ns(), time.process_time_ns()
while time.process_time_ns() - used < 400_000_000:
    hashlib.sha256(bytes(1 << 20)).digest()
began, time.monotonic_ns(), time.process_time_ns() - used
"""
USED = """
inside = [used for at, used in begun if {first} <= at <= {last}]
inside[-1] - inside[0] if inside else 0
"""


@pytest.mark.extended
def test_a_session_gets_its_part_of_the_processors_whatever_the_threads_of_others(
    node: RunningNode, tmp_path: Path
) -> None:
    """Most of twenty sessions with six busy threads each have about the processor time of one thread."""
    (finding,) = (entry for entry in examine(tmp_path).findings if entry.name == "processor share")
    if finding.level is not DoctorLevel.OK:
        pytest.skip(f"processors are not divided by tasks here: {finding.detail}")
    with ExitStack() as stack:
        boxes = [
            stack.enter_context(dios.Sandbox(node=node.place, timeout=PATIENCE_S)) for _ in range(GREEDY + 1)
        ]
        polite = boxes.pop()
        for box in boxes:
            assert box.run(BURN).ok
        values = polite.run(COMPUTE).value_repr
        assert values is not None
        first, last, own = map(int, values.strip("()").split(","))
        used = sorted(
            int(session.run(USED.format(first=first, last=last)).value_repr or 0) for session in boxes
        )
    # With the threads counted, each of them would have six times as much.
    assert used[GREEDY // 2] < 3 * own, (used, own)
