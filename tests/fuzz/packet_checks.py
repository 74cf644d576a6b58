"""Network functions with bad packets, and the checks of each of them.

They are used by the suite and by ``make fuzz-frames`` (``packets_run.py``).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path

import numpy as np

from dios.sprayer.functions.balancer import Balancer
from dios.sprayer.functions.dpi import DeepInspection, Pattern
from dios.sprayer.functions.firewall import Firewall
from dios.sprayer.functions.monitor import Monitor
from dios.sprayer.functions.nat import Nat
from dios.sprayer.memory_engine import MemoryEngine
from dios.sprayer.network_function import NetworkFunction
from dios.sprayer.packets.packet import CAUSES, DROP
from dios.sprayer.pcap import Frame, PcapWriter, replay
from dios.sprayer.runtime.workers import Statistics, Workers
from tests.fuzz.bad_packets import OUTSIDE4, OUTSIDE6, SERVICE

CORES = 2
PART = 20_000
SECONDS = 400
"""The time between packets of a file, long enough for flows to expire."""
_TABLES = 512

FUNCTIONS: dict[str, Callable[[], NetworkFunction]] = {
    "NAT": lambda: Nat((*OUTSIDE4, *OUTSIDE6), range(1024, 1028), flows_max=64),
    "firewall": lambda: Firewall(flows_max=_TABLES),
    "monitor": lambda: Monitor(flows_max=_TABLES),
    "balancer": lambda: Balancer(
        SERVICE, [("10.0.0.1", 1100), ("10.0.0.2", 1101)], "10.0.0.250", flows_max=_TABLES
    ),
    "inspection": lambda: DeepInspection(
        [Pattern("zeros", hex="00 00", action="drop"), Pattern("a", "a", nocase=True)], rings=8, flows_max=64
    ),
}
"""Functions with tables that are too small for the traffic."""


def side(data: bytes) -> int:
    """Return the side, by a byte of the frame."""
    return data[11] & 1 if len(data) > 11 else 0


def write(path: Path, frames: Iterable[bytes], count: int) -> None:
    """Write a file of ``count`` frames."""
    with path.open("wb") as file:
        writer = PcapWriter(file)
        for number, data in enumerate(frames):
            writer.write(number * SECONDS * 10**9 // count, data)


def dropped(statistics: Statistics, function: NetworkFunction) -> dict[str, int]:
    """Return the dropped frames by cause."""
    rows = {row.name: row.stateless if function.stateless else row.stateful for row in CAUSES}
    # A function that gets such packets drops those that it cannot use.
    own = (("fragment", function.takes_fragments), ("protocol", function.takes_protocols))
    rows |= {name: DROP for name, takes in own if takes}
    return {name: count for name, count in statistics.causes.items() if rows[name] == DROP and count}


def accounted(statistics: Statistics, function: NetworkFunction, count: int) -> None:
    """Check that every frame was received once, and sent, or dropped for one cause."""
    causes = dropped(statistics, function)
    counts = statistics.counts
    assert counts["received"] == count, (counts, causes)
    assert counts["sent"] + sum(causes.values()) == count, (counts, causes)
    assert counts["handed_over"] == counts["taken_over"], counts


def through_a_file(
    source: Path, target: Path, name: str, count: int, progress: Callable[[int], None] | None = None
) -> dict[str, int]:
    """Replay a file through a function; return the dropped frames by cause, and ``sent``."""
    function = FUNCTIONS[name]()
    statistics = replay(source, target, function, cores=CORES, side=side, progress=progress)
    accounted(statistics, function, count)
    return {"sent": statistics.counts["sent"], **dropped(statistics, function)}


def in_parts(frames: Iterator[Frame]) -> Iterator[list[bytes]]:
    """Yield some frames at a time."""
    while part := [frame.data for frame in islice(frames, PART)]:
        yield part


def through_memory(frames: Iterator[Frame], name: str) -> Counter[str]:
    """Run frames through a function; each must be released once, and be sent at most once."""
    function = FUNCTIONS[name]()
    workers: Workers | None = None
    seen: Counter[str] = Counter()
    for number, part in enumerate(in_parts(frames)):
        engine = MemoryEngine(
            part, CORES, sides=[side(data) for data in part], steer=np.arange(len(part)) % CORES
        )
        if workers is None:
            workers = Workers(function, engine, seed=1, now=1)
        else:
            workers.set_time(1 + number)
            workers.change_engine(engine)
        workers.drain()
        assert (engine.released == 1).all(), f"part {number}: {Counter(engine.released.tolist())}"
        sent = engine.sent()
        assert len({output.frame for output in sent}) == len(sent), f"part {number}"
        for packet in sent:
            before = part[packet.frame]
            assert len(packet.data) == len(before), f"part {number}, frame {packet.frame}: {before.hex()}"
            # Ethernet headers must not change, but for those that go back to their sender.
            ends = before[6:12] + before[:6] if packet.back else before[:12]
            assert packet.data[:14] == ends + before[12:14], (
                f"part {number}, frame {packet.frame}: {before.hex()}"
            )
            seen["changed" if packet.data != before else "as it was"] += 1
        seen["frames"] += len(part)
    assert workers is not None
    accounted(workers.statistics(), function, seen["frames"])
    return seen
