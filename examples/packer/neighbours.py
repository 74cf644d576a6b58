"""A job with a temporal profile next to greedy tasks: it keeps its bandwidth, and they get the rest.

The cluster is two nodes on this machine, with links configured to 20 MB/s. Tasks on the second node read from
the first: three that read as fast as they can, and the task of job.toml, admitted with 2, then 8, then 4
MB/s.

    python examples/packer/neighbours.py

It needs the extra `cluster`: a coordinator admits the job and sets the job's guarantees on the nodes.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

import dios
from dios.host.confinement.mechanisms import obstacle_to_pure, probe
from dios.lib.reservations import reserve
from dios.node import local_cluster

HERE: Final = Path(__file__).parent
LINK: Final = 20_000_000
GREEDY: Final = 3
SMALL, LARGE = 256 << 10, 8 << 20
PHASES: Final = ((0, 4, 2.0), (4, 8, 8.0), (8, 12, 4.0))
"""The first and the last second of each phase, and its rate in MB/s."""
LOADED_S: Final = 900
"""The time for the first start, in which the scheduler's kernels are compiled."""


@contextmanager
def cluster() -> Iterator[dios.Node]:
    """Run two nodes and a coordinator until the end; yield a connection with the first node."""
    settings = {"coordinator": "on", "link_rate": str(LINK), "pool_size": "1"}
    if obstacle_to_pure(probe()):
        settings["accept_weaker_sandbox"] = "yes"
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="dios-neighbours-")))
        (folder / "run").mkdir(mode=0o700)
        os.environ["XDG_RUNTIME_DIR"] = str(folder / "run")
        site = local_cluster.make(folder / "cluster", nodes=2, settings=settings)
        stack.callback(local_cluster.stop, site)
        local_cluster.start(site)
        yield stack.enter_context(dios.connect(str(site.nodes[0].socket), groups=()))


def wait_coordinator(node: dios.Node) -> None:
    """Wait until a coordinator schedules and has seen both nodes."""
    deadline = time.monotonic() + LOADED_S
    while time.monotonic() < deadline:
        try:
            status = node.ask_scheduler(b'{"ask": "status"}')
            # Jobs over time need the flow scheduler, whose kernels are compiled at the first start.
            if b'"placed_by": "flow"' in status and status.count(b'"coordinator": true') == 2:
                # The first measurement of the links comes within the control interval.
                time.sleep(2)
                return
        except dios.DiosError:
            pass
        time.sleep(0.5)
    raise SystemExit("nobody schedules here: is the extra `cluster` installed?")


def lines_of(task: dios.Task) -> Iterator[tuple[float, float]]:
    """Yield what a reader prints: seconds since it began, and MB/s."""
    rest, console = b"", task.console()
    while True:
        try:
            *lines, rest = (rest + console.receive()).split(b"\n")
        except dios.EndOfStreamError:
            return
        for line in lines:
            second, rate = line.split()
            yield float(second), float(rate)


def main() -> int:
    """Run the job next to greedy tasks; return 0 if it kept 95 % of its guarantee in each phase."""
    reader = HERE / "reader.py"
    with cluster() as node:
        wait_coordinator(node)
        small, large = (node.create(dios.SHMEM_BLOB, data=os.urandom(size)) for size in (SMALL, LARGE))
        handed = {
            name: [reference.restrict("read", label=name)]
            for name, reference in (("small", small), ("large", large))
        }
        # Data for the second node must go over the link, so no other task may run on the first.
        cpus = next(member.cpus for member in node.nodes() if member.here)
        node.run(b"import time; time.sleep(3600)", host="n1", work=dios.work(cpus=cpus))
        greedy = [
            node.run(reader, inputs=handed["large"], args=["20x0"], host="n2", label="greedy")
            for _ in range(GREEDY)
        ]
        time.sleep(2)
        with reserve(node, (HERE / "job.toml").read_text()) as job:
            (member,) = job.tasks
            print(f"{job.job}: admitted for {job.length_s:g} s, its reader on {member.node}")
            phases = [f"{end - begin}x{rate:g}" for begin, end, rate in PHASES]
            task = node.run(
                reader, inputs=handed["small"], args=phases, host=member.node, work=job.work(member)
            )
            got = dict(lines_of(task))
        theirs = [rate for transfer in greedy for second, rate in lines_of(transfer) if 3 < second < 12]
    print("second  MB/s")
    for second, rate in got.items():
        print(f"{second:6.1f}  {rate:5.2f}")
    kept = []
    for begin, end, wanted in PHASES:
        # A line is about the second before it.
        rates = [rate for second, rate in got.items() if begin + 1.1 < second <= end]
        kept.append(statistics.fmean(rates or [0.0]) / wanted)
        print(f"wanted and guaranteed {wanted:g} MB/s: got {kept[-1]:.0%}")
    print(f"the {GREEDY} greedy ones: {statistics.median(theirs) * GREEDY:.1f} MB/s together")
    return 0 if min(kept) >= 0.95 else 1


if __name__ == "__main__":
    sys.exit(main())
