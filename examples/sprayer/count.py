"""The smallest useful network function: lets everything through, and counts it, on all cores at once.

``python examples/sprayer/count.py`` tries it on made-up packets, without root. Between interfaces:
``dios nf run examples/sprayer/count.py --in eth0 --out eth1``, and ``dios nf stats`` shows the counters.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import made_up

from dios.sprayer import Batch, Flows, NetworkFunction, replay


class Count(NetworkFunction):
    """Counts packets and bytes, and connections that are opened."""

    stateless = True  # nothing is kept of flows, so no packet crosses between cores

    def prepare(self, cores: int) -> None:
        """A row of counters for each core, which alone writes it."""
        self.counts = self.counters(cores, "packets", "bytes", "opened")

    def regular_packets(self, batch: Batch, flows: Flows) -> None:
        """All packets, since there are no others."""
        mine = self.counts[flows.core]
        for packet in batch:
            mine[0] += 1
            mine[1] += packet.length
            mine[2] += packet.opens


def main() -> None:
    """Six packets, of which three open connections."""
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
