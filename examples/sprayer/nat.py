"""The NAT of the thesis' Figure 3.5: TCP over IPv4; flows are forgotten only when they are idle.

``python examples/sprayer/nat.py`` sends generated connections through it, without root. Between interfaces,
run ``dios nf run examples/sprayer/nat.py --in eth0 --out eth1``. For real use there is ``dios nf run nat``.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import made_up
import numpy as np

from dios.sprayer import (
    INSIDE,
    NO_ADDRESS,
    NO_FLOW,
    Batch,
    Flow,
    Flows,
    NetworkFunction,
    drop,
    get_five_tuple,
    halves,
    replay,
    reverse,
    set_source,
    set_target,
    with_source,
)


class Nat(NetworkFunction):
    """A NAT: connections from inside leave from one address, each with its own port."""

    entry = (("high", "u8"), ("low", "u8"), ("port", "u2"), ("inward", "u1"))

    def __init__(self, address: str = "192.0.2.1") -> None:
        self.high, self.low = halves(address)
        self.version = 6 if ":" in address else 4

    def prepare(self, cores: int) -> None:
        """Create the pool of ports: each core has its own position in it, on its own cache line."""
        self.next = np.full((cores, 16), 1023)

    def connection_packets(self, batch: Batch, flows: Flows) -> None:
        """Assign a port at the first SYN, on the designated core of both directions."""
        for packet in batch:
            flow = get_five_tuple(packet)
            if packet.version != self.version:
                drop(packet, NO_ADDRESS)
            elif packet.opens and packet.side == INSIDE and flows.get_flow(flow) is None:
                translated = self.select_port(flow, flows)
                outward = flows.insert_local_flow(flow)
                if outward is not None:
                    outward.high, outward.low = self.high, self.low
                    outward.port = translated.source_port
                # The other direction is stored here, too, because ports are chosen for this core.
                inward = flows.insert_local_flow(reverse(translated))
                if inward is not None:
                    inward.high, inward.low, inward.port = flow.source_high, flow.source_low, flow.source_port
                    inward.inward = 1
        self.regular_packets(batch, flows)

    def regular_packets(self, batch: Batch, flows: Flows) -> None:
        """Translate packets of known flows on any core; drop others."""
        for packet in batch:
            entry = flows.get_flow(get_five_tuple(packet))
            if entry is None:
                drop(packet, NO_FLOW)
            elif entry.inward:
                set_target(packet, entry.high, entry.low, entry.port)
            else:
                set_source(packet, entry.high, entry.low, entry.port)

    def select_port(self, flow: Flow, flows: Flows) -> Flow:
        """Return the flow from the NAT's address and the next port with this core as the designated core."""
        mine = self.next[flows.core]
        while True:
            mine[0] = mine[0] + 1 if mine[0] < 65_535 else 1024
            translated = with_source(flow, self.high, self.low, mine[0])
            if flows.designated_core(translated) == flows.core:
                return translated


def main() -> None:
    """Run three connections and their answers; a packet of a stranger is dropped."""
    function = Nat()
    with tempfile.TemporaryDirectory() as folder:
        given, got = Path(folder, "given.pcap"), Path(folder, "got.pcap")
        opened = [made_up.frame(client, 4000, made_up.SERVER, 80, made_up.SYN) for client in made_up.CLIENTS]
        made_up.write(given, opened)
        replay(given, got, function, cores=2, side=made_up.side)
        for before, after in zip(opened, made_up.read(got), strict=True):
            client, port, *_ = made_up.ends(before)
            print(f"{client}:{port} goes on as {'{}:{}'.format(*made_up.ends(after))}")
        # Each replay starts with an empty table, so the same connections get the same ports.
        answers = [made_up.frame(*_turned(data), made_up.SYN | made_up.ACK) for data in made_up.read(got)]
        stranger = made_up.frame(made_up.SERVER, 80, "192.0.2.1", 999, made_up.ACK)
        made_up.write(given, [*opened, *answers, stranger])
        told = replay(given, got, function, cores=2, side=made_up.side)
        for data in made_up.read(got)[len(opened) :]:
            print("an answer for {2}:{3}".format(*made_up.ends(data)))
        print(f"dropped: {told.causes['no_flow']} of no flow")


def _turned(data: bytes) -> tuple[str, int, str, int]:
    source, source_port, target, target_port = made_up.ends(data)
    return target, target_port, source, source_port


if __name__ == "__main__":
    main()
