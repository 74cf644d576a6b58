"""A timing test of deniability: lookups of nonexistent names and of names in a group of another user.

A pure task looks names up in random order and times each call (thesis §3.2.2, §4.4). As a control, the same
test compares two sets of nonexistent names, where it must find no difference, and lookups with an added delay
of a few microseconds, which it must detect: so a result without a difference is meaningful. The contents of
the replies are compared in `tests/security/test_deniability.py`.
"""

from __future__ import annotations

import json
import math
import secrets
import statistics
import sys
from array import array
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Final, NamedTuple

import dios
from dios.client.sync.node import Group, Node, Reference
from dios.wire import messages
from dios.wire.types import Proximity
from labs.benchmarks.nodes import running_node
from labs.benchmarks.report import begin

TRIES: Final = 10_000
NAMES: Final = 64
MANY_OBJECTS: Final = 2_000
BLOCK: Final = 400
"""The number of consecutive tries that share one load of the machine; their median is subtracted."""

Z_MAX: Final = 4.0
"""The bound for Mann-Whitney's z; chance alone exceeds it once in 16,000 comparisons."""

KS_FACTOR: Final = 1.95
"""The bound for the Kolmogorov-Smirnov distance; chance alone exceeds it once in a thousand comparisons."""

RESULT: Final = Path(__file__).parent / "results" / "deniability.md"
_WAIT_S: Final = 600.0

PROGRAM: Final = b"""
import gc, json, random, time
from array import array
import dios
from dios.wire.codec import encode_request
from dios.wire.messages import Lookup

node = dios.connect()
job = json.loads(node.input("job").read_bytes())
(group,) = node.lookup(bytes.fromhex(job["group"]))
kinds = job["kinds"]
draw = random.Random(job["seed"])
plan = [index for index in range(len(kinds)) for _ in range(job["tries"])]
draw.shuffle(plan)
channel, now = node.link._channel, time.perf_counter_ns
call = channel.call
names = [[bytes.fromhex(name) for name in kind["names"]] for kind in kinds]
taken = array("q")
gc.disable()
for turn, index in enumerate([0] * 200 + plan):
    kind = kinds[index]
    wait = kind["wait_ns"]
    asked = Lookup(draw.choice(names[index]), group.ref if kind["group"] else 0)
    frame = encode_request(1_000_000 + turn, asked)
    before = now()
    call(frame)
    end = now() + wait
    while now() < end:
        pass
    after = now()
    if turn >= 200:
        taken.append(after - before)
node.output("samples").write_bytes(bytes(plan) + taken.tobytes())
"""


class Kind(NamedTuple):
    """A kind of name: the names, looked up in the resolved group or in all own groups, and an added delay."""

    names: tuple[bytes, ...]
    group: bool = False
    wait_ns: int = 0


class Comparison(NamedTuple):
    """Two kinds of names compared; times in nanoseconds, ``z`` and ``distance`` without unit."""

    title: str
    tries: int
    first_median: float
    second_median: float
    shifts: tuple[float, ...]  # of the quartiles
    z: float
    distance: float

    @property
    def distance_max(self) -> float:
        """The bound of the distance for chance alone."""
        return KS_FACTOR * math.sqrt(2 / self.tries)

    @property
    def differs(self) -> bool:
        """Return True if the two kinds can be distinguished."""
        return abs(self.z) > Z_MAX or self.distance > self.distance_max


COMPARED: Final[dict[str, tuple[str, str]]] = {
    "control: names of nothing, twice": ("absent", "absent again"),
    "foreign name": ("absent", "foreign"),
    "foreign name, in its group merely resolved": ("absent in group", "foreign in group"),
    f"foreign name of {MANY_OBJECTS:,} objects, in its group": ("absent in group", "many in group"),
    "control: planted wait of 2 us": ("absent", "planted 2"),
    "control: planted wait of 5 us": ("absent", "planted 5"),
}
"""The comparisons; an added delay must be detected, nothing else may differ."""


# -- preparation and measurement ----------------------------------------------------------------------
def prepare(node: Node) -> tuple[Group, bytes, dict[str, Kind]]:
    """Return a group to join, the name of a foreign group inside it, and the kinds of names."""
    common = node.create_group()
    foreign = node.create_group(parents=[common])
    there = [node.create(dios.SHMEM_BLOB, groups=[foreign], data=b"secret") for _ in range(NAMES)]
    many = node.create(dios.SHMEM_BLOB, groups=[foreign], data=b"secret")
    _multiply(node, many)
    names = tuple(_name(blob) for blob in there)
    nothing = _random_names(), _random_names()
    kinds = {
        "absent": Kind(nothing[0]),
        "absent again": Kind(nothing[1]),
        "foreign": Kind(names),
        "absent in group": Kind(nothing[0], group=True),
        "foreign in group": Kind(names, group=True),
        "many in group": Kind((_name(many),) * NAMES, group=True),
        "planted 2": Kind(nothing[1], wait_ns=2_000),
        "planted 5": Kind(nothing[1], wait_ns=5_000),
    }
    return common, _name(foreign), kinds


def _multiply(node: Node, blob: Reference) -> None:
    call = messages.Copy(blob.ref, node.self.ref, proximity=Proximity.PROCESS)
    for answer in node.vector([call] * MANY_OBJECTS):
        if isinstance(answer, dios.DiosError):
            raise answer


def _random_names() -> tuple[bytes, ...]:
    return tuple(secrets.token_bytes(32) for _ in range(NAMES))


def _name(handle: Reference) -> bytes:
    if handle.name is None:
        raise ValueError("an object without a name cannot be looked up")
    return handle.name


def measure(
    node: Node, common: Group, group: bytes, kinds: Mapping[str, Kind], tries: int
) -> dict[str, list[float]]:
    """Return the nanoseconds of each try by kind of name, in one pure task, with the load subtracted."""
    job = {
        "group": group.hex(),
        "tries": tries,
        "seed": secrets.randbits(32),
        "kinds": [
            {"names": [name.hex() for name in kind.names], "group": kind.group, "wait_ns": kind.wait_ns}
            for kind in kinds.values()
        ],
    }
    with (
        node.create(dios.SHMEM_BLOB, data=json.dumps(job).encode()) as asked,
        node.create(dios.SHMEM_BLOB) as samples,
        node.run(PROGRAM, groups=[common], inputs={"job": asked}, outputs={"samples": samples}) as task,
    ):
        status = task.wait(timeout=_WAIT_S)
        if not status.ok:
            raise RuntimeError(f"the measuring task failed: {status.detail}")
        recorded = bytes(samples.read_bytes())
    count = tries * len(kinds)
    taken = array("q")
    taken.frombytes(recorded[count:])
    return by_kind(list(kinds), recorded[:count], taken)


def by_kind(names: Sequence[str], plan: bytes, taken: Sequence[int]) -> dict[str, list[float]]:
    """Sort samples by kind; subtract the median of each block and add the median of all."""
    sorted_out: dict[str, list[float]] = {name: [] for name in names}
    middle = statistics.median(taken)
    edges = [*range(0, len(taken), BLOCK), len(taken)]
    for start, stop in pairwise(edges):
        here = statistics.median(taken[start:stop])
        for index, value in zip(plan[start:stop], taken[start:stop], strict=True):
            sorted_out[names[index]].append(value - here + middle)
    return sorted_out


# -- comparison -------------------------------------------------------------------------------------------
def compare(title: str, first: Sequence[float], second: Sequence[float]) -> Comparison:
    """Return Mann-Whitney's z, the Kolmogorov-Smirnov distance, and the differences of the quartiles."""
    quartiles = [statistics.quantiles(values, n=4) for values in (first, second)]
    return Comparison(
        title,
        min(len(first), len(second)),
        quartiles[0][1],
        quartiles[1][1],
        tuple(b - a for a, b in zip(*quartiles, strict=True)),
        *_rank_statistics(first, second),
    )


def _rank_statistics(first: Sequence[float], second: Sequence[float]) -> tuple[float, float]:
    """Compute both in one pass over all values in order; equal values share their rank."""
    n, m = len(first), len(second)
    values = sorted([(value, 0) for value in first] + [(value, 1) for value in second])
    seen = [0, 0]
    rank_sum = ties = distance = 0.0
    at = 0
    while at < len(values):
        end = at
        here = [0, 0]
        while end < len(values) and values[end][0] == values[at][0]:
            here[values[end][1]] += 1
            end += 1
        rank_sum += here[1] * (at + 1 + end) / 2
        ties += (end - at) ** 3 - (end - at)
        seen = [seen[0] + here[0], seen[1] + here[1]]
        distance = max(distance, abs(seen[0] / n - seen[1] / m))
        at = end
    total = n + m
    spread = math.sqrt(n * m / 12 * (total + 1 - ties / (total * (total - 1))))
    return ((rank_sum - m * (m + 1) / 2 - n * m / 2) / spread if spread else 0.0), distance


def compare_all(samples: Mapping[str, Sequence[float]]) -> dict[str, Comparison]:
    """Compare every row of ``COMPARED``."""
    return {
        title: compare(title, samples[first], samples[second]) for title, (first, second) in COMPARED.items()
    }


# -- the whole measurement --------------------------------------------------------------------------------
def as_page(comparisons: Mapping[str, Comparison]) -> str:
    """Return the result as Markdown."""
    report = begin()
    machine = ", ".join(f"{key} {value}" for key, value in report.machine.items())
    rows = [
        f"| {comparison.title} | {comparison.first_median / 1000:.2f} | "
        f"{comparison.second_median / 1000:.2f} | "
        + " / ".join(f"{shift:+.0f}" for shift in comparison.shifts)
        + f" | {comparison.z:+.2f} | {comparison.distance:.4f} | {'yes' if comparison.differs else 'no'} |"
        for comparison in comparisons.values()
    ]
    first = next(iter(comparisons.values()))
    return "\n".join(
        [
            "# Deniability: timing of lookups",
            "",
            f"{report.date}. {machine}.",
            "",
            "Written by `make deniability`. One pure task looks names up in random order and times calls:",
            f"{first.tries:,} tries of each kind. Nonexistent names are compared with names in a group of",
            "another user. As a control, the test must find no difference between two sets of nonexistent",
            "names, and must detect an added delay of a few microseconds.",
            "",
            "| comparison | nonexistent, us | other, us | differences of quartiles, ns | z | KS | differs |",
            "|---|---|---|---|---|---|---|",
            *rows,
            "",
            f"Two kinds differ if Mann-Whitney's |z| is over {Z_MAX:.0f}, or the Kolmogorov-Smirnov distance",
            f"over {first.distance_max:.4f}.",
            "",
        ]
    )


def as_expected(comparisons: Mapping[str, Comparison]) -> bool:
    """Return True if the added delays were detected and nothing else."""
    return all(comparison.differs == ("planted" in title) for title, comparison in comparisons.items())


def main() -> int:
    """Measure, print and write the page; return 1 if names differ or an added delay was not detected."""
    print(f"timing {TRIES:,} lookups of each of {len(COMPARED) + 2} kinds of names ...", file=sys.stderr)
    with running_node() as started, dios.connect(started.data, groups=()) as node:
        common, group, kinds = prepare(node)
        comparisons = compare_all(measure(node, common, group, kinds, TRIES))
    page = as_page(comparisons)
    RESULT.write_text(page)
    print(page)
    return 0 if as_expected(comparisons) else 1


if __name__ == "__main__":
    sys.exit(main())
