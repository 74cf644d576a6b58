"""Covert channels of secrecy labels: the bits a second of the fastest signals that docs/labels.md admits.

Two pure tasks that work together try to pass on what only one of them may know. The sender has the label, the
receiver has not; both know when a bit begins. The rate of a channel is its capacity with the measured errors,
at the best of several lengths of a bit.
"""

from __future__ import annotations

import json
import math
import secrets
import time
from typing import Final, NamedTuple

import dios
from dios.client.sync.node import Node, Reference
from labs.benchmarks.nodes import running_node
from labs.benchmarks.report import Row, Section, number

BITS: Final = 200
LENGTHS_US: Final = (20_000, 8_000, 4_000, 2_000, 1_000, 500)
START_S: Final = 1.0
_ENDS: Final = 40

_COMMON: Final = """
import json, random, time
import dios
from dios.wire import messages
from dios.wire.types import Flag, Semantics

node = dios.connect()
job = json.loads(node.input("job").read_bytes())
bits = random.Random(job["seed"]).choices((0, 1), k=job["bits"])
length, begin = job["length_us"] / 1e6, job["begin"]
shared = node.input("shared")

def ask(call):
    def operation():
        answer, _ = yield call
        return answer
    return node.link.run(operation())

def hold(flags):
    return ask(messages.AcquireWrite(shared.ref, 1, semantics=Semantics.EXCL, flags=flags))

def let_go(buffer):
    ask(messages.ReleaseWrite(shared.ref, buffer.buffer))

def wait_until(place):
    while time.monotonic() < begin + place * length:
        pass
"""

SENDER: Final = (
    _COMMON
    + """
node.input("secret").read_bytes()
for place, bit in enumerate(bits):
    wait_until(place)
    if bit:
        buffer = hold(int(Flag.BLANK))
        wait_until(place + 0.8)
        let_go(buffer)
"""
)

RECEIVER: Final = (
    _COMMON
    + """
seen = []
for place in range(len(bits)):
    wait_until(place + 0.4)
    try:
        let_go(hold(int(Flag.BLANK | Flag.NON_BLOCKING)))
        seen.append(0)
    except dios.Busy:
        seen.append(1)
node.output("right").write_bytes(json.dumps([sent == got for sent, got in zip(bits, seen)]).encode())
"""
)


class Trial(NamedTuple):
    """One transmission: the length of a bit in microseconds, and the share of wrong bits."""

    length_us: int
    wrong: float

    @property
    def bits_s(self) -> float:
        """The capacity of a binary symmetric channel with these errors, in bits a second."""
        wrong = min(max(self.wrong, 1e-9), 0.5)
        entropy = -wrong * math.log2(wrong) - (1 - wrong) * math.log2(1 - wrong)
        return (1 - entropy) * 1e6 / self.length_us


def transmit(node: Node, secret: Reference, shared: Reference, length_us: int) -> Trial:
    """Let a task with the label signal random bits to one without it, by holding an object or not."""
    job = {
        "seed": secrets.randbits(64),
        "bits": BITS,
        "length_us": length_us,
        "begin": time.monotonic() + START_S,
    }
    asked = node.create(dios.SHMEM_BLOB, data=json.dumps(job).encode(), naming=dios.ANONYMOUS)
    right = node.create(dios.SHMEM_BLOB, naming=dios.ANONYMOUS)
    writes = shared.restrict("write")
    sender = node.run(SENDER.encode(), inputs={"job": asked, "shared": writes, "secret": secret})
    receiver = node.run(RECEIVER.encode(), inputs={"job": asked, "shared": writes}, outputs={"right": right})
    with sender, receiver:
        sender.wait()
        receiver.wait()
    outcomes = json.loads(right.read_bytes())
    return Trial(length_us, outcomes.count(False) / len(outcomes))


def starts_s(node: Node) -> float:
    """Return the number of tasks that a client starts and sees end in a second, one after the other."""
    program = node.create_program(b"pass")
    began = time.monotonic()
    for _ in range(_ENDS):
        with node.run(program) as task:
            task.wait()
    return _ENDS / (time.monotonic() - began)


def run(section: Section) -> None:
    """Measure the two fastest channels."""
    with running_node(None) as bench, dios.connect(bench.data) as node:
        secret = node.create(dios.SHMEM_BLOB, data=b"s", naming=dios.ANONYMOUS, secrecy=["payroll"])
        shared = node.create(dios.SHMEM_BLOB, data=b"x", naming=dios.ANONYMOUS, secrecy=["payroll"])
        trials = [transmit(node, secret, shared, length_us) for length_us in LENGTHS_US]
        ends = starts_s(node)
    best = max(trials, key=lambda trial: trial.bits_s)
    for trial in trials:
        section.figure(
            f"an object held or not, {trial.length_us} us a bit: wrong bits", 100 * trial.wrong, "%"
        )
    section.figure("an object held or not, at best", best.bits_s, "bits/s")
    section.figure("ends of tasks", ends, "/s")
    section.rows.append(
        Row(
            "covert channel of a labelled task: an object held or not",
            f"{number(best.bits_s)} bits/s",
            f"at {best.length_us} us a bit, {number(100 * best.wrong)} % wrong",
        )
    )
    section.rows.append(
        Row(
            "covert channel of a labelled task: ends of children, 20 bits each without times",
            f"{number(20 * ends)} bits/s",
            f"{number(ends)} ends a second",
        )
    )
