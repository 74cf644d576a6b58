"""The smallest useful network function: it forwards everything and counts it, on all cores at once.

``python examples/sprayer/count.py`` tries it on generated packets, without root. Between interfaces, run
``dios nf run examples/sprayer/count.py --in eth0 --out eth1``; ``dios nf stats`` shows the counters.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import made_up

from dios.sprayer import Batch, Flows, NetworkFunction, replay


class Count(NetworkFunction):
    """A counter of packets, bytes, and opened connections."""

    stateless = True  # no state is stored for flows, so packets stay on the core where they arrive

    def prepare(self, cores: int) -> None:
        """Create a row of counters for each core; only that core writes it."""
        self.counts = self.counters(cores, "packets", "bytes", "opened")

    def regular_packets(self, batch: Batch, flows: Flows) -> None:
        """Count all packets; there are no connection packets."""
        mine = self.counts[flows.core]
        for packet in batch:
            mine[0] += 1
            mine[1] += packet.length
            mine[2] += packet.opens


def main() -> None:
    """Run six packets through the function; three of them open connections."""
    function = Count()
    with tempfile.TemporaryDirectory() as folder:
        given, got = Path(folder, "given.pcap"), Path(folder, "got.pcap")
        frames = [
            made_up.frame(client, 4000, made_up.SERVER, 80, flags)
            for client in made_up.CLIENTS
            for flags in (made_up.SYN, made_up.ACK)
        ]
        made_up.write(given, frames)
        replay(given, got, function, cores=2)
        same = sorted(made_up.read(got)) == sorted(frames)
    print(", ".join(f"{count} {name}" for name, count in function.totals().items()))
    print(f"all of them went on: {same}")


if __name__ == "__main__":
    main()
